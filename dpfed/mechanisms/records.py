"""Private records inside a client: sums over a batch in integers, with exactly drawn discrete Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.integers.fixed_point import least_scale, sized_noise
from accounting.mechanisms import DiscreteGaussian
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.fixed_point import FixedPoint
from dpfed.errors import ConfigError
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw
from dpfed.randomness import Randomness


@dataclass(frozen=True, kw_only=True)
class IntegerRecords:
    """Rows of records, clipped and rounded at random to integers; their sum has a draw of `noise` on each entry.

    Claim: under add-remove of one record the noisy sum is `noise`, subsampled like the batch. A row has at most
    the norm `noise.l2_bound`, which is checked in integers: lengthening by rounding is in the sensitivity. The drawn
    noise has variance `noise.share_variance`. Scaling back and everything after it is post-processing. No sum is
    reduced modulo a number: it is computed in 64 bits.
    """

    noise: DiscreteGaussian
    fixed_point: FixedPoint
    clip_norm: float
    randomness: Randomness

    def __post_init__(self) -> None:
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

    def draw_noise(self, *path: int) -> Tensor:
        """Return the noise of one step, int64 [size]."""
        return torch.from_numpy(self.law.sample(self.noise.dimension, self.randomness, "local.noise", *path))

    def decode_sum(self, total: Tensor) -> Tensor:
        """Return a noisy sum of integers in the units of the rows, float32."""
        return self.fixed_point.decode(total, rotation_seed=0)

    @property
    def law(self) -> DiscreteGaussianLaw:
        """Distribution of every draw."""
        return DiscreteGaussianLaw(int(self.noise.share_variance))

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum, in the units of the rows."""
        return math.sqrt(self.noise.variance) / self.fixed_point.steps_per_unit

    @property
    def detail(self) -> Mapping[str, object]:
        """Description of the integers, for a ledger line."""
        per_unit = self.fixed_point.steps_per_unit
        return {"noise": self.noise.kind, "steps_per_unit": per_unit, "integers": self.noise.dimension}


def scale_of(size: int, steps: float | None) -> float:
    """Return the integer steps per clip norm: `steps`, or by default the least sufficient number."""
    return float(least_scale(size) if steps is None else steps)


def integer_noise(noise_multiplier: float, *, size: int, steps: float | None) -> DiscreteGaussian:
    """Return the noise of one step on rows [size], for the accountant."""
    noise = sized_noise(
        "discrete-gaussian",
        noise_multiplier,
        scale=scale_of(size, steps),
        dimension=size,
        shares=1,
        adjacency=Adjacency.ADD_REMOVE,
    )
    assert isinstance(noise, DiscreteGaussian)
    return noise
