"""Refusals of settings of the privacy noise (Gaussian, integer, Bernoulli, dithered), for `dpfed.methods.refusals`."""

from __future__ import annotations

from collections.abc import Iterator

from dpfed.config.tables import Config
from dpfed.methods.catalogue import all_methods
from dpfed.methods.choices import sends_mask_probabilities
from dpfed.methods.specification import MethodSpecification
from dpfed.participation.sampling import lane_problems, turn_problems


def noise_kind_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for a privacy.noise that the method does not support."""
    table = config.privacy
    if table is None:
        return
    if (table.noise == "dithered") != specification.dithered:
        yield (
            f"privacy.noise={table.noise!r} with method.name={specification.name!r}: dithered noise is the only noise "
            "of dp-dithered, and of no other method. Remove privacy.noise, or use dp-fedavg."
        )
    if specification.sends_masks and not table.bernoulli:
        yield f"privacy.noise={table.noise!r} with masks: their noise is Bernoulli samples. Remove it."
    if table.edge is not None and sends_mask_probabilities(config, specification):
        yield "privacy.edge: applies to stochastic signs; fedpm without mask.bound has mask.edge. Remove it."
    if table.bernoulli and not specification.sends_masks and not specification.signs_can_be_private:
        able = ", ".join(name for name, one in all_methods().items() if one.signs_can_be_private)
        yield (
            f"privacy.noise='coins' with method.name={specification.name!r}: only fedpm, {able} have Bernoulli samples."
        )


def missing_share_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for keys of missing shares if the server adds the noise, and for canaries with several trials."""
    table = config.privacy
    if table is None:
        return
    if table.placement == "server" and table.missing_shares == "charged":
        yield (
            "privacy.missing_shares without privacy.placement='clients': the server's noise is never missing. Remove "
            "it, or let the clients add the noise."
        )
    if table.trials > 1 and config.audit.canaries:
        yield f"audit.canaries with privacy.trials={table.trials}: is not built. Remove one of them."


def dithered_noise_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for settings that dithered noise does not support; a trusted server decodes its uploads
    separately."""
    table, kind = config.privacy, config.aggregation.kind
    if table is None or table.noise != "dithered":
        return
    if kind != "plain":
        yield (
            f"aggregation.kind={kind!r} with method.name={specification.name!r}: a trusted server decodes each upload. "
            "Use kind 'plain', or dp-fedavg."
        )
    if not config.cohorts_drawn_anew:
        yield (
            f"federation.sampling={config.federation.sampling!r} with method.name={specification.name!r}: the number "
            "of clients of a round is secret there, but its noise is made of a known number of shares. Use 'poisson', "
            "'fixed' or 'all', or dp-fedavg."
        )
    if table.adjacency == "add-remove":
        yield (
            f"privacy.adjacency='add-remove' with method.name={specification.name!r}: adding or removing a client adds "
            "or removes an upload and its noise. Use adjacency 'zero-out' or 'replace-one', or dp-fedavg."
        )
    if config.audit.canaries:
        yield f"audit.canaries with method.name={specification.name!r}: is not built. Remove them, or use dp-fedavg."


def randomness_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for noise that must not be used in a release.

    Noise for release is discrete. The last bits of a sum with floating-point noise can reveal the value without noise,
    even with perfect randomness (Mironov, CCS 2012; Haney et al. 2022; Jin et al., S&P 2022).
    """
    if config.run.randomness != "secure":
        return
    record = config.local.record
    if record is not None and record.noise == "gaussian":
        yield (
            "run.randomness='secure' with local.record.noise='gaussian': the last bits of floating-point noise leak "
            "what it hides. Use local.record.noise='discrete-gaussian', or 'simulated' for an experiment."
        )
    if config.privacy is None and record is None:
        return
    if config.run.on_error == "raise":
        yield (
            "run.on_error='raise' with run.randomness='secure': a run that ends by an exception reveals that a "
            "client's samples caused it, which no epsilon covers. Remove run.on_error, or use 'simulated' "
            "to find the cause."
        )
    table = config.privacy
    if table is not None and table.noise_std:
        yield (
            f"run.randomness='secure' with privacy.noise_std={table.noise_std}: it is floating-point Gaussian "
            "noise. Remove it: the Bernoulli samples are private without it."
        )
    if table is not None and not (table.in_integers or table.bernoulli):
        yield (
            f"run.randomness='secure' with Gaussian noise (privacy.noise={table.noise!r}): as floating-point numbers "
            "its last bits leak what it hides. Use privacy.noise 'discrete-gaussian' or 'skellam' (release 'sum'), or "
            "'simulated' for an experiment."
        )


def correlated_noise_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for settings with which noise correlated over rounds would not cancel, or has no account."""
    table, federation = config.privacy, config.federation
    yield from lane_problems(config)
    yield from turn_problems(config)
    lanes = federation.lanes not in (None, 1)
    if table is None or table.noise != "gaussian" or (table.bands is None and table.buffers is None and not lanes):
        return
    given = f"privacy.bands={table.bands}" if table.bands is not None else f"privacy.buffers={table.buffers}"
    given = f"federation.lanes={federation.lanes!r}" if lanes and table.buffers is None else given
    if table.bands is not None and table.buffers is not None:
        yield "privacy.bands with privacy.buffers: a run has one kind of correlated noise. Remove one of them."
    if table.factorisation_power is not None and (table.factorisation != "optimised" or table.buffers is not None):
        yield (
            f"privacy.factorisation_power={table.factorisation_power} with privacy.factorisation='square-root' or "
            "buffers: each of these sets the matrix of the noise. Remove one."
        )
    in_lanes = federation.sampling == "balls-and-bins" and table.buffers is None
    if federation.sampling not in ("cyclic", "min-separation") and not in_lanes:
        yield (
            f"{given} with federation.sampling={federation.sampling!r}: the account requires that a client takes part "
            "again only after a known number of rounds. Use sampling 'cyclic' or 'min-separation', or privacy.bands "
            "with 'balls-and-bins'."
        )
    if not specification.same_coordinates and not config.method.stays:
        able = "fed-smp-randk or fedscalar with method.stays=true, fedscalar with method.shared=true as well"
        yield (
            f"{given} with method.name={specification.name!r}: its coordinates or directions change from round to "
            f"round, so that the noise of a round would not cancel in the next one. Use dp-fedavg, or {able}."
        )
    if table.placement != "server" or table.adaptive is not None or table.release != "sum":
        yield (
            f"{given}: only noise of the server, on a sum, with a fixed clip norm is supported. Use "
            "privacy.placement='server', release='sum', and no privacy.adaptive."
        )


def noise_schedule_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for settings with which privacy.noise_schedule has no account, or is not supported."""
    table, sampling = config.privacy, config.federation.sampling
    if table is None or table.noise_schedule is None:
        return
    if not config.cohorts_drawn_anew:
        yield (
            f"privacy.noise_schedule with federation.sampling={sampling!r}: the account of its rounds requires "
            "equal noise in all rounds. Use 'poisson', 'fixed' or 'all', or remove it."
        )
    if table.placement != "server" or table.release != "sum" or table.adaptive is not None:
        yield (
            "privacy.noise_schedule: only noise of the server, on a sum, with a fixed clip norm is supported. Use "
            "privacy.placement='server', release='sum', and no privacy.adaptive."
        )
    if table.bands is not None or table.buffers is not None:
        yield (
            "privacy.noise_schedule with privacy.bands or buffers: correlated noise has one size in all rounds. "
            "Remove one."
        )
    if len(table.noise_schedule) > config.federation.rounds:
        yield (
            f"privacy.noise_schedule of {len(table.noise_schedule)} parts with federation.rounds="
            f"{config.federation.rounds}: each part needs at least one round. Use fewer factors, or more rounds."
        )
    if config.audit.canaries:
        yield "audit.canaries with privacy.noise_schedule: is not built. Remove one of them."


def spare_round_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages about run.spare_rounds where no round is repeated, or its release would not be that of others."""
    spare, sampling = config.run.spare_rounds, config.federation.sampling
    if not spare:
        return
    if config.privacy is None and config.local.record is None:
        yield f"run.spare_rounds={spare} without [privacy] or [local.record]: there is no epsilon. Remove it."
    elif not config.cohorts_drawn_anew:
        yield (
            f"run.spare_rounds={spare} with federation.sampling={sampling!r}: a round of a schedule is never repeated. "
            "Remove it."
        )
