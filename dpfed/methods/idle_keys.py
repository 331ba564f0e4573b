"""Keys that a run would not look at: refused, for whoever sets one expects something of it."""

from __future__ import annotations

from collections.abc import Iterator

from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.facts import MethodFacts
from dpfed.methods.goals import seen, signs_by_coins
from dpfed.methods.schemes import is_linear
from dpfed.methods.sums import in_integers


def check_idle_keys(config: Config, chosen: MethodFacts) -> None:
    """ConfigError for a key that is not at its default and has no effect beside the others."""
    for table, key, what in _idle(config, chosen):
        part = getattr(config, table)
        if part is not None and getattr(part, key) != type(part).model_fields[key].default:
            given = f"{table}.{key}={getattr(part, key)!r}"
            raise ConfigError(f"{given} has no effect here: it is for {what}. Set that, or remove the key.")


def _idle(config: Config, chosen: MethodFacts) -> Iterator[tuple[str, str, str]]:
    """Table, key, and the choice that would give it a meaning."""
    posterior = config.server.rule == "posterior"
    for key in ("learning_rate", "momentum") if posterior else ("prior", "reset_every"):
        yield "server", key, f"server.rule={'step' if posterior else 'posterior'}"
    secure = config.aggregation.kind != "plain"
    coins = chosen.coins or signs_by_coins(config, chosen)
    numbers = in_integers(config) and is_linear(config, chosen) and not coins
    if not secure:
        for key in ("neighbours", "threshold", "least_participants"):
            yield "aggregation", key, "aggregation.kind='masked' or 'protocol'"
    if not numbers:
        for key in ("steps", "rotation", "wrap_probability"):
            yield (
                "aggregation",
                key,
                "a sum of integers that is decoded as one (aggregation.kind or integer noise, dp-fedavg, ...)",
            )
    if not numbers or config.privacy is not None:
        yield "aggregation", "clip_norm", "numbers summed as integers without [privacy] (aggregation.kind)"
    if coins or seen(config) == "uploads":
        yield "privacy", "missing_shares", "shares of noise on a sum (privacy.placement='clients')"
    if not config.aggregation.dropout:
        yield "aggregation", "dropout_at", "aggregation.dropout > 0"
    if config.local.optimizer == "adam":
        yield "local", "momentum", "local.optimizer='sgd'"
    if chosen.name == "fedmask":
        yield "mask", "forward", "method.name='fedpm', whose masks are random"
    if not config.data.name.endswith(".safetensors"):
        yield "data", "classes", "a file .safetensors of your own (data.name); others have their own number of classes"
    if not config.data.public:
        yield "data", "public_from", "data.public > 0"
