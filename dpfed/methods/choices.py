"""What a configuration has chosen, where several keys say it together."""

from __future__ import annotations

from accounting.integers.fixed_point import NoiseLaw
from dpfed.aggregation.steps import most_missing
from dpfed.config.privacy_tables import CoinPrivacy, IntegerPrivacy
from dpfed.config.tables import Config
from dpfed.config.training_tables import Mask
from dpfed.methods.facts import MethodFacts

EDGE_OF_SIGNS = 0.1
"""privacy.edge where none is given."""


def seen(config: Config) -> str:
    """What a private run releases: "sum" or "uploads"."""
    return config.privacy.release if config.privacy is not None else "sum"


def integer_noise(config: Config) -> NoiseLaw | None:
    """The distribution of integer noise, if that is what a run has."""
    return config.privacy.noise if isinstance(config.privacy, IntegerPrivacy) else None


def signs_are_coins(config: Config, facts: MethodFacts) -> bool:
    """Whether an update's signs are private by their own coins."""
    return isinstance(config.privacy, CoinPrivacy) and not facts.coins


def coins_of_moves(config: Config) -> bool:
    """Whether a mask's coins say how far its probabilities move, and 1/2 is no move."""
    return config.privacy is not None and config.mask is not None and config.mask.bound is not None


def in_integers(config: Config) -> bool:
    """Whether rows of numbers become integers before they are summed."""
    return config.aggregation.kind != "plain" or integer_noise(config) is not None


def is_linear(config: Config, facts: MethodFacts) -> bool:
    """Whether the sum of uploads can be decoded, and what is summed is what was bounded.

    FedScalar's too, if a round's directions are shared; not floats of 16 bits, which rounding may lengthen.
    """
    rounded = facts.scheme == "dense" and config.method.options.get("bits", 32) != 32
    return not rounded and (facts.linear or (facts.name == "fedscalar" and config.method.shared))


def edge_of(config: Config) -> float:
    """c: probabilities of coins lie in [c, 1 - c].

    Coins of moves from 1/2 that are clipped to t lie in [1/2 - t, 1/2 + t] whatever the edge is, so c = 1/2 - t moves
    none of them. Where others are "anywhere" it relies on them to keep to [c, 1 - c], so as much as on their clip.
    """
    table = config.privacy
    assert isinstance(table, CoinPrivacy)
    if config.method.name == "fedpm" and not coins_of_moves(config):
        return (config.mask or Mask()).edge
    if table.edge is not None:
        return table.edge
    if table.linf_clip is None or table.noise_std:
        return EDGE_OF_SIGNS
    farthest = table.linf_clip / (2 if table.clip_metric == "fisher" else 1)
    return max(EDGE_OF_SIGNS, 0.5 - farthest)


def others_of(config: Config) -> str:
    """What is relied on of the other clients' coins in a sum (`accounting.mechanisms.BernoulliAggregate.others`).

    In a plain sum of one process every client is one that the run clips itself. In a secure sum, and on nodes that have
    data of their own, others may send what they like within the edge, so that they are relied on to keep to their clip
    only where privacy.others says so.
    """
    table = config.privacy
    if isinstance(table, CoinPrivacy) and table.others is not None:
        return table.others
    own_clients = config.aggregation.kind == "plain" and config.data.partition != "nodes"
    return "near-reference" if own_clients else "anywhere"


def tolerance_of(config: Config) -> float | None:
    """The fraction of uploads that may be missing: as given; where clients add noise shares, what dropouts suggest."""
    table, federation = config.aggregation, config.federation
    if table.tolerance is not None or config.privacy is None or config.privacy.placement != "clients":
        return table.tolerance
    uploads = federation.clients if federation.sampling == "all" else federation.cohort
    if table.lost:
        return min(sum(table.lost.values()) / uploads, 0.99)
    return most_missing(uploads, table.dropout) / uploads


def counts_errors(config: Config, *, on_nodes: bool = False) -> bool:
    """True if an exception in a client's training is counted and ends nothing: as run.on_error says, else in a run for
    release and on the nodes of an engine."""
    if config.run.on_error is not None:
        return config.run.on_error == "count"
    return on_nodes or (config.privacy is not None and config.run.for_release)
