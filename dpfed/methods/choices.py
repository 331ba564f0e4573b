"""Properties of a run that are derived from several keys of its configuration."""

from __future__ import annotations

from dpfed.aggregation.steps import most_missing
from dpfed.config.privacy_tables import BernoulliPrivacy, IntegerPrivacy
from dpfed.config.tables import Config
from dpfed.config.training_tables import MaskTable
from dpfed.errors import ConfigError
from dpfed.methods.specification import MethodSpecification

EDGE_OF_SIGNS = 0.1
"""Smallest default of privacy.edge for stochastic signs."""


def sends_bernoulli_samples(config: Config, specification: MethodSpecification) -> bool:
    """Return True if uploads are Bernoulli samples: masks, or stochastic signs whose randomness is the privacy
    noise."""
    return specification.sends_masks or isinstance(config.privacy, BernoulliPrivacy)


def bound_of_moves(config: Config) -> float | None:
    """Return mask.bound if clients send stochastic signs of the moves of probabilities, else None.

    A sign is 1 with probability 1/2 if the probability has not moved.
    """
    return config.mask.bound if config.privacy is not None and config.mask is not None else None


def sums_integers(config: Config) -> bool:
    """Return True if rows of numbers are rounded to integers before they are summed."""
    return config.aggregation.kind != "plain" or isinstance(config.privacy, IntegerPrivacy)


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


def edge_of_probabilities(config: Config, specification: MethodSpecification) -> float:
    """Return c, the edge: probabilities of Bernoulli samples are clipped to [c, 1 - c].

    Moves from 1/2 that are clipped to t have probabilities in [1/2 - t, 1/2 + t] for every edge, so c = 1/2 - t changes
    no probability. With privacy.others = "anywhere" the account assumes that other clients' probabilities lie in
    [c, 1 - c], which for this c is the same as assuming that their moves are clipped to t.
    """
    table = config.privacy
    assert isinstance(table, BernoulliPrivacy)
    if specification.sends_masks and bound_of_moves(config) is None:
        return (config.mask or MaskTable()).edge
    if table.edge is not None:
        return table.edge
    if table.linf_clip is None or table.noise_std:
        return EDGE_OF_SIGNS
    farthest = table.linf_clip / (2 if table.clip_metric == "fisher" else 1)
    return max(EDGE_OF_SIGNS, 0.5 - farthest)


def bound_on_other_clients(config: Config) -> str:
    """Return the assumed bound on the other clients' probabilities in the account of a sum of Bernoulli samples.

    The result is the argument `others` of `accounting.mechanisms.BernoulliAggregate`.

    In a plain sum of one process the run clips every client. In a secure sum, and on nodes with local data, the other
    clients may send any probability within the edge. There the account assumes that they clip only with
    privacy.others = "near-reference".
    """
    table = config.privacy
    if isinstance(table, BernoulliPrivacy) and table.others is not None:
        return table.others
    own_clients = config.aggregation.kind == "plain" and config.data.partition != "nodes"
    return "near-reference" if own_clients else "anywhere"


def tolerated_fraction(config: Config) -> float | None:
    """Return the fraction of uploads that may be missing; None for no limit.

    It is aggregation.tolerance. If that is not given and clients add noise shares, it follows from the simulated
    dropouts. Raises ConfigError if all noise shares of a round may be missing.
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
            "may be missing (with probability above 1e-3), so that a round may have no noise. Give "
            "aggregation.tolerance, use larger cohorts, or let the server add the noise."
        )
    return missing / uploads


def counts_errors(config: Config, *, on_nodes: bool = False) -> bool:
    """Return True if an exception in a client's training is counted and does not end the run.

    It is run.on_error == "count". If run.on_error is not given, the result is True in a private run for release and on
    the nodes of an engine (Flower, NVFlare).
    """
    if config.run.on_error is not None:
        return config.run.on_error == "count"
    private = config.privacy is not None or config.local.record is not None
    return on_nodes or (private and config.run.for_release)
