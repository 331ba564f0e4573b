"""Correlated noise over rounds: Toeplitz factorisations of prefix sums, their sensitivity and their error.

A run publishes x_t + w_t, x_t the sum of round t and w = C^-1 z of fresh independent Gaussian noise z. C is lower
triangular and Toeplitz with first column c, c_0 = 1. The release is C^-1 (C x + z), so it has the privacy of one
Gaussian mechanism on C x, even if x_t depends on earlier releases (Denisov, McMahan, Rush, Smith, Thakurta 2022,
Theorem 2.1). Later rounds cancel a part of each round's noise, so the error of the model x_1 + ... + x_t stays small.

`optimise` searches for C. It is imported only when needed, because it imports an optimiser.
"""

from accounting.factorisation.toeplitz import buffered, column, inverse, sensitivity, square_root

__all__ = ["buffered", "column", "inverse", "sensitivity", "square_root"]
