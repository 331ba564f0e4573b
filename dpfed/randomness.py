"""Secret randomness of cohorts and privacy noise.

`Simulated` is drawn from the run's seed, so that an experiment can be repeated. Anyone who knows the seed can subtract
the noise, so nothing made with it may be released. Every pair of a purpose and a path has a separate stream;
`dpfed.seeds` states the probability that two streams coincide. `Secure` is drawn from the operating system and cannot
be repeated. Public choices (a shared mask, initial weights) come from `dpfed.seeds` with either of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfed import replayed
from dpfed.seeds import Seeds

if TYPE_CHECKING:
    from torch import Tensor


Drawn = TypeVar("Drawn")

SHARE = "noise.share"
"""Purpose of noise shares: every client of a round draws one share."""


class Randomness(Protocol):
    """Random draws, each named by a purpose and integers (round, client); only repeatable draws depend on the name."""

    @property
    def name(self) -> str: ...

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        """Independent uniforms in [0, 1), multiples of 2^-53, float64 [count]. Of repeatable draws, a shorter one is
        the beginning of a longer one."""

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        """Independent uniform 64-bit integers, uint64 [count], for exact samplers."""

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        """Draw a uniform subset of 0..population-1 of exactly `size`, sorted, without replacement."""

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        """Independent standard normals, float32 [count], on the device."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Randomness repeatable from one seed on the same device; nothing drawn from it may be released. Noise shares are
    drawn by the fastest method."""

    seeds: Seeds

    @property
    def name(self) -> str:
        return "simulated"

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        return self.seeds.generator(purpose, *path).random(count)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        return self.seeds.generator(purpose, *path).integers(0, 1 << 64, count, dtype=np.uint64)

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        drawn = self.seeds.generator(purpose, *path).choice(population, size, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        stream = self.seeds.tensors(purpose, *path, device=device)
        return stream.normal_in_pairs(count) if purpose == SHARE else stream.normal(count)


@dataclass(kw_only=True, eq=False)
class ScheduleKey:
    """Secret key from which a run's schedule is drawn: a new one from the operating system, or the key that a resumed
    run started with."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        """Uniform 64-bit integers, uint64 [count]: pseudorandom without the key, and equal at every call."""
        name = json.dumps(["dpfed.schedule.1", purpose, *map(int, path)]).encode()
        return np.frombuffer(hashlib.shake_256(self.key + name).digest(8 * count), dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, kw_only=True)
class Secure:
    """The operating system's generator. Every call returns fresh draws, whatever its name, except for schedules.

    Participation by a schedule (purposes "participation...") is recomputed in every round. So it is drawn from a
    256-bit key of that generator, which is kept in the run's folder: SHAKE-256 of the key and the name. The holder of
    the key can compute which clients take part in which round.

    Normals are the inverse distribution function of odd multiples of 2^-53, rounded to float32; none exceeds 8.3. They
    do not prevent the attack of Mironov 2012 on floating-point noise. A release that must withstand it needs discrete
    noise (`dpfed.mechanisms.integers`), which is made of `bits` alone.
    """

    schedule: ScheduleKey = field(default_factory=lambda: ScheduleKey(), repr=False, compare=False)

    @property
    def name(self) -> str:
        return "secure"

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        of_schedule = purpose.startswith("participation.")
        drawn = self.schedule.bits(count, purpose, *path) if of_schedule else self.bits(count, purpose, *path)
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)  # writable, for torch

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        return np.array(sorted(secrets.SystemRandom().sample(range(population), size)), dtype=np.int64)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        import torch
        from scipy.special import ndtri

        halves = (self.bits(count, purpose, *path) >> np.uint64(12)).astype(np.float64) + 0.5
        centred = halves * 2.0**-52  # exact, never 0 or 1: a 53rd bit would round the last to 1, whose normal is inf
        return torch.from_numpy(ndtri(centred).astype(np.float32)).to(device)


_NUMBERS_AHEAD = 1 << 27
"""Draws that wait for their client at any time: 1 GiB."""
_THREADS = ThreadPoolExecutor()


class DrawnAhead(Generic[Drawn]):
    """Draws of `size` numbers for each of these clients, made by threads in the order of the clients.

    `draw` is a function of the client alone, so the order of threads changes no repeatable draw. A draw is handed out
    once; a second one, or that of any other client, is made when it is asked for.
    """

    def __init__(self, draw: Callable[[int], Drawn], clients: NDArray[np.int64], size: int) -> None:
        self._draw, self._later = draw, iter(clients.tolist())
        self._started: dict[int, Future[Drawn]] = {}
        for _ in range(max(1, _NUMBERS_AHEAD // size)):
            self._start_next()

    def __call__(self, client: int) -> Drawn:
        started = self._started.pop(client, None)
        self._start_next()
        return self._draw(client) if started is None else started.result()

    def _start_next(self) -> None:
        if (client := next(self._later, None)) is not None:
            self._started[client] = _THREADS.submit(self._draw, client)


def randomness_of(name: str, seeds: Seeds) -> Randomness:
    """Return the randomness that run.randomness names: "secure", or "simulated" from the seeds."""
    made: Randomness = Secure() if name == "secure" else Simulated(seeds=seeds)
    replay = replayed.current_replay()
    return made if replay is None else replay.randomness(made)
