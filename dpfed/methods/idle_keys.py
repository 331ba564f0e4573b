"""Keys that a run would not look at: refused, for whoever sets one expects something of it."""

from __future__ import annotations

from collections.abc import Iterator

from dpfed.config.tables import Config
from dpfed.methods.choices import in_integers, is_linear, seen, signs_are_coins
from dpfed.methods.facts import MethodFacts
from dpfed.methods.keys import is_set, value_of


def idle_keys(config: Config, facts: MethodFacts) -> Iterator[str]:
    """What is wrong with keys that are not at their default and have no effect beside the others."""
    for table, key, what in _idle(config, facts):
        name = f"{table}.{key}"
        if is_set(config, name):
            given = f"{name}={value_of(config, name)!r}"
            yield f"{given} has no effect here: it is for {what}. Set that, or remove the key."


def _idle(config: Config, facts: MethodFacts) -> Iterator[tuple[str, str, str]]:
    """Table, key, and the choice that would give it a meaning."""
    posterior = config.server.rule == "posterior"
    for key in ("learning_rate", "momentum") if posterior else ("prior", "reset_every"):
        yield "server", key, f"server.rule={'step' if posterior else 'posterior'}"
    adaptive = config.server.rule in ("adam", "yogi", "adagrad")
    for key in ("momentum",) if adaptive else ("beta1", "beta2", "tau"):
        yield "server", key, f"server.rule={'step' if adaptive else 'adam, yogi or adagrad'}"
    if config.server.rule == "adagrad":
        yield "server", "beta2", "server.rule=adam or yogi"
    secure = config.aggregation.kind != "plain"
    coins = facts.coins or signs_are_coins(config, facts)
    numbers = in_integers(config) and is_linear(config, facts) and not coins
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
    if config.local.schedule != "step":
        yield "local", "schedule_rounds", "local.schedule='step'"
    if config.local.optimizer != "sgd":
        yield "local", "momentum", "local.optimizer='sgd'"
    if facts.name == "fedmask":
        yield "mask", "forward", "method.name='fedpm', whose masks are random"
    if not config.data.name.endswith(".safetensors"):
        yield "data", "classes", "a file .safetensors of your own (data.name); others have their own number of classes"
    if not config.data.public:
        yield "data", "public_from", "data.public > 0"
