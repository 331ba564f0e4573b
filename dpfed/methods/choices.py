"""Choices of a configuration that follow from several keys."""

from __future__ import annotations

from dpfed.aggregation.steps import most_missing
from dpfed.config.privacy_tables import CoinPrivacy, IntegerPrivacy
from dpfed.config.tables import Config
from dpfed.config.training_tables import Mask
from dpfed.errors import ConfigError
from dpfed.methods.specification import MethodSpecification

EDGE_OF_SIGNS = 0.1
"""Value of privacy.edge if it is not given."""


def sends_bernoulli_samples(config: Config, specification: MethodSpecification) -> bool:
    """Return True if uploads are Bernoulli samples: masks, or signs that are private by themselves."""
    return specification.coins or isinstance(config.privacy, CoinPrivacy)


def bound_of_moves(config: Config) -> float | None:
    """Return mask.bound if masks are stochastic signs of the move of a probability, with 1/2 for no move; else None."""
    return config.mask.bound if config.privacy is not None and config.mask is not None else None


def in_integers(config: Config) -> bool:
    """Return True if rows of numbers become integers before they are summed."""
    return config.aggregation.kind != "plain" or isinstance(config.privacy, IntegerPrivacy)


def is_linear(config: Config, specification: MethodSpecification) -> bool:
    """Return True if the sum of uploads can be decoded, and what is summed is what was bounded.

    Floats of 16 bits are excluded: rounding may lengthen a row.
    """
    rounded = specification.scheme == "dense" and config.method.options.get("bits", 32) != 32
    return not rounded and (specification.linear or (specification.linear_if_shared and config.method.shared))


def weighs_samples(config: Config, specification: MethodSpecification) -> bool:
    """Return True if the mean may weigh clients by their numbers of samples: for updates without privacy.

    Fed-SMP without noise is excluded: it differs from the private method in its noise only.
    """
    if config.privacy is not None or config.method.noiseless or config.method.purge == "clients":
        return False
    return not specification.coins and (is_linear(config, specification) or not in_integers(config))


def edge_of(config: Config, specification: MethodSpecification) -> float:
    """Return c: probabilities of Bernoulli samples lie in [c, 1 - c].

    Probabilities of moves from 1/2 that are clipped to t lie in [1/2 - t, 1/2 + t] for any edge, so c = 1/2 - t changes
    none of them. If others are "anywhere", the account relies on their probabilities in [c, 1 - c], which is as strong
    as relying on their clip.
    """
    table = config.privacy
    assert isinstance(table, CoinPrivacy)
    if specification.coins and bound_of_moves(config) is None:
        return (config.mask or Mask()).edge
    if table.edge is not None:
        return table.edge
    if table.linf_clip is None or table.noise_std:
        return EDGE_OF_SIGNS
    farthest = table.linf_clip / (2 if table.clip_metric == "fisher" else 1)
    return max(EDGE_OF_SIGNS, 0.5 - farthest)


def others_of(config: Config) -> str:
    """Return the bound on the other clients' probabilities that a sum of Bernoulli samples relies on.

    It is `others` of `accounting.mechanisms.BernoulliAggregate`.

    In a plain sum of one process the run clips every client. In a secure sum, and on nodes with local data, others may
    send anything within the edge: the account relies on their clip only if privacy.others says so.
    """
    table = config.privacy
    if isinstance(table, CoinPrivacy) and table.others is not None:
        return table.others
    own_clients = config.aggregation.kind == "plain" and config.data.partition != "nodes"
    return "near-reference" if own_clients else "anywhere"


def tolerance_of(config: Config) -> float | None:
    """Return the fraction of uploads that may be missing: the given one, or what dropouts imply if clients add noise
    shares.

    ConfigError if every share of noise may drop out.
    """
    table, federation = config.aggregation, config.federation
    if table.tolerance is not None or config.privacy is None or config.privacy.placement != "clients":
        return table.tolerance
    uploads = federation.clients if federation.sampling == "all" else federation.cohort
    if table.lost:
        return min(sum(table.lost.values()) / uploads, 0.99)
    missing = most_missing(uploads, table.dropout)
    if missing >= uploads:
        raise ConfigError(
            f"aggregation.dropout={table.dropout} with privacy.placement='clients': all {uploads} uploads of a round "
            "may be missing (with probability above 1e-3), so no share of noise is sure to arrive. Give "
            "aggregation.tolerance, take larger cohorts, or let the server add the noise."
        )
    return missing / uploads


def counts_errors(config: Config, *, on_nodes: bool = False) -> bool:
    """Return True if an exception in a client's training is counted and does not end the run.

    The choice is run.on_error; by default True in a run for release and on the nodes of an engine.
    """
    if config.run.on_error is not None:
        return config.run.on_error == "count"
    private = config.privacy is not None or config.local.record is not None
    return on_nodes or (private and config.run.for_release)
