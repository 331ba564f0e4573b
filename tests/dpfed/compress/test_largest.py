"""The largest magnitudes of vectors with many equal ones: models that have been pruned."""

import numpy as np
import pytest
import torch

from dpfed.compress import sparse
from dpfed.compress.sparse import largest_indices

SIZE = 5000


def by_sort(row, kept):
    return sorted(sorted(range(len(row)), key=lambda place: (-abs(row[place]), place))[:kept])


def pruned(held, seed):
    """`held` of 5,000 are not zero: some tiny, some equal, of both signs; zeros have both signs, too."""
    rng = np.random.default_rng(seed)
    row = np.where(rng.random(SIZE) < 0.5, 0.0, -0.0)
    values = rng.choice([1e-45, -1e-40, 0.25, -0.25, 3e38, *rng.standard_normal(20)], held)
    row[rng.permutation(SIZE)[:held]] = values
    return torch.tensor(row, dtype=torch.float32)


@pytest.mark.parametrize("held", [0, 1, 150, 2500, 4999, 5000])
def test_zeros_count_as_the_smallest_and_the_first_of_them_come_first(held):
    row = pruned(held, held)
    for kept in sorted({1, 149, 150, 151, 2499, 2500, 2501, 4998, 4999, 5000}):
        assert largest_indices(row[None], kept)[0].tolist() == by_sort(row.tolist(), kept), kept


def test_taking_the_last_of_the_equal_ones_is_caught(monkeypatch):
    """The planted fault: from a threshold one step too low, those that stay out are not its equals."""
    row = pruned(150, 3)
    right = sparse._kth_largest

    def lower(magnitudes, kept):
        return np.nextafter(right(magnitudes, kept), np.float32(-1))

    monkeypatch.setattr(sparse, "_kth_largest", lower)
    with pytest.raises((AssertionError, ValueError)):
        assert largest_indices(row[None], 120)[0].tolist() == by_sort(row.tolist(), 120)
