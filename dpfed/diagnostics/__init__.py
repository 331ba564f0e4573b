"""Diagnostics of rounds for their operator, which no epsilon covers."""
