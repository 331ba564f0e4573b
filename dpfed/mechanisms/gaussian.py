"""Gaussian noise on a sum of clipped rows: drawn by the server, in shares by the clients, or on every upload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.budget import NoiseSchedule
from accounting.budget.certificates import sampled_run as sampled_run
from accounting.budget.correlated import BandedNoise, BufferedNoise
from accounting.ledger import Release
from accounting.mechanisms import (
    BallsAndBins,
    Composed,
    CorrelatedRounds,
    FullParticipation,
    Gaussian,
    SingleRelease,
    Subsampled,
    noise_matrix,
    simultaneous,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.aggregation.sums import least_uploads
from dpfed.compress.payload import LARGEST_ENTRY
from dpfed.config.privacy_tables import GaussianPrivacy
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.mechanisms.correlated import Correlated
from dpfed.mechanisms.target import NoiseSettings, PrivacyTarget
from dpfed.participation.sampling import stream_of
from dpfed.randomness import SHARE, Randomness
from dpfed.stages.clip import AdaptiveClip, Clip
from dpfed.stages.stage import Private, Round

Placement = Literal["server", "clients", "uploads"]

LARGEST_SHARE = LARGEST_ENTRY / 100
"""Largest standard deviation of a share of noise: an upload with an entry above LARGEST_ENTRY counts as zero."""


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Private):
    """Gaussian noise N(0, (z C)^2) on every coordinate of a sum of rows of L2 norm at most C, the round's clip norm.

    Claim: after a stage that clips, a round is `noise` on the sampler's cohort, with the client as the unit.

    placement "server": the noise is added once, to the sum.
    placement "clients": a share of the noise is added to each of exactly r rows, which needs a cohort of known size.
        Poisson sampling is rejected, because the noise would vary with the secret cohort; so is add-remove, under which
        one client added is one share added.
    placement "uploads": N(0, (z C)^2) is added to every row, so each upload alone is the Gaussian mechanism, for any
        later processing. An upload may be visible, so sampling does not amplify. A round is charged to every client as
        if it took part or, if the order is public (cyclic), to the clients whose turn it is.

    With `adaptive`, the noisy count of clients inside the bound is part of the release and is charged inside `noise`.
    Source: Balle, Wang 2018; docs/theory.md, sections 3 to 5. Units: the noise multiplier over the clip norm C.
    Adjacency: any; add-remove not with shares or single uploads. Errors: ConfigError for a placement without an
    account.

    The sum must be one of unreduced numbers: noise that is added after a reduction modulo 2^b hides no wrap-around. So
    secure sums use `dpfed.mechanisms.integers` instead.

    shares:      a share is N(0, (z C)^2 / shares). The number is r, or fewer, so that the noise suffices even if only
                 that many uploads arrive (further noise is post-processing). The caller releases no sum of fewer
                 uploads.
    correlated:  later rounds cancel a part of a round's noise. Then `noise` is the fresh noise, and rounds are charged
                 together, as one stream of its matrix (`accounting.factorisation`). Under
                 balls-and-bins it is the sampler's schedule in lanes, with the coefficients of its bands.
    schedule:    factors of the noise multiplier over the rounds, fixed beforehand; each round is charged with its
                 factor.
    charged:     True: shares are N(0, (z C)^2 / r), and a round is charged with the noise that arrived. Sound if
                 dropouts do not depend on data, and every released round is charged. The number that arrived is then in
                 the ledger, as a part of the charge: of a fixed number, so it only counts dropouts.

    >>> from accounting.budget import Poisson
    >>> from dpfed.randomness import Secure
    >>> drawn = Poisson(cohort=15).cohorts(600)
    >>> noise = Gaussian(noise_multiplier=1.4, adjacency="add-remove")
    >>> GaussianNoise(noise=noise, sampler=drawn, randomness=Secure()).mechanism().sampling
    PoissonSampling(probability=0.025)
    """

    noise: Gaussian
    sampler: Sampler
    randomness: Randomness
    placement: Placement = "server"
    adaptive: AdaptiveClip | None = None
    shares: int | None = None
    charged: bool = False
    correlated: CorrelatedRounds | BallsAndBins | None = None
    schedule: NoiseSchedule | None = None
    rests_on = (Clip,)

    def __post_init__(self) -> None:
        law = self.sampler.law
        if self.placement == "clients" and not (law.fixed_size or law.takes_all):
            raise ConfigError(
                f"privacy.placement='clients' with federation.sampling={law.name!r}: the noise of the sum "
                "would depend on the secret cohort size. Use privacy.placement='server', federation.sampling 'fixed' "
                "or 'all', or privacy.noise='discrete-gaussian', whose sums always have a fixed number of shares."
            )
        if self.placement == "clients" and self.adjacency is Adjacency.ADD_REMOVE:
            raise ConfigError(
                "privacy.placement='clients' with privacy.adjacency='add-remove': one client added or removed "
                "changes the noise by a share, which no account covers. Use adjacency 'zero-out' or 'replace-one'."
            )
        if self.placement == "uploads" and (self.adaptive is not None or self.adjacency is Adjacency.ADD_REMOVE):
            raise ConfigError(
                "privacy.release='uploads': senders are visible, so adjacency must be zero-out or replace-one, and "
                "there is no secret count for privacy.adaptive. Change them, or use release='sum'."
            )
        if self.correlated is not None:
            _check_separation(self.correlated, self.sampler)
        self.mechanism()  # refuses a sampler and adjacency without an account, and a count that exceeds the budget

    @classmethod
    def calibrated(cls, table: GaussianPrivacy, run: NoiseSettings) -> PrivacyTarget:
        """Return the target of a run with the noise of [privacy], calibrated by its account if an epsilon is given."""
        config, who = run.config, run.who
        uploads, in_shares = table.release == "uploads", table.placement == "clients"
        charged, law = table.missing_shares == "charged" and in_shares, who.law
        least = least_uploads(int(who.expected), run.tolerance) if in_shares else None
        # Adding or removing one client would add or remove a share of noise, or an upload.
        kept = uploads or (in_shares and law.takes_all)
        kept |= law.turns_follow_ids  # else one client added would change the turns of others
        default = Adjacency.ZERO_OUT if kept else law.base_adjacency(Adjacency.ADD_REMOVE)
        plain = cls(
            noise=Gaussian(noise_multiplier=1.0, adjacency=Adjacency.of(table.adjacency or default)),
            sampler=who,
            randomness=run.randomness,
            placement="uploads" if uploads else table.placement,
            shares=None if charged else least,
            charged=charged,
            correlated=_correlated_noise(table, config, who),
            schedule=None
            if table.noise_schedule is None
            else NoiseSchedule(factors=table.noise_schedule, rounds=config.federation.rounds),
        )
        z = run.multiplier(
            table,
            lambda z: replace(plain._with_multiplier(z), charged=False).run(config.charged_rounds),
            plain.adjacency,
            law if isinstance(plain.mechanism(), Subsampled) else FullParticipation(),
            lambda z: z * (1 - config.aggregation.dropout) ** -0.5 if charged else z,
        )
        noise = plain._with_multiplier(z)
        if table.certificate == "sampled":
            sampled_run(noise.run(config.federation.rounds))  # raises if no sampled certificate covers the run
        if table.adaptive is not None:
            # A twentieth of the cohort, as Andrew et al. 2021; more in a small cohort, where the count would use all
            # noise.
            count = AdaptiveClip(
                quantile=table.adaptive.quantile,
                rate=table.adaptive.rate,
                count_noise_std=table.adaptive.count_noise_std or max(who.expected / 20, z),
                cohort=who.expected,
                randomness=run.randomness,
            )
            noise = replace(noise, adaptive=count)
        clip = Clip(adaptive=noise.adaptive)
        target = run.target(noise, clip, z=z, clip=table.clip_norm, least_uploads=least if charged else None)
        noise._share_std(target.clip_norm)  # refuses shares that an upload cannot hold
        return target

    def _with_multiplier(self, noise_multiplier: float) -> GaussianNoise:
        return replace(self, noise=replace(self.noise, noise_multiplier=noise_multiplier))

    def in_round(self, number: int, uploads: int | None = None) -> SingleRelease:
        return self.mechanism(uploads) if self.schedule is None else self._release_with(self._factor(number))

    def run(self, rounds: int, uploads: int | None = None) -> Composed:
        if self.schedule is None:
            return super().run(rounds, uploads)
        return Composed.of([self.in_round(number) for number in range(rounds)])

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of `noise`: its name up to version 0.3."""
        return self.noise.noise_multiplier

    @property
    def adjacency(self) -> Adjacency:
        """Neighbours of `noise`: their name up to version 0.3."""
        return self.noise.adjacency

    @property
    def update_noise_multiplier(self) -> float:
        """Noise on the update sum over C: that of `noise`, or more if a count shares the budget."""
        z = self.noise_multiplier
        return z if self.adaptive is None else self.adaptive.update_noise_multiplier(z)

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """Return one round, for the accountant, with the noise as drawn, or with the noise of `uploads` shares.

        Under a schedule: the round with the largest epsilon.
        """
        return self._release_with(self._arrived_part(uploads)) if self.charged else self._whole_release

    def _factor(self, number: int) -> float:
        """Return the factor of the noise multiplier in round `number`."""
        return 1.0 if self.schedule is None else self.schedule.factor(number)

    @cached_property
    def _whole_release(self) -> SingleRelease:
        return self._release_with(1.0 if self.schedule is None else self.schedule.smallest_factor)

    def _release_with(self, part: float) -> SingleRelease:
        """Return the release of a round's sum, or uploads, with the fraction `part` of the noise; no other code derives
        it.
        """
        noise = replace(self.noise, noise_multiplier=part * self.noise_multiplier)
        if self.adaptive is not None:
            multipliers = part * self.update_noise_multiplier, self.adaptive.count_noise_multiplier
            noise = simultaneous(multipliers, self.adjacency)
        if self.placement == "uploads" and not self.sampler.law.public_order:
            return noise
        return subsample(noise, self.correlated or self.sampler.law)

    @property
    def covers_feedback(self) -> bool:
        """True if clients may remember their earlier rounds.

        The condition: a client does not affect the participation of other clients, and on one of two neighbouring
        datasets it sends nothing (docs/theory-participation.md, Theorem 4).
        """
        alone = self.adjacency is not Adjacency.REPLACE_ONE and not self.sampler.law.displaces
        return self.placement == "server" and alone

    @property
    def in_rows(self) -> bool:
        return self.placement != "server"

    @property
    def in_every_upload(self) -> bool:
        return self.placement == "uploads"

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.placement != "server":
            std = self._share_std(now.clip_norm)
            for row, client in zip(rows, ids, strict=True):
                row.add_(self._draw_normals(row, SHARE, now.number, int(client)), alpha=std)
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        if self.placement != "server":
            return total
        noise = self._fresh_noise(total, now.number, now)
        if now.observer is not None:
            now.observer.noise(noise)
        past = self._past_noise
        if past is None:
            return total + noise
        return total + past.noise(noise, now.number, lambda earlier: self._fresh_noise(total, earlier, now))

    @cached_property
    def _past_noise(self) -> Correlated | None:
        """Noise of earlier rounds, kept by this instance only; None if the rounds' noise is independent."""
        matrix = None if self.correlated is None else noise_matrix(self.correlated)
        return None if matrix is None else Correlated(law=matrix)

    def _fresh_noise(self, like: Tensor, number: int, now: Round) -> Tensor:
        """Return the fresh noise of a round's sum."""
        noise = self.update_noise_multiplier * self._factor(number)
        return self._draw_normals(like, "noise.sum", number).mul_(noise * now.clip_norm)

    def release(self, now: Round) -> Release:
        norm, uploads = now.clip_norm, now.uploads
        detail: dict[str, float] = {"dimension": now.projection.sent, "divided_by": self.sampler.expected}
        if self.adaptive is not None:
            detail["count_noise_std"] = self.adaptive.count_noise_std
        if self.placement == "clients":
            shares = uploads if self.charged else self._share_count
            detail |= {"shares": shares, "share_std": self._share_std(norm)}
        return Release(
            round=now.number,
            mechanism=self.in_round(now.number, uploads),
            clip_norm=norm,
            noise_std=self.update_noise_multiplier * self._factor(now.number) * norm * self._arrived_part(uploads),
            noise_placement=self.placement,
            detail=detail,
        )

    def _arrived_part(self, uploads: int | None) -> float:
        """Return the noise of `uploads` shares over the whole noise if the noise that arrived is charged, else 1."""
        return (uploads / self.sampler.expected) ** 0.5 if self.charged and uploads is not None else 1.0

    def _share_std(self, norm: float) -> float:
        shares = self._share_count if self.placement == "clients" else 1.0
        std = float(self.update_noise_multiplier * norm / shares**0.5)
        if self.placement == "clients" and std > LARGEST_SHARE:
            raise ConfigError(
                f"privacy.placement='clients' with a clip norm of {norm:g}: shares of noise have a standard deviation "
                f"of {std:g}, at most {LARGEST_SHARE:g} is possible: an upload with an entry above {LARGEST_ENTRY:g} "
                "counts as zero, and its noise would be missing. Use a smaller clip norm, or placement 'server'."
            )
        return std

    @property
    def _share_count(self) -> int:
        """Number of shares that make the whole noise."""
        return int(self.sampler.expected) if self.shares is None else self.shares

    def _draw_normals(self, like: Tensor, purpose: str, *path: int) -> Tensor:
        return self.randomness.normal(like.numel(), purpose, *path, device=str(like.device))


def _correlated_noise(table: GaussianPrivacy, config: Config, who: Sampler) -> CorrelatedRounds | BallsAndBins | None:
    """Return the matrix of least error for the run, for a model that is a sum of steps along mean updates."""
    law, rounds, momentum, stream = who.law, config.charged_rounds, config.server_momentum, stream_of(config)
    solved: dict[str, Any] = {name: tuple(column) for name, column in table.solved.get("matrix", {}).items()}
    if isinstance(law, BallsAndBins):
        bands = law.lanes if table.bands is None else table.bands
        if bands == 1:
            return None
        column = solved.get("coefficients") or _banded_noise(table, bands, momentum).first_column(rounds)
        return replace(law, coefficients=column)
    if table.bands is None and table.buffers is None:
        return None
    if solved:
        return CorrelatedRounds(separation=law.rounds_apart, stream=stream, **solved)
    noise = (
        BufferedNoise(buffers=table.buffers, server_momentum=momentum)
        if table.buffers is not None
        else _banded_noise(table, table.bands or 1, momentum)
    )
    return noise.public_stream(rounds, separation=law.rounds_apart, stream=stream)


def _banded_noise(table: GaussianPrivacy, bands: int, momentum: float) -> BandedNoise:
    return BandedNoise(
        bands=bands,
        factorisation=table.factorisation,
        factorisation_power=table.factorisation_power,
        server_momentum=momentum,
    )


def _check_separation(stream: CorrelatedRounds | BallsAndBins, sampler: Sampler) -> None:
    """Raise ConfigError if clients take part sooner, or more often, than the charged correlated noise allows."""
    law = sampler.law
    if isinstance(stream, BallsAndBins):
        if not isinstance(law, BallsAndBins) or replace(stream, coefficients=law.coefficients) != law:
            raise ConfigError(f"noise in bands for cohorts of {stream}, with cohorts drawn by {law}: must be equal.")
        return
    if law.rounds_apart < stream.separation or stream.participations is not None:
        raise ConfigError(
            f"correlated noise for clients {stream.separation} rounds apart, at most {stream.participations} times, "
            f"with cohorts drawn by {law}: use a public order, or a minimum separation, of at least that many "
            "rounds, and no limit of times."
        )
