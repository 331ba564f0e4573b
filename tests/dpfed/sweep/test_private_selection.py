"""The best of a random number of runs: what is drawn, what is charged, what is released, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from run_folders import PRIVATE, summary

from accounting import Composed
from accounting.caveats import EPSILON_NOTE_END
from accounting.compose import accountant, selection
from accounting.compose.selection import RandomRuns
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.samplings.independent import HYPOTHESIS
from dpfed.cli import status
from dpfed.errors import ConfigError, RunError
from dpfed.runs.experiment import build
from dpfed.sweep import private_selection
from dpfed.sweep.plan import plan
from dpfed.sweep.private_selection import candidates_of, select_best_run
from dpfed.sweep.sweep import EndedRun

EXPERIMENT = """
title = "Two learning rates"
[base]
data = { name = "digits", validation = 100 }
model = { name = "mlp", hidden = [8] }
federation = { clients = 60, cohort = 12, rounds = 2 }
local = { learning_rate = 0.5, epochs = 1, batch_size = 10 }
method.name = "dp-fedavg"
privacy = { clip_norm = 1.0, noise_multiplier = 1.5 }

[[row]]
name = "DP-FedAvg"
axes = { "local.learning_rate" = [0.0001, 0.5] }
"""
RUNS = RandomRuns(mean=3.0)


def all_end_with(summary):
    def run_all(plan, cells, pool, on_run):
        return [EndedRun(cell=cell, outcome="finished", summary=summary) for cell in cells]

    return run_all


class Given:
    """Draws that a test chooses: the uniform of the number of runs, then those of the candidates."""

    def __init__(self, number, *candidates):
        self._left = [[number], candidates]

    def uniform(self, count, purpose, *path):
        return np.array(self._left.pop(0))[:count]

    def bits(self, count, purpose, *path):
        return np.arange(1, count + 1, dtype=np.uint64) << np.uint64(40)


@pytest.fixture
def planned(tmp_path):
    def make(*replacements, out="out"):
        text = EXPERIMENT
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "selection.toml").write_text(text)
        return plan(tmp_path / "selection.toml", profile=None, out=tmp_path / out)

    return make


@pytest.mark.slow
def test_the_best_of_the_drawn_runs_is_released_with_one_epsilon(planned, tmp_path, capsys):
    """Three runs: candidates 0, 1, 0; the second learns, the others do not."""
    one = planned()
    document = select_best_run(one, RUNS, jobs=1, randomness=Given(0.69, 0.1, 0.9, 0.4))
    assert len(json.loads((one.folder / "drawn.json").read_text())["drawn"]) == RUNS.drawn(0.69) == 3
    assert document["chosen"]["at"] == {"local.learning_rate": "0.5"}
    released = sorted(file.name for file in (one.folder / "selected").iterdir())
    assert released == ["model.safetensors", "selection.json"]
    assert json.loads((one.folder / "selected" / "selection.json").read_text()) == document
    mechanism = Composed(parts=((build(one.grid.cells[0].config).privacy_target.mechanism, 2),))
    assert document["epsilon"] == selection.epsilon(mechanism, runs=RUNS, delta=1e-4)
    assert document["epsilon"] > accountant.epsilon(mechanism, delta=1e-4)
    before = {file: file.stat().st_mtime_ns for file in (one.folder / "not-to-publish").rglob("model*")}
    words = ["sweep", str(tmp_path / "selection.toml"), "--out", str(one.folder), "--private-selection", "3"]
    assert status(words) == 0  # the same command again draws nothing and trains nothing
    assert "the best of a random number of runs" in " ".join(capsys.readouterr().out.split())
    assert {file: file.stat().st_mtime_ns for file in (one.folder / "not-to-publish").rglob("model*")} == before
    refused(RunError, "holds a different selection", lambda: select_best_run(one, RandomRuns(mean=4.0), jobs=1))
    (one.folder / "drawn.json").write_text("{}")
    refused(RunError, "no list of drawn runs", select_best_run, one, RUNS, jobs=1)


def test_spare_rounds_are_planned_for_each_run(planned):
    """The runs state them, so that none was within its plan, and nothing was chosen after all had trained."""
    found = candidates_of(planned(("[base]", "[base]\nrun.spare_rounds = 2")))
    assert [one.parts[0][1] for one in found.mechanisms] == [4, 4]


def test_nothing_that_is_released_tells_how_many_runs_there_were(planned, monkeypatch):
    """The same choice, alone or beside others that are worse: the same document."""
    private = PRIVATE | {"adjacency": "add-remove", "sampling": "poisson", "epsilon": 0.1}

    def runs(plan, cells, pool, on_run):
        for cell in cells:
            (plan.folder / cell.folder).mkdir(parents=True)
        scores = [0.9 if cell.at["local.learning_rate"] == "0.5" else 0.1 for cell in cells]
        return [
            EndedRun(cell=cell, outcome="finished", summary=summary(**private, validation_accuracy=score))
            for cell, score in zip(cells, scores, strict=True)
        ]

    monkeypatch.setattr(private_selection, "run_all", runs)
    alone = select_best_run(planned(out="alone"), RUNS, jobs=1, randomness=Given(0.0, 0.9))
    beside = select_best_run(planned(out="beside"), RUNS, jobs=1, randomness=Given(0.9, *[0.1] * 5, 0.9, 0.1))
    assert alone == beside
    assert alone["rule"].endswith("among equal candidates the first drawn")


@pytest.mark.parametrize("fault", ["failed", "spent"])
def test_a_run_that_fails_or_spends_more_ends_the_selection(fault, planned, monkeypatch):
    """Planted: a run that ends by itself, and one that released more often than was planned."""
    seen = summary(**(PRIVATE | {"validation_accuracy": 0.5, "epsilon": 99.0}))

    def runs(plan, cells, pool, on_run):
        return [
            EndedRun(cell=cell, outcome="failed", error="diverged")
            if fault == "failed"
            else EndedRun(cell=cell, outcome="finished", summary=seen)
            for cell in cells
        ]

    monkeypatch.setattr(private_selection, "run_all", runs)
    with pytest.raises(RunError, match={"failed": "nothing is chosen", "spent": "more than was planned"}[fault]):
        select_best_run(planned(), RUNS, jobs=1, randomness=Given(0.0, 0.9))


def test_a_run_may_not_spend_what_was_planned_for_another_candidate(planned, monkeypatch):
    """Planted: the candidate with more noise released more often than planned, but less than the other one may."""
    one = planned(('"local.learning_rate" = [0.0001, 0.5]', '"privacy.noise_multiplier" = [1.5, 9.0]'))
    loud, quiet = (accountant.epsilon(mechanism, delta=1e-4) for mechanism in candidates_of(one).mechanisms)
    seen = summary(**(PRIVATE | {"validation_accuracy": 0.5, "epsilon": (loud + quiet) / 2}))
    monkeypatch.setattr(private_selection, "run_all", all_end_with(seen))
    with pytest.raises(RunError, match="more than was planned"):
        select_best_run(one, RUNS, jobs=1, randomness=Given(0.0, 0.9))


def test_a_run_is_compared_with_its_plan_by_its_own_accountant(planned, monkeypatch):
    """Runs with "rdp" stated more than their plan by the best account, and nothing was chosen."""
    one = planned(("noise_multiplier = 1.5", 'noise_multiplier = 1.5, accountant = "rdp"'))
    stated = accountant.epsilon(candidates_of(one).mechanisms[0], delta=1e-4, accountant="rdp")
    seen = summary(**(PRIVATE | {"validation_accuracy": 0.5, "epsilon": stated}))
    monkeypatch.setattr(private_selection, "run_all", all_end_with(seen))
    assert select_best_run(one, RUNS, jobs=1, randomness=Given(0.0, 0.9))["epsilon"] > 0


def test_the_release_states_the_conditions_of_all_candidates(planned, monkeypatch):
    one = planned(
        ("cohort = 12,", 'cohort = 12, sampling = "fixed",'),
        ('"local.learning_rate" = [0.0001, 0.5]', '"privacy.noise_multiplier" = [0.2, 0.4]'),
        ("validation = 100", "validation = 100, public = 50"),
        ("[base]", '[base]\nserver.start = "public"'),
    )
    monkeypatch.setattr(
        private_selection, "run_all", all_end_with(summary(**PRIVATE | {"epsilon": 1.0}, validation_accuracy=0.5))
    )
    notes = select_best_run(one, RUNS, jobs=1, randomness=Given(0.0, 0.9))["notes"]
    run = build(one.grid.cells[0].config)
    mechanism = run.privacy_target.mechanism_of_run(2)
    stated = accountant.guarantee(mechanism, delta=1e-4, with_lower_bound=False)
    assert HYPOTHESIS in stated.notes
    assert {*run.not_protected, HYPOTHESIS} <= set(notes)
    assert any("public" in note for note in run.not_protected)
    assert notes[-1].endswith(EPSILON_NOTE_END)


def test_no_run_at_all_is_no_release(planned):
    with pytest.raises(RunError, match="does not cover a second draw"):
        select_best_run(planned(), RandomRuns(mean=3.0, law="poisson"), jobs=1, randomness=Given(0.0))


def test_candidates_with_more_noise_do_not_lower_what_others_cost(planned):
    both = candidates_of(planned(('"local.learning_rate" = [0.0001, 0.5]', '"privacy.noise_multiplier" = [1.5, 9.0]')))
    dear = replace(both, cells=both.cells[:1], mechanisms=both.mechanisms[:1])
    assert both.epsilon(RUNS) == pytest.approx(dear.epsilon(RUNS), rel=1e-9)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('axes = { "local.learning_rate" = [0.0001, 0.5] }', 'axes = { "run.seed" = [1, 2] }', "run.seed is an axis"),
        (", validation = 100", "", "Give data.validation"),
        ('"local.learning_rate" = [0.0001, 0.5]', '"data.partition_seed" = [1, 2]', "data.partition_seed differs"),
        ('"local.learning_rate" = [0.0001, 0.5]', '"federation.clients" = [60, 70]', "differs from that of row"),
        ('"local.learning_rate" = [0.0001, 0.5]', '"federation.sampling" = ["poisson", "fixed"]', "kind of neighbours"),
        ('"dp-fedavg"\nprivacy = { clip_norm = 1.0, noise_multiplier = 1.5 }', '"fedavg"', r"requires \[privacy\]"),
        ("noise_multiplier = 1.5", 'noise_multiplier = 1.5, release = "uploads"', "uploads of all drawn runs are"),
        ("[[row]]", "[tune]\naxes = { local.momentum = [0.1, 0.2] }\n\n[[row]]", r"Remove \[tune\]"),
    ],
)
def test_what_has_no_account_is_refused_before_anything_is_drawn(old, new, words, planned):
    one = planned((old, new))
    refused((ConfigError, UnsupportedMechanism), words, select_best_run, one, RUNS, jobs=1)
    assert not one.folder.exists()
