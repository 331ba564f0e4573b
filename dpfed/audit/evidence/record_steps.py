"""Evidence on runs with record-level privacy: every client must be charged for the configured private local steps."""

from __future__ import annotations

import math
from contextlib import suppress

from accounting.compose.histories import Steps
from accounting.ledger import LocalRelease
from accounting.mechanisms import Unsampled, noise_of, sampling_of, unsampled
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.evidence.cohort_distribution import cohorts_by_round
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.clients.schedule import PoissonBatches
from dpfed.config.tables import Config
from dpfed.config.training_tables import RecordTable
from dpfed.mechanisms.records import gaussian_noise, integer_noise, scale_of
from dpfed.methods.records import has_enough_record_noise
from dpfed.records.reading import Unavailable
from dpfed.records.round import RoundRecord

_ROUNDING = 1e-9


def steps_follow_configuration(files: RunFiles) -> tuple[bool, str]:
    """Check that in every round each client of the cohort is charged once, with one number of records in all rounds.

    A client with n records must be charged for Poisson batches of probability min(1, batch_size / n). The number of
    batches must follow from epochs or steps; noise and clip from the configuration, calibrated noise from the ledger's
    header. In an even partition the numbers of records must be even. Two cases are not visible: the exact n if it is at
    most a batch, and in uneven partitions clients that are never charged, as are those without data.
    """
    table = files.config.local.record
    assert table is not None
    noise = {one.noise_std for one in _local_releases(files).values()}
    if len(noise) > 1:
        return False, "the noise of local steps differs between rounds, but a run fixes it before round 1."
    sizes, problem = _record_counts(files, table)
    if problem is not None:
        return False, problem
    if (problem := _plan_problem(files, table)) is not None:
        return False, f"the ledger's header: {problem}."
    known = {size for size in sizes.values() if size is not None}
    if _sizes_are_even(files.config) and known and max(known) - min(known) > 1:
        return False, f"clients are charged for {min(known)} to {max(known)} records, but the partition is even."
    return True, (
        f"{len(sizes)} clients took part; each is charged once in a round for its steps, with Poisson batches of "
        "probability batch size over records, and noise and clip of config.toml."
    )


def delta_of_records(files: RunFiles) -> float | None:
    """Return the default delta, (all records)^-1.1, if the ledger shows the records of all clients; otherwise None."""
    table = files.config.local.record
    assert table is not None
    sizes, problem = _record_counts(files, table)
    known = [size for size in sizes.values() if size is not None]
    complete = problem is None and len(known) == files.config.federation.clients
    return float(sum(known) ** -1.1) if complete else None


def _record_counts(files: RunFiles, table: RecordTable) -> tuple[dict[int, int | None], str | None]:
    """Return the number of records of each charged client (None: at most a batch), and a problem of a round or None."""
    sizes: dict[int, int | None] = {}
    drawn: list[set[int]] = []
    with suppress(Unavailable):  # runs of old versions did not record the drawn clients
        drawn = [set(cohort.tolist()) for _, cohort in cohorts_by_round(files)]
    charged: dict[int, set[int]] = {}
    for number, release in _local_releases(files).items():
        problem = _release_problem(files, table, release, files.rounds[number - 1], sizes)
        charged[number] = {client for part in release.steps for client in part.clients}
        if problem is None and drawn and (others := charged[number] - drawn[number - 1]):
            problem = f"client {min(others)} is charged, but was not drawn"
        if problem is not None:
            return sizes, f"round {number}: {problem}."
    for number in charged if drawn else ():
        if left := drawn[number - 1] & sizes.keys() - charged[number]:
            return sizes, f"round {number}: client {min(left)} was drawn and is not charged."
    return sizes, None


def _plan_problem(files: RunFiles, table: RecordTable) -> str | None:
    """Return a problem of the header's planned steps, from which calibrated noise is checked; None without a plan."""
    plan, releases = files.trusted_ledger.header.plan, list(_local_releases(files).values())
    if plan is None or plan.rounds is None or not plan.largest_charges or not releases:
        return None
    noise = _expected_noise(table, releases[0], _noise_multiplier(files, table, releases[0]))
    planned = [part for one in plan.largest_charges for part in one.parts]
    for step, count in planned:
        rounds = plan.rounds + plan.spare
        problem, _ = _checked_steps(files.config, Steps(mechanism=step, count=count // rounds, clients=()), noise)
        if problem is not None or count % rounds:
            return f"{problem or 'its rounds have unequal steps'} (planned steps)"
    if not {part.mechanism for one in releases for part in one.steps} <= {step for step, _ in planned}:
        return "a client is charged for a number of records that is not planned"
    if not has_enough_record_noise(files.config, plan, files.delta):
        return f"its noise multiplier does not keep every client within epsilon {table.epsilon} in the planned rounds"
    return None


def _noise_multiplier(files: RunFiles, table: RecordTable, release: LocalRelease) -> float:
    """Return the noise multiplier of the configuration, else the calibrated one of the header, else the line's."""
    solved = files.trusted_ledger.header.solved or {}
    stated = release.noise_std / release.clip_norm
    return table.noise_multiplier or float(solved.get("noise_multiplier", stated))


def _sizes_are_even(config: Config) -> bool:
    """Return True if the clients' numbers of records differ by at most one, and no number is 0."""
    return config.data.partition == "iid"


def _local_releases(files: RunFiles) -> dict[int, LocalRelease]:
    last = {number: entries[-1] for number, entries in files.entries.items() if number <= len(files.rounds)}
    return {number: entry for number, entry in last.items() if isinstance(entry, LocalRelease)}


def _release_problem(
    files: RunFiles, table: RecordTable, release: LocalRelease, facts: RoundRecord, sizes: dict[int, int | None]
) -> str | None:
    charged = [client for part in release.steps for client in part.clients]
    if len(set(charged)) < len(charged):
        return "a client is charged twice, for different steps"
    if len(charged) > facts.cohort or (_sizes_are_even(files.config) and len(charged) < facts.cohort):
        return f"{len(charged)} clients are charged, but {facts.cohort} took part"
    z, expected = release.noise_std / release.clip_norm, _noise_multiplier(files, table, release)
    if not math.isclose(release.clip_norm, table.clip_norm, rel_tol=_ROUNDING):
        return f"the clip norm is {release.clip_norm:g}, config.toml has {table.clip_norm:g}"
    if table.noise == "gaussian" and not math.isclose(z, expected, rel_tol=_ROUNDING):
        source = "config.toml" if table.noise_multiplier else "the ledger's header"
        return f"the noise multiplier is {z}, {source} has {expected}"
    noise = _expected_noise(table, release, expected)
    for part in release.steps:
        problem, size = _checked_steps(files.config, part, noise)
        if problem is not None:
            return problem
        if any(sizes.setdefault(client, size) != size for client in part.clients):
            return "a client is charged for a different number of records than in an earlier round"
    return None


def _expected_noise(table: RecordTable, release: LocalRelease, multiplier: float) -> Unsampled | None:
    """Return the noise of a step with this multiplier, in the encoding of config.toml.

    Returns None if the ledger line does not state a valid integer encoding.
    """
    if table.noise == "gaussian":
        return gaussian_noise(multiplier)
    size, per_unit = release.detail.get("integers"), release.detail.get("steps_per_unit")
    if not isinstance(size, int) or size < 1 or per_unit != scale_of(size, table.steps) / table.clip_norm:
        return None
    return integer_noise(multiplier, size=size, steps=table.steps)


def _same_noise(charged: Unsampled, expected: Unsampled) -> bool:
    """Return True if the charged noise is the expected noise; noise multipliers may differ by rounding."""
    found, wanted = noise_of(charged), noise_of(expected)
    if found is None or wanted is None or charged.kind != expected.kind:
        return charged == expected
    return math.isclose(found.noise_multiplier, wanted.noise_multiplier, rel_tol=_ROUNDING)


def _checked_steps(config: Config, part: Steps, noise: Unsampled | None) -> tuple[str | None, int | None]:
    """Return a problem or None, and the number of records; None if it is at most a batch, and therefore not visible."""
    mechanism, batch = part.mechanism, config.local.batch_size
    inside, sampling = unsampled(mechanism), sampling_of(mechanism)
    if noise is None or not _same_noise(inside, noise):
        words = "the charged noise of a step differs from the noise that the line states, or that config.toml gives"
        return words, None
    if inside.adjacency is not Adjacency.ADD_REMOVE:
        return f"adjacency is {inside.adjacency}, but independently drawn records have add-remove", None
    size = None
    if unsampled(mechanism) is not mechanism:
        if sampling.name != "poisson" or not sampling.probability > 0:
            return "the sampling of batches is not charged as Poisson sampling", None
        size = round(batch / sampling.probability)
        if not math.isclose(batch / size, sampling.probability, rel_tol=_ROUNDING):
            return f"no number of records gives probability {sampling.probability:g} at batch size {batch}", None
    batches = PoissonBatches(batch_size=batch, epochs=config.local.epochs, steps=config.local.steps)
    expected = batches.count(size or batch)
    if part.count != expected:
        return f"{part.count} steps are charged, config.toml gives {expected}", None
    return None, size
