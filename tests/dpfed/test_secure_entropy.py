"""Secure randomness is the operating system's, whole: as many bits as it shows, none of them from a short seed."""

import hashlib
import math
import os
import random

import numpy as np
import pytest
import torch
from scipy import stats

from dpfed.config.tables import override, parse
from dpfed.randomness import Secure
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build


class Ends(Secure):
    """Secure randomness whose bits are the least, one, the middle, and the largest."""

    def bits(self, count, purpose, *path):
        return np.array([0, 1, 1 << 63, (1 << 64) - 1], dtype=np.uint64)


def test_normals_are_finite_and_symmetric_at_the_ends_of_their_bits():
    least, one, middle, largest = Ends().normal(4, "noise.sum").tolist()
    assert least == one == -largest
    assert largest == pytest.approx(stats.norm.isf(2.0**-53), rel=1e-7)
    assert 0 < middle < 1e-15


CALLS = 1 << 18
"""Two of so many draws from 32 bits of entropy are one but with chance e^-8; of fair 64 bits or more, with 2^-29."""

DRAWS = {
    "bits": (lambda source: source.bits(16, "x"), 16 * 64),
    "uniform": (lambda source: source.uniform(16, "x"), 16 * 53),
    "normal": (lambda source: source.normal(16, "x").numpy(), 16 * 24),
    "subset": (lambda source: source.subset(16, 1 << 20, "x"), math.log2(math.comb(1 << 20, 16))),
}
"""A draw and the bits of entropy that are in it, at least."""


class Short(Secure):
    """The planted faults: bits of a generator that was given so many bytes, of the operating system's all the same."""

    def __init__(self, size):
        object.__setattr__(self, "size", size)

    def bits(self, count, purpose, *path):
        seed = int.from_bytes(os.urandom(self.size), "little")
        return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


class Reduced(Secure):
    """And of a good hash that asks for enough and keeps 32 bits."""

    def bits(self, count, purpose, *path):
        kept = os.urandom(8 * count)[:4]
        return np.frombuffer(hashlib.shake_256(kept).digest(8 * count), dtype=np.uint64)


@pytest.fixture
def asked(monkeypatch):
    """Bytes that were asked of the operating system, in calls."""
    sizes, whole = [], os.urandom

    def urandom(size):
        sizes.append(size)
        return whole(size)

    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(random, "_urandom", urandom)  # what `secrets` reads
    return sizes


def entropy_short(source, draw, needed, asked):
    """Bits that the draw shows and the operating system was not asked for."""
    asked.clear()
    draw(source)
    return max(0.0, needed - 8 * sum(asked))


@pytest.mark.parametrize("kind", DRAWS)
def test_every_bit_that_is_shown_was_asked_of_the_operating_system(kind, asked):
    assert entropy_short(Secure(), *DRAWS[kind], asked) == 0


@pytest.mark.parametrize("size", [4, 8, 15])
@pytest.mark.parametrize("kind", ["bits", "uniform", "normal"])
def test_a_seed_is_found(kind, size, asked):
    assert entropy_short(Short(size), *DRAWS[kind], asked) > 0


def repeated(draw, source):
    return CALLS - len({draw(source) for _ in range(CALLS)})


def test_draws_do_not_repeat():
    assert repeated(lambda source: source.bits(2, "x").tobytes(), Secure()) == 0


def test_thirty_two_bits_are_found_however_many_were_asked_for():
    """Chance to miss it e^-8 = 0.0003: the only test here that fails by chance, and says so where it does."""
    assert repeated(lambda source: source.bits(2, "x").tobytes(), Reduced()) > 0


@pytest.mark.parametrize("kind", ["uniform", "normal", "subset"])
def test_the_other_draws_do_not_repeat_either(kind):
    """4,096 draws of 380 bits and more: they are made of `bits`, or of `secrets`, and of no state of their own."""
    draw, _ = DRAWS[kind]
    assert len({draw(Secure()).tobytes() for _ in range(4096)}) == 4096


def test_no_generator_with_a_state_is_drawn_from(monkeypatch):
    """Neither seeding nor using numpy's, Python's or torch's changes what comes: they are not there to be called."""

    def refuse(*_, **__):
        raise AssertionError("a generator with a state")

    for module, names in (
        (np.random, ("default_rng", "Generator", "Philox", "PCG64", "SFC64", "MT19937", "RandomState", "SeedSequence")),
        (torch, ("Generator", "randn", "rand", "manual_seed")),
        (random, ("Random", "seed", "getrandbits", "random")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    for draw, _ in DRAWS.values():
        draw(Secure())


TABLES = {
    "data": {"name": "digits", "train_samples": 240, "test_samples": 50},
    "model": {"name": "mlp", "hidden": [4]},
    "federation": {"clients": 10, "cohort": 10, "rounds": 1, "sampling": "all"},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "dp-fedavg"},
    "privacy": {
        "noise_multiplier": 1.0, "clip_norm": 1.0, "accountant": "rdp", "noise": "discrete-gaussian",
        "placement": "clients", "adjacency": "zero-out",
    },
    "run": {"randomness": "secure"},
}  # fmt: skip


def bytes_of_a_run(folder, asked, *settings):
    experiment = build(parse(override({name: dict(t) for name, t in TABLES.items()}, list(settings)), source="test"))
    asked.clear()
    federation.run(experiment, folder)
    return sum(asked), 10 * experiment.method.stages.width


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_a_run_asks_for_the_entropy_of_its_noise(tmp_path, asked, monkeypatch, kind):
    """Two bytes, at least, for every integer of every client's share in every round; none from a seed."""
    settings = (f"aggregation.kind={kind}",)
    given, draws = bytes_of_a_run(tmp_path / "whole", asked, *settings)
    assert given >= 2 * draws
    monkeypatch.setattr(Secure, "bits", lambda self, *of: Short.bits(Short(4), *of))
    given, draws = bytes_of_a_run(tmp_path / "short", asked, *settings)
    assert given < 2 * draws
