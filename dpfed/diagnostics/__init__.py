"""Diagnostics of rounds for the run's operator; no epsilon covers them."""
