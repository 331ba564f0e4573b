"""Rounds that keep their claim, and the same with a stage left out, added or replaced, or another part broken.

Each function that begins with `other_` or `changed_` returns a maker of the two; the others are such makers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from accounting.mechanisms.samplings.planned import Cohorts
from dpfed.compress.sparse import TopK
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.stages.clip import Clip, Weigh
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project

from ...rounds import with_after
from . import broken_parts as parts
from .broken_parts import KEPT, fields_of
from .fault_layers import case

UPLOADS = ("privacy.release=uploads", "privacy.adjacency=zero-out")


def changed_stage(kind, made, *settings, method="dp-fedavg"):
    """Replaces the stage of this kind by what `made` makes of it."""

    def make():
        twin = case(method, *settings)
        return twin, twin.replacing(kind, made)

    return make


def other_stage(kind, wrong, *settings, method="dp-fedavg"):
    """A stage of class `wrong`, with the fields of the sound one."""
    return changed_stage(kind, lambda one: wrong(**fields_of(one)), *settings, method=method)


def other_draws(wrong, *settings):
    """Noise of another source than the sound one, which is given to `wrong`."""
    return changed_stage(GaussianNoise, lambda one: replace(one, randomness=wrong(one.randomness)), *settings)


def _changed(noise, change):
    return replace(noise, randomness=parts.Changed(noise.randomness, change))


def changed_draws(change, *settings):
    """Normal draws, changed by a function of them."""
    return changed_stage(GaussianNoise, lambda noise: _changed(noise, change), *settings)


def other_sampler(law, sample):
    """Cohorts of 20 clients that are drawn otherwise, charged as those of the law."""
    sound = law.cohorts(20)
    wrong = type("Planted", (Cohorts,), {"sample": sample})(**fields_of(sound))

    def make():
        twin = case("dp-fedavg")
        return twin.having(sampler=lambda method: sound), twin.having(sampler=lambda method: wrong)

    return make


def other_source(made):
    def make():
        twin = case("dp-fedavg")
        return twin, twin.having(randomness=lambda method: made())

    return make


def no_clip_after_the_scale():
    twin = case("fed-smp-randk")
    scale = twin.one_round.projection.scale
    return twin, twin.replacing(Clip, lambda clip: parts.ClipsBeforeTheScale(scale=scale))


def clip_by_layer():
    twin = case("dp-fedavg")
    return twin, twin.replacing(Clip, lambda clip: parts.ClipsEveryLayer(layout=twin.layout))


def _top_of_noisy():
    return case("dp-fedavg", *UPLOADS).replacing(Encode, lambda encode: replace(encode, scheme=TopK(k=KEPT)))


def chosen_before_the_noise():
    twin = _top_of_noisy()
    return twin, twin.replacing(GaussianNoise, lambda noise: parts.ChosenBeforeTheNoise(**fields_of(noise)))


def noise_for_fewer_entries():
    twin = _top_of_noisy()
    part = math.sqrt(KEPT / twin.one_round.method.clients.course.size)
    return twin, twin.replacing(GaussianNoise, lambda noise: _changed(noise, lambda drawn: part * drawn))


def no_clip_of_scalars():
    twin = case("fedscalar", "method.shared=true", "method.options.projections=1")
    norm = twin.one_round.state.clip_norm
    early = twin.replacing(Project, lambda project: parts.ClipsBeforeTheMap(**fields_of(project), norm=norm))
    return twin, early.replacing(Clip, lambda clip: parts.Unbounded())


def weighted_by_examples():
    twin, weigh = case("dp-fedavg"), Weigh(weights=np.array([2.0, 0.5, 0.5, 1.0]))
    return twin, twin.changing(lambda stages: with_after(stages, Encode, weigh))


def part_of_the_sum_in_the_model():
    twin, remembers = case("dp-fedavg"), parts.RemembersTheSum()
    seen = twin.changing(lambda stages: with_after(stages, GaussianNoise, remembers))
    return twin, seen.having(
        server=lambda method: parts.AddsTheSumItself(**fields_of(method.server), kept=remembers.kept, part=0.1)
    )


def _choosing(choice_of):
    twin = case("fed-smp-topk")
    return twin, twin.replacing(Project, lambda project: replace(project, choice=choice_of(twin, project.choice)))


def mask_of_private_samples():
    return _choosing(lambda twin, choice: parts.MaskOfPrivateSamples(**fields_of(choice)))


def public_samples_of_clients():
    """The first of the clients' samples are called public."""

    def theirs(twin, choice):
        clients = twin.one_round.method.clients
        mine = clients.partition.indices[: len(choice.labels)]
        return replace(choice, inputs=clients.inputs[mine], labels=clients.labels[mine])

    return _choosing(theirs)
