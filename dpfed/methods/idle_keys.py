"""Keys that a run would not look at: refused, for whoever sets one expects something of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dpfed.config.privacy_tables import CoinPrivacy
from dpfed.config.tables import Config
from dpfed.methods.choices import in_integers, is_linear, seen, signs_are_coins
from dpfed.methods.facts import MethodFacts
from dpfed.methods.keys import is_set, value_of

ADAPTIVE = ("adam", "yogi", "adagrad")


@dataclass(frozen=True)
class Needs:
    """Keys that have an effect beside one choice only: the choice in words, and whether a run has made it."""

    keys: tuple[str, ...]
    what: str
    made: Callable[[Config, MethodFacts], bool]


def _coins(config: Config, facts: MethodFacts) -> bool:
    return facts.coins or signs_are_coins(config, facts)


def _numbers(config: Config, facts: MethodFacts) -> bool:
    """Whether numbers are summed as integers and their sum is decoded."""
    return in_integers(config) and is_linear(config, facts) and not _coins(config, facts)


RULES = (
    Needs(
        ("privacy.factorisation",),
        "privacy.bands",
        lambda config, facts: config.privacy is not None and config.privacy.bands is not None,
    ),
    Needs(
        ("method.stays",),
        "coordinates or directions that all clients share (fedscalar: method.shared=true)",
        lambda config, facts: facts.name != "fedscalar" or config.method.shared,
    ),
    Needs(
        ("federation.separation",),
        "federation.sampling='min-separation'",
        lambda config, facts: config.federation.sampling == "min-separation",
    ),
    Needs(
        ("server.learning_rate",),
        "server.rule='step'",
        lambda config, facts: config.server.rule != "posterior",
    ),
    Needs(
        ("server.momentum",),
        "server.rule='step'",
        lambda config, facts: config.server.rule not in ("posterior", *ADAPTIVE),
    ),
    Needs(
        ("server.beta1", "server.tau"),
        "server.rule='adam', 'yogi' or 'adagrad'",
        lambda config, facts: config.server.rule in ADAPTIVE,
    ),
    Needs(
        ("server.beta2",),
        "server.rule='adam' or 'yogi'",
        lambda config, facts: config.server.rule in ADAPTIVE and config.server.rule != "adagrad",
    ),
    Needs(
        ("server.prior", "server.reset_every"),
        "server.rule='posterior'",
        lambda config, facts: config.server.rule == "posterior",
    ),
    Needs(
        ("aggregation.neighbours", "aggregation.threshold", "aggregation.least_participants"),
        "aggregation.kind='masked' or 'protocol'",
        lambda config, facts: config.aggregation.kind != "plain",
    ),
    Needs(
        ("aggregation.steps", "aggregation.rotation", "aggregation.wrap_probability"),
        "a sum of integers that is decoded as one (aggregation.kind or integer noise, dp-fedavg, ...)",
        _numbers,
    ),
    Needs(
        ("aggregation.clip_norm",),
        "numbers summed as integers without [privacy] (aggregation.kind)",
        lambda config, facts: _numbers(config, facts) and config.privacy is None,
    ),
    Needs(
        ("privacy.missing_shares",),
        "shares of noise on a sum (privacy.placement='clients')",
        lambda config, facts: not _coins(config, facts) and seen(config) != "uploads",
    ),
    Needs(
        ("privacy.correction",),
        "privacy.noise_std > 0 (coins that are private without noise need no correction)",
        lambda config, facts: isinstance(config.privacy, CoinPrivacy) and bool(config.privacy.noise_std),
    ),
    Needs(
        ("aggregation.dropout_at",),
        "aggregation.dropout > 0",
        lambda config, facts: config.aggregation.dropout > 0,
    ),
    Needs(
        ("local.schedule_rounds",),
        "local.schedule='step'",
        lambda config, facts: config.local.schedule == "step",
    ),
    Needs(
        ("local.momentum",),
        "local.optimizer='sgd'",
        lambda config, facts: config.local.optimizer == "sgd",
    ),
    Needs(
        ("mask.forward",),
        "method.name='fedpm', whose masks are random",
        lambda config, facts: facts.name != "fedmask",
    ),
    Needs(
        ("mask.bound",),
        "fedpm with [privacy], whose coins are the noise",
        lambda config, facts: facts.name != "fedmask" and config.privacy is not None,
    ),
    Needs(
        ("data.classes",),
        "a file or folder of your own (data.name); other data sets have their own number of classes",
        lambda config, facts: config.data.name.endswith((".safetensors", ".npz", "/")),
    ),
    Needs(
        ("data.inputs", "data.label", "data.client"),
        "a folder of tables (data.name ends in '/')",
        lambda config, facts: any(name and name.endswith("/") for name in (config.data.name, config.data.public_from)),
    ),
    Needs(
        ("data.orientations",),
        "data.features='scattering'",
        lambda config, facts: config.data.features == "scattering",
    ),
    Needs(
        ("data.public_from",),
        "data.public > 0",
        lambda config, facts: config.data.public > 0,
    ),
)


def idle_keys(config: Config, facts: MethodFacts) -> Iterator[str]:
    """What is wrong with keys that are not at their default and have no effect beside the others."""
    for rule in RULES:
        for name in rule.keys:
            if is_set(config, name) and not rule.made(config, facts):
                given = f"{name}={value_of(config, name)!r}"
                yield f"{given} has no effect here: it is for {rule.what}. Set that, or remove the key."


def needs(name: str) -> str | None:
    """The choice that gives the key an effect, in words; None where it always has one."""
    return next((rule.what for rule in RULES if name in rule.keys), None)
