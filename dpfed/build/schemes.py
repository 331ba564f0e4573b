"""The compressor that a configuration names, with its options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dpfed import compress
from dpfed.compress.masks import kept_coordinates
from dpfed.compress.pruned import FedSparsify, cubic_sparsity
from dpfed.config import Config
from dpfed.errors import ConfigError
from dpfed.methods import Method


def scheme(config: Config, chosen: Method, size: int) -> compress.Scheme:
    """The compressor with its options; ConfigError naming method.options for one that does not fit."""
    table, name = config.method, chosen.scheme or ""
    options: dict[str, Any] = dict(table.options)
    if name in ("topk", "randk"):
        options["k"] = kept_coordinates(size, keep=table.keep, k=table.k)
    if table.shared:
        options["shared_seed"] = 0  # stands for one a round
    if table.error_feedback and config.privacy is not None:
        raise ConfigError(
            "method.error_feedback with [privacy]: a client's remembered error carries earlier rounds into this one, "
            "which no account of single rounds covers. Remove one of them."
        )
    try:
        return compress.get(name, **options)
    except ConfigError as error:
        raise ConfigError(f"method.options of {chosen.name!r}: {error}") from None


def is_linear(config: Config, chosen: Method) -> bool:
    """Whether the sum of uploads can be decoded, and what is summed is what was bounded.

    FedScalar's too, if a round's directions are shared; not floats of 16 bits, which rounding may lengthen.
    """
    rounded = chosen.scheme == "dense" and config.method.options.get("bits", 32) != 32
    return not rounded and (chosen.linear or (chosen.name == "fedscalar" and config.method.shared))


def sparsity_schedule(config: Config) -> Callable[[int], float]:
    """FedSparsify's schedule over the rounds of the run."""
    final = config.method.options.get("sparsity", FedSparsify.sparsity)
    if isinstance(final, bool) or not isinstance(final, int | float):
        raise ConfigError(f"method.options.sparsity={final!r}: must be a number in [0, 1).")
    return partial(cubic_sparsity, final=float(final), rounds=config.federation.rounds)


def sparse_scheme(config: Config, round: int) -> compress.Scheme:
    """What FedSparsify's clients send in this round: the nonzero weights, whose number both sides know."""
    return FedSparsify(sparsity=sparsity_schedule(config)(round + 1 if config.method.purge == "clients" else round))
