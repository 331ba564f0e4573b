"""Evidence on runs whose clients train privately by themselves: every client is charged for the configured steps."""

from __future__ import annotations

import math

from accounting.compose.histories import Steps
from accounting.ledger import LocalRelease
from accounting.mechanisms import DiscreteGaussian, Gaussian, sampling_of, unsampled
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.clients.records import gaussian_noise
from dpfed.clients.schedule import PoissonBatches
from dpfed.config.tables import Config
from dpfed.config.training_tables import RecordTable
from dpfed.mechanisms.records import integer_noise, scale_of
from dpfed.records.round import RoundRecord

_ROUNDING = 1e-9


def steps_follow_configuration(files: RunFiles) -> tuple[bool, str]:
    """Check that in every round each client of the cohort is charged once, always with the same size.

    A size n has Poisson batches of probability min(1, batch_size / n), their number from epochs or steps, and the
    configured noise and clip; in an even partition sizes are even. Sizes of at most a batch are visible in the number
    of steps alone, and in other partitions clients without data, which are not charged, are not visible.
    """
    table = files.config.local.record
    assert table is not None
    noise = {one.noise_std for one in _releases(files).values()}
    if len(noise) > 1:
        return False, "the noise of local steps changes from round to round; it is fixed before the first."
    sizes: dict[int, int | None] = {}
    for number, release in _releases(files).items():
        problem = _problem(files, table, release, files.rounds[number - 1], sizes)
        if problem is not None:
            return False, f"round {number}: {problem}."
    known = {size for size in sizes.values() if size is not None}
    if _sizes_are_even(files.config) and known and max(known) - min(known) > 1:
        return False, f"clients are charged as holding from {min(known)} to {max(known)} records, dealt out evenly."
    return True, (
        f"{len(sizes)} clients took part, each charged once a round for its own steps: Poisson batches of probability "
        "batch size over records, noise and clip of config.toml."
    )


def delta_of_records(files: RunFiles) -> float | None:
    """Return the default, (all records)^-1.1, if the ledger has the sizes of all clients; otherwise None."""
    table = files.config.local.record
    sizes: dict[int, int | None] = {}
    assert table is not None
    for number, release in _releases(files).items():
        if _problem(files, table, release, files.rounds[number - 1], sizes) is not None:
            return None
    known = [size for size in sizes.values() if size is not None]
    return float(sum(known) ** -1.1) if len(known) == files.config.federation.clients else None


def _sizes_are_even(config: Config) -> bool:
    """Return True if the clients' numbers of records differ by one at most, and none is 0."""
    return config.data.partition == "iid"


def _releases(files: RunFiles) -> dict[int, LocalRelease]:
    last = {number: entries[-1] for number, entries in files.entries.items() if number <= len(files.rounds)}
    return {number: entry for number, entry in last.items() if isinstance(entry, LocalRelease)}


def _problem(
    files: RunFiles, table: RecordTable, release: LocalRelease, facts: RoundRecord, sizes: dict[int, int | None]
) -> str | None:
    charged = [client for part in release.steps for client in part.clients]
    if len(set(charged)) < len(charged):
        return "a client is charged for two kinds of steps"
    if len(charged) > facts.cohort or (_sizes_are_even(files.config) and len(charged) < facts.cohort):
        return f"{len(charged)} clients are charged, {facts.cohort} took part"
    z = release.noise_std / release.clip_norm
    if not math.isclose(release.clip_norm, table.clip_norm, rel_tol=_ROUNDING):
        return f"clip norm {release.clip_norm:g}, config.toml says {table.clip_norm:g}"
    given = table.noise_multiplier if table.noise == "gaussian" else None
    if given is not None and not math.isclose(z, given, rel_tol=_ROUNDING):
        return f"noise multiplier {z}, config.toml says {given}"
    noise = _noise(table, release, z)
    for part in release.steps:
        found = _part_problem(files.config, part, noise)
        if isinstance(found, str):
            return found
        if any(sizes.setdefault(client, found) != found for client in part.clients):
            return "a client is charged with another number of records than before"
    return None


def _noise(table: RecordTable, release: LocalRelease, stated: float) -> Gaussian | DiscreteGaussian | None:
    """Return the noise of a step that config.toml gives, with the stated multiplier if it gives none; None if the line
    does not state its integers."""
    if table.noise == "gaussian":
        return gaussian_noise(stated)
    size, per_unit = release.detail.get("integers"), release.detail.get("steps_per_unit")
    if not isinstance(size, int) or size < 1 or per_unit != scale_of(size, table.steps) / table.clip_norm:
        return None
    return integer_noise(table.noise_multiplier or stated, size=size, steps=table.steps)


def _same_noise(charged: object, expected: Gaussian | DiscreteGaussian | None) -> bool:
    """Return True if both are equal, a noise multiplier up to rounding."""
    if isinstance(charged, Gaussian) and isinstance(expected, Gaussian):
        return math.isclose(charged.noise_multiplier, expected.noise_multiplier, rel_tol=_ROUNDING)
    return isinstance(charged, DiscreteGaussian) and charged == expected


def _part_problem(config: Config, part: Steps, noise: Gaussian | DiscreteGaussian | None) -> str | int | None:
    """Return a problem, or the number of records; None if it is at most a batch and so not visible."""
    mechanism, batch = part.mechanism, config.local.batch_size
    inside, sampling = unsampled(mechanism), sampling_of(mechanism)
    if noise is None or not _same_noise(inside, noise):
        return "a step is charged with other noise than the line states, or than config.toml gives"
    if inside.adjacency is not Adjacency.ADD_REMOVE:
        return f"adjacency {inside.adjacency}, which is not that of independently drawn records"
    size = None
    if unsampled(mechanism) is not mechanism:
        if sampling.name != "poisson" or not sampling.probability > 0:
            return "batches are not charged as Poisson samples"
        size = round(batch / sampling.probability)
        if not math.isclose(batch / size, sampling.probability, rel_tol=_ROUNDING):
            return f"no number of records gives probability {sampling.probability:g} at batch size {batch}"
    batches = PoissonBatches(batch_size=batch, epochs=config.local.epochs, steps=config.local.steps)
    expected = batches.count(size or batch)
    if part.count != expected:
        return f"{part.count} steps are charged, config.toml gives {expected}"
    return size
