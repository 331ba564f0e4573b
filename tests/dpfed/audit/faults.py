"""Planted faults: each a round that keeps its claim (the twin) and the same round with one part broken.

`alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from accounting.compose import accountant
from accounting.mechanisms import Gaussian, PoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.sparse import TopK
from dpfed.participation.sampling import FixedSizeCohorts, PoissonCohorts

from .broken_parts import (
    KEPT,
    AddsTheSumItself,
    AlwaysTheSame,
    ChargesNothingForNobody,
    ChosenBeforeTheNoise,
    Claimed,
    Clamped,
    ClipsBeforeTheMap,
    ClipsBeforeTheScale,
    ClipsEveryLayer,
    ClipsWithSlack,
    FixedSizeCalledPoisson,
    FixedWithRepeats,
    ForgetsTheLastClient,
    ForgetsTheRound,
    FromASeed,
    HalfCharged,
    LetsALittleMoreThrough,
    MaskOfPrivateSamples,
    NeverEmpty,
    Of32Bits,
    PoissonOfFixedRate,
    RemembersTheSum,
    RoundsAwayFromZero,
    TellsTheCount,
    Tiled,
    Unbounded,
)
from .fault_layers import DELTA, Fault, Z, case, check, sampled_worlds, secure_draws, two_rounds, worlds

SHARES = ("privacy.placement=clients",)
WIDE = "model.hidden=[8]"  # d = 610: more draws a round
UPLOADS = ("privacy.release=uploads", "privacy.adjacency=zero-out")


def shares_too_small():
    twin = case("dp-fedavg", *SHARES)
    return twin, twin.having(privacy=lambda parts: replace(parts.privacy, shares=16))


def no_clip_after_the_scale():
    twin = case("fed-smp-randk")
    scale = twin.one.map.scale
    return twin, twin.having(privacy=lambda parts: ClipsBeforeTheScale(parts.privacy, scale))


def half_the_sensitivity():
    twin = case("dp-fedavg", "privacy.adjacency=replace-one")
    return twin, twin.having(privacy=lambda parts: HalfCharged(parts.privacy))


def clip_by_layer():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ClipsEveryLayer(parts.privacy, twin.layout))


def noise_lost_with_dropouts():
    """Shares sized for four, of which two arrive."""
    twin = case("dp-fedavg", *SHARES, "aggregation.tolerance=0.5")
    return twin, twin.having(privacy=lambda parts: replace(parts.privacy, shares=None))


def _with_less_noise(parts, factor):
    return Claimed(replace(parts.privacy, noise_multiplier=factor * Z), parts.privacy)


def noise_short():
    twin = case("dp-fedavg", WIDE)
    return twin, twin.having(privacy=lambda parts: _with_less_noise(parts, 0.99))


def noise_again():
    twin = case("dp-fedavg")
    return twin, twin.having(
        privacy=lambda parts: replace(parts.privacy, randomness=ForgetsTheRound(parts.privacy.randomness))
    )


def fixed_size_called_poisson():
    twin = case("dp-fedavg")
    return (
        twin.having(sampler=lambda parts: PoissonOfFixedRate(clients=20, cohort=2)),
        twin.having(sampler=lambda parts: FixedSizeCalledPoisson(clients=20, cohort=2)),
    )


def _top_of_noisy():
    return case("dp-fedavg", *UPLOADS).having(code=lambda parts: replace(parts.code, scheme=TopK(k=KEPT)))


def chosen_before_the_noise():
    twin = _top_of_noisy()
    return twin, twin.having(privacy=lambda parts: ChosenBeforeTheNoise(parts.privacy))


def noise_for_fewer_entries():
    twin = _top_of_noisy()
    share = math.sqrt(KEPT / twin.one.parts.local.course.size)
    return twin, twin.having(privacy=lambda parts: _with_less_noise(parts, share))


def no_floor():
    twin = case("fedpm")
    return twin, twin.having(code=lambda parts: replace(parts.code, edge=0.0))


def no_clip_of_scalars():
    twin = case("fedscalar", "method.shared=true")
    norm = twin.one.state.clip_norm
    return twin, twin.having(
        map=lambda parts: ClipsBeforeTheMap(parts.map, norm), privacy=lambda parts: Unbounded(parts.privacy)
    )


def weighted_by_examples():
    twin = case("dp-fedavg")
    return twin, twin.having(client_weights=lambda parts: np.tile([2.0, 0.5, 0.5, 1.0], 1))


def empty_round_is_free():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ChargesNothingForNobody(parts.privacy))


def biased_rounding():
    twin = case("dp-fedavg", "privacy.noise=discrete-gaussian", "aggregation.steps=5")
    return twin, twin.having(
        code=lambda parts: replace(parts.code, fixed_point=RoundsAwayFromZero(parts.code.fixed_point))
    )


def clip_with_slack():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ClipsWithSlack(parts.privacy))


def a_little_more_let_through():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: LetsALittleMoreThrough(parts.privacy))


def clients_that_bypass_the_clip():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ForgetsTheLastClient(parts.privacy))


def count_without_noise():
    adaptive = ("quantile=0.5", "rate=0.2", "count_noise_std=2.0")
    twin = case("dp-fedavg", *(f"privacy.adaptive.{one}" for one in adaptive))
    return twin, twin.having(privacy=lambda parts: TellsTheCount(parts.privacy))


def part_of_the_sum_in_the_model():
    twin, kept = case("dp-fedavg"), {}
    return twin, twin.having(
        code=lambda parts: RemembersTheSum(parts.code, kept), server=lambda parts: AddsTheSumItself(parts.server, kept)
    )


def _with_draws(wrong):
    twin = case("dp-fedavg", WIDE)
    return twin, twin.having(privacy=lambda parts: replace(parts.privacy, randomness=wrong(parts.privacy.randomness)))


def noise_clamped():
    return _with_draws(Clamped)


def noise_tiled():
    return _with_draws(Tiled)


def mask_of_private_samples():
    twin = case("fed-smp-topk")
    return twin, twin.having(map=lambda parts: MaskOfPrivateSamples(**vars(parts.map)))


def _with_sampler(sound, wrong):
    twin = case("dp-fedavg")
    return twin.having(sampler=lambda parts: sound), twin.having(sampler=lambda parts: wrong)


def public_samples_of_clients():
    """The first of the clients' samples are called public."""
    twin = case("fed-smp-topk")

    def theirs(parts):
        mine, local = parts.local.partition.indices[: len(parts.map.labels)], parts.local
        return replace(parts.map, inputs=local.inputs[mine], labels=local.labels[mine])

    return twin, twin.having(map=theirs)


def fixed_with_repeats():
    return _with_sampler(FixedSizeCohorts(clients=20, cohort=5), FixedWithRepeats(clients=20, cohort=5))


def one_cohort_for_all():
    return _with_sampler(FixedSizeCohorts(clients=20, cohort=5), AlwaysTheSame(clients=20, cohort=5))


def empty_cohort_redrawn():
    return _with_sampler(PoissonCohorts(clients=20, cohort=1), NeverEmpty(clients=20, cohort=1))


def secure_from_a_seed():
    twin = case("dp-fedavg")
    return twin, twin.having(randomness=lambda parts: FromASeed())


def secure_of_32_bits():
    twin = case("dp-fedavg")
    return twin, twin.having(randomness=lambda parts: Of32Bits())


def _source(case):
    """The planted source; None: the package's."""
    own = case.one.parts.randomness
    return own if isinstance(own, FromASeed) else None


def _sampled(multiplier):
    """Epsilon of a tenth of the clients; a shift of 2C with the probability of being drawn is half the multiplier."""
    inside = Gaussian(noise_multiplier=multiplier, adjacency=Adjacency.ADD_REMOVE)
    return accountant.epsilon(Subsampled(mechanism=inside, sampling=PoissonSampling(probability=0.1)), delta=DELTA)


FAULTS = (
    Fault(
        name="shares of noise z C / r, not / sqrt(r), r = 4",
        make=shares_too_small,
        shift=2.0,
        layers=(worlds("dense", 600), check("noise", 5_000)),
    ),
    Fault(
        name="rand-k: clipped before the scale d/k",
        make=no_clip_after_the_scale,
        shift=2.5,
        layers=(worlds("one entry", 400), check("norm")),
    ),
    Fault(
        name="replace-one charged as a move of C, not 2C",
        make=half_the_sensitivity,
        shift=2.0,
        layers=(worlds("dense", 600), check("norm")),
    ),
    Fault(
        name="the whole clip norm for every one of 4 layers",
        make=clip_by_layer,
        shift=2.0,
        layers=(worlds("equal norm in every layer", 600), check("norm")),
    ),
    Fault(
        name="2 of 4 shares of noise lost, charged as whole",
        make=noise_lost_with_dropouts,
        shift=2**0.5,
        layers=(worlds("dense", 1_500), check("noise", 20_000)),
    ),
    Fault(name="noise 1% short", make=noise_short, shift=1 / 0.99, layers=(check("noise", 300_000),)),
    Fault(
        name="the same noise in every round",
        make=noise_again,
        epsilon=math.inf,
        layers=(two_rounds(60), check("seeds", 10, "rounds")),
    ),
    Fault(
        name="fixed-size cohorts charged as Poisson",
        make=fixed_size_called_poisson,
        epsilon=_sampled(Z / 2),
        claimed=_sampled(Z),
        layers=(sampled_worlds(20_000), check("sampler", 200, "cohorts")),
    ),
    Fault(
        name="top-k chosen before the noise",
        make=chosen_before_the_noise,
        epsilon=math.inf,
        layers=(worlds("other entries on top", 60), check("noise", 5_000)),
    ),
    Fault(
        name="top-k by noisy values, noise for k entries only",
        make=noise_for_fewer_entries,
        shift=2.0,
        layers=(worlds("one entry", 600), check("noise", 5_000)),
    ),
    Fault(
        name="coins without a floor",
        make=no_floor,
        epsilon=math.inf,
        layers=(worlds("all up from certainty", 300), check("floor", 30_000, "tosses")),
    ),
    Fault(
        name="FedScalar: the update clipped, not the scalar",
        make=no_clip_of_scalars,
        shift=160**0.5,
        layers=(worlds("along the map", 60), check("norm")),
    ),
    Fault(
        name="clients weighted by their examples (here 2 to 1)",
        make=weighted_by_examples,
        shift=2.0,
        layers=(worlds("dense", 600), check("norm")),
    ),
    Fault(
        name="a round without clients is not charged",
        make=empty_round_is_free,
        epsilon=math.inf,
        layers=(check("empty round"),),
    ),
    Fault(
        name="rounding up in magnitude",
        make=biased_rounding,
        shift=1.4046,
        layers=(worlds("dense", 1_500), check("norm")),
    ),
    Fault(name="a clip with 1% slack", make=clip_with_slack, shift=1.01, layers=(check("norm"),)),
    Fault(
        name="rows up to 1% beyond the bound are not clipped",
        make=a_little_more_let_through,
        shift=1.01,
        layers=(check("norm"),),
    ),
    Fault(
        name="the last client of a group is not clipped",
        make=clients_that_bypass_the_clip,
        epsilon=math.inf,
        layers=(check("norm"),),
    ),
    Fault(
        name="adaptive clip: the count without noise",
        make=count_without_noise,
        epsilon=math.inf,
        layers=(worlds("dense", 300),),
    ),
    Fault(
        name="a tenth of the sum without noise in the model",
        make=part_of_the_sum_in_the_model,
        shift=1.1,
        layers=(check("norm"),),
    ),
    Fault(
        name="noise clamped at 3.5 standard deviations",
        make=noise_clamped,
        epsilon=math.inf,
        layers=(check("tails", 300_000),),
    ),
    Fault(
        name="noise tiled: every draw in two coordinates",
        make=noise_tiled,
        epsilon=math.inf,
        layers=(check("coordinates", 20_000),),
    ),
    Fault(
        name="top-k: the mask from private samples",
        make=mask_of_private_samples,
        epsilon=math.inf,
        layers=(check("public map"),),
    ),
    Fault(
        name="top-k: public samples that clients hold",
        make=public_samples_of_clients,
        epsilon=math.inf,
        layers=(check("public map"),),
    ),
    Fault(
        name="a fixed cohort drawn with repeats",
        make=fixed_with_repeats,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="one cohort for all rounds",
        make=one_cohort_for_all,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="an empty Poisson cohort is drawn again",
        make=empty_cohort_redrawn,
        epsilon=math.inf,
        layers=(check("sampler", 200, "cohorts"),),
    ),
    Fault(
        name="secure draws from a seed",
        make=secure_from_a_seed,
        epsilon=math.inf,
        layers=(secure_draws(_source),),
    ),
    Fault(
        name="secure draws from 32 bits of entropy each",
        make=secure_of_32_bits,
        epsilon=math.inf,
        layers=(secure_draws(_source),),
    ),
)
