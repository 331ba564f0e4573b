"""Entry point of `python -m dpfed`."""

from dpfed.cli import main

main()
