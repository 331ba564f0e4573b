"""The one place where a wrong combination of settings is refused: what was given, what is allowed, what to do.

`refuse` looks at the configuration alone, before anything is loaded. What needs more is refused where that is known:
the network (`refuse_network`), the number of processes (`refuse_ranks`), clients and delta (`dpfed.methods.aborts`,
`dpfed.methods.goals`), integers of a sum (`dpfed.methods.sums`), and what stages say of themselves when a chain is
made (`dpfed.stages.chain`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from dpfed.aggregation.ranks import Ranks
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods import noise_refusals
from dpfed.methods.catalogue import every_method
from dpfed.methods.choices import coins_of_moves, in_integers, is_linear, seen, signs_are_coins
from dpfed.methods.facts import MethodFacts
from dpfed.methods.idle_keys import ADAPTIVE, idle_keys
from dpfed.methods.keys import not_taken
from dpfed.methods.schemes import check_scheme
from dpfed.models.flat import FlatModel

_OWN_KEYS = {"shared_seed": "method.shared = true", "keep": "method.keep", "k": "method.k"}
_OF_COINS = {"stochastic-sign": ("bound",), "fedmrns": ("noise", "alpha")}
"""Options that are left where signs are private coins (privacy.noise = "coins")."""


def refuse(config: Config, facts: MethodFacts) -> None:
    """ConfigError for settings that cannot work together, or that nothing would look at."""
    for message in problems(config, facts):
        raise ConfigError(message)


def problems(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Yield a message for each setting that cannot work with the others."""
    return chain(
        not_taken(config, facts, every_method()),
        _privacy_of(config, facts),
        _masks_and_public_data(config, facts),
        _optimisers(config, facts),
        _options(config, facts),
        noise_refusals.signs(config, facts),
        idle_keys(config, facts),
        _units(config),
        _sums(config, facts),
        noise_refusals.noise(config, facts),
        noise_refusals.dithered(config, facts),
        noise_refusals.randomness(config, facts),
        _schedules(config),
        noise_refusals.correlated(config, facts),
        noise_refusals.changing_noise(config, facts),
    )


def _privacy_of(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Methods that are never, or always, private, and compressions that no account covers."""
    name, private = facts.name, config.privacy is not None
    if private and facts.privacy == "never":
        nearest = "fedpm" if facts.coins else "fed-smp-topk or fed-smp-randk" if facts.sparse == "yes" else "dp-fedavg"
        reason = "its indices come from private data" if name == "fedavg-topk" else "it adds no noise"
        yield (
            f"method.name={name!r} with [privacy]: {name} is never private, {reason}. Use {nearest}, or remove the "
            "[privacy] table."
        )
    if not private and facts.privacy == "required":
        yield (
            f"method.name={name!r} without [privacy]: it needs privacy.clip_norm and privacy.epsilon or "
            "privacy.noise_multiplier. Without privacy use fedavg, fedavg-topk or fedavg-randk."
        )
    if config.privacy is not None and config.privacy.placement == "clients" and not is_linear(config, facts):
        yield (
            f"privacy.placement='clients' with method.name={name!r}: shares of noise do not add up through a "
            "compressor that a sum does not commute with. Use placement 'server' or privacy.release 'uploads'."
        )
    if config.method.purge == "clients" and private and seen(config) == "sum":
        yield (
            "method.purge='clients' with [privacy]: the majority vote over entries is a release of its own that no "
            "account covers. Use purge 'server', or privacy.release 'uploads', which noises every model first."
        )


def _masks_and_public_data(config: Config, facts: MethodFacts) -> Iterator[str]:
    """What masks alone have, and public data where coordinates come from them."""
    if facts.coins and config.server.rule not in ("step", "posterior", *ADAPTIVE):
        yield f"server.rule={config.server.rule!r} with masks: it is for updates. Use 'step' or 'posterior'."
    if config.server.rule == "posterior" and coins_of_moves(config):
        yield "server.rule='posterior' with mask.bound: the coins are of moves, not of a mask. Use rule 'step'."
    if not facts.coins and config.server.rule == "posterior":
        yield f"server.rule='posterior' with method.name={facts.name!r}: is for masks (fedpm, fedmask). Remove it."
    chosen = config.method.keep is not None or config.method.k is not None
    if facts.sparse == "optional" and chosen and not facts.coins and not signs_are_coins(config, facts):
        yield (
            f"method.keep or method.k with method.name={facts.name!r}: is for signs as coins. Set "
            "privacy.noise='coins', or remove it."
        )
    if facts.needs_public_data and config.data.public == 0:
        yield (
            f"method.name={facts.name!r} with data.public=0: its mask comes from public data. Set data.public to a "
            "number of samples, and data.public_from to the data set they come from if it is another."
        )
    if config.data.public_from is not None and config.data.public_from == config.data.name:
        yield (
            f"data.public_from={config.data.public_from!r} with data.name={config.data.name!r}: these are samples of "
            "clients. Remove data.public_from: then data.public samples are taken away from the clients."
        )


def _optimisers(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Of clients and of the server, by what is trained."""
    local, server, name = config.local, config.server, facts.name
    if facts.local_training == "masked noise" and (local.optimizer != "sgd" or local.weight_decay):
        yield f"local.optimizer or local.weight_decay with method.name={name!r}: masked noise is trained by plain SGD."
    if facts.coins and (local.optimizer == "adamw" or local.weight_decay):
        yield (
            f"local.weight_decay or local.optimizer='adamw' with method.name={name!r}: would pull masks' scores to 0, "
            "not weights. Use 'sgd' or 'adam' without weight decay."
        )
    if local.schedule == "step" and local.schedule_rounds is None:
        yield "local.schedule='step': needs local.schedule_rounds, and local.learning_rate_decay as the factor."
    if local.schedule not in ("constant", "step") and local.learning_rate_decay != 1:
        yield "local.learning_rate_decay with local.schedule: both lower the learning rate. Remove one of them."
    if server.rule in ADAPTIVE and (facts.coins or config.method.purge == "clients"):
        what = "probabilities" if facts.coins else "the zeros that clients agree on"
        yield f"server.rule={server.rule!r} with method.name={name!r}: would not keep {what}. Use 'step'."
    if server.average is not None and facts.local_training == "pruned":
        yield f"server.average with method.name={name!r}: an average of sparse models is not sparse. Remove it."


def _options(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Options of the compressor."""
    table, name = config.method, facts.name
    if table.error_feedback:
        yield from _error_feedback(config, facts)
    if facts.scheme is None:
        return
    for option in table.options:
        if option in _OWN_KEYS:
            yield f"method.options.{option}: is written as {_OWN_KEYS[option]}."
        coins = config.privacy is not None and config.privacy.noise == "coins"
        if coins and option not in _OF_COINS.get(name, (option,)):
            yield f"method.options.{option} with privacy.noise='coins': coins have no such thing. Remove it."
    check_scheme(config, facts)


def _error_feedback(config: Config, facts: MethodFacts) -> Iterator[str]:
    if config.privacy is not None:
        yield (
            "method.error_feedback with [privacy]: a client's remembered error carries earlier rounds into this one, "
            "which no account of single rounds covers. Remove one of them."
        )
    if config.aggregation.kind != "plain":
        yield f"method.error_feedback with aggregation.kind={config.aggregation.kind!r}: is not built. Remove one."


def _units(config: Config) -> Iterator[str]:
    if config.local.record is not None and config.privacy is not None:
        yield "[local.record] with [privacy]: a run has one unit of privacy, a record or a client. Remove one of them."
    if config.audit.canaries and (config.privacy is None or seen(config) == "uploads"):
        yield (
            "audit.canaries: are found in a private sum; here is none. Set [privacy] with release 'sum', or audit "
            "single uploads with `dpfed audit upload`."
        )


def _sums(config: Config, facts: MethodFacts) -> Iterator[str]:
    """Choices of [aggregation] that cannot work with the rest."""
    table, privacy = config.aggregation, config.privacy
    if table.lost and table.dropout:
        yield "aggregation.lost with aggregation.dropout: say who drops out in one way. Remove one of them."
    if privacy is not None and seen(config) == "uploads" and (table.kind != "plain" or table.tolerance is not None):
        yield (
            f"aggregation.kind={table.kind!r} or aggregation.tolerance with privacy.release='uploads': every upload "
            "is seen and charged, sum or no sum. Use kind 'plain' without a tolerance, or release 'sum'."
        )
    if privacy is not None and privacy.adaptive is not None and in_integers(config):
        yield (
            "privacy.adaptive with integer sums: the steps are fixed to one clip norm. Use aggregation.kind='plain' "
            "and Gaussian noise, or a fixed clip norm."
        )
    if privacy is not None and privacy.noise == "gaussian" and table.kind != "plain":
        yield (
            f"privacy.noise='gaussian' with aggregation.kind={table.kind!r}: a secure sum is known modulo 2^b only, "
            "and continuous noise on what is left of a sum that has wrapped around hides nothing. Use "
            "'discrete-gaussian' (what a secure sum takes if privacy.noise is not set), which is added before the "
            "sum is reduced, or 'skellam'; or aggregation.kind='plain'."
        )
    numbers = in_integers(config) and not facts.coins and not signs_are_coins(config, facts)
    if numbers and is_linear(config, facts) and privacy is None and table.clip_norm is None:
        yield (
            f"aggregation.kind={table.kind!r} without [privacy]: integers have a range, so updates need a bound. Set "
            "aggregation.clip_norm; longer updates are clipped to it and counted in diagnostics.jsonl."
        )
    if numbers and not is_linear(config, facts) and privacy is not None:
        yield (
            f"aggregation.kind={table.kind!r} or integer noise with method.name={facts.name!r} and [privacy]: its "
            "uploads cannot be decoded from their sum, so the clip would not bound it. Use dp-fedavg, fed-smp-randk, "
            "fed-smp-topk, fedpm, fedscalar with method.shared=true, or privacy.noise='coins' where signs are coins."
        )


def _schedules(config: Config) -> Iterator[str]:
    """Participation over many rounds that has no account, or cannot be carried out."""
    name = config.federation.sampling
    if name in ("poisson", "fixed", "all"):
        return
    if config.audit.canaries:
        yield (
            f"audit.canaries={config.audit.canaries} with federation.sampling={name!r}: canaries take part in rounds "
            "drawn by themselves, which a schedule does not have. Remove them, or use 'poisson'."
        )
    if config.aggregation.kind != "plain" and config.privacy is not None:
        yield (
            f"aggregation.kind={config.aggregation.kind!r} with federation.sampling={name!r} and [privacy]: a secure "
            "sum needs a number of uploads that does not depend on who takes part. Use kind 'plain', or "
            "sampling 'poisson'."
        )


def refuse_network(config: Config, facts: MethodFacts, model: FlatModel) -> None:
    """ConfigError for running statistics where noise, or whole numbers, would spoil them."""
    if model.has_statistics and config.privacy is not None:
        raise ConfigError(
            f"model.name={config.model.name!r} with [privacy]: noise on BatchNorm's running variance can make it "
            "negative. Use a model with GroupNorm or without normalisation."
        )
    symbols = in_integers(config) and not facts.coins and not is_linear(config, facts)
    if symbols and len(model.dense):
        raise ConfigError(
            f"aggregation.kind={config.aggregation.kind!r} with method.name={facts.name!r} and BatchNorm: its "
            "statistics are sent as floats. Use a model without BatchNorm, or kind 'plain'."
        )


def refuse_ranks(config: Config, ranks: Ranks) -> None:
    """ConfigError for what several processes cannot share."""
    if ranks.count == 1:
        return
    for wrong, what in (
        (config.aggregation.kind != "plain", f"aggregation.kind={config.aggregation.kind!r}"),
        (config.method.error_feedback, "method.error_feedback"),
        (config.method.purge == "clients", "method.purge='clients'"),
    ):
        if wrong:
            raise ConfigError(f"{what} with {ranks.count} processes: is built for one. Start without torchrun.")
