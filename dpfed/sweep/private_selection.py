"""The best of a random number of runs, as one release with one epsilon (docs/theory.md, section 8)."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from accounting.compose import accountant, selection
from accounting.compose.selection import RandomRuns
from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from accounting.mechanisms import Mechanism
from dpfed.config.tables import flat_tables
from dpfed.errors import ConfigError, RunError
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.randomness import Randomness, Secure
from dpfed.records.summary import Summary
from dpfed.runs.experiment import build
from dpfed.sweep.grid import SEED, Cell
from dpfed.sweep.jobs import workers
from dpfed.sweep.plan import PlannedSweep
from dpfed.sweep.sweep import RULES, OnRun, best_of, run_all, write_json

DRAWN, OPERATOR, SELECTED, DOCUMENT = "drawn.json", "not-to-publish", "selected", "selection.json"
_SAME = ("federation.clients", "privacy.delta", "privacy.adjacency")


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Candidates that may be drawn, and the mechanism of one run of each."""

    cells: tuple[Cell, ...]
    mechanisms: tuple[Mechanism, ...]
    delta: float

    def epsilon(self, runs: RandomRuns) -> float:
        """Return epsilon of the chosen run and its choice, for any number of runs drawn. Upper bound."""
        return selection.epsilon(*self.mechanisms, runs=runs, delta=self.delta)


def candidates_of(plan: PlannedSweep) -> Candidates:
    """Every run of the grid, as one that may be drawn; ConfigError where the best of them has no account."""
    cells = plan.grid.cells
    if plan.grid.choices:
        raise ConfigError("--private-selection: the file has [tune], which spends privacy uncounted. Remove [tune].")
    for cell in cells:
        _check(cell, cells[0])
    goals = [build(cell.config).privacy_target for cell in cells]
    if not all(isinstance(privacy_target, PrivacyTarget) for privacy_target in goals):
        raise ConfigError(
            "--private-selection: needs [privacy] in every run (not [local.record]); its unit is the client."
        )
    private = [privacy_target for privacy_target in goals if isinstance(privacy_target, PrivacyTarget)]
    mechanisms = [
        privacy_target.mechanism_of_run(cell.config.federation.rounds)
        for privacy_target, cell in zip(private, cells, strict=True)
    ]
    return Candidates(cells=cells, mechanisms=tuple(mechanisms), delta=private[0].delta)


def _check(cell: Cell, first: Cell) -> None:
    where, config = f"--private-selection: row {cell.row!r}", cell.config
    if SEED in cell.at:
        raise ConfigError(f"{where}: run.seed is an axis; every run that is drawn gets a seed of its own. Remove it.")
    if config.data.validation is None:
        raise ConfigError(
            f"{where}: runs are compared by public samples alone. Give data.validation, the number of training samples "
            "to set aside, which no epsilon protects."
        )
    here, there = flat_tables(config.to_dict()), flat_tables(first.config.to_dict())
    for key in sorted(here.keys() | there.keys()):
        if (key in _SAME or key.startswith("data.")) and here.get(key) != there.get(key):
            raise ConfigError(f"{where}: {key} differs from that of row {first.row!r}: candidates are of one data set.")


def select(
    plan: PlannedSweep,
    runs: RandomRuns,
    *,
    jobs: int | None = None,
    on_run: OnRun = lambda done: None,
    randomness: Randomness | None = None,
) -> dict[str, object]:
    """Draw the number of runs, and a candidate for each; run them; release the best.

    Returns the content of selected/selection.json.

    Claim: selected/ satisfies the epsilon stated in it, for one client, if nothing else of the folder is published: not
    the number of runs, no other run, no time. The draws are on disk before the first run starts, so that going on after
    an interruption draws nothing anew. ConfigError where there is no account; RunError where a run failed (then nothing
    is chosen; the same command continues), released more than was planned, or where no run was drawn, which under the
    Poisson distribution can happen.
    """
    candidates = candidates_of(plan)
    stated = candidates.epsilon(runs)
    cells = _drawn_runs(plan.folder, candidates, runs, randomness or Secure())
    if not cells:
        raise RunError("no run was drawn, as happens under a Poisson distribution: there is nothing to release.")
    with workers(jobs, [cell.config.run.device for cell in cells]) as pool:
        done = run_all(plan, cells, pool, on_run)
    if failed := [one for one in done if one.summary is None]:
        raise RunError(f"{len(failed)} runs failed, so nothing is chosen. The first: {failed[0].error}")
    summaries = [one.summary for one in done if one.summary is not None]
    _check_spending(summaries, candidates)
    best, score, _ = best_of(summaries)
    if best is None:
        raise RunError("a run has no validation score, so nothing is chosen.")
    document = _document(candidates, runs, stated, cells[best], summaries[best], score)
    _publish(plan.folder, cells[best], document)
    return document


def _drawn_runs(folder: Path, candidates: Candidates, runs: RandomRuns, randomness: Randomness) -> list[Cell]:
    """Return the runs, as drawn now or before."""
    question = {"runs": asdict(runs), "candidates": [one.config.to_dict() for one in candidates.cells]}
    file = folder / DRAWN
    if not file.exists():
        count = runs.drawn(float(randomness.uniform(1, "selection.count")[0]))
        which = randomness.uniform(count, "selection.candidates") * len(candidates.cells)
        seeds = randomness.bits(count, "selection.seeds")
        drawn = [{"candidate": int(i), "seed": int(s >> 11)} for i, s in zip(which, seeds, strict=True)]
        write_json(file, {**question, "drawn": drawn})
    try:
        found = json.loads(read_text(file, at_most=LARGEST_DOCUMENT))
        if found["runs"] != question["runs"] or found["candidates"] != json.loads(json.dumps(question["candidates"])):
            raise RunError(f"{folder}: holds another selection. Use another --out, or remove it.")
        return [_cell(candidates.cells[one["candidate"]], int(one["seed"])) for one in found["drawn"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise RunError(f"{file}: is no list of drawn runs. Use another --out; what was spent here is spent.") from None


def _cell(candidate: Cell, seed: int) -> Cell:
    """Name of a run's folder, which does not reveal how many runs there are."""
    return replace(candidate.with_values({SEED: seed}), folder=f"{OPERATOR}/{seed:014x}")


def _check_spending(summaries: Sequence[Summary], candidates: Candidates) -> None:
    planned = max(accountant.epsilon(one, delta=candidates.delta) for one in candidates.mechanisms)
    spent = max(math.inf if one.epsilon is None else one.epsilon for one in summaries)
    if spent > planned * (1 + 1e-6):
        raise RunError(f"a run released more than was planned: epsilon {spent}, planned {planned}. Nothing is chosen.")


def _document(
    candidates: Candidates, runs: RandomRuns, stated: float, cell: Cell, summary: Summary, score: str
) -> dict[str, object]:
    """Nothing in it depends on the other runs but through the choice."""
    return {
        "epsilon": stated,
        "delta": candidates.delta,
        "unit": summary.unit,
        "adjacency": summary.adjacency,
        "sampling": summary.sampling,
        "number_of_runs": {"law": runs.law, "mean": runs.mean, "eta": runs.eta},
        "candidates": [{"row": one.row, "at": dict(one.at)} for one in candidates.cells],
        "chosen": {"row": cell.row, "at": dict(cell.at)},
        "rule": RULES[score],
        score: summary.number(score),
        "test_accuracy": summary.test_accuracy,
        "randomness": cell.config.run.randomness,
        "notes": [
            "epsilon is that of the best of a random number of runs; summary.json of the run alone states less, and is "
            "not what this release spent",
            "validation samples are protected by nothing",
            *(
                ["noise and cohorts come from a seed (run.randomness = 'simulated'): do not release this model"]
                if cell.config.run.randomness == "simulated"
                else []
            ),
        ],
    }


def _publish(folder: Path, cell: Cell, document: Mapping[str, object]) -> None:
    """Write selected/: the model and its privacy statement."""
    target = folder / SELECTED
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((folder / cell.folder).glob("model*")):
            shutil.copyfile(file, target / file.name)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None
    write_json(target / DOCUMENT, document)
