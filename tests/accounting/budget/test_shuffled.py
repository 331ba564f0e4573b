"""Shuffled epochs: composition over epochs and the attack of arXiv 2411.04205, by other computations."""

import math

import numpy as np
import pytest
from reference import normal
from refusals import refused
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from accounting import Plan, budget
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Shuffled, from_dict
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

DATA = {"clients": 60_000, "cohort": 256, "sampling": "shuffled", "delta": 1e-5}


def solved(rounds: int, z: float = 1.0, **options: object) -> budget.Budget:
    return budget.solve(Plan(**{**DATA, **options}), noise_multiplier=z, rounds=rounds)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("options", "rounds", "mu"),
    [
        ({}, 2340, 10**0.5),
        ({"adjacency": "replace-one"}, 2340, 2 * 10**0.5),
        ({}, 2341, 11**0.5),
        ({"clients": 100, "cohort": 60}, 3, 3**0.5),  # an epoch is one batch, so a client may be in every round
    ],
)
def test_upper_bound_is_one_participation_an_epoch(options: dict[str, object], rounds: int, mu: float) -> None:
    found = solved(rounds, **options)
    assert found.epsilon == pytest.approx(float(normal.epsilon(DATA["delta"], mu)), rel=1e-7)
    assert 0 < found.lower_bound <= found.epsilon
    assert found.to_dict()["participations"] == round(
        mu**2 / Plan(**{**DATA, **options}).adjacency.sensitivity_in_clips ** 2
    )


def epsilon_of_largest_round(z: float, period: int, chance: float, means: tuple[float, float]) -> float:
    """Epsilon at which some event "the largest of the rounds is above t" has delta 1e-5, in one epoch."""

    def above(t: float, mean: float) -> float:
        rest = period * norm.logcdf(t)
        joined = norm.logcdf(t - mean / z) - norm.logcdf(t) + rest
        return chance * -math.expm1(joined) + (1 - chance) * -math.expm1(rest)

    def excess(epsilon: float) -> float:
        found = minimize_scalar(
            lambda t: math.exp(epsilon) * above(t, means[1]) - above(t, means[0]), bounds=(0, 14), method="bounded",
            options={"xatol": 1e-9},
        )  # fmt: skip
        return -float(found.fun) - float(DATA["delta"])

    return float(brentq(excess, 0.01, 60))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("options", "z", "means"),
    [
        ({}, 0.7, (2.0, 1.0)),
        ({}, 0.4, (2.0, 1.0)),
        ({"clients": 1000, "cohort": 300}, 0.7, (2.0, 1.0)),  # one client in ten is in no batch
        ({"adjacency": "replace-one"}, 0.7, (2.0, 0.0)),
    ],
)
def test_lower_bound_of_one_epoch_is_the_attack_by_the_largest_round(
    options: dict[str, object], z: float, means: tuple[float, float]
) -> None:
    plan = Plan(**{**DATA, **options})
    period = plan.period
    attack = epsilon_of_largest_round(z, period, period * plan.cohort / plan.clients, means)
    found = solved(period, z, **options)
    assert attack * (1 - 1e-3) <= found.lower_bound <= found.epsilon


def test_lower_bound_is_below_the_divergence_of_the_attack_by_simulation() -> None:
    """Two epochs of 4 batches: the exact losses of the whole output, in 200,000 simulated runs.

    At the stated bound their mean of (1 - e^(epsilon - loss))+ is at least delta: a correct bound fails with a
    probability below 1e-6 (five standard errors).
    """
    z, delta = 0.8, 0.05
    bound = solved(8, z, clients=12, cohort=3, delta=delta).lower_bound
    rng = np.random.default_rng(1)
    loss = np.zeros(200_000)
    for _ in range(2):
        x = rng.normal(size=(len(loss), 4))
        x[np.arange(len(loss)), rng.integers(4, size=len(loss))] += 2 / z
        terms = [np.log(np.exp(x * m / z - (m / z) ** 2 / 2).mean(axis=1)) for m in (2, 1)]
        loss += terms[0] - terms[1]
    excess = np.maximum(-np.expm1(bound - loss), 0)
    assert excess.mean() + 5 * excess.std() / math.sqrt(len(loss)) >= delta
    too_high = np.maximum(-np.expm1(1.5 * bound - loss), 0)  # a planted bound that is half too large is noticed
    assert too_high.mean() + 5 * too_high.std() / math.sqrt(len(loss)) < delta


def test_known_numbers_and_the_schedule_to_use() -> None:
    found = budget.beside_shuffled(solved(2340))
    assert found.epsilon == pytest.approx(17.8566, abs=1e-4)
    assert 7.2 < found.lower_bound < 7.3
    assert any("not valid here" in note and "1.0990" in note for note in found.notes)
    assert any("balls-and-bins" in note and "1.0475" in note for note in found.notes)
    records = Plan(clients=1, unit="record", records=60_000, batch_size=256, sampling="shuffled", delta=1e-5)
    assert budget.epsilon(records, noise_multiplier=1.0, rounds=10) == found.epsilon


def test_every_client_is_in_one_batch_an_epoch() -> None:
    sampler = budget.Shuffled(cohort=3).cohorts(11)
    epochs = [
        [sampler.sample(Simulated(seeds=Seeds(root=3)), number) for number in range(3 * e, 3 * e + 3)] for e in (0, 1)
    ]
    for batches in epochs:
        assert [len(one) for one in batches] == [3, 3, 3]
        assert len(set(np.concatenate(batches).tolist())) == 9
    assert any((a != b).any() for a, b in zip(*epochs, strict=True))
    assert from_dict(Plan(clients=11, cohort=3, sampling="shuffled").round(1.0).to_dict()).sampling == sampler.law


def test_refusals() -> None:
    refused(UnsupportedMechanism, "moves other clients", Plan, **DATA, adjacency="add-remove")
    refused(InvalidParameter, "at most all", Shuffled, cohort=3, clients=2)
    with pytest.raises(InvalidParameter, match="one pass"):
        Plan(clients=1, unit="record", records=60, batch_size=6, local_steps=3, sampling="shuffled")
    refused(UnsupportedMechanism, "", Plan, **DATA, noise="banded", bands=3)
