"""Compressor of a run, made from the method's scheme and the options in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dpfed import compress
from dpfed.compress.largest import cubic_sparsity
from dpfed.compress.sparse import FedSparsify
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.specification import MethodSpecification
from dpfed.stages.shared_mask import kept_coordinates


def scheme_of_method(config: Config, specification: MethodSpecification, size: int) -> compress.Scheme:
    """Return the compressor for rows of `size` coordinates, with the options of [method]."""
    table = config.method
    sparse = specification.scheme in ("topk", "randk")
    return _make_scheme(
        config, specification, kept=kept_coordinates(size, keep=table.keep, k=table.k) if sparse else size
    )


def check_scheme(config: Config, specification: MethodSpecification) -> None:
    """Raise ConfigError for options in method.options that the compressor does not have."""
    _make_scheme(config, specification, kept=1)


def _make_scheme(config: Config, specification: MethodSpecification, kept: int) -> compress.Scheme:
    options: dict[str, Any] = dict(config.method.options)
    if specification.sends_models:
        sparsity_schedule(config)(0)
        options.pop("initial", None)
    if specification.scheme in ("topk", "randk"):
        options["k"] = kept
    if config.method.shared:
        options["shared_seed"] = 0  # the seed of each round replaces it
    try:
        return compress.get(specification.scheme or "", **options)
    except ConfigError as error:
        raise ConfigError(f"method.options of {specification.name!r}: {error}") from None


def sparsity_schedule(config: Config) -> Callable[[int], float]:
    """Return FedSparsify's sparsity by round, which rises from method.options.initial to method.options.sparsity.

    If both are equal, the sparsity is constant, as in FedMRN's comparison (Section 5.1.3).
    """
    final, initial = (
        _sparsity_option(config, name, given) for name, given in (("sparsity", FedSparsify.sparsity), ("initial", 0))
    )
    if initial > final:
        raise ConfigError(
            f"method.options.initial={initial} with method.options.sparsity={final}: the sparsity of a model "
            "never decreases. Set initial to at most sparsity."
        )
    return partial(cubic_sparsity, initial=initial, final=final, rounds=config.federation.rounds)


def _sparsity_option(config: Config, name: str, default: float) -> float:
    given = config.method.options.get(name, default)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        raise ConfigError(f"method.options.{name}={given!r}: must be a number in [0, 1).")
    return float(given)


def fedsparsify_scheme(config: Config, number: int) -> compress.Scheme:
    """Return the compressor of FedSparsify's clients in round `number`; client and server derive the number of
    weights."""
    return FedSparsify(sparsity=sparsity_schedule(config)(number + 1 if config.method.purge == "clients" else number))
