"""Dithered quantiser with an exactly Gaussian error for every input; the error is the noise that makes a round private.

The density of N(0, s^2) is a mixture of uniform densities. Its right half is unchanged and its left half turned upside
down; the area under it is cut into slices, one for each height t in (0, 1) of the peak,

    (-s r(1 - t), s r(t)),   r(t) = sqrt(-2 ln t),   of width s w(t) >= s w(1/2) = 2.3548 s

(the shifted layers of Wilson 2000, Layered Multishift Coupling; for uploads: Hegazy, Leluc, Li, Dieuleveut 2024,
Compression with Exact Error Distribution for Federated Learning). A slice is drawn by a point Z under the density, with
a subtractive dither D in the slice:

    Z ~ N(0, 1),  V ~ U(0, 1],  h = V exp(-Z^2 / 2),  t = h if Z > 0 else 1 - h;   D ~ U[-1/2, 1/2)
    sent m = round(x / (s w) - D),   decoded y = s (w (m + D) + (r(t) - r(1 - t)) / 2),   y - x ~ N(0, s^2)

Client and server draw the same Z, V, D; only m is sent. m is 0 except with probability at most |x| / (s w).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting import mechanisms
from accounting.ledger import Release
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.fields import Reader, SymbolField
from dpfed.config.privacy_tables import DitheredPrivacy
from dpfed.errors import ConfigError, DpfedError, WireError
from dpfed.mechanisms.target import NoiseSettings, PrivacyTarget
from dpfed.randomness import Randomness
from dpfed.stages.clip import Clip
from dpfed.stages.stage import Private, Round

NARROWEST = 2 * math.sqrt(2 * math.log(2))
"""Width w(1/2) of the narrowest slice, in standard deviations."""
LONGER = 1e-9
"""Probability that a message is longer than its counted length."""
_MOST_SYMBOLS = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class DitheredNoise(Private):
    """Noise by quantisation: every row has an error N(0, (z C)^2 / K), and is decoded by a trusted server.

    Claim: after a stage that clips, a round is `noise`, Gaussian noise in K = `noise.shares` shares, on a cohort of
    `sampling`, with the client as the unit, for an observer of the sum without the uploads. The error does not depend
    on the row, so the sum of m decoded rows is the sum of the rows plus N(0, (z C)^2 m / K). The server draws the
    shares of the K - m uploads that do not arrive. So the noise of the sum does not depend on the cohort: noise that
    grew with the cohort would reveal who was drawn. More than K clients never take part (`CappedPoissonSampling`). A
    client that sends nothing is treated as sending zeros, whose sum has noise, too.
    Source: Hegazy, Leluc, Li, Dieuleveut 2024; docs/theory.md, section 9. Adjacency: zero-out or replace-one.

    An observer of the draws Z, V, D can compute x from a message up to the width of its slice. So the server must be
    trusted, a client's draws must be secret between server and client, and the other clients must have drawn theirs.
    The draws are floating-point numbers, as in `GaussianNoise`: for experiments.

    >>> from accounting.mechanisms import FullParticipation, GaussianShares
    >>> from dpfed.randomness import Simulated
    >>> from dpfed.seeds import Seeds
    >>> shares = GaussianShares(noise_multiplier=1.0, adjacency="zero-out", shares=10)
    >>> randomness = Simulated(seeds=Seeds(root=0))
    >>> dithered = DitheredNoise(noise=shares, sampling=FullParticipation(), divided_by=10.0, randomness=randomness)
    >>> dithered.mechanism().shares
    10
    """

    noise: mechanisms.GaussianShares
    sampling: mechanisms.Sampling
    divided_by: float
    randomness: Randomness
    rests_on = (Clip,)

    def __post_init__(self) -> None:
        if self.alphabet > _MOST_SYMBOLS:
            raise ConfigError(
                f"noise multiplier {self.noise.noise_multiplier} over {self.noise.shares} clients with dp-dithered: "
                f"its messages would have {self.alphabet} levels, at most {_MOST_SYMBOLS} are possible. Use more "
                "noise, or dp-fedavg."
            )

    @classmethod
    def calibrated(cls, table: DitheredPrivacy, run: NoiseSettings) -> PrivacyTarget:
        """Return the target of a run with the noise of [privacy], calibrated by its account if an epsilon is given.

        Each upload has a share of the noise; under Poisson sampling the shares are those of federation.cohort_cap
        uploads.
        """
        who, law = run.who, run.who.law
        adjacency = Adjacency.of(table.adjacency or law.base_adjacency(Adjacency.ZERO_OUT))

        def run_with_whole_noise(z: float) -> mechanisms.Composed:
            noise = mechanisms.Gaussian(noise_multiplier=z, adjacency=adjacency)
            return mechanisms.repeated(mechanisms.subsample(noise, law), run.config.charged_rounds)

        sampling = law if law.probability < 1 else mechanisms.FullParticipation()
        z = run.multiplier(table, run_with_whole_noise, adjacency, sampling)
        shares = law.cohort_cap or int(who.expected)
        noise = mechanisms.GaussianShares(noise_multiplier=z, adjacency=adjacency, shares=shares)
        made = cls(noise=noise, sampling=law, divided_by=who.expected, randomness=run.randomness)
        return run.target(made, Clip(), z=z, clip=table.clip_norm)

    @property
    def levels(self) -> int:
        """Largest |m| of a row within the clip norm."""
        return math.floor(math.sqrt(self.noise.shares) / (self.noise.noise_multiplier * NARROWEST) + 1)

    @property
    def alphabet(self) -> int:
        return 2 * self.levels + 1

    @property
    def slots(self) -> int:
        """Number of shares of which the noise of a sum is made."""
        return self.noise.shares

    @property
    def in_rows(self) -> bool:
        return True

    def mechanism(self, uploads: int | None = None) -> mechanisms.SingleRelease:
        """Return one round, for the accountant, equal for any number of uploads."""
        return mechanisms.subsample(self.noise, self.sampling)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        for row, client in zip(rows, ids, strict=True):
            slices = self._client_slices(row, now, int(client))
            row.copy_(slices.dequantise(slices.symbols(row)))
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        missing = self.noise.shares - now.uploads
        if missing < 0:
            raise DpfedError(f"a sum has {now.uploads} uploads with noise, more than its {self.noise.shares} shares.")
        if not missing:
            return total
        std = self._std(now.clip_norm) * math.sqrt(missing)
        normal = self.randomness.normal(total.numel(), "noise.missing", now.number, device=str(total.device))
        noise = normal.mul_(std)
        if now.observer is not None:
            now.observer.noise(noise, draws=missing)
        return total + noise

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        return [
            self._field(len(row)).write(self._symbols(row, now, int(client))).content
            for row, client in zip(rows, ids, strict=True)
        ]

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        rows = torch.empty(len(messages), len(now.reference), device=now.reference.device)
        for row, message, client in zip(rows, messages, ids, strict=True):
            reader = Reader(content=message)
            symbols = self._field(len(row)).read(reader).astype(np.int64) - self.levels
            if reader.at != len(message):
                raise WireError(f"{len(message) - reader.at} bytes after the symbols. Drop the client's message.")
            row.copy_(self._client_slices(row, now, int(client)).dequantise(torch.from_numpy(symbols).to(row.device)))
        return rows

    def fixed_bits(self, size: int) -> int:
        """Return the counted bits of a message. Its length depends on the row, and is within them with probability 1 -
        LONGER.
        """
        return 8 * self._field(size).bytes_with(most_nonzero(size, self.noise.shares, self.noise.noise_multiplier))

    def release(self, now: Round) -> Release:
        std = self._std(now.clip_norm)
        return Release(
            round=now.number,
            mechanism=self.mechanism(),
            clip_norm=now.clip_norm,
            noise_std=self.noise.noise_multiplier * now.clip_norm,
            noise_placement="clients",
            detail={
                "dimension": now.projection.sent,
                "divided_by": self.divided_by,
                "shares": self.noise.shares,
                "share_std": std,
                "filled": True,
            },
        )

    def _std(self, norm: float) -> float:
        """Return s, the standard deviation of one upload's error."""
        return self.noise.noise_multiplier * norm / math.sqrt(self.noise.shares)

    def _field(self, size: int) -> SymbolField:
        return SymbolField(alphabet=self.alphabet, count=size)

    def _symbols(self, row: Tensor, now: Round, client: int) -> NDArray[np.int64]:
        symbols: NDArray[np.int64] = self._client_slices(row, now, client).symbols(row).cpu().numpy()
        return symbols + self.levels

    def _client_slices(self, row: Tensor, now: Round, client: int) -> _Slices:
        path, device = (now.number, client), str(row.device)
        uniform = torch.from_numpy(self.randomness.uniform(2 * len(row), "noise.dither", *path)).to(device)
        return _Slices.of(
            points=self.randomness.normal(len(row), "noise.slice", *path, device=device),
            heights=uniform[: len(row)],
            dither=uniform[len(row) :] - 0.5,
            std=self._std(now.clip_norm),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Slices:
    """Slice of every coordinate, in the units of rows: its width, its midpoint, and the dither in it."""

    widths: Tensor
    middles: Tensor
    dither: Tensor

    @staticmethod
    def of(*, points: Tensor, heights: Tensor, dither: Tensor, std: float) -> _Slices:
        """Return the slices of points Z and heights 1 - V, computed in float64."""
        z = points.double()
        under = (1 - heights).mul_(z.square().mul_(-0.5).exp_())
        t = torch.where(points > 0, under, 1 - under).clamp_(2.0**-1000, 1 - 2.0**-53)
        right, left = _radius(t.log()), _radius(torch.log1p(-t))
        return _Slices(widths=(right + left).mul_(std), middles=(right - left).mul_(std / 2), dither=dither)

    def symbols(self, row: Tensor) -> Tensor:
        """Return the symbols m, int64."""
        return (row.double() / self.widths).sub_(self.dither).round_().to(torch.int64)

    def dequantise(self, symbols: Tensor) -> Tensor:
        """Return the dequantised row y."""
        return (symbols + self.dither).mul_(self.widths).add_(self.middles)


def _radius(log: Tensor) -> Tensor:
    """Return r(t) from the logarithm of the height t."""
    return log.mul(-2).sqrt_()


def most_nonzero(size: int, shares: int, noise_multiplier: float) -> int:
    """Return a number that the count of non-zero m of a clipped row exceeds with probability at most LONGER.

    Each m is independently not 0 with probability at most |x| / (2.3548 s). These sum to at most mu = sqrt(d) C /
    (2.3548 s), by Cauchy and Schwarz; and Pr[N >= k] <= e^-mu (e mu / k)^k for k > mu (Chernoff 1952).
    """
    mu = math.sqrt(size * shares) / (NARROWEST * noise_multiplier)
    least = math.ceil(mu)

    def is_rare(k: int) -> bool:
        return k > mu and k - mu + k * math.log(mu / k) <= math.log(LONGER)

    return min(least + bisect_left(range(least, size), True, key=is_rare), size)
