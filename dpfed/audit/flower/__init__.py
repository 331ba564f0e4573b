"""Flower's differentially private strategies and mods under audit, in this process and without a network.

`rounds` drives a strategy with given updates, `cases` lists those of Flower's library with what they claim.
"""
