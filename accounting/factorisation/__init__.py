"""Noise that is correlated over rounds: factorisations of prefix sums, their sensitivity and their error.

A run publishes x_t + w_t, x_t the sum of round t and w = C^-1 z of fresh independent Gaussian noise z. C is lower
triangular and Toeplitz with first column c, c_0 = 1. This is C x + z multiplied by C^-1, so the privacy is that of one
Gaussian mechanism on C x, also if x_t depends on earlier releases (Denisov, McMahan, Rush, Smith, Thakurta 2022,
Theorem 2.1). Later rounds cancel a part of each round's noise, so the error of x_1 + ... + x_t, the model, stays small.

`optimise` searches for C; it is loaded when requested, because it loads an optimiser.
"""

from accounting.factorisation.toeplitz import buffered, column, inverse, sensitivity, square_root

__all__ = ["buffered", "column", "inverse", "sensitivity", "square_root"]
