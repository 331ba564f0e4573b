"""Planted faults: each a round that keeps its claim (the twin) and the same round with one part broken.

`alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from accounting import accountant
from accounting.adjacency import Adjacency
from accounting.mechanisms import Gaussian, PoissonSampling, Subsampled
from dpfed.audit.one_round import PUBLIC_SEEDS
from dpfed.compress.sparse import TopK

from .broken_parts import (
    KEPT,
    ChargesNothingForNobody,
    ChosenBeforeTheNoise,
    Claimed,
    ClipsBeforeTheMap,
    ClipsBeforeTheScale,
    ClipsEveryLayer,
    FixedSizeCalledPoisson,
    ForgetsTheRound,
    HalfCharged,
    PoissonOfFixedRate,
    RoundsAwayFromZero,
    Unbounded,
)
from .fault_layers import DELTA, Fault, Z, case, check, sampled_worlds, two_rounds, worlds

SHARES = ("privacy.placement=clients",)
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
    twin = case("dp-fedavg")
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
    return twin, twin.having(client_weights=lambda parts: np.tile([2.0, 0.5, 0.5, 1.0], PUBLIC_SEEDS))


def empty_round_is_free():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ChargesNothingForNobody(parts.privacy))


def biased_rounding():
    twin = case("dp-fedavg", "privacy.noise=discrete-gaussian", "aggregation.steps=5")
    return twin, twin.having(
        code=lambda parts: replace(parts.code, fixed_point=RoundsAwayFromZero(parts.code.fixed_point))
    )


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
        layers=(worlds("dense", 3_000), check("noise", 20_000)),
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
)
