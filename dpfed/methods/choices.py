"""Properties of a run that follow from several keys.

Rounds may end without a result (abort) only if this does not reveal who took part. Ledger, metrics and summary publish
whether a round aborts, so the abort is a release. It depends on dropouts, which do not depend on data, and on the
number of participants. Claim: in every accepted private run, the distribution of aborts and of every published count,
given the drawn clients, is equal for all neighbouring datasets:

- A plain sum with the server's noise, or of Bernoulli samples, never aborts. The uploads that arrived, even none, are
  summed, noised or padded, divided by a public number, and charged.
- Sums with noise shares of clients, and secure sums, may abort: too few shares are too little noise, and too few
  survivors cannot open the sum. Their number of participants is fixed. It is the cohort under fixed-size sampling.
  Under Poisson sampling with a cap of K it is K: clients that were not drawn fill the sum up, and drawn clients beyond
  K are left out, which the account includes. With federation.sampling = "all" it is the number of clients, which
  neighbouring datasets share under zero-out and replace-one.
- Therefore add-remove is refused if removing a client removes a participant from every sum: with "all", with a fixed
  number of uploads that equals the number of clients, and with noise shares.
- privacy.release = "uploads" and [local.record] charge every upload before any client trains; participation counts as
  public there.

Realised counts go to diagnostics.jsonl, which no epsilon covers. The exception is privacy.missing_shares = "charged".
Its ledger lines contain the number of noise shares that arrived, of a fixed number; this count depends on dropouts
alone, and the charge is computed from it. Under sampling it must not depend on who was drawn: all clients drop out with
one probability. Otherwise it reveals more than epsilon states, which `dpfed.runs.protection` says.
"""

from __future__ import annotations

import math

from accounting.mechanisms.adjacency import Adjacency
from dpfed.aggregation.messages import most_missing
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.specification import MethodSpecification


def sends_bernoulli_samples(config: Config, specification: MethodSpecification) -> bool:
    """Return True if uploads are Bernoulli samples: masks, or stochastic signs whose randomness is the privacy
    noise."""
    return specification.sends_masks or (config.privacy is not None and config.privacy.bernoulli)


def bound_of_moves(config: Config) -> float | None:
    """Return mask.bound if clients send stochastic signs of the moves of probabilities, else None.

    A sign is 1 with probability 1/2 if the probability has not moved.
    """
    return config.mask.bound if config.privacy is not None and config.mask is not None else None


def sums_integers(config: Config) -> bool:
    """Return True if rows of numbers are rounded to integers before they are summed."""
    return config.aggregation.kind != "plain" or (config.privacy is not None and config.privacy.in_integers)


def is_linear(config: Config, specification: MethodSpecification) -> bool:
    """Return True if the server can decode the sum of uploads, and each decoded upload is the clipped row.

    Uploads of 16-bit floats are excluded, because rounding may increase the norm of a row.
    """
    rounded = specification.scheme == "dense" and config.method.options.get("bits", 32) != 32
    return not rounded and (specification.linear or (specification.linear_if_shared and config.method.shared))


def weights_by_samples(config: Config, specification: MethodSpecification) -> bool:
    """Return True if the mean may weight clients by their numbers of samples, which requires updates without privacy.

    Fed-SMP without noise is excluded, so that it differs from the private method in its noise only.
    """
    if config.privacy is not None or config.method.noiseless or config.method.purge == "clients":
        return False
    return not specification.sends_masks and (is_linear(config, specification) or not sums_integers(config))


def sends_mask_probabilities(config: Config, specification: MethodSpecification) -> bool:
    """Return True if clients send samples of the mask's probabilities, not stochastic signs of their moves."""
    return specification.sends_masks and bound_of_moves(config) is None


def tolerated_fraction(config: Config) -> float | None:
    """Return the fraction of uploads that may be missing; None for no limit.

    It is aggregation.tolerance. If that is not given and clients add noise shares, it follows from the simulated
    dropouts. Raises ConfigError if all noise shares of a round may be missing.
    """
    table = config.aggregation
    if table.tolerance is not None or config.privacy is None or config.privacy.placement != "clients":
        return table.tolerance
    uploads = config.round_size
    if table.lost:
        return min(math.nextafter(sum(table.lost.values()) / uploads, 1), 0.99)
    missing = most_missing(uploads, table.dropout)
    if missing >= uploads:
        raise ConfigError(
            f"aggregation.dropout={table.dropout} with privacy.placement='clients': all {uploads} uploads of a round "
            "may be missing (with probability above 1e-3), so that a round may have no noise. Give "
            "aggregation.tolerance, use larger cohorts, or let the server add the noise."
        )
    return math.nextafter(missing / uploads, 1) if missing else 0.0  # 1/49 of 49 would round to none


def counts_errors(config: Config, *, on_nodes: bool = False) -> bool:
    """Return True if an exception in a client's training is counted and does not end the run.

    It is run.on_error == "count". If run.on_error is not given, the result is True in a private run for release and on
    the nodes of an engine (Flower, NVFlare).
    """
    if config.run.on_error is not None:
        return config.run.on_error == "count"
    private = config.privacy is not None or config.local.record is not None
    return on_nodes or (private and config.run.for_release)


def may_abort_round(config: Config, tolerance: float | None) -> bool:
    """Return True if a round may end without a result.

    tolerance: fraction of uploads that may be missing; None if any number may be missing
    """
    return config.aggregation.kind != "plain" or tolerance is not None


def check_aborts(config: Config, *, adjacency: Adjacency, slots: int | None, tolerance: float | None) -> None:
    """Raise ConfigError for a private sum whose missing result would reveal who took part.

    The docstring of this module lists the accepted sums.
    """
    privacy, federation, kind = config.privacy, config.federation, config.aggregation.kind
    assert privacy is not None
    if kind == "plain" and privacy.placement == "server" and tolerance is not None:
        raise ConfigError(
            f"aggregation.tolerance={tolerance:g} with [privacy] and noise that is not the clients': a plain sum never "
            "has to abort, because the server's noise is never missing; an abort would reveal how many took part. "
            "Remove aggregation.tolerance, or let the clients add the noise (privacy.placement='clients')."
        )
    if not may_abort_round(config, tolerance):
        return
    if adjacency is Adjacency.ADD_REMOVE and privacy.placement == "clients":
        raise ConfigError(
            "privacy.adjacency='add-remove' with privacy.placement='clients': adding or removing a client adds or "
            "removes a share of noise, which no account covers. Use privacy.adjacency 'zero-out' or 'replace-one'."
        )
    all_take_part = federation.sampling == "all" or (slots is not None and slots >= federation.clients)
    if adjacency is Adjacency.ADD_REMOVE and all_take_part:
        raise ConfigError(
            f"privacy.adjacency='add-remove' with aggregation.kind={kind!r} and federation.sampling="
            f"{federation.sampling!r}, where all {federation.clients} clients take part in every sum: removing a "
            "client removes a participant, and a missing sum would reveal it. Use privacy.adjacency 'zero-out', or "
            "aggregation.kind='plain'."
        )
    if slots is not None and slots > federation.clients:
        raise ConfigError(
            f"federation.cohort_cap={slots} with aggregation.kind={kind!r} and privacy.placement="
            f"{privacy.placement!r}: every upload needs a client, and there are {federation.clients}. Use a cap of at "
            f"most {federation.clients}, or kind 'plain' with privacy.placement='server'."
        )
