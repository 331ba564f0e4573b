"""Hooks of a replay audit in Opacus' optimizers: clipped gradients of records are compared, noisy sums are frozen."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from dpfed.audit.replays.adapters import COUNT_SENSITIVITY, Hook, check_added_noise, compare_rows, key_of_finding
from dpfed.audit.replays.replay_run import ROUNDING, ReplayRun
from dpfed.audit.replays.values import Floats, as_array


def _watch_optimizers(world: ReplayRun, module: Any) -> None:
    optimizer = module.DPOptimizer
    for name in ("step", "pre_step"):
        setattr(optimizer, name, _watched_step(world, getattr(optimizer, name)))


def _watched_step(world: ReplayRun, step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def watched(self: Any, *given: Any, **named: Any) -> Any:
        if "_replay" not in vars(self):
            self._replay = _OpacusStep(world, self)
        return step(self, *given, **named)

    return watched


def _watch_sampler(world: ReplayRun, module: Any) -> None:
    """Couple Opacus' Poisson batches by record: draw for all records of the first run, and leave out removed ones."""
    sampler = module.UniformWithReplacementSampler

    def batches(self: Any) -> Any:
        import torch

        world.outside("sampling rate of Opacus", float(self.sample_rate))
        world.outside("number of steps of Opacus", int(self.steps))
        here = world.present_of(self.num_samples)
        for _ in range(self.steps):
            drawn = torch.rand(here.total, generator=self.generator)[torch.from_numpy(here.places)] < self.sample_rate
            yield drawn.nonzero(as_tuple=False).reshape(-1).tolist()

    sampler.__iter__ = batches


class _OpacusStep:
    """Steps of one optimizer: clipped gradients are compared row by row, the noisy sum is frozen.

    A row is the optimizer's clipped gradient of one record alone. Ghost clipping has no rows; then only the sum is
    compared.
    """

    def __init__(self, world: ReplayRun, optimizer: Any) -> None:
        self._world, self._optimizer = world, optimizer
        self._clip, self._noise = optimizer.clip_and_accumulate, optimizer.add_noise
        self._differing: int | None = None
        self._steps = 0
        optimizer.clip_and_accumulate, optimizer.add_noise = self.clip_and_compare, self.add_frozen_noise

    def clip_and_compare(self) -> None:
        optimizer, world = self._optimizer, self._world
        bound = float(optimizer.max_grad_norm)
        grads = optimizer.grad_samples
        rows = [self._row_of_record([grad[i : i + 1] for grad in grads]) for i in range(len(grads[0]) if grads else 0)]
        before = self._sum_so_far()
        self._clip()
        name = "clipped gradients in Opacus"
        differing = compare_rows(world, name, rows, bound, 1e-5 * bound)
        self._differing = differing + (self._differing or 0)
        if rows:
            total = np.sum(rows, axis=0)
            apart = float(np.abs(self._sum_so_far() - before - total).max(initial=0))
            room = ROUNDING * max(float(np.abs(total).max(initial=0)), float(np.abs(before).max(initial=0)), bound)
            if not apart <= room:
                words = "do not add up: the sum differs from the sum of the rows of single records"
                world.finding(words, key_of_finding(world, name), by=apart, allowed=room)

    def _row_of_record(self, grads: list[Any]) -> Floats:
        """Return the row that this optimizer computes from one record's gradients, and restore the
        optimizer's state.
        """
        optimizer = self._optimizer
        params = optimizer.params
        kept = [(one.grad_sample, one.summed_grad) for one in params]
        state = {
            name: value.clone() if hasattr(value, "clone") else value
            for name, value in vars(optimizer).items()
            if isinstance(value, int | float) or hasattr(value, "clone")
        }
        for one, grad in zip(params, grads, strict=True):
            one.grad_sample, one.summed_grad = grad.clone(), None
        self._clip()
        row = np.concatenate([as_array(one.summed_grad).reshape(-1).astype(np.float64) for one in params])
        for one, (grad_sample, summed_grad) in zip(params, kept, strict=True):
            one.grad_sample, one.summed_grad = grad_sample, summed_grad
        vars(optimizer).update(state)
        return row

    def _sum_so_far(self) -> Floats:
        """Return the optimizer's sum of clipped gradients so far."""
        parts = [
            np.zeros(one.numel()) if one.summed_grad is None else as_array(one.summed_grad).reshape(-1)
            for one in self._optimizer.params
        ]
        return np.concatenate(parts).astype(np.float64)

    def add_frozen_noise(self) -> None:
        optimizer, world = self._optimizer, self._world
        if optimizer.secure_mode:
            optimizer.generator = None  # use torch's global generator, which the audit can seed
        params = optimizer.params
        before = [one.summed_grad.detach().clone() for one in params]
        unclipped = getattr(optimizer, "unclipped_num", None)
        bound = float(optimizer.max_grad_norm)
        world.seen.units_are_records = True
        world.outside("expected batch size in Opacus", float(optimizer.expected_batch_size or 0))
        world.couple_draws((world.round, "noise in Opacus", None, self._steps))
        self._steps += 1
        self._noise()
        name = "sum of clipped gradients in Opacus"
        after = [one.grad for one in params]
        check_added_noise(world, name, before, after)
        frozen = world.mechanism(name, before, after, sensitivity=bound, units=self._differing)
        for one, grad in zip(params, frozen, strict=True):
            one.grad = grad.view_as(one)
        if unclipped is not None:
            optimizer.unclipped_num = world.mechanism(
                "count of unclipped records in Opacus",
                float(unclipped),
                optimizer.unclipped_num,
                sensitivity=COUNT_SENSITIVITY,
                units=self._differing,
            )
        self._differing = None


HOOKS: dict[str, Hook] = {
    "opacus.optimizers.optimizer": _watch_optimizers,
    "opacus.utils.uniform_sampler": _watch_sampler,
}
