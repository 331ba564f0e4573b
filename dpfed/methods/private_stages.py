"""The stage that makes a run's rounds private, from its configuration and goal alone: no data, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accounting.mechanisms import (
    CorrelatedRounds,
    DiscreteGaussian,
    FullParticipation,
    GaussianShares,
    Sampling,
    Skellam,
    Subsampled,
)
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from dpfed.aggregation.sums import least_uploads
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.choices import seen, tolerance_of
from dpfed.methods.goals import IntegerTerms, PrivacyGoal
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.stages.adaptive_clip import AdaptiveClip
from dpfed.stages.coins import PrivateCoins
from dpfed.stages.correlated import Correlated
from dpfed.stages.dithered import DitheredNoise
from dpfed.stages.gaussian_noise import GaussianNoise
from dpfed.stages.integer_noise import IntegerNoise
from dpfed.stages.integers import Integers


def gaussian_noise(config: Config, goal: PrivacyGoal, sampler: Sampler, randomness: Randomness) -> GaussianNoise:
    """Noise on a sum of clipped rows, in shares of it, or on every upload."""
    table, expected = config.privacy, sampler.expected
    assert table is not None
    assert goal.noise_multiplier is not None
    adaptive = None
    if table.adaptive is not None:
        # A twentieth of the cohort, as Andrew et al. 2021; more in a small one, where the count would use it all.
        std = table.adaptive.count_noise_std or max(expected / 20, goal.noise_multiplier)
        adaptive = AdaptiveClip(
            quantile=table.adaptive.quantile,
            rate=table.adaptive.rate,
            count_noise_std=std,
            cohort=expected,
            randomness=randomness,
        )
    shares = least_uploads(int(expected), tolerance_of(config) or 0.0)
    return GaussianNoise(
        noise_multiplier=goal.noise_multiplier,
        adjacency=goal.mechanism.adjacency,
        sampler=sampler,
        randomness=randomness,
        placement="uploads" if seen(config) == "uploads" else table.placement,
        adaptive=adaptive,
        shares=shares if table.placement == "clients" and not goal.varies else None,
        charged=goal.varies,
        correlated=Correlated(law=law) if isinstance(law := _sampling(goal), CorrelatedRounds) else None,
        schedule=goal.schedule,
    )


def dithered_noise(goal: PrivacyGoal, sampler: Sampler, randomness: Randomness) -> DitheredNoise:
    """Noise that is the error of a quantiser."""
    noise = _unsampled(goal)
    if not isinstance(noise, GaussianShares):
        raise ConfigError(
            "a chain with DitheredNoise in a method whose noise is not in shares: its quantiser is for dp-dithered. "
            "Use that method, or GaussianNoise (Settings.noise)."
        )
    return DitheredNoise(noise=noise, sampling=_sampling(goal), divided_by=sampler.expected, randomness=randomness)


def integer_noise_on(integers: Integers, goal: PrivacyGoal, sampler: Sampler, randomness: Randomness) -> IntegerNoise:
    """Noise on rows of these integers, or on their sum."""
    inside, terms = _unsampled(goal), goal.integers
    assert isinstance(inside, DiscreteGaussian | Skellam)
    assert terms is not None
    return IntegerNoise(
        noise=inside,
        sampling=_sampling(goal),
        placement=terms.placement,
        randomness=randomness,
        steps_per_unit=integers.fixed_point.steps_per_unit,
        detail=_detail(integers, terms, sampler),
        charged=goal.varies,
    )


def private_coins(
    config: Config,
    goal: PrivacyGoal,
    randomness: Randomness,
    *,
    canaries: Callable[[int], int] | None = None,
    bits: int | None = None,
) -> PrivateCoins:
    """Coins that are the noise. canaries, bits: of their sums, as `PrivateCoins` has them."""
    coins, table = _unsampled(goal), config.privacy
    assert table is not None
    assert isinstance(coins, BernoulliAggregate | BernoulliChannel)
    return PrivateCoins(
        coins=coins,
        sampling=_sampling(goal),
        randomness=randomness,
        correction=table.correction or "linear",
        canaries=canaries,
        bits=table.count_bits or bits,
        trials=table.trials,
    )


def _detail(integers: Integers, terms: IntegerTerms, sampler: Sampler) -> Mapping[str, Any]:
    return {
        "divided_by": sampler.expected,
        "noise": terms.kind,
        "steps_per_unit": integers.fixed_point.steps_per_unit,
        "integers": integers.fixed_point.padded,
        "bits": integers.bits,
    }


def _unsampled(goal: PrivacyGoal) -> Any:
    """What a round adds, without its sampling."""
    return goal.mechanism.mechanism if isinstance(goal.mechanism, Subsampled) else goal.mechanism


def _sampling(goal: PrivacyGoal) -> Sampling:
    return goal.mechanism.sampling if isinstance(goal.mechanism, Subsampled) else FullParticipation()
