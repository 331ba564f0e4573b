"""Trials and exact checks of one round of a method."""
