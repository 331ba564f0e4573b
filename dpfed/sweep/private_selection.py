"""Release of the best of a random number of runs, with one epsilon (docs/theory.md, section 8)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from accounting.caveats import caveats
from accounting.compose import accountant, selection
from accounting.compose.selection import RandomRuns
from accounting.ledger.regular_file import LARGEST_ARRAYS, LARGEST_DOCUMENT, read_input, read_text
from accounting.mechanisms import Mechanism
from dpfed.config.tables import flat_tables
from dpfed.errors import ConfigError, RunError
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.randomness import Randomness, Secure
from dpfed.records.summary import Summary
from dpfed.runs.durable_files import put
from dpfed.runs.experiment import build
from dpfed.runs.sweep_folder import write_json
from dpfed.sweep.jobs import worker_pool
from dpfed.sweep.plan import SEED, GridCell, PlannedSweep
from dpfed.sweep.sweep import RULES, OnRun, best_run_of, run_all

DRAWN, OPERATOR, SELECTED, DOCUMENT = "drawn.json", "not-to-publish", "selected", "selection.json"
_SAME = ("federation.clients", "privacy.delta", "privacy.adjacency")


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Candidates that may be drawn, the mechanism of one run of each candidate, and the conditions of their epsilon."""

    cells: tuple[GridCell, ...]
    mechanisms: tuple[Mechanism, ...]
    delta: float
    notes: tuple[str, ...]

    def epsilon(self, runs: RandomRuns) -> float:
        """Return an upper bound on epsilon of the chosen run and its choice, for any number of runs drawn."""
        return selection.epsilon(*self.mechanisms, runs=runs, delta=self.delta)


def candidates_of(plan: PlannedSweep) -> Candidates:
    """Return the runs of the grid as candidates; ConfigError if no account covers the best of them."""
    cells = plan.grid.cells
    if plan.grid.choices:
        raise ConfigError(
            "--private-selection: the file has [tune], whose runs would spend privacy without a charge. Remove [tune]."
        )
    for cell in cells:
        _check_candidate(cell, cells[0])
    private, notes = list[PrivacyTarget](), list[str]()
    for experiment in (build(cell.config) for cell in cells):
        notes += experiment.not_protected
        if isinstance(experiment.privacy_target, PrivacyTarget):
            private.append(experiment.privacy_target)
    if len(private) < len(cells):
        raise ConfigError(
            "--private-selection requires [privacy] in every run (not [local.record]), because the unit is the client."
        )
    rounds = [cell.config.charged_rounds for cell in cells]
    mechanisms = tuple(map(PrivacyTarget.mechanism_of_run, private, rounds))
    notes += [note for one in mechanisms for note in accountant.hypothesis_notes(one)]
    return Candidates(cells=cells, mechanisms=mechanisms, delta=private[0].delta, notes=tuple(dict.fromkeys(notes)))


def _check_candidate(cell: GridCell, first: GridCell) -> None:
    where, config = f"--private-selection: row {cell.row!r}", cell.config
    if SEED in cell.at:
        raise ConfigError(f"{where}: run.seed is an axis, but every drawn run gets a new seed. Remove this axis.")
    if config.data.validation is None:
        raise ConfigError(
            f"{where}: runs are compared on public samples only. Give data.validation, the number of training samples "
            "to set aside; no epsilon protects them."
        )
    if config.privacy is not None and config.privacy.release == "uploads":
        raise ConfigError(
            f"{where}: privacy.release='uploads': uploads of all drawn runs are visible, but epsilon holds if only the "
            "chosen run is. Use privacy.release='sum'."
        )
    here, there = flat_tables(config.to_dict()), flat_tables(first.config.to_dict())
    for key in sorted(here.keys() | there.keys()):
        if (key in _SAME or key.startswith("data.")) and here.get(key) != there.get(key):
            raise ConfigError(
                f"{where}: {key} differs from that of row {first.row!r}. Candidates must share data, clients, delta "
                "and adjacency."
            )


def select_best_run(
    plan: PlannedSweep,
    runs: RandomRuns,
    *,
    jobs: int | None = None,
    on_run: OnRun = lambda done: None,
    randomness: Randomness | None = None,
) -> dict[str, object]:
    """Draw the number of runs and a candidate for each run, run all of them, and release the best.

    Returns the content of selected/selection.json.

    Claim: selected/ satisfies the epsilon stated in it, for one client, if nothing else of the folder is published: not
    the number of runs, no other run, no time. The draws are on disk before the first run starts, so an interrupted
    selection continues with the same draws. ConfigError if there is no account. RunError if a run failed (nothing is
    chosen, and the same command continues), if a run released more than planned, or if no run was drawn. The Poisson
    distribution can draw no run.
    """
    candidates = candidates_of(plan)
    stated = candidates.epsilon(runs)
    cells = _drawn_runs(plan.folder, candidates, runs, randomness or Secure())
    if not cells:
        raise RunError(
            "no run was drawn, which can happen with a Poisson distribution: there is nothing to release. The epsilon "
            "does not cover a second draw."
        )
    with worker_pool(jobs, [cell.config.run.device for cell in cells]) as pool:
        done = run_all(plan, cells, pool, on_run)
    if failed := [one for one in done if one.summary is None]:
        raise RunError(f"{len(failed)} runs failed, so nothing is chosen. The first: {failed[0].error}")
    summaries = [one.summary for one in done if one.summary is not None]
    _check_spending(cells, summaries, candidates)
    best, score, _ = best_run_of(summaries)
    if best is None:
        raise RunError("a run has no validation score, so nothing is chosen.")
    document = _selection_document(candidates, runs, stated, cells[best], summaries[best], score)
    _write_selected(plan.folder, cells[best], document)
    return document


def _drawn_runs(folder: Path, candidates: Candidates, runs: RandomRuns, randomness: Randomness) -> list[GridCell]:
    """Return the drawn runs: draw and record them, or read an earlier draw from the folder."""
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
            raise RunError(f"{folder}: holds a different selection. Give another --out, or remove the folder.")
        return [_drawn_cell(candidates.cells[one["candidate"]], int(one["seed"])) for one in found["drawn"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise RunError(
            f"{file}: is no list of drawn runs. Give another --out; privacy spent by runs in this folder remains spent."
        ) from None


def _drawn_cell(candidate: GridCell, seed: int) -> GridCell:
    """Return the drawn run; its folder name does not reveal the number of runs."""
    return replace(candidate.with_chosen_values({SEED: seed}), folder=f"{OPERATOR}/{seed:014x}")


def _check_spending(cells: Sequence[GridCell], summaries: Sequence[Summary], candidates: Candidates) -> None:
    """Raise RunError if a run released more than was planned for its candidate."""
    planned = {}
    for cell, mechanism in zip(candidates.cells, candidates.mechanisms, strict=True):
        assert cell.config.privacy is not None
        by = cell.config.privacy.accountant  # that of the run's own statement
        planned[cell.row, *cell.at.values()] = accountant.epsilon(mechanism, delta=candidates.delta, accountant=by)
    for cell, summary in zip(cells, summaries, strict=True):
        most, spent = planned[cell.row, *cell.at.values()], math.inf if summary.epsilon is None else summary.epsilon
        if spent > most * (1 + 1e-6):
            raise RunError(
                f"a run released more than was planned: epsilon {spent}, planned {most}. Nothing is chosen. Rounds "
                "that are repeated after an interruption need run.spare_rounds."
            )


def _selection_document(
    candidates: Candidates, runs: RandomRuns, stated: float, cell: GridCell, summary: Summary, score: str
) -> dict[str, object]:
    """Return the published statement; it depends on runs that were not chosen only through the choice."""
    return {
        "epsilon": stated,
        "delta": candidates.delta,
        "unit": summary.unit,
        "adjacency": summary.adjacency,
        "sampling": summary.sampling,
        "number_of_runs": {"law": runs.law, "mean": runs.mean, "eta": runs.eta},
        "candidates": [{"row": one.row, "at": dict(one.at)} for one in candidates.cells],
        "chosen": {"row": cell.row, "at": dict(cell.at)},
        "rule": f"{RULES[score]} drawn",
        score: summary.number(score),
        "test_accuracy": summary.test_accuracy,
        "randomness": cell.config.run.randomness,
        "notes": [
            "epsilon covers the choice of the best of a random number of runs; summary.json of the chosen run states "
            "less, which is not what this release spent",
            *candidates.notes,
            *caveats(epsilon=stated, delta=candidates.delta, units=cell.config.federation.clients),
        ],
    }


def _write_selected(folder: Path, cell: GridCell, document: Mapping[str, object]) -> None:
    """Write the model and its privacy statement to selected/."""
    target = folder / SELECTED
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((folder / cell.folder).glob("model*")):
            put(target / file.name, read_input(file, at_most=LARGEST_ARRAYS))
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None
    write_json(target / DOCUMENT, document)
