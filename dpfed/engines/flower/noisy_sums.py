"""Parsing of Flower's accounting types as untrusted input: its privacy configuration, and its noisy sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism

_MODELS = {
    ("poisson", "add-or-remove-one"): ("poisson", "add-remove"),
    ("without-replacement", "replace-one"): ("fixed", "replace-one"),
    ("no-amplification", "add-or-remove-one"): ("all", "add-remove"),
}
"""Sampling and adjacency in dpfed's names, by Flower's names of both."""


@dataclass(frozen=True, kw_only=True)
class PrivacyModel:
    """Flower's PrivacyConfig in dpfed's terms. delta: the delta at which epsilon is stated; clients: population
    size."""

    delta: float
    clients: int
    sampling: str
    adjacency: str
    max_epsilon: float | None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def require_population(self, one: NoisySum) -> None:
        """Raise InvalidParameter if the population size of a release differs from the configuration's."""
        if one.population_size != self.clients:
            raise InvalidParameter(
                f"population_size={one.population_size} of a release: the configuration's is {self.clients}."
            )


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """Flower's GaussianPrivacyEvent.

    It has the noise multiplier of the sum, the (expected) size of the cohort, and the size of the population.
    """

    noise_multiplier: float
    sample_size: int
    population_size: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def privacy_model_of(config: Any) -> PrivacyModel:
    """Return the privacy model in Flower's PrivacyConfig, or in an object with its fields.

    Raises UnsupportedMechanism unless the pair of sampling and adjacency is one of the three that have an account.
    """
    words = tuple(str(getattr(one, "value", one)) for one in (config.sampling_method, config.neighboring_relation))
    if words not in _MODELS:
        allowed = "; ".join(f"{sampling} with {relation}" for sampling, relation in _MODELS)
        raise UnsupportedMechanism(
            f"sampling_method={words[0]!r} with neighboring_relation={words[1]!r}: has no account. There are {allowed}."
        )
    sampling, adjacency = _MODELS[words]
    limit = config.max_epsilon
    return PrivacyModel(
        delta=require.open_probability(target_delta=config.target_delta),
        clients=require.count(population_size=config.population_size),
        sampling=sampling,
        adjacency=adjacency,
        max_epsilon=None if limit is None else require.positive(max_epsilon=limit),
    )


def noisy_sum_of(event: Any) -> NoisySum:
    """Return the noisy sum in Flower's GaussianPrivacyEvent, in an object with its fields, or in a dictionary.

    Raises InvalidParameter for numbers out of range.
    """
    if isinstance(event, Mapping):
        noise, size, clients = (event[name] for name in ("noise_multiplier", "sample_size", "population_size"))
    else:
        noise, size, clients = event.noise_multiplier, event.sample_size, event.population_size
    found = NoisySum(
        noise_multiplier=require.positive(noise_multiplier=noise),
        sample_size=require.count(sample_size=size),
        population_size=require.count(population_size=clients),
    )
    if found.sample_size > found.population_size:
        raise InvalidParameter(
            f"sample_size={found.sample_size}: must be at most population_size={found.population_size}."
        )
    return found
