"""Tables, plots and the blocks of HTML pages; the pages are made by receptive, study and paper."""
