"""Planted faults: each a round that keeps its claim (the twin) and the same round with something broken.

`alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math

from accounting.compose import accountant
from accounting.mechanisms import Gaussian, PoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency

from . import broken_rounds
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


FAULTS = (
    Fault(
        name="shares of noise z C / r, not / sqrt(r), r = 4",
        make=broken_rounds.shares_too_small,
        shift=2.0,
        layers=(check("noise", 5_000),),
    ),
    Fault(
        name="rand-k: clipped before the scale d/k",
        make=broken_rounds.no_clip_after_the_scale,
        shift=2.5,
        layers=(check("norm"),),
    ),
    Fault(
        name="replace-one charged as a move of C, not 2C",
        make=broken_rounds.half_the_sensitivity,
        shift=2.0,
        layers=(check("norm"),),
    ),
    Fault(
        name="the whole clip norm for every one of 4 layers",
        make=broken_rounds.clip_by_layer,
        shift=2.0,
        layers=(check("norm"),),
    ),
    Fault(
        name="2 of 4 shares of noise lost, charged as whole",
        make=broken_rounds.noise_lost_with_dropouts,
        shift=2**0.5,
        layers=(check("noise", 20_000),),
    ),
    Fault(name="noise 1% short", make=broken_rounds.noise_short, shift=1 / 0.99, layers=(check("noise", 300_000),)),
    Fault(
        name="the same noise in every round",
        make=broken_rounds.noise_again,
        epsilon=math.inf,
        layers=(check("seeds", 10, "rounds"),),
    ),
    Fault(
        name="fixed-size cohorts charged as Poisson",
        make=broken_rounds.fixed_size_called_poisson,
        epsilon=_sampled(Z / 2),
        claimed=_sampled(Z),
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="top-k chosen before the noise",
        make=broken_rounds.chosen_before_the_noise,
        epsilon=math.inf,
        layers=(check("noise", 5_000),),
    ),
    Fault(
        name="top-k by noisy values, noise for k entries only",
        make=broken_rounds.noise_for_fewer_entries,
        shift=2.0,
        layers=(check("noise", 5_000),),
    ),
    Fault(
        name="coins without a floor",
        make=broken_rounds.no_floor,
        epsilon=math.inf,
        layers=(check("floor", 30_000, "coins"),),
    ),
    Fault(
        name="coins without a floor, of a stage that states one",
        make=broken_rounds.no_floor_where_coins_are_drawn,
        epsilon=math.inf,
        layers=(check("floor", 30_000, "coins"),),
    ),
    Fault(
        name="FedScalar: the update clipped, not the scalar",
        make=broken_rounds.no_clip_of_scalars,
        shift=160**0.5,
        layers=(check("norm"),),
    ),
    Fault(
        name="clients weighted by their examples (here 2 to 1)",
        make=broken_rounds.weighted_by_examples,
        shift=2.0,
        layers=(check("norm"),),
    ),
    Fault(
        name="a round without clients is not charged",
        make=broken_rounds.empty_round_is_free,
        epsilon=math.inf,
        layers=(check("empty round"),),
    ),
    Fault(name="rounding up in magnitude", make=broken_rounds.biased_rounding, shift=1.4046, layers=(check("norm"),)),
    Fault(name="a clip with 1% slack", make=broken_rounds.clip_with_slack, shift=1.01, layers=(check("norm"),)),
    Fault(
        name="rows up to 1% beyond the bound are not clipped",
        make=broken_rounds.a_little_more_let_through,
        shift=1.01,
        layers=(check("norm"),),
    ),
    Fault(
        name="the last client of a group is not clipped",
        make=broken_rounds.clients_that_bypass_the_clip,
        epsilon=math.inf,
        layers=(check("norm"),),
    ),
    Fault(
        name="adaptive clip: the count without noise",
        make=broken_rounds.count_without_noise,
        epsilon=math.inf,
        layers=(check("count", 300, "rounds"),),
    ),
    Fault(
        name="a tenth of the sum without noise in the model",
        make=broken_rounds.part_of_the_sum_in_the_model,
        shift=1.1,
        layers=(check("norm"),),
    ),
    Fault(
        name="noise clamped at 3.5 standard deviations",
        make=broken_rounds.noise_clamped,
        epsilon=math.inf,
        layers=(check("tails", 300_000),),
    ),
    Fault(
        name="noise tiled: every draw in two coordinates",
        make=broken_rounds.noise_tiled,
        epsilon=math.inf,
        layers=(check("coordinates", 20_000),),
    ),
    Fault(
        name="top-k: the mask from private samples",
        make=broken_rounds.mask_of_private_samples,
        epsilon=math.inf,
        layers=(check("public map"),),
    ),
    Fault(
        name="top-k: public samples that clients hold",
        make=broken_rounds.public_samples_of_clients,
        epsilon=math.inf,
        layers=(check("public map"),),
    ),
    Fault(
        name="a fixed cohort drawn with repeats",
        make=broken_rounds.fixed_with_repeats,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="one cohort for all rounds",
        make=broken_rounds.one_cohort_for_all,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="an empty Poisson cohort is drawn again",
        make=broken_rounds.empty_cohort_redrawn,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="secure draws from a seed",
        make=broken_rounds.secure_from_a_seed,
        epsilon=math.inf,
        layers=(secure_draws(_source),),
    ),
    Fault(
        name="secure draws from 32 bits of entropy each",
        make=broken_rounds.secure_of_32_bits,
        epsilon=math.inf,
        layers=(secure_draws(_source),),
    ),
)
