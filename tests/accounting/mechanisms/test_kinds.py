"""The registry of kinds: a new one is a class that names its account; nothing else has to know it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused

import accounting
from accounting import (
    Adjacency,
    Composed,
    Gaussian,
    Header,
    Ledger,
    PoissonSampling,
    Release,
    guarantee,
    mechanisms,
    subsample,
)
from accounting.compose import pld, rdp
from accounting.compose.second_opinion import second_opinion
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import subsampling
from accounting.mechanisms import Unsampled
from accounting.mechanisms.kinds import Account, account_of


def pure_renyi(orders, release):
    """min{epsilon, alpha epsilon^2 / 2} (Bun, Steinke 2016, Prop. 3.3)."""
    return np.minimum(release.strength, orders * release.strength**2 / 2)


def pure_sampled(orders, release, sampling):
    def curve(at):
        return pure_renyi(at, release)

    return subsampling.amplified_curve(orders, curve, release.adjacency, sampling, largest=64.0)


@dataclass(frozen=True, kw_only=True)
class Pure(Unsampled):
    """Any sum that is (strength, 0)-private: a kind of this test alone."""

    strength: float
    adjacency: Adjacency
    kind: ClassVar[str] = "pure"
    account: ClassVar[Account] = Account(renyi=pure_renyi, sampled=pure_sampled)

    def least_noise_std(self, clip_norm, steps_per_unit):
        return 0.0


@pytest.fixture
def pure(monkeypatch):
    """A release of the kind, which other tests do not have."""
    monkeypatch.setitem(Unsampled.kinds, "pure", Pure)
    return Pure(strength=0.3, adjacency=Adjacency.ZERO_OUT)


del Unsampled.kinds["pure"]


def test_a_new_kind_has_epsilons(pure):
    run = Composed(parts=((pure, 10), (gaussian(5.0, "zero-out"), 4)))
    orders = np.array([2.0, 5.0, 11.0])
    expected = 10 * np.minimum(0.3, orders * 0.045) + 4 * orders / 2 / 25
    assert rdp.curve(run, orders) == pytest.approx(expected, rel=1e-12)
    stated = guarantee(run, delta=1e-5)
    assert stated.method == "rdp"
    assert stated.lower_bound is None
    assert 0.3 < stated.epsilon < 10 * 0.3 + 4


def test_it_is_sampled(pure):
    sampled = subsample(pure, PoissonSampling(probability=0.1))
    orders = np.arange(2.0, 9.0)
    expected = subsampling.poisson(orders, lambda a: np.minimum(0.3, a * 0.045), sampling_probability=0.1)
    assert rdp.curve(sampled, orders) == pytest.approx(expected, rel=1e-12)
    assert guarantee(sampled, delta=1e-5).epsilon < guarantee(pure, delta=1e-5).epsilon


def test_ledgers_write_and_read_it(pure, tmp_path):
    sampled = subsample(pure, PoissonSampling(probability=0.1))
    assert mechanisms.from_dict(json.loads(json.dumps(sampled.to_dict()))) == sampled
    ledger = Ledger.create(tmp_path / "l", Header(unit="client", clients=10, randomness="secure"))
    ledger.record(Release(round=0, mechanism=sampled, clip_norm=1.0, noise_std=0.0, noise_placement="server"))
    assert Ledger.read(tmp_path / "l").if_fixed_in_advance(1e-5) == guarantee(times(sampled, 1), delta=1e-5)


def test_what_it_has_not_is_said(pure):
    with pytest.raises(UnsupportedMechanism, match="accountant='pld' with Pure: no privacy loss distribution"):
        pld.epsilon(pure, delta=1e-5)
    assert second_opinion(pure, delta=1e-5).note == "dp-accounting has no account of pure"


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A release that derives from no class of dpfed, and has no account."""

    adjacency: Adjacency = Adjacency.ZERO_OUT
    kind: ClassVar[str] = "stranger"


def test_a_class_without_an_account_is_refused():
    refused(UnsupportedMechanism, "Stranger: no Renyi curve", rdp.curve, Stranger(), [2.0])
    record = {"kind": "stranger", "adjacency": "zero-out"}
    refused(InvalidParameter, "this version does not support this mechanism", mechanisms.from_dict, record)


@pytest.mark.parametrize("kind", Unsampled.kinds)
def test_every_kind_has_an_account(kind):
    assert Unsampled.kinds[kind].kind == kind
    assert isinstance(account_of(Unsampled.kinds[kind]), Account)


def test_skellam_is_named_in_its_own_files_and_where_a_word_chooses_it():
    root = Path(accounting.__file__).parent
    named = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\bSkellam\b|\bskellam\.|import skellam", path.read_text())
    }
    own = {"integers/skellam.py", "integers/fixed_point.py", "mechanisms/integers.py", "budget/integers.py"}
    assert named <= own | {"mechanisms/kinds.py", "mechanisms/__init__.py", "integers/__init__.py", "__init__.py"}


def test_a_kind_of_noise_is_not_taken_by_another_class():
    """Ledger lines of Gaussian noise would be charged by the other class's account."""
    refused(
        InvalidParameter,
        "is that of accounting.mechanisms.gaussian.Gaussian",
        type,
        "Mine",
        (Gaussian,),
        {"kind": "gaussian"},
    )
    assert Unsampled.kinds["gaussian"] is Gaussian


def test_a_public_probability_of_numpy_has_a_ledger_line():
    coins = mechanisms.BernoulliChannel(
        dimension=2, floor=0.1, adjacency="zero-out", linf_clip=0.1, reference=np.float32(0.5)
    )
    assert mechanisms.from_dict(json.loads(json.dumps(coins.to_dict()))) == coins
