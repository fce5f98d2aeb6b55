"""`python -m avo_cute`: the command line where its script is not installed."""

from .cli import main

main()
