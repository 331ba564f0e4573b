"""Smallest number of clients in a secure sum, which every node enforces against the server."""

from __future__ import annotations

from dpfed.aggregation.agreement import FEWEST
from dpfed.aggregation.graph import shares_needed
from dpfed.aggregation.sums import least_uploads
from dpfed.config.server_tables import SecureAggregation
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.choices import tolerated_fraction


def least_participants(config: Config, table: SecureAggregation, named: int | None) -> int:
    """Return `aggregation.least_participants`, by default the smallest number of uploads with which a round may end.

    Noise shares are sized for this number, so a node that enforces it never adds its share to a sum with less noise
    than charged.

    named: number of clients of a round; None if it is random and no noise depends on it, then the default is `FEWEST`

    Raises ConfigError for a minimum below the number that noise shares are sized for, or above the clients of a round.
    Raises ConfigError also for sums of a single upload, which a secure sum cannot hide and every client refuses.
    """
    if named is not None and named < FEWEST:
        raise ConfigError(
            f"aggregation.kind={table.kind!r} with {named} client in every sum: a secure sum hides an upload among "
            f"others, so that no round would end with a result. Use a federation.cohort of at least {FEWEST}, or "
            "aggregation.kind='plain'."
        )
    tolerated = FEWEST if named is None else _fewest_tolerated(config, table.threshold, named)
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


def _fewest_tolerated(config: Config, threshold: float, named: int) -> int:
    by_threshold = shares_needed(named, threshold)
    tolerance = tolerated_fraction(config)
    return by_threshold if tolerance is None else max(by_threshold, least_uploads(named, tolerance))
