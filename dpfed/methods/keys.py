"""Keys of the configuration that only some methods have, or that have an effect with one choice only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from dpfed.config.privacy_tables import BernoulliPrivacy
from dpfed.config.tables import Config, value_text
from dpfed.methods.choices import is_linear, sends_bernoulli_samples, sums_integers, weights_by_samples
from dpfed.methods.specification import MethodSpecification


def methods_by_key(methods: Mapping[str, MethodSpecification]) -> dict[str, list[str]]:
    """Return the names of the methods that have a key, for every key that only some methods have."""
    keys = dict.fromkeys(key for specification in methods.values() for key in specification.takes)
    return {key: [name for name, specification in methods.items() if key in specification.takes] for key in keys}


def unsupported_key_messages(
    config: Config, specification: MethodSpecification, methods: Mapping[str, MethodSpecification]
) -> Iterator[str]:
    """Yield a message for each key that is set although this method does not have it."""
    for key, names in methods_by_key(methods).items():
        if key not in specification.takes and differs_from_default(config, key):
            given = f"{key}={value_text(value_of_setting(config, key))}" if "." in key else f"[{key}]"
            yield (
                f"{given} with method.name={specification.name!r}: {specification.name} does not take it, it is for "
                f"{', '.join(names)}. Remove {'the key' if '.' in key else 'the table'}, or use one of them."
            )


def differs_from_default(config: Config, key: str) -> bool:
    """Return True if the value of the key or table differs from its default."""
    *path, name = key.split(".")
    table = value_of_setting(config, ".".join(path)) if path else config
    if table is None or name not in type(table).model_fields:
        return False
    default = type(table).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(table, name) != default)


def value_of_setting(config: Config, key: str) -> Any:
    """Return the value of the dotted key; None if its table is absent."""
    value: BaseModel | None = config
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    return value


@dataclass(frozen=True)
class Requirement:
    """Keys that have an effect with one choice only: the choice as text, and a test that a configuration makes it."""

    keys: tuple[str, ...]
    choice: str
    is_met: Callable[[Config, MethodSpecification], bool]


def _sums_decodable_integers(config: Config, specification: MethodSpecification) -> bool:
    """Return True if updates are rounded to integers, and the sum of these integers is decoded."""
    return (
        sums_integers(config)
        and is_linear(config, specification)
        and not sends_bernoulli_samples(config, specification)
    )


RULES = (
    Requirement(
        ("privacy.factorisation", "privacy.factorisation_power"),
        "privacy.bands",
        lambda config, specification: (
            config.privacy is not None
            and (config.privacy.bands is not None or getattr(config.federation, "lanes", None) is not None)
        ),
    ),
    Requirement(
        ("aggregation.steps", "aggregation.rotation", "aggregation.wrap_probability"),
        "a sum of integers that is decoded as one (aggregation.kind or integer noise, dp-fedavg, ...)",
        _sums_decodable_integers,
    ),
    Requirement(
        ("aggregation.clip_norm",),
        "numbers summed as integers without [privacy] (aggregation.kind), or method.noiseless",
        lambda config, specification: (
            (_sums_decodable_integers(config, specification) or config.method.noiseless) and config.privacy is None
        ),
    ),
    Requirement(
        ("aggregation.weights",),
        "clients that count by their numbers of samples: updates without [privacy], method.noiseless or votes",
        weights_by_samples,
    ),
    Requirement(
        ("privacy.missing_shares",),
        "shares of noise on a sum (privacy.placement='clients')",
        lambda config, specification: config.privacy is not None and config.privacy.release == "sum",
    ),
    Requirement(
        ("privacy.correction",),
        "privacy.noise_std > 0 (Bernoulli samples that are private without noise need no correction)",
        lambda config, specification: isinstance(config.privacy, BernoulliPrivacy) and bool(config.privacy.noise_std),
    ),
    Requirement(
        ("aggregation.dropout_at",),
        "aggregation.dropout > 0",
        lambda config, specification: config.aggregation.dropout > 0,
    ),
    Requirement(
        ("local.momentum",),
        "local.optimizer='sgd'",
        lambda config, specification: config.local.optimizer == "sgd",
    ),
    Requirement(
        ("data.classes", "data.ignored"),
        "a file or folder of your own (data.name); other data sets have their own number of classes",
        lambda config, specification: config.data.name.endswith((".safetensors", ".npz", ".csv", "/")),
    ),
    Requirement(
        ("data.inputs", "data.label", "data.client", "data.vocabulary", "data.fill", "data.range"),
        "a folder of tables (data.name ends in '/') or a CSV file",
        lambda config, specification: any(
            name and name.endswith(("/", ".csv")) for name in (config.data.name, config.data.public_from)
        ),
    ),
    Requirement(
        ("data.orientations",),
        "data.features='scattering'",
        lambda config, specification: config.data.features == "scattering",
    ),
    Requirement(
        ("method.public_epochs",),
        "coordinates that public samples rank (data.public > 0 with method.keep or method.k)",
        lambda config, specification: (
            config.data.public > 0 and not (config.method.keep is None and config.method.k is None)
        ),
    ),
    Requirement(
        ("server.start_epochs",),
        "server.start='public'",
        lambda config, specification: config.server.start == "public",
    ),
    Requirement(
        ("data.public_from",),
        "data.public > 0",
        lambda config, specification: config.data.public > 0,
    ),
)


def idle_key_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield a message for each key that differs from its default and has no effect with the other settings."""
    for rule in RULES:
        for name in rule.keys:
            if differs_from_default(config, name) and not rule.is_met(config, specification):
                given = f"{name}={value_of_setting(config, name)!r}"
                yield f"{given} has no effect here: it is for {rule.choice}. Set that, or remove the key."


def required_choice(name: str) -> str | None:
    """Return the choice with which the key has an effect, as text; None if it has an effect with every choice."""
    return next((rule.choice for rule in RULES if name in rule.keys), None)
