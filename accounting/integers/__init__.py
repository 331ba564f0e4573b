"""Accounts of integer noise on sums of integers: discrete Gaussian, Skellam, and the effect of rounding to integers."""
