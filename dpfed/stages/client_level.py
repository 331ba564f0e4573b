"""Client-level privacy of a round: clip what is sent, add Gaussian noise to the sum, say what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import Gaussian, PoissonSampling, SingleRelease, simultaneous, subsample
from accounting.mechanisms.adjacency import Adjacency
from dpfed.errors import ConfigError
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.stages.adaptive_clip import AdaptiveClip
from dpfed.stages.clip import Clipped, clip_rows, drop_not_finite

Placement = Literal["server", "clients", "uploads"]


class Privacy(Protocol):
    """What happens to rows before they are summed, and to the sum before anybody sees it.

    `on_integers`: noise is added to what the code made of the rows, and to their sum before it is decoded; otherwise to
    rows before the code, and to what the sum decodes to.
    """

    @property
    def on_integers(self) -> bool: ...

    @property
    def in_shares(self) -> bool:
        """Whether rows carry noise."""

    @property
    def in_every_upload(self) -> bool:
        """Whether each upload is a release by itself, whoever sees it."""

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        """[c, k] with a known norm, in place."""

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        """Rows with the clients' own noise added, in place."""

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        """The sum [k] with the server's noise added, in place."""

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release | None:
        """What the round releases, for the ledger: a sum of `uploads` rows. None if nothing is private."""

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        """The clip norm of the next round."""


@dataclass(frozen=True, kw_only=True)
class NotPrivate:
    """No noise, and no bound but the `largest` norm that integers have room for. What is not finite counts as zero."""

    largest: float = math.inf

    @property
    def on_integers(self) -> bool:
        return False

    @property
    def in_shares(self) -> bool:
        return False

    @property
    def in_every_upload(self) -> bool:
        return False

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return drop_not_finite(rows) if self.largest == math.inf else clip_rows(rows, self.largest)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        return total

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release | None:
        return None

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        return norm


@dataclass(frozen=True, kw_only=True)
class ClientLevelGaussian:
    """Clip every client's row to `norm` C, add N(0, (z C)^2) to every coordinate of the sum.

    Claim: a round is the Gaussian mechanism of noise multiplier `noise_multiplier` on the sampler's cohort, under
    `adjacency` with the client as the unit. placement "server" adds the noise once to the sum; "clients" adds
    a share of it to each of exactly r rows, which needs a cohort of known size: with Poisson sampling the noise
    would grow and shrink with the secret cohort, so that is refused, and so is add-remove, where a client more is a
    share more; "uploads" adds N(0, (z C)^2) to every row,
    whatever is done to it afterwards, so each upload by itself is the Gaussian mechanism: it may be seen, sampling
    hides nothing, and a round is charged to everybody as if it took part. With `adaptive`, the noisy count of clients
    inside the bound is part of the same release and its cost is inside `noise_multiplier`.

    The sum must be one of numbers that nothing has reduced: noise that is added after a reduction modulo 2^b hides no
    wrap-around. So secure sums take `dpfed.stages.integer_sums` instead; `dpfed.methods.sums.check_sums` refuses this.

    shares:    a share is N(0, (z C)^2 / shares); r, or fewer, so that with as few uploads the noise still suffices
               (more of it is post-processing). The caller releases no sum of fewer.
    charged:   instead, shares are N(0, (z C)^2 / r), and a round is charged with the noise that arrived. Sound if who
               is lost does not depend on data, and every released round is charged. The number that arrived then is
               in the ledger, as a part of the charge: of a number that is fixed, and so a count of dropouts alone.
    """

    noise_multiplier: float
    adjacency: Adjacency
    sampler: Sampler
    randomness: Randomness
    placement: Placement = "server"
    adaptive: AdaptiveClip | None = None
    shares: int | None = None
    charged: bool = False

    def __post_init__(self) -> None:
        if self.placement == "clients" and isinstance(self.sampler.law, PoissonSampling):
            raise ConfigError(
                "privacy.placement='clients' with federation.sampling='poisson': the noise of the sum would depend on "
                "the secret cohort size. Use privacy.placement='server', federation.sampling 'fixed' or 'all', or "
                "privacy.noise='discrete-gaussian', whose sums always hold as many shares."
            )
        if self.placement == "clients" and self.adjacency is Adjacency.ADD_REMOVE:
            raise ConfigError(
                "privacy.placement='clients' with privacy.adjacency='add-remove': a client more or less is a share of "
                "noise more or less, which no account covers. Use adjacency 'zero-out' or 'replace-one'."
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

    def mechanism(self, noise: float = 1.0) -> SingleRelease:
        """One round, for the accountant, from the noise that is really drawn, times `noise` where some is missing."""
        multipliers = [noise * self.update_noise_multiplier]
        if self.adaptive is not None:
            multipliers.append(self.adaptive.count_noise_multiplier)
        joint = simultaneous(multipliers, self.adjacency) if len(multipliers) > 1 else None
        plain = Gaussian(noise_multiplier=noise * self.noise_multiplier, adjacency=self.adjacency)
        if self.placement == "uploads":
            return plain
        return subsample(joint or plain, self.sampler.law)

    @property
    def on_integers(self) -> bool:
        return False

    @property
    def in_shares(self) -> bool:
        return self.placement != "server"

    @property
    def in_every_upload(self) -> bool:
        return self.placement == "uploads"

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return clip_rows(rows, norm)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        if self.placement != "server":
            std = self._share_std(norm)
            for row, client in zip(rows, clients, strict=True):
                row.add_(self._normal(row, "noise.share", round, int(client)), alpha=std)
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        if self.placement == "server":
            total.add_(self._normal(total, "noise.sum", round), alpha=self.update_noise_multiplier * norm)
        return total

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release:
        detail: dict[str, float] = {"dimension": sent, "divided_by": self.sampler.expected}
        if self.adaptive is not None:
            detail["count_noise_std"] = self.adaptive.count_noise_std
        if self.placement == "clients":
            shares = uploads if self.charged else self._shares
            detail |= {"shares": shares, "share_std": self._share_std(norm)}
        arrived = (uploads / self.sampler.expected) ** 0.5 if self.charged else 1.0
        return Release(
            round=round,
            mechanism=self.mechanism(arrived),
            clip_norm=norm,
            noise_std=self.update_noise_multiplier * norm * arrived,
            noise_placement=self.placement,
            detail=detail,
        )

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        if self.adaptive is None:
            return norm
        noise = float(self.randomness.normal(1, "noise.count", round)[0])
        return self.adaptive.next_norm(norm, centred_count, noise, self.sampler.expected)

    def _share_std(self, norm: float) -> float:
        shares = self._shares if self.placement == "clients" else 1.0
        return float(self.update_noise_multiplier * norm / shares**0.5)

    @property
    def _shares(self) -> int:
        """Shares that are the whole noise."""
        return self.shares or int(self.sampler.expected)

    def _normal(self, like: Tensor, purpose: str, *path: int) -> Tensor:
        return self.randomness.normal(like.numel(), purpose, *path, device=str(like.device))
