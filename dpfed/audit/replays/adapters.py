"""Hooks of a replay audit in other libraries: their installation, shared comparisons, and Opacus' optimizers.

Hooks are set only in the processes of the audit's runs, when the library is loaded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

from dpfed.audit.replays.findings import Floats, Key, as_array, digest
from dpfed.audit.replays.replay_run import ROUNDING, ReplayRun

Hook = Callable[[ReplayRun, ModuleType], None]
"""Function of a run of the audit and of a library's module; it sets its hooks in the module."""
COUNT_SENSITIVITY = 0.5
"""Sensitivity of a count of clipped rows: each row counts as +1/2 or -1/2 (arXiv 1905.03871)."""
_PARTS = 8
"""Number of sums by which nearly equal rows are recognised."""


def install_hooks(world: ReplayRun, hooks: Mapping[str, Hook]) -> None:
    """Set the hooks in this process, now for loaded modules and on import for others; the process is a run's own."""
    waiting = dict(hooks)
    for name in [one for one in waiting if one in sys.modules]:
        waiting.pop(name)(world, sys.modules[name])
    sys.meta_path.insert(0, _WhenLoaded(world, waiting))


class _WhenLoaded(MetaPathFinder):
    """Finder that sets a hook right after its module has been loaded."""

    def __init__(self, world: ReplayRun, waiting: dict[str, Hook]) -> None:
        self._world, self._waiting = world, waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = self._waiting.pop(fullname, None)
        spec = None if hook is None else PathFinder.find_spec(fullname, path)
        if hook is None or spec is None or spec.loader is None:
            return None
        load, set_hook = spec.loader.exec_module, hook

        def load_and_hook(module: ModuleType) -> None:
            load(module)
            set_hook(self._world, module)

        spec.loader.exec_module = load_and_hook  # type: ignore[method-assign]
        return spec


@np.errstate(all="ignore")
def compare_rows(world: ReplayRun, name: str, rows: Sequence[Floats], bound: float, rounding: float) -> int:
    """Return the number of rows that differ from the first run; in the first run, the number of all rows.

    A finding is recorded for a row whose norm is above `bound`, and if more rows differ than clients or records were
    changed. Rows are compared as a set: a step has at most one row of each changed client or record. If the numbers of
    rows differ, rows are equal up to rounding, because a batch of another size is rounded differently.
    """
    key = world._key(name, None)
    longest = max((float(np.linalg.norm(row)) for row in rows), default=0.0)
    if not longest <= bound + rounding:
        world.finding("is beyond its bound", key, by=longest, allowed=bound)
    seen = [f"{digest(row)} {_sums(row)}" for row in rows]
    if world.first:
        world.recording.values[key] = "|".join(seen)
        return len(rows)
    before = [one for one in world.recording.values.get(key, "").split("|") if one]
    room = 0.0 if len(before) == len(seen) else ROUNDING * bound
    differing = _differing(before, seen, room)
    changed = len(world.changed) if world.record is None else 1
    world.seen.altered_values += differing
    if differing > changed:
        world.finding(f"differ in {differing} rows, but {changed} clients or records were changed", key)
    return differing


def _sums(row: Floats) -> str:
    """Return sums over interleaved parts of a row, with alternating signs: nearly equal for nearly equal rows."""
    signed = row * np.where(np.arange(len(row)) // _PARTS % 2, -1.0, 1.0)
    return " ".join(f"{float(signed[part::_PARTS].sum()):.9g}" for part in range(_PARTS))


def _differing(before: Sequence[str], now: Sequence[str], room: float) -> int:
    """Return the number of rows in one list without an equal row in the other one, whichever list has more."""
    left, entered = Counter(before), Counter(now)
    gone, new = list((left - entered).elements()), list((entered - left).elements())
    if room and gone and new:
        one, two = (np.array([[float(x) for x in row.split()[1:]] for row in rows]) for rows in (gone, new))
        for sums in two:
            if not len(one):
                break
            apart = np.abs(one - sums).max(axis=1)
            nearest = int(np.argmin(apart))
            if apart[nearest] <= room:
                one = np.delete(one, nearest, axis=0)
        matched = len(gone) - len(one)
        return max(len(gone), len(new)) - matched
    return max(len(gone), len(new))


def key_of_finding(world: ReplayRun, name: str) -> Key:
    """Return the key of a finding about this round that is not a comparison with a value of the first run."""
    return world.round, name, None, 0


def frozen_arrays(
    world: ReplayRun, name: str, before: Sequence[object], after: Sequence[object], bound: float, units: int | None
) -> Any:
    """Return the noisy arrays of the first run; record a finding for each array that a mechanism leaves unchanged.

    bound: sensitivity of all arrays together. units: number of changed rows that they are summed from; None for all
    """
    for place, (one, two) in enumerate(zip(before, after, strict=True)):
        entered, left = as_array(one).reshape(-1), as_array(two).reshape(-1)
        if len(entered) and np.array_equal(entered, left):
            world.finding(f"adds no noise to array {place}", key_of_finding(world, name))
    return world.mechanism(name, before, after, sensitivity=bound, units=units)


def _watch_optimizers(world: ReplayRun, module: ModuleType) -> None:
    optimizer = module.DPOptimizer
    for name in ("step", "pre_step"):
        setattr(optimizer, name, _watched_step(world, getattr(optimizer, name)))


def _watched_step(world: ReplayRun, step: Callable[..., object]) -> Callable[..., object]:
    @wraps(step)
    def watched(self: Any, *given: object, **named: object) -> Any:
        if "_replay" not in vars(self):
            self._replay = _OpacusStep(world, self)
        return step(self, *given, **named)

    return watched


def _watch_sampler(world: ReplayRun, module: ModuleType) -> None:
    """Couple Opacus' Poisson batches by record: draw for all records of the first run, and leave out removed ones."""
    sampler = module.UniformWithReplacementSampler

    def batches(self: Any) -> Iterator[list[int]]:
        import torch

        world.outside("sampling rate of Opacus", float(self.sample_rate))
        world.outside("number of steps of Opacus", int(self.steps))
        total, places = world.present_of(self.num_samples)
        for _ in range(self.steps):
            drawn = torch.rand(total, generator=self.generator)[torch.from_numpy(places)] < self.sample_rate
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
        frozen = frozen_arrays(world, name, before, [one.grad for one in params], bound, self._differing)
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
