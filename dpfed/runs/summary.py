"""Content of summary.json: the statement of a finished run's settings, privacy and resources.

A certificate is an epsilon by simulation, stated in addition to the deterministic upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from accounting.budget import certificates
from accounting.budget.certificates import Certificate, Claim
from accounting.compose.accountant import Guarantee
from accounting.compose.twins import overflow
from accounting.errors import CalibrationError, ContradictoryBounds
from accounting.ledger import Aborted, Ledger, LocalRelease, Release
from accounting.mechanisms import noise_of, unsampled
from dpfed.config.tables import Config
from dpfed.methods.records import AnyTarget
from dpfed.records.round import MetricsLine
from dpfed.records.summary import GaussianSummary, LocalTraining, Summary
from dpfed.runs.binding import Binding
from dpfed.runs.book import LedgerBook
from dpfed.runs.experiment import Experiment
from dpfed.runs.protection import SUM_MAY_BE_SEEN, epsilon_against_hostile_clients, epsilon_against_server
from dpfed.runs.training import gpu_description
from dpfed.server.rules import ServerState


def requests_certificate(config: Config) -> bool:
    """Return True if privacy.certificate requests a certificate by simulation."""
    return config.privacy is not None and config.privacy.certificate == "sampled"


def certificate_claim(config: Config, ledger: Ledger, stated: Guarantee) -> Claim | None:
    """Return the claim about the ledger's releases that a certificate proves; None if the run cannot have a
    certificate.

    It can have one if privacy.certificate is set, the planned rounds are released, each once, and no project is
    charged. A run may have ended early or been prolonged because of its results, which its certificate would not cover.
    """
    if not requests_certificate(config) or "run" in ledger.header.about or not ledger.releases:
        return None
    mechanism, rounds = ledger.mechanism(), config.federation.rounds
    if ledger.header.plan is None or ledger.header.plan.rounds != rounds:
        return None
    exact = ledger.released_rounds.is_exact and len(ledger.releases) == rounds
    if mechanism is None or [count for _, count in mechanism.parts] != [rounds] or not exact:
        return None
    return Claim(mechanism=mechanism, delta=stated.delta, deterministic=stated.epsilon)


def certificate_of(config: Config, ledger: Ledger, stated: Guarantee) -> Certificate | None:
    """Return the certificate of a finished run; None if it cannot have one, or no certified epsilon is below its
    epsilon."""
    claim = certificate_claim(config, ledger, stated)
    if claim is None:
        return None
    try:
        return certificates.cached_or_new_certificate(claim, samples=certificates.SAMPLES)
    except CalibrationError:
        return None


def summary_of(
    experiment: Experiment,
    state: ServerState,
    book: LedgerBook | None,
    metrics: Sequence[MetricsLine],
    *,
    scores: Mapping[str, float | None],
    stopped_by: str,
    seconds: float,
    binding: Binding,
    mask_entropy: int | None,
    public_samples_alone: float | None,
) -> Summary:
    """Return the summary of a finished run; its epsilon is recomputed from the ledger file alone."""
    config, clients, privacy_target = experiment.config, experiment.method.clients, experiment.privacy_target
    ledger = Ledger.read(book.ledger.path) if book is not None and privacy_target is not None else None
    return Summary(
        method=experiment.specification.name,
        dataset=config.data.name,
        model=config.model.name,
        parameters=experiment.model.size,
        fixed_parameters=sum(tensor.numel() for tensor in experiment.model.fixed.values()),
        local_training=LocalTraining(**asdict(clients.plan), precision=clients.precision),
        clients=config.federation.clients,
        cohort=int(experiment.method.sampler.expected),
        sampling=config.federation.sampling,
        rounds=state.round,
        loss=experiment.objective.loss.name,
        scores=scores,
        unit=privacy_target.unit if privacy_target else "none",
        clip_norm=state.clip_norm if privacy_target else None,
        public_samples=config.data.public or None,
        public_samples_alone=public_samples_alone,
        for_release=config.run.for_release if privacy_target else None,
        aggregation=config.aggregation.kind,
        randomness=experiment.method.randomness.name,
        interrupted_charges=book.interrupted_charges(state.round) if book else 0,
        not_protected=experiment.not_protected,
        aborted_rounds=sum(line.aborted is not None for line in metrics),
        seconds=seconds,
        device=str(experiment.device),
        gpu=gpu_description(experiment.device),
        processes=experiment.method.ranks.count,
        seed=config.run.seed,
        population=binding.population,
        stopped_by=stopped_by,
        **_privacy_fields(experiment, book, ledger),
        **_project_fields(book),
        **communication_fields(experiment, state.round, metrics[-1].uplink_megabytes if metrics else 0.0),
        mask_entropy_bits_per_parameter=mask_bits_per_parameter(experiment, state.round, mask_entropy),
    )


def _privacy_fields(experiment: Experiment, book: LedgerBook | None, ledger: Ledger | None) -> dict[str, Any]:
    """Return the fields of summary.json about privacy; empty for a run without privacy."""
    config, privacy_target = experiment.config, experiment.privacy_target
    if privacy_target is None or ledger is None or book is None:
        return {}
    try:
        stated = stated_guarantee(experiment, privacy_target, ledger)
        found: dict[str, object] = {
            "epsilon": stated.epsilon,
            "lower_bound": stated.lower_bound,
            "adjacency": stated.adjacency,
            "accountant": stated.method,
            "notes": stated.notes,
        }
        if certificate := certificate_of(config, ledger, stated):
            found["certificate"] = asdict(certificate)
        if readings := readings_of(stated):
            found |= readings | {"gaussian_dp": GaussianSummary(**readings["gaussian_dp"])}
    except ContradictoryBounds as error:  # the run is saved, but its summary states no guarantee
        found = {"no_statement": str(error)}
    return found | {
        "delta": privacy_target.delta,
        "delta_charged_for_failures": delta_for_failures(ledger),
        "noise_multiplier": privacy_target.noise_multiplier,
        "noise_placement": noise_placement(book.ledger.releases),
        "noise": noise_kind(privacy_target),
        **noise_schedule_fields(privacy_target),
        **other_epsilon_fields(config, privacy_target, ledger),
        "ledger_head": ledger.head,
        "ledger_entries": len(ledger.entries),
    }


def readings_of(stated: Guarantee) -> dict[str, Any] | None:
    """Return the readings of epsilon (advantage, tpr_at_fpr, gaussian_dp); None if `stated` is not a valid
    guarantee."""
    return stated.readings().to_dict() if stated.valid else None


def _project_fields(book: LedgerBook | None) -> dict[str, Any]:
    """Return the fields of summary.json about the project's ledger; empty for a run without a project."""
    if book is None or book.project is None:
        return {}
    project = book.project
    return {
        "project_ledger": str(project.ledger.path),
        "project_epsilon": project.terms.epsilon,
        "project_delta": project.terms.delta,
        "project_condition": project.condition,
        "project_head": project.ledger.head,
    }


def communication_fields(experiment: Experiment, rounds: int, megabytes: float) -> dict[str, Any]:
    """Return the fields of summary.json about communication.

    megabytes: size of all uploads of `rounds` rounds
    """
    uploads = uploads_of_a_round(experiment) * rounds
    upload_bytes = 1e6 * megabytes / uploads if uploads else 0.0
    return {
        "uplink_bits_per_parameter": (experiment.uplink_bits or 8 * upload_bytes) / experiment.model.size,
        "uplink_bytes_per_client_round": math.ceil(upload_bytes),
        "uplink_megabytes_total": megabytes,
        "secure_sum_bytes_per_client_round": math.ceil(experiment.secure_sum_bits / 8),
        "downlink_bytes_per_client_round": math.ceil(experiment.downlink_bits / 8),
    }


def mask_bits_per_parameter(experiment: Experiment, rounds: int, entropy: int | None) -> float | None:
    """Return the bits per parameter of an upload by FedPM's measure, the entropy of the share of ones in a mask.

    Source: Isik et al. 2023, Section 3.1. Returns None if uploads are not masks or were not measured.

    entropy: bits of all uploads of `rounds` rounds by this measure
    """
    uploads = uploads_of_a_round(experiment) * rounds
    return entropy / uploads / experiment.model.size if entropy and uploads else None


def delta_for_failures(ledger: Ledger) -> float:
    """Return the part of delta that is charged for cohorts larger than the fixed number of uploads of a sum.

    It is the sum of the probability of this event over all releases. Ledgers up to version 0.3 charge it.
    """
    released = ledger.mechanism() if ledger.header.unit == "client" else None
    return overflow(released) if released is not None else 0.0


def stated_guarantee(experiment: Experiment, privacy_target: AnyTarget, ledger: Ledger) -> Guarantee:
    """Return the guarantee of a run's ledger, for the records of all clients if the unit of privacy is a record."""
    records = experiment.method.clients.partition.total if privacy_target.unit == "record" else None
    return ledger.guarantee(privacy_target.delta, accountant=privacy_target.accountant, units=records)


def uplink_megabytes(experiment: Experiment, rounds: int, measured: int) -> float:
    """Return the megabytes of all uploads of `rounds` rounds.

    If all uploads have one fixed size, it is multiplied by the expected cohort, because the realised cohort is secret
    under Poisson sampling. Otherwise it is the `measured` number of bytes; such a run has no privacy, or every upload
    is visible.
    """
    if experiment.uplink_bits is None:
        return measured / 1e6
    return math.ceil(experiment.uplink_bits / 8) * uploads_of_a_round(experiment) * rounds / 1e6


def uploads_of_a_round(experiment: Experiment) -> float:
    """Return the number of uploads of a round: the fixed number of a sum if there is one, else the expected number."""
    return experiment.method.fill or experiment.method.sampler.expected


def noise_schedule_fields(privacy_target: AnyTarget) -> dict[str, object]:
    """Return the fields of summary.json about the noise schedule; their values are None in a run without a schedule."""
    schedule = privacy_target.schedule
    return {
        "noise_schedule": list(schedule.factors) if schedule else None,
        "noise_schedule_rounds": schedule.rounds if schedule else None,
    }


def other_epsilon_fields(config: Config, privacy_target: AnyTarget, ledger: Ledger) -> dict[str, object]:
    """Return the fields of summary.json with epsilon against the server and against hostile clients, and their rounds.

    Their values are None for a prolonged run, whose length may depend on its results: its budget bounds neither. A run
    of a project, which other runs may end, and one with spare rounds are stated with all planned and spare rounds.
    """
    found: dict[str, object] = {}
    releases, plan = len(ledger.releases), ledger.header.plan
    if plan is not None and plan.rounds is not None:
        if "run" in ledger.header.about or plan.spare:
            releases = max(releases, plan.rounds + plan.spare)
        if plan.rounds < config.federation.rounds:
            releases = 0
    seen = sum(isinstance(one, Aborted) and one.reason == SUM_MAY_BE_SEEN for one in ledger.entries)
    for name, view, more in (
        ("server_epsilon", epsilon_against_server, seen),
        ("hostile_clients_epsilon", epsilon_against_hostile_clients, 0),
    ):
        against = view(config, privacy_target, releases and releases + more)
        found[name] = against.epsilon if against else None
        found[f"{name}_rounds"] = against.rounds if against else None
    return found


def noise_placement(releases: Sequence[Release | LocalRelease]) -> str | None:
    """Return the place where the last release's noise was added: server, clients, uploads, `coins`, or "local
    steps"."""
    last = releases[-1] if releases else None
    return last.noise_placement if isinstance(last, Release) else "local steps" if last else None


def noise_kind(privacy_target: AnyTarget) -> str:
    """Return the kind of noise of a run: gaussian, discrete-gaussian, skellam or `coins`."""
    if privacy_target.noise_multiplier is None:
        return "coins"
    noise = unsampled(privacy_target.mechanism)
    return noise.kind if noise_of(noise) is None else "gaussian"
