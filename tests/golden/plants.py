"""Planted changes, each of which the golden net must see in every setting whose run executes the changed code.

A plant is a list of replaced attributes. Each replacement notes in `reached` that it has changed something: a clip
that binds, a round after the first. A redesign that moves the code moves the plant with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from dpfed import round as driver
from dpfed.clients import masks, optimisers, training
from dpfed.compress.fixed_point import FixedPoint
from dpfed.mechanisms import integers, records
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.correlated import Correlated
from dpfed.randomness import Simulated
from dpfed.runs import binding
from dpfed.seeds import Seeds
from dpfed.server.rules import AdaptiveRule, Averaging, BetaPosterior
from dpfed.stages import clip, encode
from dpfed.stages.project import RandomSharedMask
from dpfed.stages.stage import Round

MORE = 1.001
Replaced = list[tuple[Any, str, Any]]
Reached = list[str]


def clip_is_larger(reached: Reached) -> Replaced:
    before, encode_row = clip.clip_rows, FixedPoint.encode

    def clip_rows(rows: Any, norm: float) -> Any:
        found = before(rows, norm * MORE)
        if bool(found.outside.any()):
            reached.append("clip")
        return found

    def encoded(self: Any, rows: Any, *, clip_norm: float, **more: Any) -> Any:
        return encode_row(self, rows, clip_norm=clip_norm * MORE, **more)

    return [(module, "clip_rows", clip_rows) for module in (clip, records)] + [(FixedPoint, "encode", encoded)]


def noise_is_larger(reached: Reached) -> Replaced:
    normal, distribution_of = Simulated.normal, integers.distribution_of

    def more_normal(self: Any, count: int, purpose: str, *path: int, **more: Any) -> Any:
        drawn = normal(self, count, purpose, *path, **more)
        if not purpose.startswith(("noise.", "local.noise", "coins.noise", "coins.padding.noise")):
            return drawn
        reached.append(purpose)
        return drawn * MORE

    def wider(noise: Any) -> Any:
        reached.append("integers")
        law = distribution_of(noise)
        return replace(law, variance=max(law.variance + 1, round(law.variance * MORE**2)))

    return [(Simulated, "normal", more_normal), (integers, "distribution_of", wider)]


def divisor_is_larger(reached: Reached) -> Replaced:
    before = driver.Method.sum_divisor

    def sum_divisor(self: Any, counted: Any) -> float:
        reached.append("divisor")
        return before(self, counted) + 1

    return [(driver.Method, "sum_divisor", sum_divisor)]


def client_is_left_out(reached: Reached) -> Replaced:
    before, seen = driver.OpenRound.add_updates, []

    def add_updates(self: Any, rows: Any, ids: Any, *, counted: bool = True) -> None:
        if counted and len(ids) and not any(self is one for one in seen):
            seen.append(self)
            reached.append("client")
            rows, ids = rows[1:], ids[1:]
        if len(ids):
            before(self, rows, ids, counted=counted)

    return [(driver.OpenRound, "add_updates", add_updates)]


def streams_are_exchanged(reached: Reached) -> Replaced:
    bits, keys = Seeds._key_bits, Seeds.keys
    pairs = {"cohort": "noise.sum", "noise.sum": "cohort"}

    def key_bits(self: Any, count: int, kind: str, purpose: str, path: tuple[int, ...]) -> int:
        if purpose in pairs or len(path) > 1:
            reached.append(purpose)
        if len(path) > 1:
            path = (path[0], int(path[1]) ^ 1, *path[2:])
        return bits(self, count, kind, pairs.get(purpose, purpose), path)

    def keys_of_others(self: Any, purpose: str, number: int, ids: Any, shape: Any) -> Any:
        if not purpose.startswith("local."):
            return keys(self, purpose, number, ids, shape)
        reached.append(purpose)
        return keys(self, purpose, number, ids ^ 1, shape)

    return [(Seeds, "_key_bits", key_bits), (Seeds, "keys", keys_of_others)]


def round_is_off_by_one(reached: Reached) -> Replaced:
    def number(self: Any) -> int:
        reached.append("round")
        return int(self.task.state.round) + 1

    return [(Round, "number", property(number))]


def last_batch_is_skipped(reached: Reached) -> Replaced:
    before, poisson = training.draw_schedule, training.PoissonBatches.draw

    def shorter(schedule: Any) -> Any:
        if schedule.steps.any():
            reached.append("batch")
        return replace(schedule, steps=np.maximum(schedule.steps - 1, 0))

    return [
        (training, "draw_schedule", lambda *given, **more: shorter(before(*given, **more))),
        (training.PoissonBatches, "draw", lambda *given, **more: shorter(poisson(*given, **more))),
    ]


def rate_is_larger(reached: Reached) -> Replaced:
    before = optimisers.learning_rate_of_round

    def learning_rate_of_round(course: Any, number: int) -> float:
        reached.append("rate")
        return before(course, number) * MORE

    users = (optimisers, masks, masks, optimisers)
    name = "learning_rate_of_round"
    return [(module, name, learning_rate_of_round) for module in users if hasattr(module, name)]


def server_rate_is_larger(reached: Reached) -> Replaced:
    def faster(rule: Any) -> Callable[..., Any]:
        before = rule.step

        def step(self: Any, *given: Any, **more: Any) -> Any:
            reached.append("server's rate")
            return before(replace(self, learning_rate=self.learning_rate * MORE), *given, **more)

        return step

    return [(rule, "step", faster(rule)) for rule in (Averaging, AdaptiveRule)]


def momentum_is_lost_on_resume(reached: Reached) -> Replaced:
    before = binding.read_checkpoint

    def read_checkpoint(*given: Any, **more: Any) -> Any:
        found = before(*given, **more)
        if not (found.state.memory or found.state.stages):
            return found
        reached.append("memory")
        return replace(found, state=replace(found.state, memory={}, stages={}))

    return [(binding, "read_checkpoint", read_checkpoint)]


def mask_has_another_seed(reached: Reached) -> Replaced:
    before, payloads = Seeds._key_bits, encode.Encode._payloads
    masks = ("mask.shared", "code", "fedmrn.noise", "fixed_point.rotation", "frozen.", "local.coins")
    without_seed = ("dense", "topk", "signsgd", "fedsparsify")

    def key_bits(self: Any, count: int, kind: str, purpose: str, path: tuple[int, ...]) -> int:
        if not purpose.startswith(masks):
            return before(self, count, kind, purpose, path)
        if purpose != "code":
            reached.append(purpose)
        return before(replace(self, root=self.root + 1), count, kind, purpose, path)

    def encoded(self: Any, scheme: Any, *given: Any) -> Any:
        if scheme.name not in without_seed:
            reached.append(scheme.name)
        return payloads(self, scheme, *given)

    return [(Seeds, "_key_bits", key_bits), (encode.Encode, "_payloads", encoded)]


def correction_is_left_out(reached: Reached) -> Replaced:
    correct, for_round, with_feedback = (
        PrivateCoins._correct_bias,
        RandomSharedMask.for_round,
        encode.encode_with_feedback,
    )

    def noise(self: Any, fresh: Any, number: int, drawn_in: Any) -> Any:
        if number:
            reached.append("earlier noise")
        return fresh.clone()

    def correct_bias(self: Any, *given: Any) -> Any:
        if self.correction != "none":
            reached.append("bias")
        return correct(replace(self, correction="none"), *given)

    def unscaled(self: Any, *given: Any) -> Any:
        if self.scaled:
            reached.append("scale")
        return for_round(replace(self, scaled=False), *given)

    def forgetful(scheme: Any, rows: Any, errors: Any, *, seed: Any) -> Any:
        if bool(errors.any()):
            reached.append("errors")
        return with_feedback(scheme, rows, torch.zeros_like(errors), seed=seed)

    return [
        (Correlated, "noise", noise),
        (PrivateCoins, "_correct_bias", correct_bias),
        (RandomSharedMask, "for_round", unscaled),
        (encode, "encode_with_feedback", forgetful),
    ]


def state_is_kept(reached: Reached) -> Replaced:
    posterior, sgd, moments = BetaPosterior.step, optimisers.SgdWalk.__init__, optimisers.Moments.__init__
    last: dict[str, torch.Tensor] = {}

    def step(self: Any, state: Any, *given: Any, **more: Any) -> Any:
        if "alpha" in state.memory and self.reset_every:
            reached.append("posterior")
        return posterior(replace(self, reset_every=0), state, *given, **more)

    def kept(name: str, fresh: torch.Tensor) -> torch.Tensor:
        before = last.get(name)
        if before is not None and before.shape == fresh.shape:
            reached.append(name)
            fresh.copy_(before)
        last[name] = fresh
        return fresh

    def sgd_walk(self: Any, *given: Any) -> None:
        sgd(self, *given)
        if self._velocity is not None:
            self._velocity = kept("velocity", self._velocity)

    def adam_moments(self: Any, *given: Any) -> None:
        moments(self, *given)
        self._first, self._second = kept("first", self._first), kept("second", self._second)

    return [
        (BetaPosterior, "step", step),
        (optimisers.SgdWalk, "__init__", sgd_walk),
        (optimisers.Moments, "__init__", adam_moments),
    ]


PLANTS = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        *(clip_is_larger, noise_is_larger, divisor_is_larger, client_is_left_out, streams_are_exchanged),
        *(round_is_off_by_one, last_batch_is_skipped, rate_is_larger, server_rate_is_larger),
        *(momentum_is_lost_on_resume, mask_has_another_seed, correction_is_left_out, state_is_kept),
    )
}


@contextmanager
def planted(name: str) -> Iterator[Reached]:
    """Plant a change; yield a list that is empty as long as the change has had no effect."""
    reached: Reached = []
    with ExitStack() as stack:
        for owner, attribute, replacement in PLANTS[name](reached):
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield reached
