"""Plans of `dpfed.ClientLevel`: budgets, refusals, defaults, diagnostics."""

import json

import pytest
import torch
from private_loops import PLAN, D, level, releases, rows
from refusals import refused

import dpfed
from accounting import Ledger
from accounting.errors import AccountingError
from dpfed.errors import ConfigError
from dpfed.runs.client_level.book import diagnostics_file


def test_the_loop_ends_with_its_budget(tmp_path):
    two = level(rounds=2)
    releases(two)
    budget = two.guarantee().epsilon * 1.0001
    private = level(tmp_path, rounds=50, epsilon=budget)
    assert len(releases(private)) == 2
    assert private.stopped_by == "budget"
    assert private.guarantee().epsilon <= budget
    assert list(level(tmp_path, rounds=50, epsilon=budget).rounds()) == []
    refused(ConfigError, "not even one round fits", level, tmp_path / "new", epsilon=1e-3)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
@pytest.mark.parametrize("parts", [1, 2])
def test_epsilon_alone_is_spent_by_the_rounds(tmp_path, noise, parts):
    """All of them: no round is counted twice, with or without an interruption."""
    for part in range(parts):
        private = level(tmp_path, epsilon=2.0, noise_multiplier=None, rounds=8, noise=noise)
        for step in private.rounds():
            step.release(rows(step))
            if step.round == 3 and part < parts - 1:
                break
    assert len(Ledger.read(private.ledger).releases) == 8
    assert 1.999 < private.guarantee().epsilon <= 2.0
    assert private.stopped_by == "rounds"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"noise_multiplier": None}, "give noise_multiplier, or epsilon"),
        ({"cohort": 61}, "from 1 to"),
        ({"clients": 0, "cohort": 0}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 1.0}, "delta"),
        ({"sampling": "some"}, "sampling"),
        ({"noise": "laplace"}, "noise"),
        ({"randomness": "secret"}, "randomness"),
        ({"randomness": "secure", "noise": "gaussian"}, "secure"),
        ({"sampling": "fixed", "adjacency": "add-remove"}, "add-remove"),
        ({"dimension": 0}, "dimension"),
        ({"seed": -1}, "seed"),
        ({"stages": lambda s: None}, "stages without dimension"),
    ],
    ids=range(16),
)
def test_a_plan_that_cannot_work_is_refused_and_leaves_nothing(tmp_path, change, complaint):
    refused((ConfigError, AccountingError), complaint, level, tmp_path / "new", **change)
    assert not (tmp_path / "new").exists()


def test_secure_is_the_default_and_nothing_repeats():
    plan = {key: value for key, value in PLAN.items() if key != "randomness"}
    one, other = (dpfed.ClientLevel(**plan, dimension=D) for _ in range(2))
    assert Ledger.read(one.ledger).header.randomness == "secure"
    first, second = next(one.rounds()), next(other.rounds())
    assert first.cohort.tolist() != second.cohort.tolist()  # equal with probability below 1e-12
    assert not torch.equal(first.release(rows(first)), second.release(rows(second)))
    line = Ledger.read(one.ledger).releases[0]
    assert line.mechanism.to_dict()["mechanism"]["kind"] == "discrete-gaussian"


def test_guarantees_hold_before_anything_is_released():
    private = level()
    assert private.guarantee().epsilon == 0.0
    assert private.noise_multiplier == 2.0
    with pytest.raises(ConfigError, match="Give dimension="):
        level(noise="skellam").noise_multiplier  # noqa: B018


def test_diagnostics_tell_what_an_audit_needs(tmp_path):
    private = level(tmp_path)
    releases(private)
    lines = [json.loads(line) for line in diagnostics_file(private.ledger).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(line["noise"]["entries"] == D and line["divisor"] == 12 for line in lines)
    assert len({line["cohort"] for line in lines}) > 1
    assert '"cohort":' not in private.ledger.read_text().partition("\n")[2]
