"""Rounds that keep their claim, and the same with a stage left out, added or replaced, or another part broken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from accounting.budget import FixedSize, Poisson
from dpfed.compress.sparse import TopK
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import Integers
from dpfed.stages.clip import Clip, Weigh
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project

from ...rounds import with_after
from .broken_parts import (
    KEPT,
    AddsTheSumItself,
    Changed,
    ChargesNothingForNobody,
    ChosenBeforeTheNoise,
    ClipsBeforeTheMap,
    ClipsBeforeTheScale,
    ClipsEveryLayer,
    ClipsWithSlack,
    Drawn,
    DrawsWithoutFloor,
    FixedSizeCalledPoisson,
    ForgetsTheLastClient,
    ForgetsTheRound,
    FromASeed,
    HalfCharged,
    LessNoise,
    LetsALittleMoreThrough,
    MaskOfPrivateSamples,
    NeverEmpty,
    Of32Bits,
    PoissonOfFixedRate,
    RemembersTheSum,
    RoundsAwayFromZero,
    ShowsTheCount,
    Unbounded,
    WithoutFloor,
    WithRepeats,
    clamped,
    fields_of,
    tiled,
)
from .fault_layers import case

SHARES = ("privacy.placement=clients",)
WIDE = "model.hidden=[8]"  # d = 610: more draws a round
UPLOADS = ("privacy.release=uploads", "privacy.adjacency=zero-out")


def shares_too_small():
    twin = case("dp-fedavg", *SHARES)
    return twin, twin.replacing(GaussianNoise, lambda noise: replace(noise, shares=16))


def no_clip_after_the_scale():
    twin = case("fed-smp-randk")
    scale = twin.one_round.projection.scale
    return twin, twin.replacing(Clip, lambda clip: ClipsBeforeTheScale(scale=scale))


def half_the_sensitivity():
    twin = case("dp-fedavg", "privacy.adjacency=replace-one")
    return twin, twin.replacing(GaussianNoise, lambda noise: HalfCharged(**fields_of(noise)))


def clip_by_layer():
    twin = case("dp-fedavg")
    return twin, twin.replacing(Clip, lambda clip: ClipsEveryLayer(layout=twin.layout))


def noise_lost_with_dropouts():
    """Shares sized for four, of which two arrive."""
    twin = case("dp-fedavg", *SHARES, "aggregation.tolerance=0.5")
    return twin, twin.replacing(GaussianNoise, lambda noise: replace(noise, shares=None))


def with_less_noise(twin, part):
    return twin.replacing(GaussianNoise, lambda noise: LessNoise(**fields_of(noise), part=part))


def noise_short():
    twin = case("dp-fedavg", WIDE)
    return twin, with_less_noise(twin, 0.99)


def noise_again():
    twin = case("dp-fedavg")
    return twin, _with_draws(twin, ForgetsTheRound)


def fixed_size_called_poisson():
    twin = case("dp-fedavg")
    return (
        twin.having(sampler=lambda method: PoissonOfFixedRate(clients=20, cohort=2)),
        twin.having(sampler=lambda method: FixedSizeCalledPoisson(clients=20, cohort=2)),
    )


def _top_of_noisy():
    return case("dp-fedavg", *UPLOADS).replacing(Encode, lambda encode: replace(encode, scheme=TopK(k=KEPT)))


def chosen_before_the_noise():
    twin = _top_of_noisy()
    return twin, twin.replacing(GaussianNoise, lambda noise: ChosenBeforeTheNoise(**fields_of(noise)))


def noise_for_fewer_entries():
    twin = _top_of_noisy()
    return twin, with_less_noise(twin, math.sqrt(KEPT / twin.one_round.method.clients.course.size))


OF_THE_MASK = (
    *("privacy.clip_metric=euclidean", "privacy.edge=", "privacy.linf_clip=0.4"),
    *("mask.bound=", "mask.edge=0.2"),
)
"""Coins of the mask's probabilities, which come near 0 and 1, and not of how far they move."""


def no_floor():
    twin = case("fedpm", *OF_THE_MASK)
    return twin, twin.replacing(PrivateCoins, lambda coins: WithoutFloor(**fields_of(coins)))


def no_floor_where_coins_are_drawn():
    twin = case("fedpm", *OF_THE_MASK)
    return twin, twin.replacing(PrivateCoins, lambda coins: DrawsWithoutFloor(**fields_of(coins)))


def no_clip_of_scalars():
    twin = case("fedscalar", "method.shared=true", "method.options.projections=1")
    norm = twin.one_round.state.clip_norm
    early = twin.replacing(Project, lambda project: ClipsBeforeTheMap(**fields_of(project), norm=norm))
    return twin, early.replacing(Clip, lambda clip: Unbounded())


def weighted_by_examples():
    twin, weigh = case("dp-fedavg"), Weigh(weights=np.array([2.0, 0.5, 0.5, 1.0]))
    return twin, twin.changing(lambda stages: with_after(stages, Encode, weigh))


def empty_round_is_free():
    twin = case("dp-fedavg")
    return twin, twin.replacing(GaussianNoise, lambda noise: ChargesNothingForNobody(**fields_of(noise)))


def biased_rounding():
    twin = case("dp-fedavg", "privacy.noise=discrete-gaussian", "aggregation.steps=5")
    return twin, twin.replacing(
        Integers, lambda one: replace(one, fixed_point=RoundsAwayFromZero(**fields_of(one.fixed_point)))
    )


def clip_with_slack():
    twin = case("dp-fedavg")
    return twin, twin.replacing(Clip, lambda clip: ClipsWithSlack())


def a_little_more_let_through():
    twin = case("dp-fedavg")
    return twin, twin.replacing(Clip, lambda clip: LetsALittleMoreThrough())


def clients_that_bypass_the_clip():
    twin = case("dp-fedavg")
    return twin, twin.replacing(Clip, lambda clip: ForgetsTheLastClient())


def count_without_noise():
    adaptive = ("quantile=0.5", "rate=0.2", "count_noise_std=2.0")
    twin = case("dp-fedavg", *(f"privacy.adaptive.{one}" for one in adaptive))
    return twin, twin.replacing(Clip, lambda clip: ShowsTheCount(**fields_of(clip)))


def part_of_the_sum_in_the_model():
    twin, remembers = case("dp-fedavg"), RemembersTheSum()
    seen = twin.changing(lambda stages: with_after(stages, GaussianNoise, remembers))
    return twin, seen.having(
        server=lambda method: AddsTheSumItself(**fields_of(method.server), kept=remembers.kept, part=0.1)
    )


def _with_draws(twin, wrong):
    return twin.replacing(GaussianNoise, lambda noise: replace(noise, randomness=wrong(noise.randomness)))


def noise_clamped():
    twin = case("dp-fedavg", WIDE)
    return twin, _with_draws(twin, lambda source: Changed(source, clamped))


def noise_tiled():
    twin = case("dp-fedavg", WIDE)
    return twin, _with_draws(twin, lambda source: Changed(source, tiled))


def _with_choice(twin, made):
    return twin.replacing(Project, lambda project: replace(project, choice=made(project.choice)))


def mask_of_private_samples():
    twin = case("fed-smp-topk")
    return twin, _with_choice(twin, lambda choice: MaskOfPrivateSamples(**fields_of(choice)))


def _with_sampler(sound, wrong):
    twin = case("dp-fedavg")
    return twin.having(sampler=lambda method: sound), twin.having(sampler=lambda method: wrong)


def public_samples_of_clients():
    """The first of the clients' samples are called public."""
    twin = case("fed-smp-topk")
    clients = twin.one_round.method.clients

    def theirs(choice):
        mine = clients.partition.indices[: len(choice.labels)]
        return replace(choice, inputs=clients.inputs[mine], labels=clients.labels[mine])

    return twin, _with_choice(twin, theirs)


def fixed_with_repeats():
    return _with_sampler(FixedSize(cohort=5).cohorts(20), WithRepeats(clients=20, cohort=5))


def one_cohort_for_all():
    return _with_sampler(FixedSize(cohort=5).cohorts(20), Drawn(clients=20, cohort=5))


def empty_cohort_redrawn():
    return _with_sampler(Poisson(cohort=1).cohorts(20), NeverEmpty(clients=20, cohort=1, charged=Poisson))


def secure_from_a_seed():
    twin = case("dp-fedavg")
    return twin, twin.having(randomness=lambda method: FromASeed())


def secure_of_32_bits():
    twin = case("dp-fedavg")
    return twin, twin.having(randomness=lambda method: Of32Bits())
