"""Epsilon of settings of other libraries: what they state, what they leave open, and the largest epsilon that fits."""
