"""The bound on what one client can add to a sum: THE sensitivity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.errors import ConfigError
from dpfed.server.state import ServerState
from dpfed.stages.adaptive_clip import AdaptiveClip
from dpfed.stages.stage import Round

# What the bound is lowered by, so that the exact norm of a row of floats keeps to it. Relative errors: of the factor
# and of each scaled entry 2^-24, twice over where it is scaled by a root twice, 2.4e-7 in all; of the norm, summed in
# float64 over d entries, d 2^-54, 6e-7 for d = 10^10. Absolute: 2^-150 an entry where it ends as a denormal number,
# 7e-41 in norm for as many, below 1e-25 of the smallest clip norm that is allowed.
ROOM_FOR_ROUNDING = 1e-6
# A smaller factor would come near float32's denormal numbers, whose rounding that room does not cover; its root is
# above 1e-31 for any clip norm that is allowed and any row of floats.
_SMALLEST_FACTOR = 1e-30


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Every row has L2 norm at most the round's clip norm C: the sensitivity of the sum (`clip_rows` has the claim).

    adaptive: C moves from round to round by a noisy count of the rows inside it, which is part of what is charged
              (`dpfed.mechanisms.gaussian`)
    """

    adaptive: AdaptiveClip | None = None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return counted(clip_rows(rows, now.clip_norm), now)

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        if self.adaptive is None:
            return state
        centred = (now.tally.inside - now.tally.outside) / 2
        return replace(state, clip_norm=self.adaptive.next_norm(now.clip_norm, centred, now.number))


@dataclass(frozen=True, kw_only=True)
class FixedClip:
    """Every row has L2 norm at most `norm`: what integers have room for where nothing is private."""

    norm: float

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return counted(clip_rows(rows, self.norm), now)

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total


@dataclass(frozen=True)
class DropNotFinite:
    """No bound: a row holding NaN or infinity becomes zero, so that no client can stop a round without privacy."""

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return counted(drop_not_finite(rows), now)

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Clipped:
    """Bounded rows [c, k], masks [c] of rows inside and outside the bound, and the number of rows that were not finite.

    Rows of zeros and rows that were not finite are neither inside nor outside.
    """

    rows: Tensor
    inside: Tensor
    outside: Tensor
    not_finite: int


def counted(clipped: Clipped, now: Round) -> Tensor:
    """The rows, after the round has counted them."""
    now.tally.inside += int(clipped.inside.sum())
    now.tally.outside += int(clipped.outside.sum())
    now.tally.not_finite += clipped.not_finite
    return clipped.rows


def clip_rows(rows: Tensor, norm: float) -> Clipped:
    """Scale every row of [c, k], float32, to L2 norm at most `norm`; in place.

    Claim: every returned row has Euclidean norm <= norm, in exact arithmetic, whatever came in, for k up to 10^10: the
    norm is taken in float64 (a client at 1e30 does not overflow) and a row holding NaN or infinity becomes zero. Such a
    row counts as neither inside nor outside, and neither does a row of zeros. Rows are scaled to, and left alone up to,
    norm (1 - ROOM_FOR_ROUNDING), so that rounding stays below the bound. This is the sensitivity of a sum of rows: norm
    under add-remove and zero-out, 2 norm under replace-one. ConfigError for a norm that float32 does not hold
    (`accounting.require.SMALLEST_CLIP`).
    """
    if not SMALLEST_CLIP <= norm <= LARGEST_CLIP:
        raise ConfigError(f"a clip norm of {norm}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}.")
    lengths = row_norms(rows)
    finite = torch.isfinite(lengths)
    within, largest = lengths <= norm, norm * (1 - ROOM_FOR_ROUNDING)
    factors = torch.where(finite & (lengths <= largest), 1.0, largest / lengths)
    if bool((factors[finite] < _SMALLEST_FACTOR).any()):  # by its root, twice
        roots = factors.sqrt().to(rows.dtype)[:, None]
        rows.mul_(roots).mul_(roots)
    elif not bool((factors == 1).all()):
        rows.mul_(factors.to(rows.dtype)[:, None])
    if not bool(finite.all()):
        rows[~finite] = 0.0
    return Clipped(
        rows=rows,
        inside=within & (lengths > 0),
        outside=finite & ~within,
        not_finite=int((~finite).sum()),
    )


def drop_not_finite(rows: Tensor) -> Clipped:
    """No bound, but a row holding NaN or infinity becomes zero: for runs without privacy. In place."""
    largest = largest_magnitudes(rows)
    finite = torch.isfinite(largest)
    if not bool(finite.all()):
        rows[~finite] = 0.0
    nowhere = torch.zeros_like(finite)
    return Clipped(rows=rows, inside=finite & (largest > 0), outside=nowhere, not_finite=int((~finite).sum()))


def row_norms(rows: Tensor) -> Tensor:
    """The L2 norms [c] of rows [c, k], float64, summed in float64."""
    if rows.device.type == "cpu" and len(rows):  # torch is up to twenty times as slow for several long rows at once
        return torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in rows])
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def largest_magnitudes(rows: Tensor) -> Tensor:
    """The largest magnitude [c] in each of rows [c, k]: NaN where there is one, 0 where k = 0."""
    return rows.abs().amax(dim=1) if rows.shape[1] else rows.new_zeros(len(rows))
