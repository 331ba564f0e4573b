"""Spare rounds of noise schedules and of private records: epsilon against whoever repeats and stops by looking.

The game: after each round the player stops, repeats a round that was released, or goes on. With losses of a round as
probabilities on a grid, V(loss) = max((1 - e^(epsilon - loss))_+, E V(loss + round), E V(loss + repeated round)) is the
delta of the best player. It is computed without the package's accounts."""

from functools import cache

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm

from accounting import Ledger
from accounting.ledger import Header, LocalRelease, Release
from accounting.mechanisms import gaussian_of
from dpfed.audit.run import audit_run
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from tests.dpfed.runs.test_record_runs import EXACT, RECORD, without_noise_multiplier
from tests.rounds import killed_before_checkpoint

SPACING, CELLS = 0.01, 1200
LOSSES = np.arange(-CELLS, CELLS + 1) * SPACING
EDGES = (np.arange(-CELLS, CELLS + 2) - 0.5) * SPACING
FALLING = ("federation.rounds=6", "federation.sampling=all", "privacy.noise_schedule=[1.5, 1.0, 0.5]")


def gaussian_losses(z):
    return np.diff(norm.cdf(EDGES, 1 / (2 * z**2), 1 / z))


def sampled_losses(z, q):
    """Losses of the mixture (1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        places = 0.5 + z**2 * np.log((np.exp(EDGES) - 1 + q) / q)
    places = np.where(np.isnan(places), -np.inf, places)
    return np.diff((1 - q) * norm.cdf(places, 0, z) + q * norm.cdf(places, 1, z))


def delta_of_best_player(epsilon, rounds, spare):
    stop = np.maximum(0, 1 - np.exp(np.minimum(epsilon - LOSSES, 50)))

    def after(value, losses):
        wide = np.concatenate([np.zeros(2 * CELLS), value, np.full(2 * CELLS, value[-1])])
        return fftconvolve(wide, losses[::-1], mode="same")[2 * CELLS : -2 * CELLS]

    @cache
    def value(done, left):
        choices = [stop]
        if done < len(rounds):
            choices.append(after(value(done + 1, left), rounds[done]))
        if left and done:
            choices += [after(value(done, left - 1), one) for one in (rounds[0], rounds[done - 1])]
        return np.max(choices, axis=0)

    return value(0, spare)[CELLS]


def statement(path, unit, lines, plan):
    Ledger.create(path, Header(unit=unit, clients=60, randomness="secure", plan=plan)).record_all(lines)
    return Ledger.read(path).guarantee(1e-3)


@pytest.mark.parametrize("factors", [[1.5, 1.0, 0.5], [0.5, 1.0]])
def test_repeated_rounds_of_a_noise_schedule_are_within_plan_and_spare_rounds(tiny_config, tmp_path, factors):
    given = (*FALLING[:2], f"privacy.noise_schedule={factors}", "run.spare_rounds=2")
    target = build(tiny_config(*given, "privacy.noise_multiplier=4.0")).privacy_target
    noises = [4.0 * factors[t * len(factors) // 6] for t in range(6)]
    assert [gaussian_of(target.mechanism_of_round(t)).noise_multiplier for t in range(6)] == noises
    of = {"clip_norm": 1.0, "noise_placement": "server"}
    lines = [
        Release(round=t, mechanism=target.mechanism_of_round(t), noise_std=noises[t], **of) for t in (0, 0, 1, 2, 2, 3)
    ]
    stated = statement(tmp_path / "l.jsonl", "client", lines, target.planned_releases(6, 2))
    assert any("2 spare ones" in note and "any stopping rule" in note for note in stated.notes)
    rounds = [gaussian_losses(z) for z in noises]
    player = delta_of_best_player(stated.epsilon, rounds, 2)
    assert player == pytest.approx(1e-3, rel=0.02)
    planted = statement(tmp_path / "p.jsonl", "client", lines[:1], target.planned_releases(6))  # without spare rounds
    assert delta_of_best_player(planted.epsilon, rounds, 2) > 1.2e-3


def test_noise_of_a_schedule_is_calibrated_for_the_spare_rounds(tiny_config):
    """Compare with the closed form of one Gaussian of all rounds and the spare ones, which have the least noise."""
    given = (*FALLING, "privacy.epsilon=1.5", "privacy.clip_norm=1.0", "run.spare_rounds=2")
    target = build(tiny_config(*given, without=["privacy"])).privacy_target
    mu = np.sqrt(sum((target.noise_multiplier * f) ** -2 for f in (1.5, 1.5, 1, 1, 0.5, 0.5, 0.5, 0.5)))
    delta = norm.cdf(mu / 2 - 1.5 / mu) - np.exp(1.5) * norm.cdf(-mu / 2 - 1.5 / mu)
    assert delta == pytest.approx(target.delta, rel=1e-4)
    assert delta <= target.delta


def record_run(tiny_config, *settings):
    return tiny_config("method.name=fedavg", *RECORD, "federation.sampling=all", *settings, without=["privacy"])


def test_repeated_rounds_of_private_records_are_within_plan_and_spare_rounds(tiny_config, tmp_path):
    experiment = build(
        record_run(tiny_config, *("federation.rounds=4", "run.spare_rounds=2", "local.record.noise_multiplier=5.0"))
    )
    target, everyone = experiment.privacy_target, np.arange(60)
    lines = [experiment.method.clients.release(everyone, number=t) for t in (0, 1, 1, 2, 3, 3)]
    assert all(isinstance(one, LocalRelease) for one in lines)
    step = sampled_losses(5.0, 16 / 23)
    once = fftconvolve(step, step, mode="full")[CELLS:-CELLS]  # two steps a round
    plan = target.planned_releases(4, 2)
    for part in (lines, lines[:4]):
        found = statement(tmp_path / f"{len(part)}.jsonl", "record", part, plan)
        assert any("2 spare ones" in note and "any stopping rule" in note for note in found.notes)
        assert delta_of_best_player(found.epsilon, [once] * 4, 2) == pytest.approx(1e-3, rel=0.02)
    planted = statement(tmp_path / "p.jsonl", "record", lines[:2], target.planned_releases(4))
    assert delta_of_best_player(planted.epsilon, [once] * 4, 2) > 1.2e-3
    beyond = statement(tmp_path / "b.jsonl", "record", [*lines, lines[0]], plan)
    assert any("interruptions did not depend on results" in note for note in beyond.notes)
    assert delta_of_best_player(beyond.epsilon, [once] * 4, 3) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.slow
def test_a_run_of_records_that_is_interrupted_states_plan_and_spare_rounds(tiny_config, tmp_path):
    given = ("local.record.epsilon=8.0", "run.spare_rounds=1", "model.hidden=[2]", "data.train_samples=240", *EXACT)
    config = without_noise_multiplier(record_run(tiny_config, *given))
    killed_before_checkpoint(build(config), tmp_path / "run", 2)
    done = federation.run(build(config), tmp_path / "run", resume=True).summary
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert len(ledger.releases) == 4
    assert done["epsilon"] == ledger.guarantee(done["delta"]).epsilon <= 8.0
    assert done["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert any("3 planned rounds and 1 spare ones" in note for note in done["notes"])
    assert audit_run(tmp_path / "run").verdict == "pass"
