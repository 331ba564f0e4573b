"""Sweeps: a table or figure as one TOML file, its grid of runs, and their execution."""
