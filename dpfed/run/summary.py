"""summary.json: what a finished run states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from accounting.compose.twins import overflow
from accounting.errors import ContradictoryBounds
from accounting.ledger import Ledger, Release
from dpfed.methods.goals import PrivacyGoal
from dpfed.methods.records import RecordGoal
from dpfed.run.binding import Binding
from dpfed.run.book import Book
from dpfed.run.experiment import Experiment
from dpfed.run.protection import hostile_clients_view, server_view
from dpfed.server.state import ServerState


def summary_of(
    experiment: Experiment,
    state: ServerState,
    book: Book | None,
    metrics: list[dict[str, Any]],
    *,
    scores: Mapping[str, float | None],
    stopped_by: str,
    seconds: float,
    binding: Binding,
) -> dict[str, Any]:
    """The keys that scripts rely on. Epsilon is recomputed from the ledger's file alone."""
    ledger = Ledger.read(book.ledger.path) if book is not None and experiment.goal is not None else None
    return {
        **_what_ran(experiment, state),
        **scores,
        **_privacy(experiment, state, book, ledger),
        "aborted_rounds": sum("aborted" in record for record in metrics),
        **bytes_of(experiment, state.round, metrics[-1]["uplink_megabytes"] if metrics else 0.0),
        "seconds": seconds,
        "device": str(experiment.device),
        "processes": experiment.method.ranks.count,
        "seed": experiment.config.run.seed,
        "population": binding.population,
        "ledger_head": ledger.head if ledger else None,
        "ledger_entries": len(ledger.entries) if ledger else None,
        "stopped_by": stopped_by,
        "project_ledger": str(book.project.ledger.path) if book and book.project else None,
        "project_epsilon": book.project.terms.epsilon if book and book.project else None,
        "project_condition": book.project.condition if book and book.project else None,
        "project_head": book.project.ledger.head if book and book.project else None,
    }


def _what_ran(experiment: Experiment, state: ServerState) -> dict[str, Any]:
    config, clients = experiment.config, experiment.method.clients
    return {
        "method": experiment.facts.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "parameters": experiment.model.size,
        "fixed_parameters": sum(tensor.numel() for tensor in experiment.model.fixed.values()),
        "local_training": asdict(clients.plan) | {"precision": clients.precision},
        "clients": config.federation.clients,
        "cohort": int(experiment.method.sampler.expected),
        "sampling": config.federation.sampling,
        "rounds": state.round,
        "loss": experiment.objective.loss.name,
    }


def _privacy(experiment: Experiment, state: ServerState, book: Book | None, ledger: Ledger | None) -> dict[str, Any]:
    config, goal = experiment.config, experiment.goal
    stated = against_server = against_clients = contradiction = None
    if goal is not None and ledger is not None:
        try:
            stated = ledger.guarantee(goal.delta, accountant=goal.accountant, units=records_of(experiment))
        except ContradictoryBounds as error:  # the run is saved, and states nothing
            contradiction = str(error)
        released = len(ledger.releases)
        against_server, against_clients = (view(config, goal, released) for view in (server_view, hostile_clients_view))
    return {
        "epsilon": stated.epsilon if stated else None,
        "no_statement": contradiction,
        "lower_bound": stated.lower_bound if stated else None,
        "delta": goal.delta if goal else None,
        "delta_charged_for_failures": (delta_for_failures(ledger) if ledger else 0.0) if goal else None,
        "unit": goal.unit if goal else "none",
        "adjacency": stated.adjacency if stated else None,
        "accountant": stated.method if stated else None,
        "noise_multiplier": goal.noise_multiplier if goal else None,
        **schedule_facts(goal),
        "clip_norm": state.clip_norm if goal else None,
        "noise_placement": _placement(book),
        "noise": _law(experiment, book),
        "server_epsilon": against_server.epsilon if against_server else None,
        "server_epsilon_rounds": against_server.rounds if against_server else None,
        "hostile_clients_epsilon": against_clients.epsilon if against_clients else None,
        "hostile_clients_epsilon_rounds": against_clients.rounds if against_clients else None,
        "aggregation": config.aggregation.kind,
        "randomness": experiment.method.randomness.name,
        "for_release": config.run.for_release if goal else None,
        "interrupted_charges": book.interrupted(state.round) if book else 0,
        "not_protected": list(experiment.not_protected),
        "notes": list(stated.notes) if stated else [],
    }


def bytes_of(experiment: Experiment, rounds: int, megabytes: float) -> dict[str, Any]:
    """Bytes and bits of what clients send and get; megabytes: of all uploads of so many rounds."""
    uploads = uploads_of_a_round(experiment) * rounds
    upload_bytes = 1e6 * megabytes / uploads if uploads else 0.0
    return {
        "uplink_bits_per_parameter": (experiment.uplink_bits or 8 * upload_bytes) / experiment.model.size,
        "uplink_bytes_per_client_round": math.ceil(upload_bytes),
        "uplink_megabytes_total": megabytes,
        "secure_sum_bytes_per_client_round": math.ceil(experiment.secure_sum_bits / 8),
        "downlink_bytes_per_client_round": math.ceil(experiment.downlink_bits / 8),
    }


def delta_for_failures(ledger: Ledger) -> float:
    """What of delta is charged, in the epsilon that is stated, for events that are only unlikely: the sum over all
    releases of the probability that more clients are drawn than a sum has slots."""
    released = ledger.mechanism() if ledger.header.unit == "client" else None
    return overflow(released) if released is not None else 0.0


def records_of(experiment: Experiment) -> int | None:
    """How many records there are, where they are what is private."""
    return experiment.method.clients.partition.total if isinstance(experiment.goal, RecordGoal) else None


def uplink_megabytes(experiment: Experiment, rounds: int, measured: int) -> float:
    """Sizes fixed beforehand count by the expected cohort, since the realised one is secret under Poisson sampling;
    others as measured (nothing is private there, or every upload is seen anyway)."""
    if experiment.uplink_bits is None:
        return measured / 1e6
    return math.ceil(experiment.uplink_bits / 8) * uploads_of_a_round(experiment) * rounds / 1e6


def uploads_of_a_round(experiment: Experiment) -> float:
    """Uploads of a round: those expected, or always so many."""
    return experiment.method.fill or experiment.method.sampler.expected


def schedule_facts(goal: PrivacyGoal | RecordGoal | None) -> dict[str, Any]:
    """Factors of the noise multiplier in equal parts of the planned rounds; None where all rounds have it as it is."""
    schedule = goal.schedule if isinstance(goal, PrivacyGoal) else None
    return {
        "noise_schedule": list(schedule.factors) if schedule else None,
        "noise_schedule_rounds": schedule.rounds if schedule else None,
    }


def _placement(book: Book | None) -> str | None:
    """Where the noise was, by the ledger: server, clients (shares), uploads, coins; "local steps" for records."""
    if book is None:
        return None
    kinds = [one.noise_placement if isinstance(one, Release) else "local steps" for one in book.ledger.releases]
    return kinds[-1] if kinds else None


def _law(experiment: Experiment, book: Book | None) -> str | None:
    """What the noise is: gaussian, discrete-gaussian, skellam, coins."""
    if book is None:
        return None
    goal = experiment.goal
    assert goal is not None
    if goal.noise_multiplier is None:
        return "coins"
    return goal.integers.kind if isinstance(goal, PrivacyGoal) and goal.integers is not None else "gaussian"
