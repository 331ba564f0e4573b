"""The embedded digits: whole, split once and for all."""

import numpy as np
from sklearn.datasets import load_digits as reference

from dpfed.data import load


def test_digits_are_all_there_in_two_disjoint_halves() -> None:
    data = load("digits")
    assert data.train_inputs.shape == (1438, 1, 8, 8)
    assert data.test_inputs.shape == (359, 1, 8, 8)
    rows = np.concatenate([data.train_inputs, data.test_inputs]).reshape(-1, 64) * 16
    pixels = reference().data
    assert sorted(map(tuple, rows.astype(int).tolist())) == sorted(map(tuple, pixels.astype(int).tolist()))


def test_digits_lie_between_zero_and_one_and_test_every_class() -> None:
    data = load("digits")
    assert data.train_inputs.min() == 0
    assert data.train_inputs.max() == 1
    assert np.bincount(data.test_labels, minlength=10).min() > 20


def test_split_never_changes() -> None:
    assert load("digits").test_labels[:12].tolist() == [5, 0, 2, 4, 6, 7, 8, 0, 8, 1, 7, 6]
