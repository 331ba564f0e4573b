"""Refusals of what makes a round private: noise, coins, dithers, and how each is drawn (`dpfed.methods.refusals`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpfed.compress.mask_schemes import FedMrnSigned
from dpfed.config.tables import Config
from dpfed.methods.catalogue import every_method
from dpfed.methods.choices import coins_of_moves, integer_noise, seen, signs_are_coins
from dpfed.methods.facts import MethodFacts


def signs(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Signs that are private by their own coins."""
    table = config.privacy
    if table is None:
        return
    if facts.coins or table.noise != "coins":
        if table.edge is not None and not coins_of_moves(config):
            yield "privacy.edge: is for privacy.noise='coins'; fedpm without mask.bound has mask.edge. Remove it."
        if facts.coins and table.noise == "gaussian":
            yield "privacy.noise='gaussian' with masks: their noise is coins. Remove it."
        return
    if not facts.coins_possible:
        able = ", ".join(name for name, one in every_method().items() if one.coins_possible)
        yield f"privacy.noise='coins' with method.name={facts.name!r}: only fedpm, {able} have coins."
    yield from _public_signs(config, facts)


def _public_signs(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Their size must be public: never one that comes from the data."""
    options = config.method.options
    noise = facts.name == "fedmrns"
    if noise and (not config.method.shared or options.get("noise") != "bernoulli"):
        yield (
            "privacy.noise='coins' with fedmrns: needs method.shared=true and method.options.noise='bernoulli', one "
            "noise of one size a round, or the sum of masks could not be decoded. Set both."
        )
    bound = options.get("alpha", FedMrnSigned.alpha) if noise else options.get("bound")
    if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 < bound < math.inf:
        yield (
            f"privacy.noise='coins' with method.options bound={bound!r}: needs a public number; 'linf' and 'l2' are "
            "computed from private data."
        )


def noise(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Gaussian and integer noise."""
    table, sums = config.privacy, config.aggregation
    if table is None or facts.coins or signs_are_coins(config, facts):
        return
    kind = integer_noise(config)
    for key in (
        "linf_clip",
        "noise_std",
        "correction",
        "count_bits",
        *(("slots",) if kind is None and not facts.dithered else ()),
    ):
        if getattr(table, key):
            yield f"privacy.{key} with method.name={facts.name!r}: is for fedpm's coins. Remove it."
    if table.trials > 1:
        yield f"privacy.trials with method.name={facts.name!r}: is for signs as coins, noise='coins'. Remove it."
    if table.others is not None or table.clip_metric != "euclidean":
        yield f"privacy.others or privacy.clip_metric with method.name={facts.name!r}: is for coins. Remove it."
    if kind is not None and seen(config) == "uploads":
        yield (
            f"privacy.noise={kind!r} with privacy.release='uploads': integer noise is for sums. Use 'gaussian', or "
            "release 'sum'."
        )
    charged = table.missing_shares == "charged"
    if kind is None and charged and table.placement != "clients":
        yield "privacy.missing_shares without privacy.placement='clients': the server's noise is whole."
    if kind is not None and table.placement == "server" and (charged or (sums.tolerance and sums.kind == "plain")):
        yield (
            "privacy.missing_shares or aggregation.tolerance without privacy.placement='clients': the server's noise "
            "does not get lost. Remove them, or let the clients add the noise."
        )
    if table.clip_norm is None:
        yield "privacy.clip_norm: is missing and has no default."
    if table.noise_multiplier is None and table.epsilon is None:
        yield "[privacy]: give noise_multiplier, or epsilon to calibrate one for the rounds, or both."


def coins(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Coins that are the noise."""
    table = config.privacy
    if table is None or not (facts.coins or signs_are_coins(config, facts)):
        return
    if table.noise_multiplier is not None:
        yield (
            "privacy.noise_multiplier with coins: the coins are the noise; privacy.noise_std adds some before them. "
            "Remove it."
        )
    if table.adaptive is not None:
        yield "privacy.adaptive with coins: the clip norm of coins is fixed. Remove it."
    if table.trials > 1 and facts.name != "stochastic-sign" and not coins_of_moves(config):
        yield (
            f"privacy.trials={table.trials} with method.name={facts.name!r}: is for stochastic-sign, and for fedpm "
            "with mask.bound. Remove it."
        )
    if table.trials > 1 and config.audit.canaries:
        yield f"audit.canaries with privacy.trials={table.trials}: is not built. Remove one of them."
    if table.trials > 1 and table.noise_std:
        yield f"privacy.trials={table.trials} with privacy.noise_std={table.noise_std}: is not built. Remove one."
    if table.placement != "server":
        yield "privacy.placement with coins: the clients draw them. Remove it."
    if seen(config) == "uploads" and table.slots is not None:
        yield "privacy.slots with privacy.release='uploads': there is no sum to pad. Remove it."
    if seen(config) == "uploads" and table.others is not None:
        yield "privacy.others with privacy.release='uploads': no other client's coins are in what is seen. Remove it."
    if table.count_bits is not None and (seen(config) == "uploads" or table.noise_std):
        yield (
            f"privacy.count_bits={table.count_bits}: is for sums of coins without noise before them. Use "
            "privacy.release='sum' and no privacy.noise_std, or remove it."
        )
    if table.count_bits is not None and table.trials >= 1 << table.count_bits:
        yield (
            f"privacy.count_bits={table.count_bits} with privacy.trials={table.trials}: an upload's own count does not "
            f"fit. Use at least {table.trials.bit_length()} bits."
        )
    if table.clip_metric == "fisher" and table.noise_std:
        yield f"privacy.clip_metric='fisher' with privacy.noise_std={table.noise_std}: is not built. Remove one."
    if table.clip_norm is None and table.epsilon is None:
        yield "[privacy]: give clip_norm, or epsilon to calibrate one for the rounds, or both."


def dithered(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Noise that is the error of a quantiser, whose uploads a trusted server decodes one by one."""
    table, kind = config.privacy, config.aggregation.kind
    if table is None or not facts.dithered:
        return
    if seen(config) == "uploads":
        yield (
            f"privacy.release='uploads' with method.name={facts.name!r}: who sees an upload and can decode it knows "
            "where its noise ends. Use release 'sum', or dp-fedavg."
        )
    if kind != "plain" or integer_noise(config) is not None:
        yield (
            f"aggregation.kind={kind!r} or privacy.noise={table.noise!r} with method.name={facts.name!r}: a trusted "
            "server decodes each upload, and its noise is Gaussian. Use kind 'plain' and noise 'gaussian', or "
            "dp-fedavg."
        )
    if config.federation.sampling not in ("poisson", "fixed", "all"):
        yield (
            f"federation.sampling={config.federation.sampling!r} with method.name={facts.name!r}: how many take part "
            "in a round is secret there, and its noise is in shares of a known number. Use 'poisson', 'fixed' or "
            "'all', or dp-fedavg."
        )
    if table.adjacency == "add-remove":
        yield (
            f"privacy.adjacency='add-remove' with method.name={facts.name!r}: a client more or less is an upload, and "
            "its noise, more or less. Use adjacency 'zero-out' or 'replace-one', or dp-fedavg."
        )
    if table.slots is not None and config.federation.sampling != "poisson":
        yield "privacy.slots: is for federation.sampling='poisson'. Remove it."
    if table.adaptive is not None:
        yield f"privacy.adaptive with method.name={facts.name!r}: is not built. Use a fixed clip norm, or dp-fedavg."
    if config.audit.canaries:
        yield f"audit.canaries with method.name={facts.name!r}: is not built. Remove them, or use dp-fedavg."


def randomness(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Noise that is fit for release is discrete: in a floating-point number's last bits even perfect randomness leaves
    traces of what it was added to (Mironov, CCS 2012; Haney et al. 2022; Jin et al., S&P 2022)."""
    if config.run.randomness != "secure":
        return
    if config.local.record is not None:
        yield (
            "run.randomness='secure' with [local.record]: the noise of local steps is floating-point Gaussian noise, "
            "whose last bits leak what it hides; there is no discrete one. Use 'simulated' for an experiment, or "
            "[privacy] with noise='discrete-gaussian' for a release."
        )
    if config.privacy is None:
        return
    if config.run.on_error == "raise":
        yield (
            "run.on_error='raise' with run.randomness='secure': a run that ends by an exception tells that a client's "
            "samples caused it, which no epsilon covers. Remove run.on_error, or use 'simulated' to find the cause."
        )
    coins = facts.coins or signs_are_coins(config, facts)
    if coins and config.privacy.noise_std:
        yield (
            f"run.randomness='secure' with privacy.noise_std={config.privacy.noise_std}: it is floating-point Gaussian "
            "noise. Remove it: the coins are private without it."
        )
    if not coins and integer_noise(config) is None:
        yield (
            "run.randomness='secure' with Gaussian noise: as floating-point numbers its last bits leak what it hides. "
            "Use privacy.noise 'discrete-gaussian' or 'skellam' (release 'sum'), or 'simulated' for an experiment."
        )


def correlated(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Noise that is taken back over rounds, where it would not cancel or has no account."""
    table, federation = config.privacy, config.federation
    if table is None or (table.bands is None and table.buffers is None):
        return
    given = f"privacy.bands={table.bands}" if table.bands is not None else f"privacy.buffers={table.buffers}"
    if table.bands is not None and table.buffers is not None:
        yield "privacy.bands with privacy.buffers: noise is taken back in one way. Remove one of them."
    if federation.sampling not in ("cyclic", "min-separation"):
        yield (
            f"{given} with federation.sampling={federation.sampling!r}: a client may take part again only after a "
            "number of rounds that is known. Use sampling 'cyclic' or 'min-separation'."
        )
    if integer_noise(config) is not None:
        kind = integer_noise(config)
        yield f"{given} with privacy.noise={kind!r}: what is taken back is no whole number. Use 'gaussian'."
    stays = facts.name in ("fed-smp-randk", "fedscalar") and config.method.stays
    if facts.name != "dp-fedavg" and not stays:
        able = "fed-smp-randk or fedscalar with method.stays=true, fedscalar with method.shared=true as well"
        yield (
            f"{given} with method.name={facts.name!r}: its coordinates or directions change from round to round, so "
            f"that noise on one round's would not meet the next one's. Use dp-fedavg, or {able}."
        )
    if table.placement != "server" or table.adaptive is not None or seen(config) != "sum":
        yield (
            f"{given}: the noise is the server's, on a sum, at one clip norm. Use "
            "privacy.placement='server', release='sum', and no privacy.adaptive."
        )


def changing_noise(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Noise that differs from round to round by a plan, where rounds have no account of their own."""
    table, sampling = config.privacy, config.federation.sampling
    if table is None or table.noise_schedule is None:
        return
    coins = facts.coins or signs_are_coins(config, facts)
    if coins or facts.dithered or integer_noise(config) is not None:
        kind = config.aggregation.kind
        what = (
            f"aggregation.kind={kind!r}, whose noise is of whole numbers"
            if kind != "plain"
            else (f"method.name={facts.name!r} and privacy.noise={table.noise!r}")
        )
        yield (
            f"privacy.noise_schedule with {what}: is built for Gaussian noise in a plain sum. Remove it, or use "
            "dp-fedavg or Fed-SMP with noise 'gaussian' and aggregation.kind='plain'."
        )
    if sampling not in ("poisson", "fixed", "all"):
        yield (
            f"privacy.noise_schedule with federation.sampling={sampling!r}: its rounds are accounted together, with "
            "equal noise. Use 'poisson', 'fixed' or 'all', or remove it."
        )
    if table.placement != "server" or seen(config) != "sum" or table.adaptive is not None:
        yield (
            "privacy.noise_schedule: the noise is the server's, on a sum, at one clip norm. Use "
            "privacy.placement='server', release='sum', and no privacy.adaptive."
        )
    if table.bands is not None or table.buffers is not None:
        yield "privacy.noise_schedule with privacy.bands or buffers: correlated noise is of one size. Remove one."
    if len(table.noise_schedule) > config.federation.rounds:
        yield (
            f"privacy.noise_schedule of {len(table.noise_schedule)} parts with federation.rounds="
            f"{config.federation.rounds}: must have a round for each. Use fewer factors, or more rounds."
        )
    if config.audit.canaries:
        yield "audit.canaries with privacy.noise_schedule: is not built. Remove one of them."
