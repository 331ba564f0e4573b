"""`Secure` takes every bit from the operating system, and no seed has a part in it."""

import os
import secrets
from fractions import Fraction

import numpy as np
import pytest

from accounting.budget import Poisson
from dpfed.randomness import Secure
from dpfed.seeds import Seeds


@pytest.fixture
def taken(monkeypatch):
    """How many bytes the operating system was asked for."""
    real, counts = os.urandom, []
    monkeypatch.setattr(os, "urandom", lambda count: counts.append(count) or real(count))
    return counts


def test_as_many_bits_as_are_used_come_from_the_operating_system(taken):
    Secure().bits(100, "noise.sum", 1)
    assert sum(taken) >= 800
    taken.clear()
    Secure().uniform(100, "cohort", 1)
    assert sum(taken) >= 100 * 53 // 8
    taken.clear()
    Secure().normal(100, "noise.sum", 1)
    assert sum(taken) >= 100 * 53 // 8


def test_seeds_are_never_asked(monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("a stream of the seed")

    for name in ("generator", "tensors", "integer", "keys"):
        monkeypatch.setattr(Seeds, name, refuse)
    for _ in range(2):
        Secure().bits(3, "x")
        Secure().subset(3, 10, "cohort", 0)
        Secure().normal(3, "x")


def test_the_same_name_never_gives_the_same_draws():
    """Two draws of 128 bits agree with probability 2^-128."""
    random = Secure()
    for draw in (lambda: random.bits(2, "noise.sum", 0), lambda: random.uniform(4, "cohort", 0)):
        assert not np.array_equal(draw(), draw())
    assert not np.array_equal(random.subset(64, 10**6, "cohort", 0), random.subset(64, 10**6, "cohort", 0))


def test_subsets_come_from_the_system_too(monkeypatch):
    class Seen(secrets.SystemRandom):
        made = 0

        def __init__(self):
            Seen.made += 1
            super().__init__()

    monkeypatch.setattr(secrets, "SystemRandom", Seen)
    Secure().subset(5, 100, "cohort", 0)
    assert Seen.made == 1


def test_poisson_sampling_never_draws_more_often_than_is_charged():
    """The uniforms are k / 2^53, so q's of clients / cohorts that are no multiples need a bound below q."""

    class Grid(Secure):
        def uniform(self, count, purpose, *path):
            return (first + np.arange(count)) * 2.0**-53

    for cohort, clients in ((1, 3), (7, 1000), (1, 10**6 + 3), (3, 4)):
        q = Fraction(cohort / clients)
        first, count = int(q * 2**53) - 1, 4
        drawn = Poisson(cohort=cohort).cohorts(clients)
        inside = [k for k in range(first, first + count) if (k - first) in set(drawn.sample(Grid(), 0).tolist())]
        share = Fraction(max(inside) + 1, 2**53)  # the k from 0 to the largest drawn are drawn
        assert q - Fraction(1, 2**53) < share <= q
