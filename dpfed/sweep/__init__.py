"""Experiments: a table or a figure as one TOML file, its grid of runs, and running it."""
