"""`dpfed audit run` of a training loop of one's own: true ones pass, each planted fault fails the check made for it."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from refusals import refused

import dpfed
from accounting.budget import FixedSize
from accounting.ledger import Ledger
from accounting.ledger.project import ProjectLedger
from dpfed.audit.evidence.loop import skipping_ignores_the_cohort
from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise
from dpfed.records.round import RoundRecord
from dpfed.round import Method
from dpfed.runs import loop as federation
from dpfed.runs.client_level.book import diagnostics_file
from dpfed.runs.experiment import build
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.project import Project, RandomSharedMask

from .loop_folders import PLAN, D, ran
from .run_folders import SURE, failed, forge_ledger, undecided

PLAIN = {"randomness": "simulated"}
INTEGER = {"randomness": "simulated", "noise": "discrete-gaussian"}


def masked(s):
    return Stages(Project(choice=RandomSharedMask(size=s.size, kept=400)), *s.private(400))


@pytest.mark.parametrize(
    "plan",
    [
        PLAIN,
        {"randomness": "secure"},
        {**INTEGER, "sampling": "fixed"},
        {**PLAIN, "sampling": "all"},
        {**PLAIN, "epsilon": 2.0, "noise_multiplier": None},
        {**PLAIN, "dimension": D, "stages": masked},
        {**INTEGER, "dimension": D, "stages": masked},
    ],
    ids=range(7),
)
@pytest.mark.slow_but_one_in(3)
def test_a_loop_that_does_what_it_says_passes(tmp_path, plan):
    private = ran(tmp_path, **plan)
    found = audit_run(private.ledger, confidence=SURE)
    assert {one.name: one.detail for one in found.checks if one.passed is not True} == {}
    assert found.verdict == "pass"
    assert found.recomputed_epsilon == private.guarantee().epsilon
    assert found.claimed_epsilon == (plan.get("epsilon") or private.guarantee().epsilon)


@pytest.mark.slow
def test_the_command_takes_ledger_and_folder(tmp_path, capsys):
    private = ran(tmp_path, **PLAIN)
    for name in (private.ledger, tmp_path):
        assert status(["audit", "run", str(name), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["verdict"] == "pass"
        assert found["recomputed_epsilon"] == private.guarantee().epsilon
        assert found["second_opinion"] is not None
    assert (tmp_path / "audit.html").exists()


def test_what_was_skipped_or_interrupted_is_told(tmp_path):
    private = ran(tmp_path, rounds=10, skip={3, 7}, **PLAIN)
    lines = diagnostics_file(private.ledger).read_text().splitlines(keepends=True)
    diagnostics_file(private.ledger).write_text("".join(lines[:2] + lines[3:]))
    found = audit_run(tmp_path, confidence=SURE)
    assert found.verdict == "pass"
    (told,) = [one.detail for one in found.checks if one.name == "every round is charged once"]
    assert "2 of them were skipped" in told
    assert "1 charged rounds have no diagnostics" in told


@pytest.mark.parametrize("sampling", ["cyclic", "balls-and-bins"])
def test_an_interrupted_round_of_a_schedule_is_no_fault(tmp_path, sampling):
    """The cohorts after it are those of their rounds' numbers, not of their places in the file."""
    private = ran(tmp_path, sampling=sampling, adjacency="zero-out", **PLAIN)
    lines = diagnostics_file(private.ledger).read_text().splitlines(keepends=True)
    diagnostics_file(private.ledger).write_text("".join(lines[:2] + lines[3:]))
    assert failed(tmp_path) == set()
    assert undecided(tmp_path) == {"cohort sizes follow the sampler", "members follow the sampler"}


def test_without_a_release_nothing_is_claimed(tmp_path):
    dpfed.ClientLevel(ledger=tmp_path / "l.jsonl", **(PLAN | PLAIN))
    found = audit_run(tmp_path)
    assert (found.verdict, found.recomputed_epsilon) == ("inconclusive", 0)
    assert "ledger follows the plan" in undecided(tmp_path)


def test_drawn_choices_of_ranks_cannot_refute_at_every_confidence(monkeypatch):
    """Above 60 rounds p-values come from so many drawn choices, and none is below two over their number."""
    monkeypatch.setattr("dpfed.audit.evidence.loop._PERMUTATIONS", 1000)
    rounds = [RoundRecord(round=number, cohort=number, participants=0) for number in range(1, 71)]
    loop = SimpleNamespace(rounds=rounds, skipped=list(range(1, 31)))
    assert skipping_ignores_the_cohort(loop, alpha=1e-2)[0] is False
    assert skipping_ignores_the_cohort(loop, alpha=1e-3)[0] is None


def test_a_ledger_alone_shows_too_little(tmp_path):
    private = ran(tmp_path, **PLAIN)
    diagnostics_file(private.ledger).unlink()
    found = audit_run(private.ledger)
    assert found.verdict == "inconclusive"
    assert {one.name for one in found.checks if one.passed} == {
        "ledger is intact", "epsilon keeps to the plan", "epsilon is possible", "every round is charged once",
        "ledger follows the plan",
    }  # fmt: skip


def scaled(draw, by):
    """The planted fault: noise of another size than the stage's fields say."""

    def less(self, like, *path):
        noise = draw(self, like, *path)
        return (noise * by).to(noise.dtype)

    return less


@pytest.mark.parametrize("by", [0.9, 1.1])
@pytest.mark.parametrize("plan", [PLAIN, INTEGER], ids=["gaussian", "integers"])
def test_noise_of_another_scale_is_found(tmp_path, monkeypatch, plan, by):
    """A release that draws other noise than it charges, whoever wrote the loop."""
    monkeypatch.setattr(GaussianNoise, "_draw_normals", scaled(GaussianNoise._draw_normals, by))
    monkeypatch.setattr(IntegerNoise, "_draw_noise", scaled(IntegerNoise._draw_noise, by))
    ran(tmp_path, **plan)
    assert failed(tmp_path) == {"noise is as large as charged"}


DRAW = GaussianNoise._draw_normals
FAULTS = {
    "noise is as large as charged": (GaussianNoise, "server", lambda self, total, now: total),
    "noise is fresh in every round": (
        GaussianNoise, "_draw_normals", lambda self, like, purpose, *path: DRAW(self, like, purpose, 0),
    ),
    "rows are bounded": (Clip, "client", lambda self, rows, ids, now: rows),
    "denominator is public": (Method, "sum_divisor", lambda self, counted: float(len(counted))),
}  # fmt: skip


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("check", FAULTS)
def test_another_part_than_the_charged_one_is_found(tmp_path, monkeypatch, check):
    """No noise, the same noise again, rows past the clip, and the realised cohort as divisor."""
    monkeypatch.setattr(*FAULTS[check])
    ran(tmp_path, **PLAIN)
    found = failed(tmp_path)
    assert found == {check} if check == "denominator is public" else check in found


def test_another_sampler_than_the_accounts_is_found(tmp_path, monkeypatch):
    who = FixedSize(cohort=12).cohorts(60).law

    def draw(self, randomness, number):
        return who.sample(60, randomness, number)

    with monkeypatch.context() as planted:
        planted.setattr("accounting.mechanisms.samplings.planned.Cohorts.sample", draw)
        ran(tmp_path, rounds=40, **PLAIN)
    assert failed(tmp_path) == {"cohort sizes follow the sampler", "cohorts follow the seed only if simulated"}


def test_rounds_that_are_skipped_by_their_cohort_are_found(tmp_path):
    """Skipping small cohorts tells who was not there, and no account covers it."""
    ran(tmp_path, rounds=60, skip_if=lambda step: len(step.cohort) < 12, **PLAIN)
    assert "skipping does not depend on the cohort" in failed(tmp_path, confidence=0.99)


ONCE, FOLLOWS = "every round is charged once", "ledger follows the plan"


def drop(number, lines):
    del lines[number]


def less_noise(lines):
    for line in lines[1:]:
        line["noise_std"] *= 2


def cheaper(lines):
    for line in lines[1:]:
        line["mechanism"]["mechanism"]["noise_multiplier"] *= 1.5
        line["noise_std"] *= 1.5


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (partial(drop, slice(-2, None)), ONCE),  # an older copy
        (partial(drop, 2), ONCE),
        (partial(drop, -1), ONCE),
        (lambda lines: lines[-1].update(round=10**15), ONCE),  # which takes no time
        (lambda lines: lines.append(dict(lines[-1])), ONCE),
        (less_noise, FOLLOWS),
        (cheaper, FOLLOWS),
        (cheaper, "noise is as large as charged"),
        (lambda lines: lines[0]["about"].update(delta=0.5), "epsilon keeps to the plan"),
        (lambda lines: lines[0]["about"]["plan"]["privacy"].update(epsilon=0.1), "epsilon keeps to the plan"),
        (lambda lines: lines[0]["about"]["plan"]["privacy"].update(noise_multiplier=3.0), FOLLOWS),
        (lambda lines: lines[0]["about"]["plan"]["federation"].update(rounds=2), ONCE),
        (lambda lines: lines[0]["about"]["plan"]["federation"].update(cohort=13), "denominator is public"),
        (lambda lines: lines[0].update(clients=600), FOLLOWS),
        (lambda lines: lines[0].update(randomness="secure"), FOLLOWS),
    ],
    ids=range(15),
)
@pytest.mark.slow_but_one_in(3)
def test_a_forged_ledger_is_found(tmp_path, edit, check):
    private = ran(tmp_path, **PLAIN)
    forge_ledger(private.ledger, edit)
    assert check in failed(tmp_path)


def test_an_edited_line_is_found(tmp_path):
    private = ran(tmp_path, **PLAIN)
    private.ledger.write_text(private.ledger.read_text().replace('"noise_std":2.0', '"noise_std":4.0', 1))
    assert failed(tmp_path) == {"ledger is intact"}


def test_diagnostics_of_other_rounds_are_found(tmp_path):
    private = ran(tmp_path, **PLAIN)
    file = diagnostics_file(private.ledger)
    file.write_text(file.read_text() + file.read_text().splitlines()[0] + "\n")
    assert "noise is as large as charged" in undecided(tmp_path)
    assert audit_run(tmp_path).verdict != "pass"


@pytest.mark.parametrize(
    "plan",
    [5, {}, {"federation": 5}, {"federation": {"clients": 60}}, {"data": {}}, {"privacy": {"clip_norm": "x"}}, None],
    ids=range(7),
)
def test_a_plan_from_a_stranger_is_one_error(tmp_path, plan):
    private = ran(tmp_path, rounds=1, **PLAIN)
    forge_ledger(private.ledger, lambda lines: lines[0]["about"].update(plan=plan))
    refused(ConfigError, "", audit_run, private.ledger)


def test_other_files_are_refused(tmp_path):
    ProjectLedger.create(tmp_path / "p.jsonl", clients=60, epsilon=1.0, delta=1e-3)
    refused(ConfigError, r"is not the ledger of a dpfed\.ClientLevel", audit_run, tmp_path / "p.jsonl")
    (tmp_path / "q.jsonl").write_text("hello\n")
    refused(ConfigError, "cannot be read as a ledger", audit_run, tmp_path / "q.jsonl")
    ran(tmp_path, rounds=1, **PLAIN)
    refused(ConfigError, "has several ledgers", audit_run, tmp_path)
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "missing"):
        refused(ConfigError, "cannot be read", audit_run, nothing)
    assert status(["audit", "run", str(tmp_path / "empty")]) == 2


def test_the_ledger_in_a_runs_folder_is_that_run(tmp_path, tiny_config):
    federation.run(build(tiny_config()), tmp_path / "run")
    one, other = audit_run(tmp_path / "run"), audit_run(tmp_path / "run" / "ledger.jsonl")
    assert one.to_dict() == other.to_dict()


def test_header_of_reads_the_header_alone(tmp_path):
    private = ran(tmp_path, rounds=1, **PLAIN)
    with private.ledger.open("a") as file:
        file.write("nonsense\n")
    assert Ledger.header_of(private.ledger).clients == 60
