"""Bounds and weights of the rows that clients add to a sum.

Clip: the bound on the row that one client adds to a sum, its sensitivity; fixed, or adaptive (Andrew et al.
2021).

Clip of a mask's moves: the bound on the change of a client's Bernoulli probabilities.

Weigh: clients are weighted by their number of examples, in runs without privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed import replayed
from dpfed.errors import ConfigError
from dpfed.randomness import Randomness
from dpfed.server.rules import ServerState
from dpfed.stages.stage import Round, Stage

# Relative reduction of the bound, so that the exact norm of a row of floats obeys it. Relative errors: 2^-24 for the
# factor and for each scaled entry, twice if a row is scaled by a root twice, 2.4e-7 in total; for the norm, summed in
# float64 over d entries, d 2^-54, 6e-7 for d = 10^10. Absolute error: 2^-150 for an entry that becomes a denormal
# number, 7e-41 in norm for 10^10 entries, below 1e-25 of the smallest clip norm that is allowed.
ROOM_FOR_ROUNDING = 1e-6
# A smaller factor would come near float32's denormal numbers, whose rounding the reduction does not cover. Its root is
# above 1e-31 for any clip norm that is allowed and any row of floats.
_SMALLEST_FACTOR = 1e-30


_LONG = 1 << 14
"""Shortest row whose largest magnitude is computed separately from other rows."""

_FARTHEST = 100.0
"""Largest exponent of one step: a factor e^100 leads from any clip norm to the largest one."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Geometric updates C <- C exp(-rate (b - quantile)), b a noisy estimate of the fraction of clients inside C.

    Every client adds b_i - 1/2 (b_i = 1 if its norm is within C) to a second sum. A row of zeros (of a client without
    samples) and a row that is not finite add 0 instead, so that a zeroed client adds 0 to both sums. So one client
    moves the count by 1/2 under add-remove and zero-out and by 1 under replace-one: half as much as a vector of norm 1.
    With Gaussian noise of standard deviation `count_noise_std` that sum is a Gaussian release of noise multiplier
    2 count_noise_std, on the cohort of the update sum. Both together must have the epsilon of one release of
    `noise_multiplier`, so the update sum gets the larger multiplier `update_noise_multiplier`. `cohort`: the expected
    number of clients of a round.
    """

    quantile: float
    rate: float
    count_noise_std: float
    cohort: float
    randomness: Randomness

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"privacy.adaptive.quantile={self.quantile}: must be strictly between 0 and 1.")
        for name in ("rate", "count_noise_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"privacy.adaptive.{name}={getattr(self, name)}: must be a finite number above 0.")

    @property
    def count_noise_multiplier(self) -> float:
        """Standard deviation of the count's noise, in units of the change by one client."""
        return 2 * self.count_noise_std

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return z_u with 1/z^2 = 1/z_u^2 + 1/(2 count_noise_std)^2 (Andrew et al. 2021, Theorem 1).

        Raises ConfigError if the count alone uses up the epsilon of the whole release.
        """
        if self.count_noise_multiplier <= noise_multiplier:
            raise ConfigError(
                f"privacy.adaptive.count_noise_std={self.count_noise_std} with privacy.noise_multiplier="
                f"{noise_multiplier}: must be above half of it, or the count alone would spend the budget. Andrew et "
                "al. use a twentieth of the cohort."
            )
        return float((noise_multiplier**-2 - self.count_noise_multiplier**-2) ** -0.5)

    def next_norm(self, norm: float, centred_count: float, number: int) -> float:
        """Return the next round's clip norm, from the sum of (b_i - 1/2) and the noise of round `number`."""
        return self.moved_norm(norm, self.noisy_count(centred_count, number))

    def noisy_count(self, centred_count: float, number: int) -> float:
        """Return the count of round `number` with its noise."""
        noisy = centred_count + self.count_noise_std * float(self.randomness.normal(1, "noise.count", number)[0])
        if (replay := replayed.current_replay()) is not None:
            return replay.mechanism("count of clients within the clip norm", centred_count, noisy, sensitivity=0.5)
        return noisy

    def moved_norm(self, norm: float, noisy_count: float) -> float:
        """Return the clip norm after `norm`, limited to the range of float32: post-processing of the noisy count."""
        fraction = noisy_count / self.cohort + 0.5
        power = min(max(-self.rate * (fraction - self.quantile), -_FARTHEST), _FARTHEST)
        return min(max(norm * math.exp(power), SMALLEST_CLIP), LARGEST_CLIP)


@dataclass(frozen=True, kw_only=True)
class Clip(Stage):
    """Clip of every row to L2 norm at most the round's clip norm C: the sensitivity of the sum (see `clip_rows`).

    adaptive: C changes from round to round by a noisy count of the rows inside it, and the count is part of the charge
              (`dpfed.mechanisms.gaussian`)
    """

    adaptive: AdaptiveClip | None = None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        clipped = clip_rows(rows, now.clip_norm)
        if now.observer is not None:
            now.observer.norms_before_clip(clipped.lengths)
        return count_clipped(clipped, now)

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        if self.adaptive is None:
            return state
        centred = (now.tally.inside - now.tally.outside) / 2
        return replace(state, clip_norm=self.adaptive.next_norm(now.clip_norm, centred, now.number))


@dataclass(frozen=True, kw_only=True)
class FixedClip(Stage):
    """Clip of every row to L2 norm at most `norm`, so that rows fit integers in runs without privacy."""

    norm: float

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return count_clipped(clip_rows(rows, self.norm), now)


@dataclass(frozen=True)
class DropNotFinite(Stage):
    """Filter without a bound: a row with NaN or infinity becomes zero, so that no client can end a round."""

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return count_clipped(drop_not_finite(rows), now)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedRows:
    """Bounded rows [c, k], masks [c] of rows inside and outside the bound, and the number of rows that were not finite.

    lengths: norms [c] of the rows before the clip, if the bound is on norms
    Rows of zeros and rows that were not finite are neither inside nor outside.
    """

    rows: Tensor
    inside: Tensor
    outside: Tensor
    not_finite: int
    lengths: Tensor = field(default_factory=lambda: torch.empty(0))


def count_clipped(clipped: ClippedRows, now: Round) -> Tensor:
    """Count clipped rows in the tally of the round, and return them."""
    now.tally.inside += int(clipped.inside.sum())
    now.tally.outside += int(clipped.outside.sum())
    now.tally.not_finite += clipped.not_finite
    return clipped.rows


def clip_rows(rows: Tensor, norm: float) -> ClippedRows:
    """Scale every row of [c, k], float32, to L2 norm at most `norm`; in place.

    Claim: every returned row has Euclidean norm <= norm, in exact arithmetic, for any input and k up to 10^10. The norm
    is computed in float64 (a client at 1e30 does not overflow) and a row with NaN or infinity becomes zero. Such a row,
    and a row of zeros, count as neither inside nor outside. Rows longer than norm (1 - ROOM_FOR_ROUNDING) are scaled to
    that length, so that rounding stays below the bound. `norm` is the sensitivity of a sum of rows under add-remove and
    zero-out, 2 norm under replace-one. A returned row depends bitwise on its own row alone. Raises ConfigError for a
    norm outside the range of float32 (`accounting.require.SMALLEST_CLIP`).
    """
    if not SMALLEST_CLIP <= norm <= LARGEST_CLIP:
        raise ConfigError(f"a clip norm of {norm}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}.")
    lengths = row_norms(rows)
    finite = torch.isfinite(lengths)
    within, largest = lengths <= norm, norm * (1 - ROOM_FOR_ROUNDING)
    factors = torch.where(finite & (lengths <= largest), 1.0, largest / lengths)
    if not bool((factors == 1).all()):
        small = finite & (factors < _SMALLEST_FACTOR)  # only these rows are scaled by the root, twice
        rows.mul_(torch.where(small, factors.sqrt(), factors).to(rows.dtype)[:, None])
        if bool(small.any()):
            rows.mul_(torch.where(small, factors.sqrt(), 1.0).to(rows.dtype)[:, None])
    if not bool(finite.all()):
        rows[~finite] = 0.0
    return ClippedRows(
        rows=rows,
        inside=within & (lengths > 0),
        outside=finite & ~within,
        not_finite=int((~finite).sum()),
        lengths=lengths,
    )


def drop_not_finite(rows: Tensor) -> ClippedRows:
    """Set rows with NaN or infinity to zero, in place, without a bound: for runs without privacy."""
    largest = largest_magnitudes(rows)
    finite = torch.isfinite(largest)
    if not bool(finite.all()):
        rows[~finite] = 0.0
    nowhere = torch.zeros_like(finite)
    return ClippedRows(rows=rows, inside=finite & (largest > 0), outside=nowhere, not_finite=int((~finite).sum()))


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norms [c] of rows [c, k], in float64."""
    if rows.device.type == "cpu" and len(rows):  # torch is up to twenty times as slow for several long rows at once
        return torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in rows])
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def largest_magnitudes(rows: Tensor) -> Tensor:
    """Return the largest magnitude [c] in each of rows [c, k]: NaN if a row has NaN, 0 if k = 0."""
    if not rows.shape[1] or not len(rows):
        return rows.new_zeros(len(rows))
    if rows.device.type == "cpu" and rows.shape[1] >= _LONG:  # row by row, without a copy: half the time
        ends = [torch.aminmax(row) for row in rows]
        return torch.stack([torch.maximum(least.abs(), most.abs()) for least, most in ends])
    return rows.abs().amax(dim=1)


@dataclass(frozen=True, kw_only=True)
class ClipMoves(Stage):
    """Clip of a client's move of theta to at most `linf` in each coordinate (None: no such bound) and L2 norm C.

    metric: "euclidean"; or "fisher", in which both bounds are on the move over sqrt(theta (1 - theta)), theta the
    round's public probabilities clipped to [edge, 1 - edge]. Claim: both bounds hold in exact arithmetic. With these
    bounds the Bernoulli samples (`dpfed.mechanisms.bernoulli.Coins`) are the charged ones.
    """

    linf: float | None
    metric: str = "euclidean"
    edge: float = 0.0

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.metric == "euclidean":
            return count_clipped(self.clip_to_bounds(rows, now.clip_norm), now)
        units = self.units(now.reference)
        clipped = self.clip_to_bounds(rows.div_(units), now.clip_norm)
        clipped.rows.mul_(units)
        return count_clipped(clipped, now)

    def units(self, reference: Tensor) -> Tensor:
        """Return the distance [k] that a coordinate moves for a move of 1 in the metric.

        The relative rounding error is at most 2^-22. The clip of rows in this unit lowers its bound by a relative
        `ROOM_FOR_ROUNDING`, which is more than this error and the rounding error of the product together.
        """
        return self._exact_units(reference).to(reference.dtype)

    def largest_bound_fraction(self, rows: Tensor, reference: Tensor, norm: float) -> float:
        """Return the largest fraction of either bound in rows [c, k]: at most 1 if all rows obey both bounds."""
        moves = rows if self.metric == "euclidean" else rows.double() / self._exact_units(reference)
        largest = float(row_norms(moves).max()) / norm
        return max(largest, float(largest_magnitudes(moves).max()) / self.linf) if self.linf else largest

    def _exact_units(self, reference: Tensor) -> Tensor:
        theta = reference.double().clamp(self.edge, 1 - self.edge)
        return (theta * (1 - theta)).sqrt()

    def clip_to_bounds(self, rows: Tensor, norm: float) -> ClippedRows:
        """Clip rows to both bounds, in place."""
        if self.linf is None:
            return clip_rows(rows, norm)
        # NaN and infinity stay, so that clip_rows finds them: an invalid row counts as zero, not as a large move.
        infinite = rows.isinf().any(dim=1)
        within = rows.abs().amax(dim=1) <= self.linf if rows.shape[1] else infinite.logical_not()
        largest = self.linf * (1 - ROOM_FOR_ROUNDING)  # float32 might round the clip itself upwards
        rows.clamp_(-largest, largest)
        rows[infinite] = float("nan")
        clipped = clip_rows(rows, norm)
        inside = clipped.inside & within
        return replace(clipped, inside=inside, outside=clipped.outside | (clipped.inside & ~inside))


@dataclass(frozen=True, kw_only=True, eq=False)
class Weigh(Stage):
    """Row i is multiplied by weights[i]; the sum of the weights is the divisor. Weights are public but depend on
    clients' numbers of examples, so no private chain has this stage.

    weights: [clients], float64
    """

    weights: NDArray[np.float64]

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        factors = torch.from_numpy(self.weights[ids]).to(rows.device, rows.dtype)
        return rows.mul_(factors[:, None])
