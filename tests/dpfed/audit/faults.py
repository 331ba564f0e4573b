"""Planted faults: each a round that keeps its claim (the twin) and the same round with something broken.

`alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math
from dataclasses import replace

from accounting.budget import FixedSize, Poisson
from accounting.compose import accountant
from accounting.mechanisms import Gaussian, PoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import Integers
from dpfed.stages.clip import Clip

from . import broken_parts as parts
from . import broken_rounds as broken
from . import run_faults
from .broken_parts import fields_of
from .broken_rounds import changed_draws, changed_stage, other_draws, other_sampler, other_source, other_stage
from .fault_layers import DELTA, Fault, Z, check, secure_draws

SHARES = ("privacy.placement=clients",)
WIDE = "model.hidden=[8]"  # d = 610: more draws a round
OF_THE_MASK = (
    *("privacy.clip_metric=euclidean", "privacy.edge=", "privacy.linf_clip=0.4"),
    *("mask.bound=", "mask.edge=0.2"),
)
"""Coins of the mask's probabilities, which come near 0 and 1, and not of how far they move."""
ADAPTIVE = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.rate=0.2", "privacy.adaptive.count_noise_std=2.0")


def _source(case):
    """The planted source; None: the package's."""
    own = case.one_round.method.randomness
    return own if isinstance(own, parts.FromASeed) else None


def _sampled(multiplier):
    """Epsilon of a tenth of the clients; a shift of 2C with the probability of being drawn is half the multiplier."""
    inside = Gaussian(noise_multiplier=multiplier, adjacency=Adjacency.ADD_REMOVE)
    return accountant.epsilon(Subsampled(mechanism=inside, sampling=PoissonSampling(probability=0.1)), delta=DELTA)


def of_fixed_size(self, randomness, number):
    return FixedSize(cohort=2).cohorts(self.clients).sample(randomness, number)


def with_biased_rounding(one):
    return replace(one, fixed_point=parts.RoundsAwayFromZero(**fields_of(one.fixed_point)))


def fault(name, make, *layers, **true):
    """A fault whose true epsilon is infinite unless `true` says otherwise."""
    return Fault(name=name, make=make, layers=layers, **(true or {"epsilon": math.inf}))


FAULTS = (
    fault(
        "shares of noise z C / r, not / sqrt(r), r = 4",
        changed_stage(GaussianNoise, lambda noise: replace(noise, shares=16), *SHARES),
        check("noise", 5_000),
        shift=2.0,
    ),
    fault("rand-k: clipped before the scale d/k", broken.no_clip_after_the_scale, check("norm"), shift=2.5),
    fault(
        "replace-one charged as a move of C, not 2C",
        other_stage(GaussianNoise, parts.HalfCharged, "privacy.adjacency=replace-one"),
        check("norm"),
        shift=2.0,
    ),
    fault("the whole clip norm for every one of 4 layers", broken.clip_by_layer, check("norm"), shift=2.0),
    fault(
        "2 of 4 shares of noise lost, charged as whole",
        changed_stage(GaussianNoise, lambda noise: replace(noise, shares=None), *SHARES, "aggregation.tolerance=0.5"),
        check("noise", 20_000),
        shift=2**0.5,
    ),
    fault("noise 1% short", changed_draws(lambda drawn: 0.99 * drawn, WIDE), check("noise", 300_000), shift=1 / 0.99),
    fault("the same noise in every round", other_draws(parts.ForgetsTheRound), check("seeds", 10, "rounds")),
    fault(
        "fixed-size cohorts charged as Poisson",
        other_sampler(Poisson(cohort=2), of_fixed_size),
        check("sampler", 200, "cohorts"),
        epsilon=_sampled(Z / 2),
        claimed=_sampled(Z),
    ),
    fault("top-k chosen before the noise", broken.chosen_before_the_noise, check("noise", 5_000)),
    fault(
        "top-k by noisy values, noise for k entries only",
        broken.noise_for_fewer_entries,
        check("noise", 5_000),
        shift=2.0,
    ),
    fault(
        "coins without a floor",
        other_stage(PrivateCoins, parts.WithoutFloor, *OF_THE_MASK, method="fedpm"),
        check("floor", 30_000, "coins"),
    ),
    fault(
        "coins without a floor, of a stage that states one",
        other_stage(PrivateCoins, parts.DrawsWithoutFloor, *OF_THE_MASK, method="fedpm"),
        check("floor", 30_000, "coins"),
    ),
    fault("FedScalar: the update clipped, not the scalar", broken.no_clip_of_scalars, check("norm"), shift=160**0.5),
    fault("clients weighted by their examples (here 2 to 1)", broken.weighted_by_examples, check("norm"), shift=2.0),
    fault(
        "a round without clients is not charged",
        other_stage(GaussianNoise, parts.ChargesNothingForNobody),
        check("empty round"),
    ),
    fault(
        "rounding up in magnitude",
        changed_stage(Integers, with_biased_rounding, "privacy.noise=discrete-gaussian", "aggregation.steps=5"),
        check("norm"),
        shift=1.4046,
    ),
    fault("a clip with 1% slack", other_stage(Clip, parts.ClipsWithSlack), check("norm"), shift=1.01),
    fault(
        "rows up to 1% beyond the bound are not clipped",
        other_stage(Clip, parts.LetsALittleMoreThrough),
        check("norm"),
        shift=1.01,
    ),
    fault("the last client of a group is not clipped", other_stage(Clip, parts.ForgetsTheLastClient), check("norm")),
    fault(
        "adaptive clip: the count without noise",
        other_stage(Clip, parts.ShowsTheCount, *ADAPTIVE),
        check("count", 300, "rounds"),
    ),
    fault(
        "a tenth of the sum without noise in the model", broken.part_of_the_sum_in_the_model, check("norm"), shift=1.1
    ),
    fault("noise clamped at 3.5 standard deviations", changed_draws(parts.clamped, WIDE), check("tails", 300_000)),
    fault("noise tiled: every draw in two coordinates", changed_draws(parts.tiled, WIDE), check("coordinates", 20_000)),
    fault("top-k: the mask from private samples", broken.mask_of_private_samples, check("public map")),
    fault("top-k: public samples that clients hold", broken.public_samples_of_clients, check("public map")),
    fault(
        "a fixed cohort drawn with repeats",
        other_sampler(FixedSize(cohort=5), run_faults.with_repeats),
        check("sampler", 200, "cohorts"),
    ),
    fault(
        "one cohort for all rounds",
        other_sampler(FixedSize(cohort=5), run_faults.once),
        check("sampler", 200, "cohorts"),
    ),
    fault(
        "an empty Poisson cohort is drawn again",
        other_sampler(Poisson(cohort=1), run_faults.until_one_comes),
        check("sampler", 200, "cohorts"),
    ),
    fault("secure draws from a seed", other_source(parts.FromASeed), secure_draws(_source)),
    fault("secure draws from 32 bits of entropy each", other_source(parts.Of32Bits), secure_draws(_source)),
)
