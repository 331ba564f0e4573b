"""Planted faults: each a round that keeps its claim (the twin) and the same round with something broken.

`alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math

from accounting.compose import accountant
from accounting.mechanisms import Gaussian, PoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency

from . import broken_rounds as broken
from .broken_parts import FromASeed
from .fault_layers import DELTA, Fault, Z, check, secure_draws


def _source(case):
    """The planted source; None: the package's."""
    own = case.one_round.method.randomness
    return own if isinstance(own, FromASeed) else None


def _sampled(multiplier):
    """Epsilon of a tenth of the clients; a shift of 2C with the probability of being drawn is half the multiplier."""
    inside = Gaussian(noise_multiplier=multiplier, adjacency=Adjacency.ADD_REMOVE)
    return accountant.epsilon(Subsampled(mechanism=inside, sampling=PoissonSampling(probability=0.1)), delta=DELTA)


def fault(name, make, *layers, **true):
    return Fault(name=name, make=make, layers=layers, **true)


FAULTS = (
    fault("shares of noise z C / r, not / sqrt(r), r = 4", broken.shares_too_small, check("noise", 5_000), shift=2.0),
    fault("rand-k: clipped before the scale d/k", broken.no_clip_after_the_scale, check("norm"), shift=2.5),
    fault("replace-one charged as a move of C, not 2C", broken.half_the_sensitivity, check("norm"), shift=2.0),
    fault("the whole clip norm for every one of 4 layers", broken.clip_by_layer, check("norm"), shift=2.0),
    fault(
        "2 of 4 shares of noise lost, charged as whole",
        broken.noise_lost_with_dropouts,
        check("noise", 20_000),
        shift=2**0.5,
    ),
    fault("noise 1% short", broken.noise_short, check("noise", 300_000), shift=1 / 0.99),
    fault("the same noise in every round", broken.noise_again, check("seeds", 10, "rounds"), epsilon=math.inf),
    fault(
        "fixed-size cohorts charged as Poisson",
        broken.fixed_size_called_poisson,
        check("sampler", 200, "cohorts"),
        epsilon=_sampled(Z / 2),
        claimed=_sampled(Z),
    ),
    fault("top-k chosen before the noise", broken.chosen_before_the_noise, check("noise", 5_000), epsilon=math.inf),
    fault(
        "top-k by noisy values, noise for k entries only",
        broken.noise_for_fewer_entries,
        check("noise", 5_000),
        shift=2.0,
    ),
    fault("coins without a floor", broken.no_floor, check("floor", 30_000, "coins"), epsilon=math.inf),
    fault(
        "coins without a floor, of a stage that states one",
        broken.no_floor_where_coins_are_drawn,
        check("floor", 30_000, "coins"),
        epsilon=math.inf,
    ),
    fault("FedScalar: the update clipped, not the scalar", broken.no_clip_of_scalars, check("norm"), shift=160**0.5),
    fault("clients weighted by their examples (here 2 to 1)", broken.weighted_by_examples, check("norm"), shift=2.0),
    fault("a round without clients is not charged", broken.empty_round_is_free, check("empty round"), epsilon=math.inf),
    fault("rounding up in magnitude", broken.biased_rounding, check("norm"), shift=1.4046),
    fault("a clip with 1% slack", broken.clip_with_slack, check("norm"), shift=1.01),
    fault(
        "rows up to 1% beyond the bound are not clipped", broken.a_little_more_let_through, check("norm"), shift=1.01
    ),
    fault(
        "the last client of a group is not clipped",
        broken.clients_that_bypass_the_clip,
        check("norm"),
        epsilon=math.inf,
    ),
    fault(
        "adaptive clip: the count without noise",
        broken.count_without_noise,
        check("count", 300, "rounds"),
        epsilon=math.inf,
    ),
    fault(
        "a tenth of the sum without noise in the model", broken.part_of_the_sum_in_the_model, check("norm"), shift=1.1
    ),
    fault("noise clamped at 3.5 standard deviations", broken.noise_clamped, check("tails", 300_000), epsilon=math.inf),
    fault(
        "noise tiled: every draw in two coordinates", broken.noise_tiled, check("coordinates", 20_000), epsilon=math.inf
    ),
    fault(
        "top-k: the mask from private samples", broken.mask_of_private_samples, check("public map"), epsilon=math.inf
    ),
    fault(
        "top-k: public samples that clients hold",
        broken.public_samples_of_clients,
        check("public map"),
        epsilon=math.inf,
    ),
    fault(
        "a fixed cohort drawn with repeats",
        broken.fixed_with_repeats,
        check("sampler", 200, "cohorts"),
        epsilon=math.inf,
    ),
    fault("one cohort for all rounds", broken.one_cohort_for_all, check("sampler", 200, "cohorts"), epsilon=math.inf),
    fault(
        "an empty Poisson cohort is drawn again",
        broken.empty_cohort_redrawn,
        check("sampler", 200, "cohorts"),
        epsilon=math.inf,
    ),
    fault("secure draws from a seed", broken.secure_from_a_seed, secure_draws(_source), epsilon=math.inf),
    fault(
        "secure draws from 32 bits of entropy each", broken.secure_of_32_bits, secure_draws(_source), epsilon=math.inf
    ),
)
