"""Maps: adjoint, unbiased where said so, and ties, NaN and edges."""

from itertools import combinations

import numpy as np
import pytest
import torch
from refusals import refused

from dpfed.errors import ConfigError
from dpfed.seeds import Seeds
from dpfed.stages.project import (
    Identity,
    RandomSharedMask,
    SendAll,
    SharedMask,
    kept_coordinates,
    random_indices,
    top_indices,
)

SEEDS = Seeds(root=3)
SIZE, KEPT = 12, 5
CLIENTS = np.arange(4)


def updates(seed=0, clients=4, size=SIZE):
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def maps():
    indices = torch.tensor([1, 3, 4, 8, 11])
    return [Identity(size=SIZE), SharedMask(size=SIZE, indices=indices, scale=SIZE / KEPT)]


@pytest.mark.parametrize("chosen", maps(), ids=["identity", "shared"])
def test_adjoint_up_to_the_scale(chosen):
    """<forward(x), y> = scale <x, adjoint(y)>."""
    x, y = updates(1, clients=1), updates(2, clients=1, size=chosen.sent)[0]
    scale = getattr(chosen, "scale", 1.0)
    assert float(chosen.forward(x.clone(), CLIENTS[:1])[0] @ y) == pytest.approx(
        scale * float(x[0] @ chosen.adjoint(y)), rel=1e-12
    )


def test_a_random_shared_mask_is_unbiased_over_all_masks():
    """The exact mean over every subset of k coordinates, by enumeration."""
    x = updates(clients=1, size=6)
    subsets = list(combinations(range(6), 2))
    total = torch.zeros(6, dtype=torch.float64)
    for subset in subsets:
        chosen = SharedMask(size=6, indices=torch.tensor(subset), scale=6 / 2)
        total += chosen.adjoint(chosen.forward(x.clone(), CLIENTS[:1])[0])
    torch.testing.assert_close(total / len(subsets), x[0])


def test_random_indices_are_uniform():
    """Each of the C(5, 2) subsets equally often: chi-square, 9 degrees of freedom, seeded; 27.9 is its 0.1% point."""
    names = dict.fromkeys(combinations(range(5), 2), 0)
    for round in range(5000):
        names[tuple(random_indices(5, 2, SEEDS, "mask.shared", round).tolist())] += 1
    statistic = sum((count - 500) ** 2 / 500 for count in names.values())
    assert statistic < 27.9


def test_top_k_keeps_the_largest_and_ties_go_to_the_lower_index():
    rows = torch.tensor([[1.0, -3.0, 3.0, 2.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert top_indices(rows, 2).tolist() == [[1, 2], [0, 1], [0, 1]]


def test_nan_never_wins_a_place():
    rows = torch.tensor([[float("nan"), 1.0, 2.0]])
    assert top_indices(rows, 2).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("choice", "sent", "downlink"),
    [(SendAll(size=1000), 1000, 32_000), (RandomSharedMask(size=1000, kept=10), 10, 32_064)],
)
def test_values_sent_and_bits_received(choice, sent, downlink):
    assert (choice.sent, choice.downlink_bits) == (sent, downlink)


def test_the_shared_mask_changes_every_round_and_repeats_from_the_seed():
    choice = RandomSharedMask(size=1000, kept=10)
    weights = torch.zeros(1000)
    first, again, later = (choice.for_round(weights, t, SEEDS).indices for t in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(later)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep": 0.005, "k": None}, 5),
        ({"keep": None, "k": 7}, 7),
        ({"keep": 1e-9, "k": None}, 1),
        ({"keep": 1.0, "k": None}, 1000),
    ],
)
def test_kept_coordinates(options, expected):
    assert kept_coordinates(1000, **options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"keep": None, "k": None},
        {"keep": 0.1, "k": 3},
        {"keep": 0.0, "k": None},
        {"keep": 1.5, "k": None},
        {"keep": float("nan"), "k": None},
        {"keep": None, "k": 0},
        {"keep": None, "k": 1001},
    ],
)
def test_impossible_k_is_refused(options):
    refused(ConfigError, "method", kept_coordinates, 1000, **options)
