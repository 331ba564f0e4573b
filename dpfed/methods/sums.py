"""Sums of uploads: their participants, the smallest number of clients (which every node enforces), and the modulus."""

from __future__ import annotations

from accounting.integers.fixed_point import least_scale, padded_dimension, sum_bits
from dpfed.aggregation.cryptography import refuse_few_neighbours, shares_needed
from dpfed.aggregation.messages import FEWEST, Dropouts, ProtocolStep
from dpfed.aggregation.sums import PlainSums, SecureSums, least_uploads
from dpfed.config.server_tables import Aggregation, SecureAggregation
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.mechanisms.integers import Integers
from dpfed.methods.choices import sums_integers, tolerated_fraction
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.wires import Words


def least_participants(config: Config, table: SecureAggregation, named: int | None, tolerance: float | None) -> int:
    """Return `aggregation.least_participants`, by default the smallest number of uploads with which a round may end.

    Noise shares are sized for this number, so a node that enforces it never adds its share to a sum with less noise
    than charged.

    named: number of clients of a round; None if it is random and no noise depends on it, then the default is `FEWEST`
    tolerance: fraction of uploads that may be missing; None for no limit

    Raises ConfigError for a minimum below the number that noise shares are sized for, or above the clients of a round.
    Raises ConfigError also for sums of a single upload, which a secure sum cannot hide and every client refuses.
    """
    if named is not None and named < FEWEST:
        raise ConfigError(
            f"aggregation.kind={table.kind!r} with {named} client in every sum: a secure sum hides an upload among "
            f"others, so that no round would end with a result. Use a federation.cohort of at least {FEWEST}, or "
            "aggregation.kind='plain'."
        )
    tolerated = FEWEST if named is None else shares_needed(named, table.threshold)
    if named is not None and tolerance is not None:
        tolerated = max(tolerated, least_uploads(named, tolerance))
    given = tolerated if table.least_participants is None else table.least_participants
    shares = config.privacy is not None and config.privacy.placement == "clients"
    least = max(FEWEST, tolerated) if shares else FEWEST
    most = config.federation.clients if named is None else named
    if table.least_participants is not None and not least <= given <= most:
        why = f"shares of noise are sized for {least} uploads" if shares else "fewer hide no client"
        raise ConfigError(
            f"aggregation.least_participants={given}: must be from {least} ({why}) to {most}, the clients of a round. "
            "Change it, or remove it for the fewest that aggregation.tolerance and aggregation.threshold allow."
        )
    return max(given, FEWEST)


_ROUNDING_LOSS = 1e-4
"""Largest relative increase of the norm bound by rounding without integer noise (the rounding error is 1.4% of the clip
norm)."""
_BITS_OF_A_FLOAT = 32
_MOST_BITS_OF_STEPS = 30
"""Largest binary logarithm of the steps per clip norm for which the exact sum of squares of a row fits into 64 bits."""


def sums_of(
    config: Config, stages: Stages, privacy_target: PrivacyTarget | None, seeds: Seeds
) -> PlainSums | SecureSums:
    """Return the sums of a run. Raises ConfigError for a secure sum with too few clients or neighbours."""
    table, tolerance = config.aggregation, tolerated_fraction(config)
    if table.kind == "plain":
        return PlainSums(tolerance=tolerance)
    wire, named = stages.wire, clients_in_every_sum(config, privacy_target)
    assert isinstance(wire, Words)
    if table.neighbours:
        try:
            refuse_few_neighbours(named or config.round_size, table.neighbours)
        except ConfigError as error:
            raise ConfigError(f"aggregation.{error}") from None
    return SecureSums(
        kind=table.kind,
        bits=wire.bits,
        neighbours=table.neighbours or None,
        threshold=table.threshold,
        tolerance=tolerance,
        least_participants=least_participants(config, table, named, tolerance),
        seeds=seeds,
    )


def dropouts_of(config: Config, randomness: Randomness) -> Dropouts | None:
    """Return the simulated dropouts of aggregation.dropout or aggregation.lost; None if no client drops out."""
    table = config.aggregation
    if not table.dropout and not table.lost:
        return None
    return Dropouts(
        randomness=randomness,
        population=config.federation.clients + config.audit.canaries,
        probability=table.dropout,
        before_step=None if table.dropout_at == "any" else ProtocolStep(table.dropout_at),
        lost={ProtocolStep(name): count for name, count in table.lost.items()},
    )


def clients_in_every_sum(config: Config, privacy_target: PrivacyTarget | None) -> int | None:
    """Return the fixed number of clients that every sum starts with; None if it is the random cohort."""
    return config.round_size if config.rounds_have_fixed_size else clients_in_filled_sum(config, privacy_target)


def clients_in_filled_sum(config: Config, privacy_target: PrivacyTarget | None) -> int | None:
    """Return the fixed number of clients in every sum; None if the sum contains the drawn clients only.

    A private sum under Poisson sampling is filled up with clients that were not drawn if it is secure or the clients
    add the noise. An observer who counts uploads must not learn the number of drawn clients, and the number of noise
    shares must be fixed. Drawn clients beyond the fixed number are left out, which the account of the cap includes.
    """
    if privacy_target is None or config.federation.sampling != "poisson":
        return None
    summed = config.privacy is not None and config.privacy.release == "sum"
    return privacy_target.slots if summed and sums_integers(config) else None


def most_uploads(config: Config, privacy_target: PrivacyTarget | None) -> int:
    """Return the largest number of rows in a sum, including canaries; without a fixed number all clients may take
    part."""
    canaries = -(-config.audit.canaries // config.federation.rounds)
    return canaries + (clients_in_every_sum(config, privacy_target) or config.federation.clients)


def integer_encoding(config: Config, clip: float | None, sent: int, randomness: Randomness, seeds: Seeds) -> Integers:
    """Return the integer encoding of rows of `sent` numbers in an integer sum without integer noise.

    Without privacy, the default number of steps fills 32 bits, the size of a float in a plain upload; the rounding
    error is then about that of float32. Runs with [local.record] have a smaller default number of steps, with which
    rounding increases the norm bound of a row by at most a fraction 1e-4.
    """
    table, uploads = config.aggregation, most_uploads(config, None)
    assert clip is not None  # refused when the run is built
    padded = padded_dimension(sent, rotate=table.rotation)
    steps = table.steps or least_scale(padded, overhead=_ROUNDING_LOSS)
    if table.steps is None and config.privacy is None and config.local.record is None:
        steps = max(steps, _steps_that_fit(table, padded, uploads))
    return Integers.with_fitting_ring(
        table, size=sent, clip_norm=clip, scale=steps, uploads=uploads, seeds=seeds, randomness=randomness
    )


def _steps_that_fit(table: Aggregation, padded: int, uploads: int) -> int:
    """Return the largest power of two of steps per clip norm for which a sum of `uploads` rows fits into 32 bits.

    Returns 1 if no power of two fits.
    """

    def fits_into_float_bits(steps: int) -> bool:
        bits = sum_bits(
            law="discrete-gaussian",
            uploads=uploads,
            dimension=padded,
            scaled_clip=steps,
            noise_variance=0.0,
            rotate=table.rotation,
            wrap_probability=table.wrap_probability,
        )
        return bits <= _BITS_OF_A_FLOAT

    return next((1 << power for power in range(_MOST_BITS_OF_STEPS, 0, -1) if fits_into_float_bits(1 << power)), 1)
