"""Refusals of settings: combinations that cannot work, and requirements of a model for release.

`refuse` reads the configuration only, before anything is loaded. Checks that need more are in other functions. They
check the network (`refuse_network`), the number of processes (`refuse_ranks`), clients and delta
(`dpfed.methods.choices`, `dpfed.methods.privacy_target`), integers of a sum (`dpfed.methods.sums`), and the order of a
chain's stages (`dpfed.stages.chain`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from dpfed.aggregation.ranks import Ranks
from dpfed.config.samples_tables import CustomFederation
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods import noise_refusals
from dpfed.methods.choices import is_linear, sends_bernoulli_samples, sums_integers
from dpfed.methods.keys import idle_key_messages, unsupported_key_messages
from dpfed.methods.parts import scheme_of_method
from dpfed.methods.specification import MethodSpecification
from dpfed.models.flat import FlatModel
from dpfed.participation.custom import custom_sampler

_OWN_KEYS = {"shared_seed": "method.shared = true", "keep": "method.keep", "k": "method.k"}


def refuse(config: Config, specification: MethodSpecification) -> None:
    """Raise ConfigError for the first setting that cannot be combined with the others, or would have no effect."""
    for message in refusal_messages(config, specification):
        raise ConfigError(message)


def refusal_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield a message for each setting that cannot be combined with the others, or would have no effect."""
    return chain(
        unsupported_key_messages(config, specification),
        _privacy_messages(config, specification),
        _mask_and_public_data_messages(config, specification),
        _option_messages(config, specification),
        noise_refusals.noise_kind_messages(config, specification),
        () if specification.refusals is None else specification.refusals(config),
        idle_key_messages(config, specification),
        _cohort_cap_messages(config),
        _unit_messages(config),
        _aggregation_messages(config, specification),
        noise_refusals.missing_share_messages(config, specification),
        noise_refusals.dithered_noise_messages(config, specification),
        noise_refusals.randomness_messages(config, specification),
        _schedule_messages(config),
        noise_refusals.correlated_noise_messages(config, specification),
        noise_refusals.noise_schedule_messages(config, specification),
        noise_refusals.spare_round_messages(config, specification),
    )


def _privacy_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for [privacy] with methods that are never private, and for a missing [privacy] that is required.

    Noise shares of clients are refused, too, with a compressor whose uploads cannot be decoded from their sum.
    """
    name, private = specification.name, config.privacy is not None
    if private and specification.privacy == "never":
        yield (
            f"method.name={name!r} with [privacy]: {name} is never private, {specification.never_because}. Use "
            f"{specification.nearest_private}, or remove the [privacy] table."
        )
    if config.method.noiseless and (private or config.local.record is not None):
        table = "[privacy]" if private else "[local.record]"
        yield f"method.noiseless=True with {table}: a run without noise is not private. Remove one of them."
    if not private and specification.privacy == "required" and not config.method.noiseless:
        yield (
            f"method.name={name!r} without [privacy]: it needs privacy.clip_norm and privacy.epsilon or "
            "privacy.noise_multiplier. Without privacy use fedavg, fedavg-topk or fedavg-randk, or Fed-SMP with "
            "method.noiseless=true."
        )
    if config.privacy is not None and config.privacy.placement == "clients" and not is_linear(config, specification):
        yield (
            f"privacy.placement='clients' with method.name={name!r}: shares of noise do not add up if "
            "uploads cannot be decoded from their sum. Use placement 'server' or privacy.release 'uploads'."
        )


def _mask_and_public_data_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for the posterior rule without masks, and for public data that are missing or not public."""
    if not specification.sends_masks and config.server.rule == "posterior":
        yield (
            f"server.rule='posterior' with method.name={specification.name!r}: this rule is for masks (fedpm, "
            "fedmask). Remove it."
        )
    if specification.needs_public_data and config.data.public == 0:
        yield (
            f"method.name={specification.name!r} with data.public=0: its mask needs public data. Set data.public to a "
            "number of samples, and data.public_from to their data set if it is not data.name."
        )
    if config.server.start == "public" and config.data.public == 0:
        yield (
            "server.start='public' with data.public=0: there are no public samples to start from. Set data.public to a "
            "number of samples (and data.public_from to their data set), or remove server.start."
        )
    if config.data.public_from is not None and config.data.public_from == config.data.name:
        yield (
            f"data.public_from={config.data.public_from!r} with data.name={config.data.name!r}: its samples belong to "
            "clients. Remove data.public_from; then data.public samples are taken from the clients and used as public."
        )


def _option_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for options that the compressor does not have, or that have a key of their own."""
    table = config.method
    if table.error_feedback:
        yield from _memory_messages(config, "method.error_feedback", "compression errors")
    if config.local.personal:
        yield from _memory_messages(config, "local.personal", "layers")
        if config.local.proximal:
            yield (
                "local.personal with local.proximal: the term would pull personal layers to those of the start. Remove "
                "one of them."
            )
    if specification.scheme is None:
        return
    for option in table.options:
        if option in _OWN_KEYS:
            yield f"method.options.{option}: set {_OWN_KEYS[option]} instead."
        left = specification.options_of_coins if config.privacy is not None and config.privacy.bernoulli else None
        if left is not None and option not in left:
            yield f"method.options.{option} with privacy.noise='coins': its signs have no such option. Remove it."
    scheme_of_method(config, specification, None)


def _memory_messages(config: Config, key: str, stored: str) -> Iterator[str]:
    """Yield messages for clients that remember earlier rounds by `key`, if that is not built or no account covers it.

    The account requires that a client's earlier rounds influence the uploads of that client only
    (theory-participation.md, Theorem 4).
    """
    table, sampling = config.privacy, config.federation.sampling
    if config.aggregation.kind != "plain":
        yield f"{key} with aggregation.kind={config.aggregation.kind!r}: is not built. Remove one."
    if table is None:
        return
    remembered = f"the stored {stored} of a client make its upload depend on earlier rounds, "
    if table.noise != "gaussian" or table.release != "sum" or table.placement != "server":
        yield (
            f"{key} with privacy.noise={table.noise!r}, privacy.placement={table.placement!r} and "
            f"privacy.release={table.release!r}: {remembered}which has an account with Gaussian noise of the server "
            "on a sum only. Remove one of them."
        )
    if sampling == "fixed" or table.adjacency == "replace-one":
        yield (
            f"{key} with federation.sampling={sampling!r} and privacy.adjacency="
            f"{table.adjacency or 'its default'!r}: {remembered}which no account covers where one client may replace "
            "another. Use sampling 'poisson' or a schedule, adjacency 'add-remove' or 'zero-out', or remove it."
        )
    for other, given in (
        ("aggregation.lost", bool(config.aggregation.lost)),
        ("federation.cohort_cap", config.federation.cohort_cap is not None),
    ):
        if given:
            yield (
                f"{key} with {other} and [privacy]: {remembered}and with a fixed number of clients that take part or "
                "drop out, one client may replace another. Remove one of them."
            )
    if config.audit.canaries:
        yield f"{key} with audit.canaries: is not built. Remove one of them."


def _cohort_cap_messages(config: Config) -> Iterator[str]:
    """Yield messages for federation.cohort_cap without Poisson sampling, or with uploads that are all visible."""
    federation, cap = config.federation, config.federation.cohort_cap
    if cap is not None and federation.sampling != "poisson":
        yield (
            f"federation.cohort_cap={cap} with federation.sampling={federation.sampling!r}: only 'poisson' draws "
            "cohorts of random size, which a cap limits. Remove it."
        )
    elif cap is not None and config.privacy is not None and config.privacy.release == "uploads":
        yield (
            f"federation.cohort_cap={cap} with privacy.release='uploads': every upload is visible and charged, so that "
            "drawing a secret part of the cohort hides nothing. Remove it."
        )


def _unit_messages(config: Config) -> Iterator[str]:
    if config.local.record is not None and config.privacy is not None:
        yield "[local.record] with [privacy]: a run has one unit of privacy, a record or a client. Remove one of them."
    if config.audit.canaries and (config.privacy is None or config.privacy.release == "uploads"):
        yield (
            "audit.canaries: the audit searches for them in a private sum, and this run has none. Set [privacy] with "
            "release 'sum', or audit single uploads with `dpfed audit METHOD`."
        )


def _aggregation_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield messages for settings of [aggregation] that cannot be combined with the other tables."""
    table, privacy = config.aggregation, config.privacy
    if table.lost and table.dropout:
        yield "aggregation.lost with aggregation.dropout: both set which clients drop out. Remove one of them."
    if privacy is not None and privacy.release == "uploads" and (table.kind != "plain" or table.tolerance is not None):
        yield (
            f"aggregation.kind={table.kind!r} or aggregation.tolerance with privacy.release='uploads': every upload "
            "is visible and charged, with or without a sum. Use kind 'plain' without a tolerance, or release 'sum'."
        )
    if privacy is not None and privacy.noise == "gaussian" and table.kind != "plain":
        yield (
            f"privacy.noise='gaussian' with aggregation.kind={table.kind!r}: a secure sum is known modulo 2^b only, "
            "and continuous noise added after the sum has wrapped around hides nothing. Use 'discrete-gaussian' (the "
            "default of a secure sum) or 'skellam', which are added before the sum is reduced, or "
            "aggregation.kind='plain'."
        )
    numbers = sums_integers(config) and not sends_bernoulli_samples(config, specification)
    if numbers and is_linear(config, specification) and privacy is None and table.clip_norm is None:
        yield (
            f"aggregation.kind={table.kind!r} without [privacy]: integers have a bounded range, so updates need a "
            "bound. Set aggregation.clip_norm; longer updates are clipped to it and counted in diagnostics.jsonl."
        )
    if numbers and not is_linear(config, specification) and privacy is not None:
        yield (
            f"aggregation.kind={table.kind!r} or integer noise with method.name={specification.name!r} and [privacy]: "
            "its uploads cannot be decoded from their sum, so clipping would not bound the sum. Use dp-fedavg, "
            "fed-smp-randk, fed-smp-topk, fedpm, fedscalar with method.shared=true, or privacy.noise='coins' for "
            "stochastic signs."
        )


def _schedule_messages(config: Config) -> Iterator[str]:
    """Yield messages for settings that schedules of participation over many rounds do not support."""
    name = config.federation.sampling
    if name in ("poisson", "fixed", "all"):
        return
    if isinstance(config.federation, CustomFederation):
        yield from _custom_sampler_messages(config, config.federation.sampler)
    if config.audit.canaries:
        yield (
            f"audit.canaries={config.audit.canaries} with federation.sampling={name!r}: the audit of canaries requires "
            "rounds whose cohorts are drawn independently. Remove the canaries, or use 'poisson'."
        )
    if config.aggregation.kind != "plain" and config.privacy is not None:
        yield (
            f"aggregation.kind={config.aggregation.kind!r} with federation.sampling={name!r} and [privacy]: a secure "
            "sum needs a number of uploads that does not depend on who takes part. Use kind 'plain', or "
            "sampling 'poisson'."
        )


def _custom_sampler_messages(config: Config, name: str) -> Iterator[str]:
    """Yield messages for private runs whose cohorts a function of the user draws, if no account covers them."""
    table, given = config.privacy, f"federation.sampler={name!r}"
    if table is None and config.local.record is None:
        return
    if custom_sampler(name).distribution is None:
        yield (
            f"{given} with privacy: states no distribution, so it has no epsilon. Register it with distribution "
            "'poisson' or 'fixed', or remove [privacy] and [local.record]."
        )
    if config.run.release:
        yield (
            f"{given} with run.release: cohorts of a release are drawn by dpfed from the operating system. Use a "
            "built-in sampling."
        )
    if table is not None and (table.noise != "gaussian" or table.placement == "clients"):
        yield (
            f"{given} with privacy.noise={table.noise!r}: the number of uploads is not fixed, as noise of clients and "
            "integer noise require. Use privacy.noise='gaussian' and placement 'server'."
        )


def refuse_network(config: Config, specification: MethodSpecification, model: FlatModel) -> None:
    """Raise ConfigError for BatchNorm's running statistics if noise or sums of integers would make them invalid."""
    if model.has_statistics and config.privacy is not None:
        raise ConfigError(
            f"model.name={config.model.name!r} with [privacy]: noise on BatchNorm's running variance can make it "
            "negative. Use a model with GroupNorm or without normalisation."
        )
    symbols = sums_integers(config) and not specification.sends_masks and not is_linear(config, specification)
    if symbols and len(model.dense):
        raise ConfigError(
            f"aggregation.kind={config.aggregation.kind!r} with method.name={specification.name!r} and "
            "normalisation layers: their entries are sent as floats. Use a model without these, or kind 'plain'."
        )


def refuse_ranks(config: Config, ranks: Ranks) -> None:
    """Raise ConfigError for settings that a run in several processes does not support."""
    if ranks.count == 1:
        return
    for wrong, what in (
        (config.aggregation.kind != "plain", f"aggregation.kind={config.aggregation.kind!r}"),
        (config.method.error_feedback, "method.error_feedback"),
        (config.local.personal is not None, "local.personal"),
        (config.method.purge == "clients", "method.purge='clients'"),
    ):
        if wrong:
            raise ConfigError(
                f"{what} with {ranks.count} processes: is supported in one process only. Start without torchrun."
            )


def check_release(config: Config, specification: MethodSpecification) -> None:
    """Raise ConfigError, with every reason and remedy, if a model of this method and these settings cannot be released.

    Noise, cohorts and dropouts of a release are drawn from the operating system's randomness, and added noise is drawn
    exactly, as integers. Therefore parsing a configuration sets run.randomness = "secure" and privacy.noise =
    "discrete-gaussian" if they are not given. Bernoulli samples are drawn exactly in any case.
    """
    if not config.run.release:
        return
    secure = config.with_keys("run", randomness="secure")
    reasons = [*_refusal_reasons(config, specification), *refusal_messages(secure, specification)]
    if reasons:
        listed = "\n  ".join(reasons)
        raise ConfigError(
            f"run.release=true (--release) with method.name={specification.name!r}: is refused.\n  {listed}"
        )


def _refusal_reasons(config: Config, specification: MethodSpecification) -> Iterator[str]:
    table, coins = config.privacy, sends_bernoulli_samples(config, specification)
    if config.run.randomness != "secure":
        yield (
            f"run.randomness={config.run.randomness!r}: noise and cohorts that follow from a seed protect no client. "
            "Remove run.randomness, or run.release."
        )
    if config.local.strategy == "vmap":
        yield (
            "local.strategy='vmap': in one vectorised pass a client's update depends on the other clients' numbers of "
            "samples, in its last bits, and at a kink of the network in all bits. Use 'auto' or 'loop', or remove "
            "run.release."
        )
    if config.local.record is not None:
        return
    if specification.privacy == "never":
        yield (
            "method.name: its clients are never private. Use dp-fedavg or fedpm with [privacy] to protect clients, or "
            "fedavg with [local.record] to protect records (patients of a few hospitals), or remove run.release."
        )
    elif table is None:
        yield "[privacy] is missing: the model would be released without any noise. Add it, or remove run.release."
    if specification.dithered:
        yield (
            "method.name: the noise of this method is the error of a quantiser, a floating-point number. Use "
            "dp-fedavg, or remove run.release."
        )
    elif not coins and specification.privacy != "never" and not is_linear(config, specification):
        shared = ", or method.shared=true" if specification.linear_if_shared else ""
        with_coins = ", or privacy.noise='coins'" if specification.signs_can_be_private else ""
        yield (
            "method.name: exact noise is added to whole numbers in the sum of uploads, and these uploads cannot be "
            f"decoded from their sum. Use dp-fedavg, fed-smp-randk, fed-smp-topk or fedpm{shared}{with_coins}, or "
            "remove run.release."
        )
    if table is None:
        return
    for wrong, key in (
        (table.release == "uploads" and not coins, "privacy.release='uploads'"),
        (table.adaptive is not None, "[privacy.adaptive]"),
        (table.bands is not None or table.buffers is not None, "privacy.bands or privacy.buffers"),
        (config.federation.lanes not in (None, 1), "federation.lanes"),
        (table.noise_schedule is not None, "privacy.noise_schedule"),
    ):
        if wrong:
            yield (
                f"{key}: is supported with floating-point Gaussian noise only, not with exact noise. Remove it, or "
                "run.release."
            )
