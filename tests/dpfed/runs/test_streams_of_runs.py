"""In whole runs no draw is another's: every place that draws names its round, its client and what else there is."""

from collections import Counter

import numpy as np
import pytest
import torch

from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw
from dpfed.randomness import Simulated
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import configured

OF_ALL = {"clients": 12, "cohort": 12, "rounds": 3, "sampling": "all"}
TWICE = {"epochs": 2, "strategy": "loop"}
GAUSSIAN = ("privacy.noise_multiplier=1.0", "privacy.clip_norm=1.0", "privacy.accountant=rdp")
DISCRETE = (*GAUSSIAN, "privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out")
RUNS = {
    "noise of the server": (*GAUSSIAN, "federation.sampling=poisson", "federation.cohort=6"),
    "shares": (*GAUSSIAN, "privacy.placement=clients", "privacy.adjacency=zero-out"),
    "uploads": (*GAUSSIAN, "privacy.release=uploads", "privacy.adjacency=zero-out"),
    "integer shares": (*DISCRETE, "aggregation.kind=protocol"),
    "skellam": (*DISCRETE, "privacy.noise=skellam", "aggregation.kind=masked"),
    "coins": (
        "method.name=fedpm", "privacy.clip_norm=1.0", "privacy.accountant=rdp", "privacy.adjacency=zero-out",
        "mask.edge=0.1", "server.rule=posterior", "privacy.noise_std=0.1",
    ),
    "masks": ("method.name=fedpm", "server.rule=posterior"),
    "masked noise": ("method.name=fedmrn",),
    "records": ("method.name=fedavg", "local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0"),
}  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(settings)`: what a run draws, as (kind, purpose, path, bytes); at least 8 bytes each."""

    def runs(tmp_path, settings):
        found = []

        def watched(kind, plain, whole=lambda result: np.asarray(result).tobytes()):
            def draw(self, *arguments, **more):
                result = plain(self, *arguments, **more)
                purpose, path = (arguments[0], arguments[1:]) if kind == "tensors" else (arguments[1], arguments[2:])
                found.append((kind, purpose, path, whole(result)))
                return result

            return draw

        def beginning(stream):
            """Read from a copy; the key is the stream's."""
            state = stream._generator.bit_generator.state
            row = torch.empty(8)
            stream.fill_uniform(row)
            stream._generator.bit_generator.state = state
            return row.numpy().tobytes()

        with monkeypatch.context() as patch:
            for kind in ("uniform", "bits", "normal"):
                patch.setattr(Simulated, kind, watched(kind, getattr(Simulated, kind)))
            patch.setattr(Seeds, "tensors", watched("tensors", Seeds.tensors, beginning))
            experiment = build(configured(*settings, federation=OF_ALL, local=TWICE, privacy=None))
            found.clear()
            federation.run(experiment, tmp_path / "run")
        return [one for one in found if len(one[3]) >= 8]

    return runs


def drawn_twice(found):
    """Draws whose first 8 bytes are those of an earlier one of the same kind: 10^4 draws, chance 10^-11."""
    counts = Counter((kind, content[:8]) for kind, _, _, content in found)
    return [(purpose, path) for kind, purpose, path, content in found if counts[kind, content[:8]] > 1]


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize("case", RUNS)
def test_no_two_draws_of_a_run_are_one(tmp_path, drawn, case):
    found = drawn(tmp_path, RUNS[case])
    assert len(found) >= 3
    assert drawn_twice(found) == []


def of_path(places, plain):
    """The same method whose draws keep only these places of their path."""

    def normal(self, count, purpose, *path, device="cpu"):
        return plain(self, count, purpose, *(path[place] for place in places if place < len(path)), device=device)

    return normal


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize("places", [(0,), (1,), ()], ids=["no client", "no round", "neither"])
@pytest.mark.parametrize("case", ["shares", "uploads", "records"])
def test_noise_that_forgets_who_and_when_is_found(tmp_path, drawn, monkeypatch, case, places):
    """The planted faults, in the place that draws."""
    monkeypatch.setattr(Simulated, "normal", of_path(places, Simulated.normal))
    assert len(drawn_twice(drawn(tmp_path, RUNS[case]))) >= 12


def test_integer_noise_that_forgets_the_client_is_found(tmp_path, drawn, monkeypatch):
    whole = DiscreteGaussianLaw.sample

    def sample(self, count, randomness, purpose, number, *_):
        return whole(self, count, randomness, purpose, number)

    monkeypatch.setattr(DiscreteGaussianLaw, "sample", sample)
    assert len(drawn_twice(drawn(tmp_path, RUNS["integer shares"]))) >= 36


@pytest.mark.parametrize("case", ["masks", "masked noise"])
def test_coins_of_training_that_forget_the_client_are_found(tmp_path, drawn, monkeypatch, case):
    whole = Seeds.tensors

    def tensors(self, purpose, *path, device="cpu"):
        return whole(self, purpose, *path[:1], device=device)

    monkeypatch.setattr(Seeds, "tensors", tensors)
    assert len(drawn_twice(drawn(tmp_path, RUNS[case]))) >= 36


def test_a_server_that_forgets_the_round_is_found(tmp_path, drawn, monkeypatch):
    plain = GaussianNoise._draw_normals
    monkeypatch.setattr(GaussianNoise, "_draw_normals", lambda self, like, purpose, *path: plain(self, like, purpose))
    assert {purpose for purpose, _ in drawn_twice(drawn(tmp_path, RUNS["noise of the server"]))} == {"noise.sum"}
