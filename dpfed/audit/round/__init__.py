"""Audit of one round of a method: trials in two neighbouring worlds, and exact checks of its parts."""
