"""Runs of a replay audit: the first run is recorded, a second run is compared with it value by value."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.audit.replays.draws import Draws, Reading
from dpfed.audit.replays.findings import (
    Array,
    Difference,
    Floats,
    Key,
    RunFindings,
    as_array,
    call_site,
    digest,
    in_form_of,
    norm_of,
)
from dpfed.audit.replays.noise_size import NoiseSize, unchanged_coordinates
from dpfed.audit.replays.pairs import REMOVED, SAME, SIZES, Pair
from dpfed.replayed import Adjacency, Norm, Replay

ROUNDING = 1e-4
"""Largest difference of float sums, relative to their largest entry, that a different order of additions explains."""


_RECORDED_DRAWS = 2000
"""Number of mechanism calls at which the states of random generators are recorded."""


class RunStopped(BaseException):
    """Signal that ends a run of the audit: after a difference, or after its last round."""


class Recording:
    """Recorded values of the first run: digests in memory, inputs and outputs of mechanisms on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[Key, str] = {}
        self.arrays: dict[Key, tuple[str, str]] = {}
        self.cohorts: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self.arriving: dict[int, NDArray[np.int64]] = {}
        self.files: dict[str, object] = {}
        self.reports: set[str] = set()
        """Names of values of the reports, which few runs write."""
        self.units = 0
        """Number of entries of the data."""
        self.draws: dict[Key, Reading] = {}
        self._lock = threading.Lock()

    def put(self, key: Key, given: Array, noisy: Array) -> None:
        with self._lock:
            name = f"{os.getpid()}-{len(self.arrays)}"  # ranks share the folder
            names = f"{name}.given.npy", f"{name}.noisy.npy"
            self.arrays[key] = names
        for name, array in zip(names, (given, noisy), strict=True):
            np.save(self.folder / name, array)

    def get(self, key: Key) -> tuple[Array, Array]:
        given, noisy = (np.load(self.folder / name) for name in self.arrays[key])
        return given, noisy

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("folder", "_lock")}

    def save(self) -> None:
        (self.folder / "values").write_bytes(pickle.dumps(self.__getstate__()))

    @classmethod
    def load(cls, folder: Path) -> Recording:
        made = cls(folder)
        vars(made).update(pickle.loads((folder / "values").read_bytes()))  # a file that this audit has written
        return made


class ReplayRun(Replay):
    """Run of a replay audit that compares marked values. pair: changed clients; None for the first run."""

    def __init__(self, pair: Pair | None, recording: Recording, draws: Draws | None = None) -> None:
        self.pair, self.recording, self.draws = pair, recording, draws
        self.run_folders: list[Path] = []
        self._tested_noise: set[str] = set()
        self._unchanged = unchanged_coordinates()
        self.seen = RunFindings()
        self.round = -1
        self.changed: frozenset[int] = frozenset() if pair is None else frozenset(pair.clients)
        self.change = "" if pair is None else pair.change
        self.record = None if pair is None else pair.record
        self.removes_clients = pair is not None and pair.removes_clients
        self.compared_names: frozenset[str] | None = None
        """Names of the values that are compared; None for all values."""
        self.rank, self.ranks, self.ranks_lost = 0, 1, 0
        self.met_keys: set[Key] = set()
        """Keys of all values that this run has computed."""
        self._times: Counter[tuple[int, str, object]] = Counter()
        self._lock = threading.Lock()

    @property
    def first(self) -> bool:
        return self.pair is None

    # ---- values outside mechanisms

    def outside(self, name: str, value: object, client: int | tuple[int, int] | None = None) -> None:
        self._compare(name, digest(value), client)

    def _compare(self, name: str, found: str, client: int | tuple[int, int] | None) -> None:
        key = self._key(name, client)
        if self.first:
            self.recording.values[key] = found
        elif self._belongs_to_changed(client):
            self.seen.altered_values += self.recording.values.get(key) != found
        elif self._is_compared(name):
            before = self.recording.values.get(key)
            if before is None:
                self.finding("is in the second run only", key)
            elif before != found:
                shown = [one if len(one) < 60 else "" for one in (before, found)]
                words = f"differs ({shown[0]} and {shown[1]})" if all(shown) and shown[0][:1] != "#" else "differs"
                self.finding(words, key)

    def _key(self, name: str, client: int | tuple[int, int] | None) -> Key:
        with self._lock:
            place = self._times[self.round, name, client]
            self._times[self.round, name, client] += 1
            key = (self.round, name, client, place)
            self.met_keys.add(key)
            self.seen.values += 1
            return key

    def _belongs_to_changed(self, client: int | tuple[int, int] | None) -> bool:
        """Return True if the value belongs to a changed client or to the changed record."""
        if isinstance(client, tuple):
            return client[0] in self.changed and self.record in (None, client[1])
        return self.record is None and client in self.changed

    def _is_compared(self, name: str) -> bool:
        return self.compared_names is None or name in self.compared_names

    def finding(self, words: str, key: Key, *, by: float | None = None, allowed: float | None = None) -> None:
        """Record a difference; after the first one, the run ends at the next call of `stop_if_found`."""
        number, name, client, place = key
        record = client[1] if isinstance(client, tuple) else None
        marked = number < 0 and not name.startswith(("result of the call", "file ", "the run"))
        number = place if marked else number
        if not self.seen.differences:
            self.seen.certain = not self._may_be_uncoupled
        self.seen.differences.append(
            Difference(
                value=name,
                words=words,
                round=None if number < 0 else number + 1,
                client=client[0] if isinstance(client, tuple) else client,
                record=record,
                size=by,
                allowed=allowed,
                where=call_site() if marked or number >= 0 else "",
            )
        )

    # ---- draws

    @property
    def _may_be_uncoupled(self) -> bool:
        """True if this pair changes numbers of draws in code that draws without dpfed's rounds."""
        return self.draws is not None and self.changes_numbers and self.round < 0

    @property
    def changes_numbers(self) -> bool:
        """True if the pair changes the number of clients, records or samples."""
        return self.change in SIZES or self.change == REMOVED

    def couple_draws(self, key: Key) -> None:
        """Couple the draws of the two runs from here on, and note whether they were coupled until here."""
        if self.draws is None or self.round >= 0:
            return
        if self.first:
            if len(self.recording.draws) < _RECORDED_DRAWS:
                self.recording.draws[key] = self.draws.read()
        elif self._may_be_uncoupled:
            recorded = self.recording.draws.get(key)
            if recorded is None or not self.draws.couple(recorded):
                self.seen.uncoupled = True
            if not self.seen.uncoupled:
                self.seen.certain = True

    def present_of(self, count: int) -> tuple[int, NDArray[np.int64]]:
        """Return the number of entries of the first run's data, and the places of this run's `count` entries there.

        count: size of a collection in this run; one that is not the data has no missing entries
        """
        gone = self.changed if self.change == REMOVED else frozenset()
        here = np.array([i for i in range(self.recording.units) if i not in gone], dtype=np.int64)
        return (self.recording.units, here) if len(here) == count else (count, np.arange(count))

    def coins(self, count: int, rate: float) -> NDArray[np.bool_]:
        """Return draws with probability `rate` for the entries of this run, coupled by places in the first run."""
        number = self._key("rate of data.coins", None)[3]
        self._times[self.round, "rate of data.coins", None] -= 1
        self.outside("rate of data.coins", float(rate))
        total, places = self.present_of(count)
        return np.random.default_rng([0x0DD, number, total]).random(total)[places] < rate

    def take_certain(self) -> None:
        """Note that the first difference does not come from draws, if all draws were coupled until here."""
        if self.seen.differences and not self.seen.uncoupled:
            self.seen.certain = True

    def stop_if_found(self) -> None:
        """Raise RunStopped in the second run if a difference was found; rank 0 alone raises, which ends all ranks."""
        if not self.first and self.seen.differences and not self.rank:
            raise RunStopped

    def check_missing_values(self) -> None:
        """Record a finding for the first value of the first run that the second run did not compute."""
        if self.first or self.seen.differences:
            return
        for key in [*self.recording.values, *self.recording.arrays]:
            compared = not self._belongs_to_changed(key[2]) and self._is_compared(key[1]) and not self.may_miss(key)
            if compared and key not in self.met_keys and key[0] <= self.round:
                self.finding("is in the first run only", key)
                return

    def gather_seen(self, recording: Recording, seen: RunFindings, met: set[Key]) -> None:
        """Add the recording and the comparisons of another rank. Values of both ranks, such as announcements, must be
        equal.
        """
        for key, value in recording.values.items() if self.first else ():
            if self.recording.values.setdefault(key, value) != value:
                self.finding("differs between ranks", key)
        if self.first:
            self.recording.arrays |= recording.arrays
        self.met_keys |= met
        self.seen.differences = sorted([*self.seen.differences, *seen.differences], key=lambda one: one.round or 0)
        for name in ("values", "rows", "altered_values", "mechanisms"):
            setattr(self.seen, name, getattr(self.seen, name) + getattr(seen, name))
        self.seen.largest_used_part = max(self.seen.largest_used_part, seen.largest_used_part)

    def may_miss(self, key: Key) -> bool:
        """Return True if the second run need not compute the value."""
        return False

    # ---- mechanisms

    def mechanism(
        self,
        name: str,
        given: object,
        noisy: object,
        *,
        sensitivity: float | None,
        norm: Norm = "l2",
        client: int | None = None,
        units: int | None = None,
        adds_noise: bool = True,
        adjacency: Adjacency = "add-remove",
    ) -> Any:
        """Compare a mechanism's input and its noise, and return the output of the first run.

        units: number of changed clients that take part; None for all. adds_noise: True if the output is the input plus
        noise. adjacency: neighbours that the sensitivity is for
        """
        entered, left = as_array(given), as_array(noisy)
        key = self._key(name, client)
        self.seen.declared_replacement = adjacency == "replace-one" and (
            self.seen.declared_replacement or not self.seen.mechanisms
        )
        self.seen.mechanisms += 1
        if adds_noise:
            self._check_coordinates(key, entered, left)
        if adds_noise and entered.shape == left.shape and len(left) and bool(np.all(left == entered)):
            self.finding("adds no noise", key)
        if self.first:
            self.recording.put(key, entered, left)
            return noisy
        if key not in self.recording.arrays:
            if self._is_compared(name):
                self.finding("is in the second run only", key)
            return noisy
        entered_1, left_1 = self.recording.get(key)
        self.seen.altered_values += not np.array_equal(entered_1, entered)
        if self._is_compared(name):
            bounds = 1.0 if adjacency == "replace-one" else self.moved_bounds
            allowed = None if sensitivity is None else bounds * sensitivity
            self._compare_mechanism(key, (entered_1, left_1), (entered, left), allowed, norm, units, adds_noise)
            self.seen.largest_moved_bounds = self.seen.largest_used_part * bounds
            self.take_certain()
        return in_form_of(left_1, noisy)

    @property
    def moved_bounds(self) -> float:
        """Largest distance that one client of the pair moves a sum, in multiples of the bound on a row.

        A client without samples is a replacement in code that is not dpfed's, which may send any row for it.
        """
        return 1.0 if self.change == REMOVED or (self.change == "zeroed" and self.seen.of_dataset) else 2.0

    def _check_coordinates(self, key: Key, entered: Array, left: Array) -> None:
        """Record a finding if a coordinate has no noise in all calls so far, other than by rounding."""
        if entered.shape != left.shape or entered.dtype.kind != "f":
            return
        if places := self._unchanged(key[1], key[2], entered, left):
            shown = (
                f"coordinate {places[0]}" if len(places) == 1 else f"{len(places)} coordinates, the first {places[0]}"
            )
            self.finding(f"adds no noise to {shown}", key)

    def test_noise(self, name: str, f: Callable[[], object], given: object, std: float) -> None:
        """Test in a fork of the first run, after the first call of a mechanism, that its noise has the stated size."""
        if not self.first or name in self._tested_noise:
            return
        self._tested_noise.add(name)
        if words := NoiseSize(f=f, given=given, std=float(std)).tested():
            self.finding(words, (self.round, name, None, 0))

    @np.errstate(all="ignore")
    def _compare_mechanism(
        self,
        key: Key,
        one: tuple[Array, Array],
        two: tuple[Array, Array],
        bound: float | None,
        norm: Norm,
        units: int | None,
        adds_noise: bool,
    ) -> None:
        """Compare the inputs and the noise of two calls. bound: largest move of the input by one changed client."""
        if one[0].shape != two[0].shape or one[1].shape != two[1].shape:
            return self.finding(f"has shape {one[0].shape} in the first run and {two[0].shape} in the second", key)
        whole = one[0].dtype.kind in "iu"
        scale = max(float(np.abs(one[0].astype(np.float64)).max(initial=0)), 1e-30)
        room = 0.0 if whole else ROUNDING * scale
        if bound is not None:
            client = key[2]
            exempt = (self.record is not None and client in self.changed) or client is None
            count = (len(self.changed) if units is None else units) if exempt and self.record is None else 1
            allowed = count * bound if exempt else 0.0
            by = norm_of(self.difference(one[0], two[0]), norm)
            if not math.isfinite(by) or by > allowed * (1 + 1e-6) + room * (
                1 if norm == "linf" else 1e-3 * two[0].size ** 0.5
            ):
                self.finding("its input moves", key, by=by, allowed=allowed)
            elif allowed:
                self.seen.largest_used_part = max(self.seen.largest_used_part, by / allowed)
        if adds_noise and one[0].shape == one[1].shape:
            noise = [self.difference(entered, left) for entered, left in (one, two)]
            here = np.isfinite(noise[0]) | np.isfinite(noise[1])
            apart = float(np.abs(noise[0] - noise[1])[here].max(initial=0))
            size = max(scale, float(np.abs(one[1][np.isfinite(one[1])].astype(np.float64)).max(initial=0)))
            room = 0.0 if whole else ROUNDING * size
            if not apart <= room:
                self.finding("its noise differs", key, by=apart, allowed=room)
                if len(self.seen.differences) == 1 and proportional(*noise):
                    self.seen.certain = True  # equal draws, so that only the scale differs
        return None

    def difference(self, one: Array, two: Array) -> Floats:
        """Return the difference two - one."""
        if one.dtype.kind in "iu":
            return (two.astype(np.int64) - one.astype(np.int64)).astype(np.float64)
        with np.errstate(all="ignore"):
            return two.astype(np.float64) - one.astype(np.float64)

    # ---- parts of a dpfed.run; `dpfed.audit.replays.rounds.ReplayRunOfRounds` has the others

    @property
    def writes_reports(self) -> bool:
        """True if the run writes its report; few runs do, since a report takes longer than three small rounds."""
        return self.first or self.change == SAME or (self.change == "far" and len(self.changed) > 1)

    def is_temporary_path(self, path: Path) -> bool:
        return self.recording.folder.parent.resolve() in path.resolve().parents

    def made_run_folder(self, path: Path) -> None:
        self.run_folders.append(path)

    def reseed(self, name: str) -> None:
        place = self._times[self.round, name, None]
        self.couple_draws((self.round, name, None, place))
        seed_global_generators(
            int.from_bytes(hashlib.sha256(f"{self.round} {name} {place}".encode()).digest()[:4], "little")
        )


def proportional(one: Floats, two: Floats) -> bool:
    """Return True if the second noise is a multiple of the first one, other than once: equal draws, another scale."""
    flat, other = one.reshape(-1), two.reshape(-1)
    length = float(flat @ flat)
    if flat.size < 2 or not math.isfinite(length) or not length:
        return False
    scale = float(flat @ other) / length
    return abs(scale - 1) > ROUNDING and bool(np.allclose(other, scale * flat, rtol=1e-3, atol=ROUNDING * length**0.5))


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and, if it is loaded, torch."""
    import random
    import sys

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
