"""Streams are reproducible, named, and independent of who else draws."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.seeds import Seeds, _splitmix_outputs

IDS = np.arange(50)


def test_tensors_repeat_and_leave_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    first, second = (Seeds(root=1).tensors("masks", 2).normal(4) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_streams_are_frozen_across_releases() -> None:
    """A stored run must be repeatable by a later version: these numbers may never change."""
    seeds = Seeds(root=2026)
    assert seeds.integer("model", 0) == 2702980036632545931
    assert seeds.keys("local.shuffle", 1, np.array([5]), (2,)).tolist() == [[696956298358993387, 14102821146277354267]]


def test_absorb_matches_published_splitmix64() -> None:
    outputs = _splitmix_outputs(np.array([1234567], dtype=np.uint64), np.arange(5, dtype=np.uint64))[0]
    assert outputs.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(0, 19))
def test_keys_of_a_client_do_not_depend_on_the_others(ids: list[int], place: int) -> None:
    seeds, place = Seeds(root=3), place % len(ids)
    together = seeds.keys("local.shuffle", 4, np.array(ids), (2, 5))
    alone = seeds.keys("local.shuffle", 4, np.array([ids[place]]), (2, 5))
    np.testing.assert_array_equal(together[place], alone[0])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.integers(0, 4))
def test_keys_are_kept_when_the_shape_grows(epochs: int, length: int, more: int, longer: int) -> None:
    seeds = Seeds(root=3)
    small = seeds.keys("local.shuffle", 0, IDS, (epochs, length))
    large = seeds.keys("local.shuffle", 0, IDS, (epochs + more, length + longer))
    np.testing.assert_array_equal(small, large[:, :epochs, :length])


def test_keys_differ_between_clients_rounds_and_purposes() -> None:
    seeds = Seeds(root=3)
    tables = [seeds.keys(p, r, IDS, (3, 20)).ravel() for p in ("a", "b") for r in (0, 1)]
    assert len(np.unique(np.concatenate(tables))) == 4 * 50 * 3 * 20


def test_argsort_of_keys_is_a_uniform_permutation() -> None:
    order = np.argsort(Seeds(root=3).keys("a", 0, np.arange(60_000), (3,)), axis=-1)
    counts = np.unique(order @ np.array([9, 3, 1]), return_counts=True)[1]
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(10_000 * 5 / 6)
