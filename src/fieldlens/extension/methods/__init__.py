"""One file per extension method."""
