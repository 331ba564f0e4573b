"""Client-level privacy of a round: clip what is sent, add Gaussian noise to the sum, say what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.adjacency import Adjacency
from accounting.ledger import Release
from accounting.mechanisms import Gaussian, PoissonSampling, SingleRelease, simultaneous, subsample
from dpfed.errors import ConfigError
from dpfed.privacy.adaptive_clip import AdaptiveClip
from dpfed.privacy.clip import Clipped, clip_rows, drop_not_finite
from dpfed.randomness import Randomness
from dpfed.sampling import Sampler

Placement = Literal["server", "clients", "uploads"]


class Privacy(Protocol):
    """What happens to rows before they are summed, and to the sum before anybody sees it."""

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        """[c, k] with a known norm, in place."""

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        """Rows with the clients' own noise added, in place."""

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        """The sum [k] with the server's noise added, in place."""

    def release(self, norm: float, round: int, sent: int) -> Release | None:
        """What the round releases, for the ledger; None if nothing is private."""

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        """The clip norm of the next round."""


@dataclass(frozen=True, kw_only=True)
class NotPrivate:
    """No bound and no noise. Updates that are not finite still count as zero."""

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return drop_not_finite(rows)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        return total

    def release(self, norm: float, round: int, sent: int) -> Release | None:
        return None

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        return norm


@dataclass(frozen=True, kw_only=True)
class ClientLevelGaussian:
    """Clip every client's row to `norm` C, add N(0, (z C)^2) to every coordinate of the sum.

    Claim: a round is the Gaussian mechanism of noise multiplier `noise_multiplier` on the sampler's cohort, under
    `adjacency` with the client as the unit. placement "server" adds the noise once to the sum; "clients" adds
    N(0, (z C)^2 / r) to each of exactly r rows, which needs a cohort of known size: with Poisson sampling the noise
    would grow and shrink with the secret cohort, so that is refused; "uploads" adds N(0, (z C)^2) to every row,
    whatever is done to it afterwards, so each upload by itself is the Gaussian mechanism: it may be seen, sampling
    hides nothing, and a round is charged to everybody as if it took part. With `adaptive`, the noisy count of clients
    inside the bound is part of the same release and its cost is inside `noise_multiplier`.
    """

    noise_multiplier: float
    adjacency: Adjacency
    sampler: Sampler
    randomness: Randomness
    placement: Placement = "server"
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        if self.placement == "clients" and isinstance(self.sampler.law, PoissonSampling):
            raise ConfigError(
                "privacy.placement='clients' with federation.sampling='poisson': the noise of the sum would depend on "
                "the secret cohort size. Use privacy.placement='server', or federation.sampling 'fixed' or 'all'."
            )
        if self.placement == "uploads" and (self.adaptive is not None or self.adjacency is Adjacency.ADD_REMOVE):
            raise ConfigError(
                "privacy.release='uploads': who sends is seen, so adjacency is zero-out or replace-one, and there is "
                "no secret count for privacy.adaptive. Change them, or use release='sum'."
            )
        self.mechanism()  # refuses a sampler and adjacency that have no account, and an unaffordable count

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the update sum over C: `noise_multiplier`, or more where a count shares the budget."""
        if self.adaptive is None:
            return self.noise_multiplier
        return self.adaptive.update_noise_multiplier(self.noise_multiplier)

    def mechanism(self) -> SingleRelease:
        """One round, for the accountant, from the noise that is really drawn."""
        multipliers = [self.update_noise_multiplier]
        if self.adaptive is not None:
            multipliers.append(self.adaptive.count_noise_multiplier)
        joint = simultaneous(multipliers, self.adjacency) if len(multipliers) > 1 else None
        plain = Gaussian(noise_multiplier=self.noise_multiplier, adjacency=self.adjacency)
        if self.placement == "uploads":
            return plain
        return subsample(joint or plain, self.sampler.law)

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return clip_rows(rows, norm)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        if self.placement != "server":
            shares = self.sampler.expected if self.placement == "clients" else 1.0
            std = self.update_noise_multiplier * norm / shares**0.5
            for row, client in zip(rows, clients, strict=True):
                row.add_(self._normal(row, "noise.share", round, int(client)), alpha=std)
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        if self.placement == "server":
            total.add_(self._normal(total, "noise.sum", round), alpha=self.update_noise_multiplier * norm)
        return total

    def release(self, norm: float, round: int, sent: int) -> Release:
        detail: dict[str, float] = {"dimension": sent, "divided_by": self.sampler.expected}
        if self.adaptive is not None:
            detail["count_noise_std"] = self.adaptive.count_noise_std
        return Release(
            round=round,
            mechanism=self.mechanism(),
            clip_norm=norm,
            noise_std=self.update_noise_multiplier * norm,
            noise_placement=self.placement,
            detail=detail,
        )

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        if self.adaptive is None:
            return norm
        noise = float(self.randomness.normal(1, "noise.count", round)[0])
        return self.adaptive.next_norm(norm, centred_count, noise, self.sampler.expected)

    def _normal(self, like: Tensor, purpose: str, *path: int) -> Tensor:
        return self.randomness.normal(like.numel(), purpose, *path, device=str(like.device))
