"""Secret randomness of cohorts and privacy noise.

`Simulated` is drawn from the run's seed, so that an experiment can be repeated; anyone who knows the seed can subtract
the noise, so nothing made with it may be released. Every purpose and path has a stream of its own: `dpfed.seeds` says
how likely two are one. `Secure` is drawn from the operating system and cannot be repeated.
Public choices (a shared mask, initial weights) come from `dpfed.seeds` in both cases.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed import replayed
from dpfed.seeds import Seeds

if TYPE_CHECKING:
    from torch import Tensor


SHARE = "noise.share"
"""Purpose of noise shares: as many draws as clients in a round."""


class Randomness(Protocol):
    """Draws named by a purpose and integers (round, client): the name matters only where draws are repeatable."""

    @property
    def name(self) -> str: ...

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        """Independent uniforms in [0, 1), multiples of 2^-53, float64 [count]; repeatable draws begin alike for all
        counts."""

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        """64 independent fair bits each, uint64 [count]: for samplers that are exact."""

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        """Draw a uniform subset of 0..population-1 of exactly `size`, sorted, without replacement."""

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        """Independent standard normals, float32 [count], on the device."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Repeatable from one seed on the same device; not for release. Noise shares are drawn by the fastest method."""

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
    """Key from which a run's schedule is drawn: a secret of the operating system's, or the one that the run began
    with."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        """64 bits each, pseudorandom without the key and the same at every call."""
        name = json.dumps(["dpfed.schedule.1", purpose, *map(int, path)]).encode()
        return np.frombuffer(hashlib.shake_256(self.key + name).digest(8 * count), dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, kw_only=True)
class Secure:
    """The operating system's generator; every call is fresh, whatever its name, but for schedules.

    Who takes part by a schedule (purposes "participation...") is computed anew in every round, so it is drawn by a key
    of 256 bits of that generator, which the run's folder keeps: SHAKE-256 of the key and the name. The holder of the
    key knows who takes part when.

    Normals are the inverse distribution function of 53-bit uniforms, rounded to float32. The attack of Mironov 2012
    on floating-point noise is not closed by this; a release that must withstand it needs discrete noise
    (`dpfed.mechanisms.integers`), which is made of `bits` alone.
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
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        return np.array(sorted(secrets.SystemRandom().sample(range(population), size)), dtype=np.int64)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        import torch
        from scipy.special import ndtri

        centred = self.uniform(count, purpose, *path) + 2.0**-54  # never 0 or 1
        return torch.from_numpy(ndtri(centred).astype(np.float32)).to(device)


def threshold(probability: float) -> float:
    """Return the largest multiple of 2^-53 that is at most the probability: a bound for `uniform`.

    Claim: a uniform of `uniform` lies below it with exactly this probability, never above the one that is charged.

    >>> threshold(0.25), threshold(1e-17)
    (0.25, 0.0)
    """
    return math.ldexp(math.floor(math.ldexp(probability, 53)), -53)


def randomness_of(name: str, seeds: Seeds) -> Randomness:
    """Return the randomness that run.randomness names: "secure", or "simulated" from the seeds."""
    made: Randomness = Secure() if name == "secure" else Simulated(seeds=seeds)
    replay = replayed.current()
    return made if replay is None else replay.randomness(made)
