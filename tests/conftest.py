"""Reproducible property tests everywhere: the same examples in every run."""

from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("reproducible")
