"""Choices that cannot work together, refused before anything is loaded."""

from __future__ import annotations

from dpfed.aggregation.ranks import Ranks
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import method
from dpfed.methods.facts import MethodFacts
from dpfed.methods.goals import integer_noise, seen, signs_by_coins
from dpfed.methods.schemes import is_linear
from dpfed.models.flat import FlatModel


def check_method(config: Config, chosen: MethodFacts) -> None:
    if config.privacy is not None and chosen.privacy == "never":
        nearest = (
            "fedpm" if chosen.coins else "fed-smp-topk or fed-smp-randk" if chosen.sparse == "yes" else "dp-fedavg"
        )
        reason = "its indices come from private data" if chosen.name == "fedavg-topk" else "it adds no noise"
        raise ConfigError(
            f"method.name={chosen.name!r} with [privacy]: {chosen.name} is never private, {reason}. Use {nearest}, or "
            "remove the [privacy] table."
        )
    if config.privacy is None and chosen.privacy == "required":
        raise ConfigError(
            f"method.name={chosen.name!r} without [privacy]: it needs privacy.clip_norm and privacy.epsilon or "
            "privacy.noise_multiplier. Without privacy use fedavg, fedavg-topk or fedavg-randk."
        )
    given = config.method.keep is not None or config.method.k is not None
    if chosen.sparse == "no" and given:
        raise ConfigError(
            f"method.keep or method.k with method.name={chosen.name!r}: it sends everything. Remove the key."
        )
    if not chosen.coins and (config.mask is not None or config.server.rule == "posterior"):
        raise ConfigError(
            f"[mask] or server.rule='posterior' with method.name={chosen.name!r}: they are for masks. Remove them, or "
            "use fedpm or fedmask."
        )
    if not chosen.coins and config.local.optimizer != "sgd":
        raise ConfigError(f"local.optimizer={config.local.optimizer!r}: is for masks (fedpm, fedmask). Use 'sgd'.")
    if config.privacy is not None and config.privacy.placement == "clients" and not is_linear(config, chosen):
        raise ConfigError(
            f"privacy.placement='clients' with method.name={chosen.name!r}: shares of noise do not add up through a "
            "compressor that a sum does not commute with. Use placement 'server' or privacy.release 'uploads'."
        )
    if config.method.purge == "clients" and config.privacy is not None and seen(config) == "sum":
        raise ConfigError(
            "method.purge='clients' with [privacy]: the majority vote over entries is a release of its own that no "
            "account covers. Use purge 'server', or privacy.release 'uploads', which noises every model first."
        )
    public = chosen.needs_public_data or (chosen.sparse == "optional" and given)
    if public and config.data.public == 0:
        raise ConfigError(
            f"method.name={chosen.name!r} with data.public=0: its mask comes from public data. Set data.public to a "
            "number of samples, and data.public_from to the data set they come from if it is another."
        )


def check_randomness(config: Config, chosen: MethodFacts) -> None:
    """Noise that is fit for release is discrete: in a floating-point number's last bits even perfect randomness leaves
    traces of what it was added to (Mironov, CCS 2012; Haney et al. 2022; Jin et al., S&P 2022)."""
    if config.run.randomness != "secure":
        return
    if config.local.record is not None:
        raise ConfigError(
            "run.randomness='secure' with [local.record]: the noise of local steps is floating-point Gaussian noise, "
            "whose last bits leak what it hides; there is no discrete one. Use 'simulated' for an experiment, or "
            "[privacy] with noise='discrete-gaussian' for a release."
        )
    if config.privacy is None:
        return
    coins = chosen.coins or signs_by_coins(config, chosen)
    if coins and config.privacy.noise_std:
        raise ConfigError(
            f"run.randomness='secure' with privacy.noise_std={config.privacy.noise_std}: it is floating-point Gaussian "
            "noise. Remove it: the coins are private without it."
        )
    if not coins and integer_noise(config) is None:
        raise ConfigError(
            "run.randomness='secure' with Gaussian noise: as floating-point numbers its last bits leak what it hides. "
            "Use privacy.noise 'discrete-gaussian' or 'skellam' (release 'sum'), or 'simulated' for an experiment."
        )


def check_statistics(config: Config, model: FlatModel) -> None:
    """Refuse noise on running statistics."""
    if model.has_statistics and config.privacy is not None:
        raise ConfigError(
            f"model.name={config.model.name!r} with [privacy]: noise on BatchNorm's running variance can make it "
            "negative. Use a model with GroupNorm or without normalisation."
        )


def check_switches(config: Config) -> None:
    """Keys of [method] that belong to one way of local training."""
    table = config.method
    if method(table.name).local_training != "masked noise" and not (
        table.progressive and table.stochastic and table.train_masked
    ):
        raise ConfigError(f"method.progressive, stochastic, train_masked with {table.name!r}: are for fedmrn(s).")
    if method(table.name).local_training != "pruned" and table.purge is not None:
        raise ConfigError(f"method.purge with {table.name!r}: is for fedsparsify. Remove it.")


def check_ranks(config: Config, ranks: Ranks) -> None:
    """What several processes cannot share."""
    if ranks.count == 1:
        return
    for wrong, what in (
        (config.aggregation.kind != "plain", f"aggregation.kind={config.aggregation.kind!r}"),
        (config.method.error_feedback, "method.error_feedback"),
        (config.method.purge == "clients", "method.purge='clients'"),
    ):
        if wrong:
            raise ConfigError(f"{what} with {ranks.count} processes: is built for one. Start without torchrun.")
