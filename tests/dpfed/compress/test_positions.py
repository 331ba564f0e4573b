"""Positions of a mask, few or many, in masks of any length."""

import numpy as np
import pytest

from dpfed.compress.sparse import positions_of


@pytest.mark.parametrize("share", [0.0, 0.001, 0.07, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_positions_are_those_that_are_set(count, share):
    mask = np.random.default_rng(count).random(count) < share
    assert positions_of(mask).tolist() == [place for place in range(count) if mask[place]]


def test_every_mask_of_ten():
    for bits in range(1 << 10):
        mask = np.array([bits >> place & 1 for place in range(10)], dtype=bool)
        assert positions_of(mask).tolist() == [place for place in range(10) if bits >> place & 1]
