"""A ledger takes no release that states less noise than its mechanism charges for."""

import json
import math
from dataclasses import replace

import pytest
from reference.shorthand import gaussian
from refusals import refused

from accounting import (
    BernoulliAggregate,
    BernoulliChannel,
    DiscreteGaussian,
    FixedSizeSampling,
    Header,
    Ledger,
    LocalRelease,
    PoissonSampling,
    Release,
    Skellam,
    Steps,
    simultaneous,
    subsample,
)
from accounting.errors import BudgetSpent, LedgerError
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.project import ProjectLedger

GAUSSIAN = gaussian(1.4, "zero-out")
# 9 shares of variance 100 are a standard deviation of 30 steps; a clip norm of 2 is 40 steps, after rounding 50.
FIELDS = {"dimension": 64, "l2_bound": 50.0, "share_variance": 100.0, "shares": 9, "adjacency": "zero-out"}
COINS = {"dimension": 9, "floor": 0.2, "adjacency": "zero-out", "l2_clip": 0.5, "noise_std": 0.3}
POISSON, FIXED = PoissonSampling(probability=0.1), FixedSizeSampling(cohort=9, clients=90)


def release(mechanism, noise_std, clip_norm=2.0, **detail):
    return Release(
        round=0, mechanism=mechanism, clip_norm=clip_norm, noise_std=noise_std, noise_placement="server", detail=detail
    )


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "l.jsonl", Header(unit="client", clients=90, randomness="simulated"))


@pytest.mark.parametrize(
    ("mechanism", "detail", "least"),
    [
        (GAUSSIAN, {}, 1.4 * 2),
        (subsample(GAUSSIAN, POISSON), {}, 1.4 * 2),
        (subsample(GAUSSIAN, FIXED), {"steps_per_unit": 1e-9}, 1.4 * 2),
        (simultaneous([1.5, 30.0], "zero-out"), {}, 2 / math.sqrt(1 / 1.5**2 + 1 / 30.0**2)),
        (DiscreteGaussian(**FIELDS), {}, 30 / 50 * 2),
        (Skellam(**FIELDS), {}, 30 / 50 * 2),
        (subsample(Skellam(**FIELDS), POISSON), {"steps_per_unit": 20.0}, 30 / 20),
        (DiscreteGaussian(**FIELDS), {"steps_per_unit": 20}, 30 / 20),
        (DiscreteGaussian(**FIELDS), {"steps_per_unit": 1e9}, 30 / 50 * 2),
        (DiscreteGaussian(**FIELDS), {"steps_per_unit": "20"}, 30 / 50 * 2),
        (BernoulliChannel(**COINS), {}, 0.3),
        (subsample(BernoulliAggregate(**COINS, cohort=9), POISSON), {}, 0.3),
    ],
)
def test_the_noise_that_is_charged_for_is_the_least_that_may_be_stated(ledger, mechanism, detail, least):
    size = ledger.path.stat().st_size
    for short in (0.0, least / 2, least * (1 - 1e-6), math.nan):
        with pytest.raises(LedgerError, match=r"round 0: noise_std=.*: the charged mechanism has noise of"):
            ledger.record(release(mechanism, short, **detail))
    assert ledger.path.stat().st_size == size
    for enough in (least * (1 - 1e-10), least, 5 * least):
        ledger.record(release(mechanism, enough, **detail))
    assert len(Ledger.read(ledger.path).releases) == 3


def test_coins_without_noise_state_none(ledger):
    coins = BernoulliAggregate(**{**COINS, "noise_std": 0.0}, cohort=9)
    ledger.record(release(coins, 0.0))
    assert Ledger.read(ledger.path).releases == [release(coins, 0.0)]


def test_none_of_many_is_written_where_one_states_too_little(ledger):
    with pytest.raises(LedgerError, match="round 1: noise_std=0"):
        ledger.record_all([release(GAUSSIAN, 2.8), replace(release(GAUSSIAN, 0.0), round=1)])
    assert not Ledger.read(ledger.path).entries


def test_every_step_of_a_client_is_looked_at(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", Header(unit="record", clients=9, randomness="simulated"))
    mild, loud = (gaussian(z) for z in (0.5, 2.0))
    steps = tuple(Steps(mechanism=one, count=3, clients=(number,)) for number, one in enumerate((mild, loud)))
    local = LocalRelease(round=0, steps=steps, clip_norm=0.5, noise_std=1.0)
    ledger.record(local)
    ledger.record(replace(local, round=1, steps=(), noise_std=0.0))
    for short in (replace(local, noise_std=0.99), replace(local, clip_norm=0.51)):
        refused(LedgerError, "noise_std=", ledger.record, short)


def test_a_project_is_not_charged_for_it(tmp_path):
    project = ProjectLedger.create(tmp_path / "p.jsonl", clients=90, epsilon=50.0, delta=1e-5)
    with pytest.raises(LedgerError, match="noise_std=0") as refusal:
        project.charge(release(GAUSSIAN, 0.0), run="a")
    assert not isinstance(refusal.value, BudgetSpent)
    project.charge(release(GAUSSIAN, 2.8), run="a")
    assert len(ProjectLedger.open(project.ledger.path).ledger.releases) == 1


def test_what_was_written_before_is_still_read(ledger):
    """Versions before 0.2 took such lines; their epsilon is that of what was charged."""
    line, _ = chained_line(release(GAUSSIAN, 0.0).to_dict(), ledger.head)
    ledger.path.write_bytes(ledger.path.read_bytes() + line)
    again = Ledger.resume(ledger.path)
    assert [one.noise_std for one in again.releases] == [0.0]
    again.record(replace(release(GAUSSIAN, 2.8), round=1))
    assert Ledger.read(ledger.path).guarantee(1e-5).epsilon > 1
    assert json.loads(line)["noise_std"] == 0.0
