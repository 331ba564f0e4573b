"""Private records inside a client: DP-SGD with Gaussian noise, or in integers with exactly drawn discrete noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.compose.histories import Steps
from accounting.integers.fixed_point import least_scale, sized_noise
from accounting.ledger import LocalRelease
from accounting.mechanisms import Gaussian, NoisyIntegers, PoissonSampling, SingleRelease, Unsampled, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed import replayed
from dpfed.compress.fixed_point import FixedPoint
from dpfed.errors import ConfigError
from dpfed.mechanisms.integer_distributions import IntegerDistribution, distribution_of
from dpfed.randomness import Randomness
from dpfed.stages.clip import clip_rows

if TYPE_CHECKING:
    from dpfed.clients.schedule import PoissonBatches

MOST_NUMBERS = 50_000_000
"""Largest number of entries of per-record gradients in memory at a time, in one thread: 200 MB."""

Slopes = Callable[[Tensor], Tensor]
"""Per-record slopes [b, size] of a batch of rows."""


@dataclass(frozen=True, kw_only=True)
class RecordLevel:
    """DP-SGD on a client's records: how a step bounds and noises their gradients (Abadi et al. 2016).

    Each record is in the batch independently with probability q = min(1, batch_size / n) (`PoissonBatches`). Let h_r be
    the slope of record r: the gradient of the trained numbers (weights, or a mask's scores: `Walk.slope`). A step
    follows
        h = (sum over the batch of clip(h_r, C) + N(0, (z C)^2)) / (q n)
    with the expected batch size as divisor, not the real one; the h of an empty batch is noise alone.

    Claim: under add-remove of one record of one client each h is a Poisson-sampled Gaussian mechanism of noise
    multiplier z and probability q; later computations of the client (momentum, Adam, its update, the upload) are
    post-processing. q, q n and the number of steps are parameters that do not change with the record: sizes of clients
    are public. A slope that is not finite counts as zero. Random numbers of dropout layers, from public seeds, do not
    depend on the other records of the batch (`dpfed.clients.network_randomness`).

    A kind of noise is a class: floating-point numbers (`GaussianRecords`), or integers, so that h is a Poisson-sampled
    discrete Gaussian mechanism, independent of floating-point rounding (`IntegerRecords`).

    noise: the accountant's description of one step's noise on the sum of a whole batch
    """

    clip_norm: float
    randomness: Randomness
    noise: Unsampled
    one_by_one: ClassVar[bool] = False
    """True if slopes are computed record by record."""
    summed_as: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        if not SMALLEST_CLIP <= self.clip_norm <= LARGEST_CLIP:
            raise ConfigError(
                f"local.record.clip_norm={self.clip_norm}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}."
            )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum, in the units of the rows."""
        return self.noise.least_noise_std(self.clip_norm, 0.0)

    @property
    def longest(self) -> float:
        """Largest norm of a bounded row."""
        return self.clip_norm

    @property
    def detail(self) -> Mapping[str, object]:
        """Description of integers, for a ledger line."""
        return {}

    def bound_rows(self, slopes: Slopes, rows: Tensor, path: tuple[int, ...]) -> Tensor:
        """Return the slopes [b, size] of these rows, bounded as they are summed."""
        return clip_rows(slopes(rows), self.clip_norm).rows

    def add_noise(self, total: Tensor, path: tuple[int, ...]) -> Tensor:
        """Return the sum [size] of one step with its noise."""
        raise NotImplementedError

    def decode_sum(self, total: Tensor) -> Tensor:
        """Return a noisy sum in the units of the rows, float32."""
        return total

    def release(
        self, sizes: NDArray[np.int64], clients: NDArray[np.int64], batches: PoissonBatches, *, number: int
    ) -> LocalRelease:
        """Return the release of a round of `clients`, whose numbers of records are `sizes`."""
        return LocalRelease(
            round=number,
            steps=tuple(
                Steps(
                    mechanism=step_release(self.noise, batches, int(size)),
                    count=batches.count(int(size)),
                    clients=tuple(map(int, clients[sizes == size])),
                )
                for size in np.unique(sizes[sizes > 0])
            ),
            clip_norm=self.clip_norm,
            noise_std=self.noise_std,
            detail=self.detail,
        )

    def slope(self, slopes: Slopes, batch: Tensor, *, size: int, expected: int, path: tuple[int, ...]) -> Tensor:
        """Return h [size] of a batch of rows. `path` names the noise: (round, client, step)."""
        total = torch.zeros(size, dtype=self.summed_as, device=batch.device)
        replay = replayed.current_replay()
        for rows in torch.split(batch, max(1, MOST_NUMBERS // size)) if len(batch) else ():
            bounded = self.bound_rows(slopes, rows, path)
            if replay is not None:
                replay.rounds.clipped(bounded, rows, self.longest, path)
            total += bounded.sum(dim=0)
        noisy = self.add_noise(total, path)
        if replay is not None:
            step = f"step {path[2]} of private records"
            noisy = replay.mechanism(step, total, noisy, sensitivity=self.longest, client=path[1])
        return self.decode_sum(noisy).div_(expected)


def gaussian_noise(noise_multiplier: float) -> Gaussian:
    """Return the accountant's description of one step's floating-point noise."""
    return Gaussian(noise_multiplier=noise_multiplier, adjacency=Adjacency.ADD_REMOVE)


def step_release(noise: Unsampled, batches: PoissonBatches, size: int) -> SingleRelease:
    """Return the accountant's description of one step of a client with `size` records, `size` at least one."""
    return subsample(noise, PoissonSampling(probability=batches.probability(size)))


@dataclass(frozen=True, kw_only=True)
class GaussianRecords(RecordLevel):
    """Rows of records, clipped; their sum has floating-point Gaussian noise."""

    noise: Gaussian

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over the clip norm."""
        return self.noise.noise_multiplier

    def add_noise(self, total: Tensor, path: tuple[int, ...]) -> Tensor:
        noise = self.randomness.normal(len(total), "local.noise", *path, device=str(total.device))
        return total.add(noise, alpha=self.noise_std)


@dataclass(frozen=True, kw_only=True)
class IntegerRecords(RecordLevel):
    """Rows of records, clipped and rounded at random to integers; their sum has a draw of `noise` on each entry.

    Claim: under add-remove of one record the noisy sum is `noise`, subsampled like the batch. A row has at most
    the norm `noise.l2_bound`, which is checked in integers: lengthening by rounding is in the sensitivity. The drawn
    noise has variance `noise.share_variance`. Scaling back and everything after it is post-processing. No sum is
    reduced modulo a number: it is computed in 64 bits.
    """

    noise: NoisyIntegers
    fixed_point: FixedPoint
    one_by_one: ClassVar[bool] = True
    summed_as: ClassVar[torch.dtype] = torch.int64

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = self.fixed_point.largest_squared_norm(self.clip_norm)
        if longest > self.noise.l2_bound**2 * (1 + 1e-12) or self.noise.dimension != self.fixed_point.padded:
            raise ConfigError(
                f"integers of squared norm up to {longest} in {self.fixed_point.padded} entries with noise that is "
                f"charged for {self.noise.l2_bound} in {self.noise.dimension}: must be equal. Give both equal "
                "steps and clip norms."
            )
        self.law  # noqa: B018  (refuses a variance that cannot be drawn)

    @classmethod
    def for_rows(
        cls, noise_multiplier: float, *, size: int, clip_norm: float, steps: float | None, randomness: Randomness
    ) -> IntegerRecords:
        """Return the integers of rows [size], with noise of standard deviation at least noise_multiplier * clip_norm.

        steps: integer steps per clip norm; None: the least number with which rounding lengthens the bound by at most 1%
        """
        noise = integer_noise(noise_multiplier, size=size, steps=steps)
        per_unit = scale_of(size, steps) / clip_norm
        fixed_point = FixedPoint(size=size, steps_per_unit=per_unit, rotate=False)
        return cls(noise=noise, fixed_point=fixed_point, clip_norm=clip_norm, randomness=randomness)

    def encode_rows(self, clipped: Tensor, names: NDArray[np.int64], path: tuple[int, ...]) -> Tensor:
        """Return clipped rows [b, size] as int64 [b, size]; the draws that round a row are named by the row."""
        found = self.fixed_point.encode(
            clipped,
            clip_norm=self.clip_norm,
            rotation_seed=0,
            randomness=self.randomness,
            names=names,
            path=path,
            purpose="local.rounding",
        )
        return found.integers.to(torch.int64)

    def bound_rows(self, slopes: Slopes, rows: Tensor, path: tuple[int, ...]) -> Tensor:
        """Return the bounded slopes as integers. The rounding of a record is named by the record.

        Slopes are computed record by record. In a batch their last bits depend on the number of records, and at a
        kink of the network even their leading digits do.
        """
        alone = torch.empty(len(rows), self.noise.dimension, device=rows.device)
        for place, row in enumerate(torch.split(rows, 1)):
            alone[place] = slopes(row)[0]
        return self.encode_rows(clip_rows(alone, self.clip_norm).rows, rows.cpu().numpy(), path)

    def add_noise(self, total: Tensor, path: tuple[int, ...]) -> Tensor:
        noise = self.law.sample(len(total), self.randomness, "local.noise", *path)
        return total + torch.from_numpy(noise).to(total.device)

    def decode_sum(self, total: Tensor) -> Tensor:
        return self.fixed_point.decode(total, rotation_seed=0)

    @property
    def longest(self) -> float:
        return self.noise.l2_bound

    @property
    def law(self) -> IntegerDistribution:
        """Distribution of every draw."""
        return distribution_of(self.noise)

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation over the clip norm, after rounding its variance up."""
        return self.noise_std / self.clip_norm

    @property
    def noise_std(self) -> float:
        return math.sqrt(self.noise.variance) / self.fixed_point.steps_per_unit

    @property
    def detail(self) -> Mapping[str, object]:
        per_unit = self.fixed_point.steps_per_unit
        return {"noise": self.noise.kind, "steps_per_unit": per_unit, "integers": self.noise.dimension}


def scale_of(size: int, steps: float | None) -> float:
    """Return the integer steps per clip norm: `steps`, or by default the least sufficient number."""
    return float(least_scale(size) if steps is None else steps)


def integer_noise(noise_multiplier: float, *, size: int, steps: float | None) -> NoisyIntegers:
    """Return the noise of one step on rows [size], for the accountant."""
    return sized_noise(
        "discrete-gaussian",
        noise_multiplier,
        scale=scale_of(size, steps),
        dimension=size,
        shares=1,
        adjacency=Adjacency.ADD_REMOVE,
    )
