"""The loop of a run: rounds, evaluation, checkpoints, and stopping before a round that the budget cannot pay."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accounting import accountant
from accounting.histories import Histories
from accounting.ledger import Header, Ledger, LocalRelease, Release
from dpfed import __version__
from dpfed.build import Experiment, PrivacyGoal, RecordGoal
from dpfed.errors import RunError
from dpfed.evaluate import evaluate
from dpfed.round import RoundFacts, draw_cohort, run_round
from dpfed.run_folder import RunFolder
from dpfed.server.state import ServerState

OnRound = Callable[[Mapping[str, Any]], None]
Costs = Callable[[NDArray[np.int64], int], float]
"""Epsilon once a round of this cohort is charged; NaN where nothing is private."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run left behind."""

    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def run(experiment: Experiment, out: Path, *, resume: bool = False, on_round: OnRound = lambda record: None) -> Outcome:
    """Run (or go on with) the experiment in folder `out`; `on_round` gets each line of metrics.jsonl.

    Claim: the summary's epsilon is recomputed from the ledger alone, which holds every release that was made; a round
    whose epsilon would exceed privacy.epsilon (local.record.epsilon: for any client) is not run. Raises RunError or
    LedgerError where the folder or the ledger cannot be trusted or written; what was written before stays valid.
    """
    config = experiment.config
    began = time.monotonic()
    folder = RunFolder.reopen(out, config.to_dict()) if resume else RunFolder.create(out, config.to_dict())
    state, remembered = folder.load_checkpoint(experiment.start) if resume else (experiment.start, {})
    experiment.parts.code.restore(remembered)
    book = _Book.open(experiment, folder, state.round) if experiment.goal else None
    metrics = folder.metrics(before_round=state.round)
    costs = _costs(experiment, book, state.round)
    uplink = round(1e6 * metrics[-1]["uplink_megabytes"]) if metrics else 0
    stopped_by = "rounds"
    while state.round < config.federation.rounds:
        cohort = draw_cohort(experiment.parts, state.round)
        epsilon = costs(cohort, state.round)
        if experiment.goal and experiment.goal.budget is not None and epsilon > experiment.goal.budget:
            stopped_by = "budget"
            break
        started = time.monotonic()
        state, facts = run_round(state, experiment.parts, seeds=experiment.seeds, ledger=book, cohort=cohort)
        folder.save_checkpoint(state, experiment.parts.code.keep())
        seconds = time.monotonic() - started
        uplink += facts.uplink_bytes or 0
        record = _round_record(experiment, state, epsilon, uplink)
        metrics.append(record)
        folder.append_metrics(record)
        folder.append_diagnostics(_facts_record(state, facts, seconds))
        on_round(record)
    if experiment.goal and state.round == 0:
        raise RunError(
            f"epsilon={experiment.goal.budget}: not even one round fits (it costs {epsilon:.4g}). Raise the "
            "noise multiplier or the budget."
        )
    summary = _summary(experiment, state, book, metrics, stopped_by, time.monotonic() - began)
    folder.save_model(experiment.model, experiment.readout.weights(state))
    content = experiment.readout.file(state)
    if content is not None:
        folder.save_mask(content)
        summary["model_bits_per_parameter"] = 8 * len(content) / experiment.model.size
    folder.save_summary(summary)
    return Outcome(folder=out, summary=summary, metrics=metrics)


class _Book:
    """The ledger of a run that may have been interrupted between charging a round and saving its result.

    With simulated randomness the round is repeated with the same noise: the same release, so its line stands. With
    secure randomness the repetition is a new release and is charged on top.
    """

    def __init__(self, ledger: Ledger, repeatable: bool) -> None:
        self.ledger = ledger
        self._repeatable = repeatable

    @classmethod
    def open(cls, experiment: Experiment, folder: RunFolder, rounds_done: int) -> _Book:
        randomness = experiment.parts.randomness.name
        if folder.ledger.exists():
            ledger = Ledger.resume(folder.ledger)
        else:
            about = {
                "package": f"dpfed {__version__}",
                "method": experiment.method.name,
                "delta": _goal(experiment).delta,
            }
            header = Header(
                unit=_goal(experiment).unit,
                clients=experiment.config.federation.clients,
                randomness=randomness,
                about=about,
            )
            ledger = Ledger.create(folder.ledger, header)
        if len(ledger.releases) < rounds_done:
            raise RunError(
                f"{folder.ledger}: holds {len(ledger.releases)} releases, the checkpoint {rounds_done} rounds. Rounds "
                "were released without a charge or lines were lost; nothing true can be said about this run."
            )
        return cls(ledger, randomness == "simulated")

    def record(self, release: Release | LocalRelease) -> None:
        """Charge a release, unless its very line is there from before the interruption."""
        written = self.ledger.releases
        if not self._repeatable or release.round >= len(written):
            self.ledger.record(release)
        elif written[release.round] != release:
            raise RunError(
                f"{self.ledger.path}, round {release.round}: the repeated round is not the one that was charged. The "
                "package or the machine has changed since; start a new run."
            )

    def standing(self, rounds_done: int) -> int:
        """Releases that count before the next round: an interrupted simulated round is charged once."""
        return rounds_done if self._repeatable else len(self.ledger.releases)


def _goal(experiment: Experiment) -> PrivacyGoal | RecordGoal:
    assert experiment.goal is not None
    return experiment.goal


def _costs(experiment: Experiment, book: _Book | None, rounds_done: int) -> Costs:
    """To be called once before each further round of this process."""
    if book is None:
        return lambda cohort, round: math.nan
    goal, rounds = _goal(experiment), experiment.config.federation.rounds
    if isinstance(goal, RecordGoal):
        return _record_costs(experiment, goal, book.ledger.releases[: book.standing(rounds_done)])
    stream = accountant.epsilons(goal.mechanism, delta=goal.delta, rounds=rounds, accountant=goal.accountant)
    further = itertools.islice(stream, book.standing(rounds_done), None)
    return lambda cohort, round: next(further)


def _record_costs(experiment: Experiment, goal: RecordGoal, before: list[Release | LocalRelease]) -> Costs:
    histories = Histories()
    for release in before:
        if isinstance(release, LocalRelease):
            histories.add(release.steps)

    def after(cohort: NDArray[np.int64], round: int) -> float:
        release = experiment.parts.local.release(cohort, round=round)
        assert release is not None
        histories.add(release.steps)
        return histories.epsilon(delta=goal.delta, accountant=goal.accountant)

    return after


def _round_record(experiment: Experiment, state: ServerState, epsilon: float, uplink: int) -> dict[str, Any]:
    config = experiment.config
    record: dict[str, Any] = {"round": state.round, "test_accuracy": None, "test_loss": None}
    if state.round % config.run.evaluate_every == 0 or state.round == config.federation.rounds:
        dataset, device = experiment.dataset, experiment.device
        result = evaluate(
            experiment.model,
            experiment.readout.weights(state),
            torch.from_numpy(dataset.test_inputs).to(device),
            torch.from_numpy(dataset.test_labels).to(device),
        )
        record["test_accuracy"] = result.accuracy
        record["test_loss"] = result.loss if math.isfinite(result.loss) else None
    record["epsilon"] = None if math.isnan(epsilon) else epsilon
    record["clip_norm"] = state.clip_norm if math.isfinite(state.clip_norm) else None
    record["uplink_megabytes"] = _uplink_megabytes(experiment, state.round, uplink)
    return record


def _facts_record(state: ServerState, facts: RoundFacts, seconds: float) -> dict[str, float | None]:
    """What no epsilon covers; the time of a round, too, tells how many took part."""
    return {
        "round": state.round,
        "cohort": facts.cohort,
        "clipped": facts.clipped,
        "not_finite": facts.not_finite,
        "uplink_bytes": facts.uplink_bytes,
        "seconds": seconds,
    }


def _uplink_megabytes(experiment: Experiment, rounds: int, measured: int) -> float:
    """Sizes fixed beforehand count by the expected cohort, since the realised one is secret under Poisson sampling;
    others as measured (nothing is private there, or every upload is seen anyway)."""
    if experiment.uplink_bits is None:
        return measured / 1e6
    return math.ceil(experiment.uplink_bits / 8) * experiment.parts.sampler.expected * rounds / 1e6


def _placement(book: _Book | None) -> str | None:
    """Where the noise was, by the ledger: server, clients (shares), uploads, coins; "local steps" for records."""
    if book is None:
        return None
    last = book.ledger.releases[-1]
    return last.noise_placement if isinstance(last, Release) else "local steps"


def _summary(
    experiment: Experiment,
    state: ServerState,
    book: _Book | None,
    metrics: list[dict[str, Any]],
    stopped_by: str,
    seconds: float,
) -> dict[str, Any]:
    config, goal = experiment.config, experiment.goal
    megabytes = metrics[-1]["uplink_megabytes"] if metrics else 0.0
    uploads = experiment.parts.sampler.expected * state.round
    upload_bytes = 1e6 * megabytes / uploads if uploads else 0.0
    accuracies = [record["test_accuracy"] for record in metrics if record["test_accuracy"] is not None]
    stated = None
    if goal is not None and book is not None:
        stated = Ledger.read(book.ledger.path).guarantee(goal.delta, accountant=goal.accountant)
    return {
        "method": experiment.method.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "parameters": experiment.model.size,
        "clients": config.federation.clients,
        "cohort": int(experiment.parts.sampler.expected),
        "sampling": config.federation.sampling,
        "rounds": state.round,
        "test_accuracy": accuracies[-1] if accuracies else None,
        "best_test_accuracy": max(accuracies) if accuracies else None,
        "epsilon": stated.epsilon if stated else None,
        "lower_bound": stated.lower_bound if stated else None,
        "delta": goal.delta if goal else None,
        "unit": goal.unit if goal else "none",
        "adjacency": stated.adjacency if stated else None,
        "accountant": stated.method if stated else None,
        "noise_multiplier": goal.noise_multiplier if goal else None,
        "clip_norm": state.clip_norm if goal else None,
        "noise_placement": _placement(book),
        "randomness": experiment.parts.randomness.name,
        "not_protected": list(experiment.not_protected),
        "uplink_bits_per_parameter": (experiment.uplink_bits or 8 * upload_bytes) / experiment.model.size,
        "uplink_bytes_per_client_round": math.ceil(upload_bytes),
        "uplink_megabytes_total": megabytes,
        "downlink_bytes_per_client_round": math.ceil(experiment.downlink_bits / 8),
        "seconds": seconds,
        "device": str(experiment.device),
        "seed": config.run.seed,
        "stopped_by": stopped_by,
    }
