"""python -m fieldlens: the same command line."""

from fieldlens.cli import main

main()
