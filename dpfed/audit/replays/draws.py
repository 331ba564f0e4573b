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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

Reading = tuple[dict[str, Any], frozenset[str]]
"""(state of each named generator, digests of the states of all generators) at one moment of a run."""
_MOST = 64
"""Largest number of named generators; others are compared, but not coupled."""
_SECURE, _TRAILS = "draws from the operating system", "ranges of draws"
_KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def existing_generators() -> list[object]:
    """Return the generators of numpy and Python that exist in this process; later forks find them at equal places."""
    return _generators_among(gc.get_objects())


def _generators_among(objects: list[Any]) -> list[object]:
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
    existing: list[Any] = field(default_factory=list)
    permuted: Counter[int] = field(default_factory=Counter)
    trails: dict[str, int] = field(default_factory=dict)
    _named: dict[str, Any] = field(default_factory=dict)
    _secure: int = 0

    def watch(self) -> None:
        """Observe permutations and new generators in this process, which must be the process of one run."""
        for place, one in enumerate(self.existing[:_MOST]):
            self._named[f"existing {place}"] = one
        gc.freeze()  # later scans see new objects only
        made = np.random.default_rng

        @wraps(made)
        def default_rng(seed: Any = None) -> Any:
            found = made(seed)
            if found is seed:
                return found
            watched = _watched_generator(self, found)
            self._name(watched)
            return watched

        np.random.default_rng = default_rng
        for module, name in ((np.random, "permutation"), (np.random, "shuffle"), (random, "shuffle")):
            self._count_calls(module, name)
        self._count_calls(random, "sample")
        random.Random._randbelow = _trailing_randbelow(random.Random._randbelow)  # type: ignore[attr-defined]
        choice, randint = np.random.choice, np.random.randint

        @wraps(randint)
        def drawing(low: Any, high: Any = None, *given: Any, **named: Any) -> Any:
            self._follow("numpy.random", low, high)
            return randint(low, high, *given, **named)

        @wraps(choice)
        def choosing(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
            if not replace:
                self.permuted[_length(a)] += 1
            self._follow("numpy.random", _length(a))
            return choice(a, size, replace, p)

        np.random.choice, np.random.randint = choosing, drawing

    def watch_torch(self, torch: object) -> None:
        """Observe torch's permutations, and the generators that are passed to its functions."""
        for name in ("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal"):
            setattr(torch, name, self._with_generator(getattr(torch, name), counts=name == "randperm"))

    def _with_generator(self, function: Callable[..., Any], *, counts: bool) -> Callable[..., Any]:
        @wraps(function)
        def observed(*given: Any, **named: Any) -> Any:
            if counts and given:
                self.permuted[int(given[0])] += 1
            self._follow("torch", *(one for one in given if isinstance(one, int)))
            if named.get("generator") is not None:
                self._name(named["generator"])
            return function(*given, **named)

        return observed

    def _count_calls(self, module: Any, name: str) -> None:
        function = getattr(module, name)

        @wraps(function)
        def counted(x: Any, *given: Any, **named: Any) -> Any:
            self.permuted[_length(x)] += 1
            self._follow(module.__name__, _length(x))
            return function(x, *given, **named)

        setattr(module, name, counted)

    def _follow(self, generator: str, *bounds: object) -> None:
        self.trails[generator] = _longer(self.trails.get(generator, 0), *bounds)

    def _name(self, made: object) -> None:
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
        named = {name: _state(one) for name, one in self._named.items()} | dict(_global_states())
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
            elif name in _SETTERS:
                _SETTERS[name](state)
        self._secure, self.trails = recorded[0][_SECURE], dict(recorded[0][_TRAILS])
        return states <= recorded[1]


def _watched_generator(draws: Draws, made: np.random.Generator) -> np.random.Generator:
    found = _Watched(made.bit_generator)
    found.draws = draws
    return found


class _Watched(np.random.Generator):
    """numpy's generator, which counts permutations and follows the ranges of its draws."""

    draws: Draws
    trail = 0

    def _permutes(self, x: object) -> None:
        self.draws.permuted[_length(x)] += 1
        self.trail = _longer(self.trail, _length(x))

    def permutation(self, x: Any, *given: Any, **named: Any) -> Any:
        self._permutes(x)
        return super().permutation(x, *given, **named)

    def permuted(self, x: Any, *given: Any, **named: Any) -> Any:
        self._permutes(x)
        return super().permuted(x, *given, **named)

    def shuffle(self, x: Any, *given: Any, **named: Any) -> None:
        self._permutes(x)
        super().shuffle(x, *given, **named)

    def choice(self, a: Any, size: Any = None, replace: bool = True, *given: Any, **named: Any) -> Any:
        if not replace:
            self._permutes(a)
        self.trail = _longer(self.trail, _length(a))
        return super().choice(a, size, replace, *given, **named)

    def integers(self, low: Any, high: Any = None, *given: Any, **named: Any) -> Any:
        self.trail = _longer(self.trail, low, high)
        return super().integers(low, high, *given, **named)

    def __reduce__(self) -> Any:
        return np.random.Generator, (self.bit_generator,)


def _longer(trail: int, *bounds: object) -> int:
    return zlib.crc32(repr(bounds).encode(), trail)


def _trailing_randbelow(drawn: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    """Return the method of `random.Random` behind all its draws from ranges, which follows these ranges."""

    @wraps(drawn)
    def below(self: Any, n: int) -> int:
        self.trail = _longer(getattr(self, "trail", 0), n)
        return drawn(self, n)

    return below


def _length(x: Any) -> int:
    return int(x) if np.ndim(x) == 0 and not hasattr(x, "__len__") else len(x)


def _global_states() -> Iterator[tuple[str, object]]:
    yield "random", _state(random._inst)
    yield "numpy.random", np.random.get_state(legacy=False)  # noqa: NPY002
    if "torch" in sys.modules:
        yield "torch", sys.modules["torch"].get_rng_state().numpy().copy()


def _set_global_torch(state: object) -> None:
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(state))


_SETTERS: dict[str, Callable[[Any], None]] = {
    "random": lambda state: _set_state(random._inst, state),
    "numpy.random": np.random.set_state,
    "torch": _set_global_torch,
}
"""Functions that set the state of each global generator."""


def _state(one: Any) -> Any:
    if isinstance(one, np.random.Generator):
        return {**one.bit_generator.state, "trail": getattr(one, "trail", 0)}
    if isinstance(one, np.random.RandomState):
        return one.get_state(legacy=False)
    if isinstance(one, random.Random):
        return {"state": one.getstate(), "trail": getattr(one, "trail", 0)}
    return one.get_state().numpy().copy()


def _set_state(one: Any, state: Any) -> None:
    if isinstance(one, np.random.Generator):
        one.bit_generator.state = {name: part for name, part in state.items() if name != "trail"}
    elif isinstance(one, random.Random):
        one.setstate(state["state"])
    else:
        one.set_state(state if isinstance(one, np.random.RandomState) else sys.modules["torch"].from_numpy(state))
    if isinstance(one, _Watched | random.Random):
        setattr(one, "trail", state["trail"])  # noqa: B010


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
