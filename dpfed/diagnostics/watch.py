"""Observer of a round, and what it records in diagnostics.jsonl: probes, and statistics of the noise.

Probes: products of a round's vectors with one public direction of random signs.

A linear step on vectors is the equal linear step on their probes, so an audit can recompute a round without its
vectors. Probed are the rows in the sum, the sum, its noise, the released sum, and the model before and after. Probes
depend on private data, so they are in diagnostics.jsonl, which only the operator may read.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft
from torch import Tensor

from dpfed.aggregation.ranks import Ranks
from dpfed.compress.counter import client_seeds, rademacher
from dpfed.compress.rotation import one_thread
from dpfed.mechanisms.integers import Integers
from dpfed.participation.sampling import Canaries, members_text
from dpfed.records.round import CanaryLine, ChosenCoordinates, Probes, RoundRecord, SumNoise
from dpfed.server.rules import ServerState
from dpfed.stages.chain import Stages, client_halves
from dpfed.stages.clip import Clip, ClipMoves, DropNotFinite, FixedClip, row_norms
from dpfed.stages.project import Project
from dpfed.stages.stage import Round, Tally

_SEED = 2_718_281_828
"""Seed of the direction, which no other stream starts from."""


@lru_cache(maxsize=4)
def direction(size: int, device: torch.device) -> Tensor:
    """Return signs [size], float32, equal in every run, round and process; the tensor must not be written to."""
    return rademacher(client_seeds([_SEED], 1).to(device), "audit.probe", size)[0]


@lru_cache(maxsize=4)
def _integer_direction(size: int, device: torch.device) -> Tensor:
    return direction(size, device).to(torch.int64)


def probe(rows: Tensor) -> Tensor:
    """Return the sum over rows [c, k] of their products with the direction, a scalar: int64 for integers (modulo 2^64),
    float64 for floats, with the rounding of sums in float32."""
    if rows.is_floating_point():
        return (rows @ direction(rows.shape[1], rows.device).to(rows.dtype)).double().sum()
    total = (rows[0] if len(rows) == 1 else rows.sum(dim=0)).to(torch.int64)
    signs = _integer_direction(len(total), rows.device)
    return torch.dot(total, signs) if total.device.type == "cpu" else (total * signs).sum()  # CUDA has no integer dot


def probe_of(vector: Tensor) -> int | float:
    """Return the probe of one vector [k] as a number for JSON; products of floats are computed in float64."""
    rows = vector[None]
    return probe(rows.double() if vector.is_floating_point() else rows).item()


_DIGESTED = 1 << 14
"""Number of entries of noise that its digest covers."""
_MOST_BINS = 1 << 18
"""Length above which noise is folded before its correlations are computed."""
CORRELATION_ERROR = 3e-5
"""Bound on the rounding error of a correlation of independent noise.

A transform of length n in float32 has L2 error e = 7 log2(n) 2^-24 relative to its result (Higham 2002, Theorem 24.2),
8e-6 for n = 2^19. By Cauchy and Schwarz the spectrum's error moves no r_l by more than 2 e, and the inverse's by e
|r| / r_0, which is about e sqrt(2).
"""


def noise_record(noise: Tensor, draws: int) -> SumNoise | None:
    """Return statistics of the noise [k], the sum of `draws` draws, in the units of the sum; None if the noise is zero.

    correlation: the largest magnitude of `correlations` (noise that repeats over coordinates correlates with itself)
    """
    exact = noise.double()
    least, most = torch.aminmax(exact)
    largest = max(-float(least), float(most))
    if largest == 0:
        return None
    return SumNoise(
        mean_square=float(exact @ exact) / noise.numel(),
        largest=largest,
        correlation=float(correlations(exact).abs().max()) if bin_count(noise.numel()) > 1 else 0.0,
        entries=noise.numel(),
        draws=draws,
        digest=digest(noise),
        probe=probe_of(noise),
    )


def bin_count(entries: int) -> int:
    """Return the number of bins into which `entries` entries are folded."""
    return entries // max(1, math.ceil(entries / _MOST_BINS))


def correlations(noise: Tensor) -> Tensor:
    """Return the autocorrelations r of noise [k], folded into m = `bin_count(k)` sums x of entries that are m apart.

        r_l = (x_1 x_{1+l} + ... + x_{m-l} x_m) / (x_1^2 + ... + x_m^2),   l = 1 ... m - 1

    Noise that repeats after P entries repeats in x, too. Computed in float32 on x divided by its largest magnitude:
    twice as fast as in float64. CORRELATION_ERROR bounds the error.
    """
    m = bin_count(noise.numel())
    folded = noise[: noise.numel() // m * m].view(-1, m).sum(dim=0)
    peak = folded.abs().max()
    if not float(peak) > 0:
        return torch.zeros(m - 1)
    length = fft.next_fast_len(2 * m - 1, real=True)
    scaled = (folded / peak).float()
    if scaled.device.type != "cpu":
        products = torch.fft.irfft(torch.fft.rfft(scaled, length).abs().square(), length)[:m]
    else:  # four times as fast as torch's on one core
        spectrum = fft.rfft(scaled.numpy(), length)
        products = torch.from_numpy(fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[:m])
    found: Tensor = products[1:] / products[0]
    return found


def digest(noise: Tensor) -> str:
    """Return the SHA-256 of the first entries of a noise vector; equal digests of two rounds mean that a seed was used
    twice."""
    return hashlib.sha256(noise[:_DIGESTED].detach().cpu().contiguous().numpy().data).hexdigest()


_PER_OCTAVE, _OCTAVES = 2, 16
_BINS = 2 * _OCTAVES * _PER_OCTAVE
"""Number of half-octave bins in which norms over the clip norm are counted; counts of processes can be added."""


class RoundWatch:
    """Observer of one round. No epsilon covers its records.

    arriving:      clients whose rows arrive in time
    largest_norm:  largest norm of a clipped row, over the clip norm (for Bernoulli probabilities: over the nearest of
                   their bounds, in that bound's metric); None: only clients have the rows
    typical_norm:  median norm of rows before they are clipped, over the clip norm; None: no row was observed
    longest_added: largest L2 norm of a row as it enters the sum (with noise in rows: as noise is added to it), in the
                   units of the sum; None: only clients have the rows
    shares, draws: sum of the noise in the rows that arrive, in their units, and its number of draws; None: rows have no
                   noise, or (noise_known false) only clients have it
    added_probe:   probe (`dpfed.diagnostics.watch`) of the rows in the sum that arrive; None: no row was observed
    rounding:      in a sum of integers without noise, a bound on the root mean square error of rounding a row, over the
                   median norm of rounded rows; None: no such sum, or only clients have the rows
    near_the_ends: number of entries of a sum of integers that have probably wrapped around
    released:      [k], the noisy sum that is released
    drawn:         noise that the server added, in the units of the sum, made of `drawn_draws` draws; if clients add
                   noise, the part that they have not added
    """

    def __init__(
        self,
        stages: Stages,
        now: Round,
        arriving: NDArray[np.int64],
        *,
        clients: int = 0,
        canaries: Canaries | None = None,
    ) -> None:
        self._clients, self._canaries = clients, canaries
        self._stages, self._clip_norm, self._bounded = stages, now.clip_norm, math.isfinite(now.clip_norm)
        self._reference = now.reference
        self.arriving = arriving
        self.largest_norm: float | None = 0.0
        self.longest_added: float | None = 0.0
        self.noise_known = self.clipping_known = True
        self.shares: Tensor | None = None
        self.draws = 0
        self.added_probe: Tensor | None = None
        self.near_the_ends: int | None = None
        self.released: Tensor | None = None
        self.drawn: Tensor | None = None
        self.drawn_draws = 0
        self._norms = zero_norm_counts()
        self._rounded = zero_norm_counts()
        self._before = torch.empty(0)
        self._measured: tuple[Tensor, int, float] | None = None
        self._summed: int | float | None = None

    @property
    def typical_norm(self) -> float | None:
        return median_norm(self._norms)

    @property
    def rounding(self) -> float | None:
        code = self._noiseless_code
        length = None if code is None else median_norm(self._rounded)
        return None if code is None or length is None else code.rounding / length

    @property
    def _noiseless_code(self) -> Integers | None:
        """The integer code if the sum is of integers without noise; rounding is then the only error. Else None."""
        return None if self._bounded else self._stages.find(Integers)

    def entering(self, stage: object, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Integers) and self._noiseless_code is not None:
            self._rounded += count_norms(row_norms(rows), stage.clip_norm)
        if self._noises_rows(stage):
            self._record_longest_row(rows)
            before = self._arrived_sum(rows, ids)
            self._before = before.clone() if len(rows) == 1 else before

    def norms_before_clip(self, norms: Tensor) -> None:
        if self._bounded:
            self._norms += count_norms(norms, self._clip_norm)

    def left(self, stage: object, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Clip | ClipMoves | FixedClip | DropNotFinite) and self._bounded and len(rows):
            if isinstance(stage, ClipMoves):
                part = stage.largest_bound_fraction(rows, self._reference, self._clip_norm)
            else:
                part = self._longest_norm(rows) / self._clip_norm
            self.largest_norm = max(self.largest_norm or 0.0, part)
        if self._noises_rows(stage):
            noise = torch.sub(self._arrived_sum(rows, ids), self._before, out=self._before)
            self.shares = noise if self.shares is None else self.shares.add_(noise)
            self.draws += int(np.isin(ids, self.arriving).sum())
            self._before = torch.empty(0)

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if not self._bounded:
            return
        comes = np.isin(ids, self.arriving)
        seen = probe(rows if comes.all() else rows[torch.from_numpy(comes).to(rows.device)])
        self.added_probe = seen if self.added_probe is None else self.added_probe + seen
        if not self._stages.noise_in_rows:
            self._record_longest_row(rows)

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        self.drawn, self.drawn_draws = noise, draws

    def summed(self, stage: object, total: Tensor) -> None:
        if self._summed is None and self._bounded:
            self._summed = probe_of(total)
        if self.near_the_ends is None and (integers := self._stages.find(Integers)) is not None:
            self.near_the_ends = integers.near_the_ends(total)
        if isinstance(stage, Project):
            self.released = total

    def gather(self, ranks: Ranks, now: Round) -> None:
        """Add up the measures and the noise of all ranks."""
        at = now.reference.device
        self.draws = int(ranks.sum_over_ranks(torch.tensor([self.draws])))
        self.largest_norm = ranks.largest_over_ranks(self.largest_norm or 0.0)
        self._norms = ranks.sum_over_ranks(self._norms)
        self._rounded = ranks.sum_over_ranks(self._rounded)
        dtype = self._stages.summed_as
        if self._stages.noise_in_rows:
            none = torch.zeros(self._stages.width, dtype=dtype, device=at)
            self.shares = ranks.sum_over_ranks(none if self.shares is None else self.shares)
        if self._bounded:
            self.longest_added = ranks.largest_over_ranks(self.longest_added or 0.0)
            kind = torch.float64 if dtype.is_floating_point else torch.int64
            mine = torch.zeros((), dtype=kind) if self.added_probe is None else self.added_probe
            self.added_probe = ranks.sum_over_ranks(mine.to(at))

    def noise_record(self) -> SumNoise | None:
        """Return statistics of the noise in the sum; None if no noise was observed."""
        parts = [one for one in (self.shares, self.drawn) if one is not None]
        if not parts or (self.shares is None and self._stages.noise_in_rows and len(self.arriving)):
            return None
        return noise_record(sum(parts[1:], parts[0]), self.draws + self.drawn_draws)

    @one_thread()
    def record(
        self,
        now: Round,
        *,
        moved: Tensor | None = None,
        divisor: float | None = None,
        after: ServerState | None = None,
        aborted: str | None = None,
    ) -> RoundRecord:
        """Return the record of an ended round, with its sum `moved` and the next state `after` (both None if
        aborted)."""
        tally = now.tally
        drawn = now.task.cohort[now.task.cohort < self._clients]
        facts = now.projection.description
        return RoundRecord(
            round=now.number + 1,
            cohort=len(drawn),
            members=members_text(drawn, self._clients),
            counted=tally.counted if self.clipping_known else None,
            clipped=tally.counted - tally.inside if self.clipping_known else None,
            not_finite=tally.not_finite,
            failed=tally.failed,
            failing=members_text(np.array(tally.failing), self._clients) if tally.failing else None,
            uplink_bytes=tally.uplink_bytes,
            mask_entropy=tally.mask_entropy,
            participants=len(now.task.participants),
            arrived=now.uploads,
            largest_norm=self.largest_norm,
            typical_norm=self.typical_norm,
            longest_added=self.longest_added,
            rounding=self.rounding,
            map=None if facts is None else ChosenCoordinates(**facts),
            noise_known=self.noise_known,
            aborted=aborted,
            divisor=divisor,
            noise=None if moved is None else self.noise_record(),
            near_the_ends=None if moved is None else self.near_the_ends,
            probes=None if moved is None or after is None else self._probes(now, moved, after),
            canaries=() if moved is None else self._canary_scores(now),
        )

    def _probes(self, now: Round, moved: Tensor, after: ServerState) -> Probes | None:
        """Return the probes of the round, from the rows in the sum to the next state; None if rows are not bounded."""
        if not self._bounded or self.released is None or self._summed is None:
            return None
        return Probes(
            added=None if self.added_probe is None else self.added_probe.item(),
            summed=self._summed,
            bits=self._stages.bits,
            filled=0.0 if self.drawn is None or not self._stages.noise_in_rows else probe_of(self.drawn),
            released=probe_of(self.released),
            moved=probe_of(moved),
            before=probe_of(now.broadcast),
            before_norm=float(torch.linalg.vector_norm(now.broadcast, dtype=torch.float64)),
            after=probe_of(after.broadcast),
        )

    def _canary_scores(self, now: Round) -> tuple[CanaryLine, ...]:
        """Return the score of every canary of the round: the released noisy sum's component along its bounded row."""
        if self._canaries is None or self.released is None:
            return ()
        present, absent = self._canaries.canaries_of_round(now.number)
        ids = np.concatenate([present, absent])
        apart = Round(task=now.task, projection=now.projection, reference=now.reference, tally=Tally())
        updates = self._canaries.updates(ids, self.released.device)
        rows = client_halves(self._stages.up_to_the_clip, updates, ids, apart).double()
        norms = torch.linalg.vector_norm(rows, dim=1)
        scores = rows @ self.released.double() / norms.square()
        return tuple(
            CanaryLine(
                round=now.number + 1,
                canary=int(one),
                present=index < len(present),
                score=float(score),
                norm=float(norm),
            )
            for index, (one, score, norm) in enumerate(zip(ids, scores, norms, strict=True))
        )

    def _noises_rows(self, stage: object) -> bool:
        return self._stages.noise_in_rows and stage is self._stages.private

    def _record_longest_row(self, rows: Tensor) -> None:
        """Record the norms of rows before noise is added to them."""
        if len(rows):
            self.longest_added = max(self.longest_added or 0.0, self._longest_norm(rows))

    def _longest_norm(self, rows: Tensor) -> float:
        """Return the norm of the longest row. Rows that were not written to since the clip are measured once. torch
        counts its own writes to a tensor, but not those of a custom stage by numpy, whose rows are measured again."""
        version = -1 if self._stages.own or rows.is_inference() else rows._version
        known = self._measured
        if known is not None and known[0] is rows and known[1] == version >= 0:
            return known[2]
        longest = float(row_norms(rows if rows.is_floating_point() else rows.double()).max())
        self._measured = rows, version, longest
        return longest

    def _arrived_sum(self, rows: Tensor, ids: NDArray[np.int64]) -> Tensor:
        """Return the sum [k] of the rows that arrive; the tensor must not be written to."""
        comes = np.isin(ids, self.arriving)
        if comes.all():
            return rows[0] if len(rows) == 1 else rows.sum(dim=0)
        return rows[torch.from_numpy(comes).to(rows.device)].sum(dim=0)


def zero_norm_counts() -> Tensor:
    """Return zero counts [bins] of norms."""
    return torch.zeros(_BINS, dtype=torch.int64)


def count_norms(norms: Tensor, clip_norm: float) -> Tensor:
    """Count norms [c] over the clip norm in [bins] from 2^-16 to 2^16; the end bins hold all smaller and larger ones.
    Norms that are not finite are not counted."""
    ratios = norms[torch.isfinite(norms)].cpu() / clip_norm
    places = ((torch.log2(ratios.clamp_min(2.0**-100)) + _OCTAVES) * _PER_OCTAVE).floor().long().clamp(0, _BINS - 1)
    return torch.bincount(places, minlength=_BINS)


def median_norm(counts: Tensor) -> float | None:
    """Return the median norm over the clip norm, within a factor of 2^(1/4); None if no norm was counted."""
    total = int(counts.sum())
    if not total:
        return None
    place = int(torch.searchsorted(counts.cumsum(0), (total + 1) // 2))
    return float(2.0 ** ((place + 0.5) / _PER_OCTAVE - _OCTAVES))
