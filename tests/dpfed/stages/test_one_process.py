"""In one process nothing is read back from bytes, and rows go a few at a time: with the same result."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dpfed.sources
from dpfed import data
from dpfed.data.dataset import Dataset
from dpfed.runs.experiment import build
from dpfed.stages.clip import Clip, clip_rows, largest_magnitudes, row_norms

from ...rounds import DIGITS, configured, watched_round
from ..announced import announced, arrive, decoded, messages, read

pytestmark = pytest.mark.slow_but_one_in(3)

GROUP = np.array([2, 5, 7, 11, 13])
PRIVATE = ("privacy.clip_norm=0.2", "privacy.noise_multiplier=1.0")
CODES = {
    "floats": ("fedavg", ()),
    "half floats": ("fedavg", ("method.options.bits=16",)),
    "private floats": ("dp-fedavg", PRIVATE),
    "own largest": ("fedavg-topk", ("method.keep=0.1",)),
    "own random": ("fedavg-randk", ("method.keep=0.4",)),
    "error feedback": ("fedavg-topk", ("method.keep=0.1", "method.error_feedback=true")),
    "signs": ("signsgd", ()),
    "random signs": ("stochastic-sign", ()),
    "trits": ("terngrad", ()),
    "levels": ("qsgd", ()),
    "rotation": ("drive", ()),
    "centroids": ("eden", ("method.options.bits=2",)),
    "private centroids": ("eden", ("method.options.bits=2", *PRIVATE)),
    "masked noise": ("fedmrn", ()),
    "signed masked noise": ("fedmrns", ()),
    "projections": ("fedscalar", ("method.options.projections=3",)),
    "models": ("fedsparsify", ()),
    "models purged by clients": ("fedsparsify", ("method.purge=clients",)),
    "masks": ("fedpm", ()),
    "thresholds": ("fedmask", ()),
    "exempt entries": ("drive", ("model.name=cnn-4-bn", "data.name=small-images")),
}


def experiment_of(case):
    method, settings = CODES[case]
    images = case == "exempt entries"
    if images:
        register_small_images()
    changed = {
        "data": {"test_samples": 10},
        "model": {"hidden": None if images else [8]},
        "federation": {"clients": 20, "cohort": 8},
        "local": {"epochs": None, "steps": 1},
    }
    return build(configured(*settings, start=DIGITS, method={"name": method}, privacy=None, **changed))


def register_small_images():
    inputs = np.random.default_rng(0).standard_normal((200, 1, 16, 16), dtype=np.float32)
    labels = np.arange(200) % 10
    images = Dataset(
        name="small-images",
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:20],
        test_labels=labels[:20],
        classes=10,
    )
    data.register("small-images", images)


def rows_like(origin, *, small):
    """Usual rows; if not small, one of zeros, one of a client that has diverged, one beyond every bound."""
    rows = 0.02 * torch.randn(5, len(origin), generator=torch.Generator().manual_seed(3))
    if small:
        return rows
    rows[1] = 0
    rows[2, 4] = float("nan")
    rows[3, 0] = 1e25
    return rows


SMALL_ROWS = ("masks", "thresholds", "exempt entries")


@pytest.mark.parametrize("case", sorted(CODES))
def test_what_arrives_is_what_the_bytes_say(case):
    experiment = experiment_of(case)
    stages, origin = experiment.method.stages, experiment.start.broadcast
    memories = {}, {}
    for number in (1, 2):  # error feedback remembers
        one, other = (replace(announced(experiment, number=number, uploads=5), memory=kept) for kept in memories)
        rows = rows_like(origin, small=case in SMALL_ROWS)
        here, counted = arrive(stages, rows.clone(), GROUP, one)
        there, read_of = read(stages, messages(stages, rows.clone(), GROUP, other), GROUP, other)
        assert torch.equal(here, there)
        assert (counted.uplink_bytes, counted.not_finite) == (read_of.uplink_bytes, read_of.not_finite)
        assert counted.not_finite == (0 if case in SMALL_ROWS else 2)
        assert torch.equal(*(decoded(stages, here.sum(dim=0), now) for now in (one, other)))


@pytest.mark.parametrize("case", ["floats", "private floats", "levels", "models purged by clients", "masks"])
def test_a_round_is_the_same_in_pieces(case, monkeypatch):
    ends = []
    for at_once in (1, 3000, 1 << 30):
        monkeypatch.setattr(dpfed.sources, "_AT_ONCE", at_once)
        experiment = experiment_of(case)
        state, observed = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
        ends.append((state.broadcast, observed.clipped, observed.uplink_bytes, observed.arrived))
    for other in ends[1:]:
        torch.testing.assert_close(other[0], ends[0][0], rtol=1e-5, atol=1e-6)
        assert other[1:] == ends[0][1:]


def test_rows_pass_through_the_stages_on_one_thread(monkeypatch):
    """One thread inside, so that bits do not depend on the number of cores; the number of threads is restored."""
    experiment, seen, clip = experiment_of("private floats"), [], Clip.client

    def client(self, rows, ids, now):
        seen.append(torch.get_num_threads())
        return clip(self, rows, ids, now)

    monkeypatch.setattr(Clip, "client", client)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {1}


def test_norms_are_those_of_float64():
    rows = torch.randn(4, 30_000, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[1.0], [1e-30], [1e30], [0]]
    )
    assert np.allclose(row_norms(rows), np.linalg.norm(rows.double().numpy(), axis=1), rtol=1e-14)
    assert row_norms(torch.zeros(0, 5)).shape == (0,)
    rows[1, 7], rows[2, 3] = float("inf"), float("nan")
    assert largest_magnitudes(rows).isfinite().tolist() == [True, False, False, True]
    assert largest_magnitudes(torch.zeros(2, 0)).tolist() == [0, 0]
    clipped = clip_rows(rows, 2.0)
    assert (clipped.not_finite, clipped.inside.tolist()) == (2, [False] * 4)  # a row of zeros counts nowhere


@pytest.mark.parametrize("length", [3, 30_000])
def test_largest_magnitudes_are_exact(length):
    rows = torch.randn(6, length, generator=torch.Generator().manual_seed(3))
    rows[1:4] = 0.0
    rows[0, 2], rows[2, 0], rows[3, 1], rows[4, 2] = -1e30, -1e-45, float("nan"), -float("inf")
    assert torch.equal(largest_magnitudes(rows).nan_to_num(-1.0), rows.abs().amax(dim=1).nan_to_num(-1.0))
    assert not largest_magnitudes(rows).signbit().any()
