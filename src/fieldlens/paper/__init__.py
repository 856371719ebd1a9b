"""The paper, arXiv:2212.10356: its tables, figures and claims, from the results of one study."""
