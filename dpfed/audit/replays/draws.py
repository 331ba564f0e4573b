"""Random draws of the code under audit: generators whose use depends on the number of clients or of samples.

Two runs with different numbers of clients draw different amounts of random numbers, so that a difference between the
runs may come from the draws and not from the data. This module couples the draws of two runs at each mechanism, detects
draws that stay uncoupled, and recognises batches of a fixed size.
"""

from __future__ import annotations

import gc
import hashlib
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    Generator = np.random.Generator | np.random.RandomState | random.Random | torch.Generator

Reading = tuple[dict[str, Any], frozenset[str]]
"""(state of each named generator, digests of the states of all generators) at one moment of a run."""
_MOST = 64
"""Largest number of named generators; others are compared, but not coupled."""
_SECURE, _TRAILS = "draws from the operating system", "ranges of draws"
_KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def existing_generators() -> list[Generator]:
    """Return the generators of numpy and Python that exist in this process; later forks find them at equal places."""
    return _generators_among(gc.get_objects())


def _generators_among(objects: list[Any]) -> list[Generator]:
    with_state = {
        kind
        for kind in set(map(type, objects))
        if issubclass(kind, _KINDS) and not issubclass(kind, random.SystemRandom)
    }
    return [one for one in objects if type(one) in with_state]


@dataclass
class Draws:
    """Generators of one run of the audit.

    seed: seed of the draws that replace the operating system's
    existing: generators that existed before the runs
    permuted: sizes of the collections that the code has permuted, or drawn from without replacement
    trails: digest of the ranges of all draws of each global generator, of which equal states can follow by chance
    """

    seed: int = 0
    existing: list[Generator] = field(default_factory=list)
    permuted: Counter[int] = field(default_factory=Counter)
    trails: dict[str, int] = field(default_factory=dict)
    _named: dict[str, Generator] = field(default_factory=dict)
    _secure: int = 0

    def watch(self) -> None:
        """Observe permutations and new generators in this process, which must be the process of one run."""
        for place, one in enumerate(self.existing[:_MOST]):
            self._named[f"existing {place}"] = one
        self._named |= {"random": random._inst, "numpy.random": np.random.mtrand._rand}
        gc.freeze()  # later scans see new objects only
        made: Callable[..., np.random.Generator] = np.random.default_rng

        @wraps(made)
        def default_rng(seed: object = None) -> np.random.Generator:
            found = made(seed)
            if found is seed:
                return found
            watched = _Watched(found.bit_generator)
            watched.draws = self
            self._name(watched)
            return watched

        np.random.default_rng = default_rng
        for module, name in (
            (np.random, "permutation"),
            (np.random, "shuffle"),
            (random, "shuffle"),
            (random, "sample"),
        ):
            _note_calls(module, name, partial(self._note_permutation, module.__name__))
        _note_calls(np.random, "choice", self._note_choice)
        _note_calls(np.random, "randint", lambda low, high=None, *_, **__: self._follow("numpy.random", low, high))
        random.Random._randbelow = _trailing_randbelow(random.Random._randbelow)  # type: ignore[attr-defined]

    def watch_torch(self, torch: Any) -> None:
        """Observe torch's permutations, its global generator, and the generators that are passed to its functions."""
        self._named["torch"] = torch.default_generator
        for name in ("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal"):
            _note_calls(torch, name, partial(self._note_torch, name == "randperm"))

    def _note_permutation(
        self, module: str, x: object = None, *_: object, population: object = None, **__: object
    ) -> None:
        size = _length(population if x is None else x)
        self.permuted[size] += 1
        self._follow(module, size)

    def _note_choice(self, a: object, size: object = None, replace: bool = True, p: object = None) -> None:
        if not replace:
            self.permuted[_length(a)] += 1
        self._follow("numpy.random", _length(a))

    def _note_torch(
        self, permutes: bool, *given: object, generator: torch.Generator | None = None, **named: object
    ) -> None:
        given = (*given, *named.values())
        if permutes:
            self.permuted[int(np.asarray(given[0]))] += 1
        self._follow("torch", *(one for one in given if isinstance(one, int)))
        if generator is not None:
            self._name(generator)

    def _follow(self, generator: str, *bounds: object) -> None:
        self.trails[generator] = _longer(self.trails.get(generator, 0), *bounds)

    def _name(self, made: Generator) -> None:
        """Name a generator by its first state: generators of equal clients have equal names in both runs."""
        if len(self._named) >= 2 * _MOST or any(one is made for one in self._named.values()):
            return
        first = _digest(_state(made))
        place = sum(name.startswith(first) for name in self._named)
        self._named[f"{first} {place}"] = made

    def secure_bytes(self, count: int) -> bytes:
        """Return repeatable bytes in place of the operating system's."""
        self._secure += 1
        return hashlib.shake_256(f"{self.seed} {self._secure}".encode()).digest(count)

    def read(self) -> Reading:
        """Return the states of the generators of this process."""
        named = {name: _state(one) for name, one in self._named.items()}
        named |= {_SECURE: self._secure, _TRAILS: tuple(sorted(self.trails.items()))}
        others = (_state(one) for one in _generators_among(gc.get_objects()))
        return named, frozenset(map(_digest, (*named.values(), *others)))

    def couple(self, recorded: Reading) -> bool:
        """Set the generators to their states in the first run; return False if a generator was in another state.

        A generator that exists in this run only, has drawn other amounts or from other ranges, counts as another state.
        """
        states = self.read()[1]
        for name, state in recorded[0].items():
            if name in self._named:
                _set_state(self._named[name], state)
        self._secure, self.trails = recorded[0][_SECURE], dict(recorded[0][_TRAILS])
        return states <= recorded[1]


class _Watched(np.random.Generator):
    """numpy's generator, which counts permutations and follows the ranges of its draws."""

    draws: Draws
    trail = 0

    def note_permutation(self, x: object, *_: object, **__: object) -> None:
        self.draws.permuted[_length(x)] += 1
        self.trail = _longer(self.trail, _length(x))

    def note_choice(self, a: object, size: object = None, replace: bool = True, *_: object, **__: object) -> None:
        if not replace:
            self.note_permutation(a)
        self.trail = _longer(self.trail, _length(a))

    def note_integers(self, low: object, high: object = None, *_: object, **__: object) -> None:
        self.trail = _longer(self.trail, low, high)

    def __reduce__(self) -> tuple[type[np.random.Generator], tuple[np.random.BitGenerator], None]:
        return np.random.Generator, (self.bit_generator,), None


def _note_calls(owner: object, name: str, note: Callable[..., None]) -> None:
    """Replace a function of a module or class by one that calls `note` with the same arguments first."""
    function = getattr(owner, name)

    @wraps(function)
    def noted(*given: object, **named: object) -> object:
        note(*given, **named)
        return function(*given, **named)

    setattr(owner, name, noted)


for _method in ("permutation", "permuted", "shuffle"):
    _note_calls(_Watched, _method, _Watched.note_permutation)
_note_calls(_Watched, "choice", _Watched.note_choice)
_note_calls(_Watched, "integers", _Watched.note_integers)


def _longer(trail: int, *bounds: object) -> int:
    return zlib.crc32(repr(bounds).encode(), trail)


def _trailing_randbelow(drawn: Callable[[random.Random, int], int]) -> Callable[[random.Random, int], int]:
    """Return the method of `random.Random` behind all its draws from ranges, which follows these ranges."""

    @wraps(drawn)
    def below(self: random.Random, n: int) -> int:
        setattr(self, "trail", _longer(getattr(self, "trail", 0), n))  # noqa: B010  # Random declares no trail
        return drawn(self, n)

    return below


def _length(x: object) -> int:
    return len(x) if isinstance(x, Sized) and getattr(x, "shape", None) != () else int(np.asarray(x))


def _state(one: Generator) -> Any:
    if isinstance(one, np.random.Generator):
        return {**one.bit_generator.state, "trail": getattr(one, "trail", 0)}
    if isinstance(one, np.random.RandomState):
        return one.get_state(legacy=False)
    if isinstance(one, random.Random):
        return {"state": one.getstate(), "trail": getattr(one, "trail", 0)}
    return one.get_state().numpy().copy()


def _set_state(one: Generator, state: Any) -> None:
    if isinstance(one, np.random.Generator):
        one.bit_generator.state = {name: part for name, part in state.items() if name != "trail"}
    elif isinstance(one, random.Random):
        one.setstate(state["state"])
    else:
        one.set_state(state if isinstance(one, np.random.RandomState) else sys.modules["torch"].from_numpy(state))
    if isinstance(one, _Watched | random.Random):
        setattr(one, "trail", state["trail"])  # noqa: B010  # Random declares no trail


def _digest(state: object) -> str:
    """Return a digest of a state, equal for equal states of any type."""
    found = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, dict):
            for key in sorted(part):
                found.update(key.encode())
                add(part[key])
        elif isinstance(part, np.ndarray):
            found.update(part.tobytes())
        else:
            found.update(repr(part).encode())

    add(state)
    return found.hexdigest()[:24]
