"""Installation of a replay audit's hooks in other libraries, and comparisons that these hooks share.

`opacus_steps` and `flower_rounds` define the hooks. They are set only in the processes of the audit's runs, when the
library is loaded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

from dpfed.audit.replays.replay_run import ROUNDING, Key, ReplayRun
from dpfed.audit.replays.values import Floats, as_array, digest

Hook = Callable[[ReplayRun, Any], None]
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
    changed = len(world.changed) if world.pair is None or world.pair.record is None else 1
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


def check_added_noise(world: ReplayRun, name: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    """Record a finding for each array that a mechanism leaves unchanged."""
    for place, (one, two) in enumerate(zip(before, after, strict=True)):
        entered, left = as_array(one).reshape(-1), as_array(two).reshape(-1)
        if len(entered) and np.array_equal(entered, left):
            world.finding(f"adds no noise to array {place}", key_of_finding(world, name))
