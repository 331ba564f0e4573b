"""Integer noise on sums of integers: discrete Gaussian, Skellam, and what rounding to integers adds."""
