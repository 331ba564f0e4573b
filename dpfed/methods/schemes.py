"""The compressor that a configuration names, with its options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dpfed import compress
from dpfed.compress.pruned import FedSparsify, cubic_sparsity
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.facts import MethodFacts
from dpfed.stages.shared_mask import kept_coordinates

_SHARED = ("fedmrn", "fedmrns", "fedscalar")
"""Methods whose clients can have the round's seed in common."""
_OWN_KEYS = {"shared_seed": "method.shared = true", "keep": "method.keep", "k": "method.k"}
_TOSSED = {"stochastic-sign": ("bound",), "fedmrns": ("noise", "alpha")}
"""Options that are left where signs are tossed as private coins (privacy.noise = "coins")."""


def check_options(config: Config, chosen: MethodFacts) -> None:
    """ConfigError for a key of [method] or an option that this method, or this way to sum, would not look at."""
    table, name = config.method, chosen.name
    if chosen.scheme is None and (table.options or table.shared or table.error_feedback):
        raise ConfigError(
            f"method.options, method.shared or method.error_feedback with method.name={name!r}: masks have none of "
            "them; their settings are in [mask]. Remove the keys."
        )
    if table.shared and name not in _SHARED:
        raise ConfigError(f"method.shared with method.name={name!r}: is for {', '.join(_SHARED)}. Remove it.")
    if table.error_feedback:
        _check_error_feedback(config, chosen)
    if chosen.scheme is None:
        return
    for option in table.options:
        if option in _OWN_KEYS:
            raise ConfigError(f"method.options.{option}: is written as {_OWN_KEYS[option]}.")
        if (
            config.privacy is not None
            and config.privacy.noise == "coins"
            and option not in _TOSSED.get(name, (option,))
        ):
            raise ConfigError(
                f"method.options.{option} with privacy.noise='coins': coins have no such thing. Remove it."
            )
    _made(config, chosen, kept=1)


def _check_error_feedback(config: Config, chosen: MethodFacts) -> None:
    if config.privacy is not None:
        raise ConfigError(
            "method.error_feedback with [privacy]: a client's remembered error carries earlier rounds into this one, "
            "which no account of single rounds covers. Remove one of them."
        )
    if config.aggregation.kind != "plain":
        raise ConfigError(
            f"method.error_feedback with aggregation.kind={config.aggregation.kind!r}: is not built. Remove one."
        )
    if chosen.local_training == "pruned":
        raise ConfigError(
            f"method.error_feedback with method.name={chosen.name!r}: its clients send models, and what pruning took "
            "from one belongs to no later update. Remove it."
        )


def scheme(config: Config, chosen: MethodFacts, size: int) -> compress.Scheme:
    """The compressor of so many coordinates with its options."""
    table = config.method
    sparse = chosen.scheme in ("topk", "randk")
    return _made(config, chosen, kept=kept_coordinates(size, keep=table.keep, k=table.k) if sparse else size)


def _made(config: Config, chosen: MethodFacts, kept: int) -> compress.Scheme:
    options: dict[str, Any] = dict(config.method.options)
    if chosen.scheme in ("topk", "randk"):
        options["k"] = kept
    if config.method.shared:
        options["shared_seed"] = 0  # stands for one a round
    try:
        return compress.get(chosen.scheme or "", **options)
    except ConfigError as error:
        raise ConfigError(f"method.options of {chosen.name!r}: {error}") from None


def is_linear(config: Config, chosen: MethodFacts) -> bool:
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
