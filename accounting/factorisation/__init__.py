"""Noise that is correlated over rounds: factorisations of prefix sums, their sensitivity and their error.

A run publishes x_t + w_t, x_t the sum of round t and w = C^-1 z of fresh independent Gaussian noise z. C is lower
triangular and Toeplitz with first column c, c_0 = 1. That is C x + z seen through C^-1, so the privacy is that of one
Gaussian mechanism on C x, also where x_t depends on what was published before (Denisov, McMahan, Rush, Smith, Thakurta
2022, Theorem 2.1). Noise of one round is taken back in the next ones, so that the error of x_1 + ... + x_t, which the
model is, stays small.

`optimise` searches for C; it is loaded when asked for, since it brings an optimiser.
"""

from accounting.factorisation.toeplitz import buffered, column, inverse, sensitivity, square_root

__all__ = ["buffered", "column", "inverse", "sensitivity", "square_root"]
