"""Sums of integers: rows become integers in a ring, and integer noise is added to the rows or to their sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.integers.fixed_point import default_scale, padded_dimension, sized_noise, sum_bits
from accounting.ledger import Release
from accounting.mechanisms import (
    NoisyIntegers,
    Sampling,
    SingleRelease,
    repeated,
    sampling_of,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import rarely_exceeded
from dpfed.aggregation.sums import least_uploads
from dpfed.compress.fixed_point import ROUNDING, FixedPoint, centre_residues, count_near_ends, first_bits
from dpfed.config.privacy_tables import IntegerPrivacy
from dpfed.config.server_tables import Aggregation
from dpfed.errors import ConfigError
from dpfed.mechanisms.integer_distributions import IntegerDistribution, distribution_of
from dpfed.mechanisms.target import NoiseSettings, PrivacyTarget
from dpfed.randomness import SHARE, DrawnAhead, Randomness
from dpfed.seeds import Seeds
from dpfed.stages.clip import Clip
from dpfed.stages.stage import Private, Round, Stage

_MOST_BITS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Integers(Stage):
    """Encoding in a ring: rows of norm at most `clip_norm` are scaled, rotated, rounded at random; the sum is decoded.

    bits: bits b of the ring Z_{2^b}. A sum beyond the ring wraps around, which lowers accuracy. Noise is added to the
          rows that `client` returns, or to their sum before `server` (`IntegerNoise`). `server` reduces the sum modulo
          M = 2^b again: (S mod M + N) mod M = (S + N) mod M. So the release is post-processing of S + N, for any
          residues that clients send. No noise may be added to the sum that `server` returns.
    """

    fixed_point: FixedPoint
    clip_norm: float
    bits: int
    seeds: Seeds
    randomness: Randomness
    summed_as = torch.int64

    @classmethod
    def with_fitting_ring(
        cls,
        sums: Aggregation,
        *,
        size: int,
        clip_norm: float,
        scale: float,
        uploads: int,
        seeds: Seeds,
        randomness: Randomness,
        noise: NoisyIntegers | None = None,
        noise_draws: int = 0,
    ) -> Integers:
        """Return the stage with a ring for sums of `uploads` rows and `noise_draws` draws of the noise.

        Sums fit the ring except with aggregation.wrap_probability, if clients do not choose rows by the signs of the
        rotation. Privacy does not depend on that: noise is integer noise, or there is none. scale: steps per clip norm.
        """
        bits = sum_bits(
            law="discrete-gaussian" if noise is None else noise.kind,
            uploads=uploads,
            dimension=padded_dimension(size, rotate=sums.rotation),
            scaled_clip=scale,
            noise_variance=0.0 if noise is None else noise.share_variance * noise_draws,
            rotate=sums.rotation,
            wrap_probability=sums.wrap_probability,
        )
        if bits > _MOST_BITS:
            raise ConfigError(
                f"aggregation.steps={scale:g}: a sum of {uploads} such updates with their noise needs "
                f"{bits} bits, at most {_MOST_BITS} can be summed. Use fewer steps, or aggregation.rotation=true."
            )
        return cls(
            fixed_point=FixedPoint(size=size, steps_per_unit=scale / clip_norm, rotate=sums.rotation),
            clip_norm=clip_norm,
            bits=bits,
            seeds=seeds,
            randomness=randomness,
        )

    @property
    def scale(self) -> float:
        """Integer steps per clip norm."""
        return self.fixed_point.steps_per_unit * self.clip_norm

    @property
    def rounding(self) -> float:
        """Bound on the root mean square L2 error that rounding adds to a row, over the clip norm. Rounding an entry
        up or down has a variance of at most 1/4."""
        return math.sqrt(self.fixed_point.padded) / 2 / self.scale

    def width(self, size: int) -> int:
        return self.fixed_point.padded

    def start_draws(self, ids: NDArray[np.int64], now: Round) -> None:
        def draw(client: int) -> NDArray[np.uint8]:
            return first_bits(self.fixed_point.padded, self.randomness, ROUNDING, now.number, client, 0)

        now.ahead[ROUNDING] = DrawnAhead(draw, ids, self.fixed_point.padded)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        encoded = self.fixed_point.encode(
            rows,
            clip_norm=self.clip_norm,
            rotation_seed=self._rotation_seed(now.number),
            randomness=self.randomness,
            names=ids,
            path=(now.number,),
            ahead=now.ahead.get(ROUNDING),
        )
        now.tally.not_finite += encoded.zeroed_rows
        return encoded.integers.to(torch.int64)

    def server(self, total: Tensor, now: Round) -> Tensor:
        """Return the decoded sum of integers with its noise. The sum is reduced after the noise was added, whether or
        not it was reduced before.
        """
        return self.fixed_point.decode(centre_residues(total, self.bits), rotation_seed=self._rotation_seed(now.number))

    def near_the_ends(self, total: Tensor) -> int:
        """Return the number of entries of a sum in the ring that have probably wrapped around."""
        return count_near_ends(centre_residues(total, self.bits), self.bits)

    def _rotation_seed(self, number: int) -> int:
        return self.seeds.integer("fixed_point.rotation", number)


@dataclass(frozen=True, kw_only=True)
class IntegerNoise(Private):
    """Integer noise described by `noise`, on every row of integers, or on their sum.

    Claim: a round is `noise` on a cohort of `sampling`, if rows are integer vectors within its `l2_bound` (`Integers`
    after `dpfed.stages.clip.Clip`; `require_bound` ensures it). The draws have the description's `share_variance`: the
    charged noise is the drawn one. Everything after the sum is post-processing: the modulus, scaling and rotating back.
    Source: Kairouz, Liu, Steinke 2021; Agarwal, Kairouz, Liu 2021; docs/theory.md, section 7. Adjacency: that of
    `noise`. Errors: ConfigError for shares that do not fit the placement.

    `server` may receive a sum that was reduced modulo 2^b already, if its result is reduced again before any other step
    (`Integers.server` does). The result is then the noisy sum reduced, even if either wraps around. So residues of
    other clients shift the sum of a client's integers and noise, and cancel none of the noise (docs/theory.md,
    section 7). With placement "clients" the noise is that of the clients that add their shares.

    charged: True: ledger lines state the number of arrived uploads, which is charged; False: they have no such count
    slots:   number of uploads in every sum, whatever clients are drawn; None: the number of drawn clients
    steps_per_unit, detail: fields of a ledger line about the integers

    >>> from accounting.mechanisms import FixedSizeSampling, Skellam
    >>> from dpfed.randomness import Secure
    >>> noise = Skellam(dimension=8, l2_bound=10.0, share_variance=25.0, adjacency="zero-out", shares=10)
    >>> integers = IntegerNoise(
    ...     noise=noise,
    ...     sampling=FixedSizeSampling(cohort=10, clients=100),
    ...     placement="clients",
    ...     randomness=Secure(),
    ...     steps_per_unit=10.0,
    ...     detail={},
    ... )
    >>> integers.share_variance
    25
    """

    noise: NoisyIntegers
    sampling: Sampling
    placement: Literal["server", "clients"]
    randomness: Randomness
    steps_per_unit: float
    detail: Mapping[str, object]
    charged: bool = False
    slots: int | None = None
    rests_on = (Clip, Integers)

    def __post_init__(self) -> None:
        known = self.sampling.fixed_size or self.sampling.takes_all or self.slots is not None
        if self.noise.shares > 1 if self.placement == "server" else not known:
            raise ConfigError(
                f"IntegerNoise with placement={self.placement!r}, {self.noise.shares} shares and {self.sampling}: the "
                "server draws one share, and clients' shares need a cohort of known size. Change the placement."
            )

    @classmethod
    def calibrated(cls, table: IntegerPrivacy, run: NoiseSettings) -> PrivacyTarget:
        """Return the target of a run with the noise of [privacy] on the sums of [aggregation].

        The account calibrates the multiplier if an epsilon is given. Each of K uploads has a share of the noise, or the
        server adds all of it. Under Poisson sampling a sum with shares, or a secure one, has K uploads, K the cap: the
        number of uploads must not reveal how many clients were drawn.
        """
        config, who, sums, tolerance = run.config, run.who, run.config.aggregation, run.tolerance
        law, secure, in_shares = who.law, sums.kind != "plain", table.placement == "clients"
        charged = table.missing_shares == "charged"
        known = law.fixed_size or law.takes_all
        filled = law.independent and (in_shares or secure)
        _refuse_schedules(table, law, secure=secure)
        default = Adjacency.ZERO_OUT if in_shares or law.turns_follow_ids else Adjacency.ADD_REMOVE
        adjacency = Adjacency.of(table.adjacency or law.base_adjacency(default))

        uploads = int(who.expected)
        if not known:
            uploads = law.cohort_cap or rarely_exceeded(config.federation.cohort, who.clients, delta=config.delta)
        slots = uploads if filled or in_shares else None
        all_take_part = law.takes_all or (slots is not None and slots >= who.clients)
        if table.adjacency is None and secure and all_take_part and adjacency is Adjacency.ADD_REMOVE:
            adjacency = Adjacency.ZERO_OUT  # adding or removing a client would change the number of participants
        padded = padded_dimension(run.sent, rotate=sums.rotation)
        scale = float(sums.steps or default_scale(padded, uploads))

        def noise_of_size(z: float, missing: float) -> NoisyIntegers:
            return sized_noise(
                table.noise,
                z,
                scale=scale,
                dimension=padded,
                shares=least_uploads(uploads, missing) if in_shares else 1,
                adjacency=adjacency,
            )

        missing = sums.dropout if charged else tolerance
        z = run.multiplier(
            table,
            lambda z: repeated(subsample(noise_of_size(z, missing), law), config.charged_rounds),
            adjacency,
            law,
            lambda z: z / math.sqrt(1 - sums.dropout) if charged else z,
        )
        noise = noise_of_size(z, 0.0 if charged else tolerance)
        canaries = -(-config.audit.canaries // config.federation.rounds)
        rows = canaries + (int(who.expected) if known else slots or who.clients)
        assert table.clip_norm is not None
        integers = Integers.with_fitting_ring(
            sums,
            size=run.sent,
            clip_norm=table.clip_norm,
            scale=scale,
            uploads=rows,
            seeds=Seeds(root=config.run.seed),
            randomness=run.randomness,
            noise=noise,
            noise_draws=rows if in_shares else 1,
        )
        if charged:
            noise = replace(noise, shares=least_uploads(uploads, tolerance))
        steps_per_unit = integers.fixed_point.steps_per_unit
        made = cls(
            noise=noise,
            sampling=sampling_of(subsample(noise, law)),
            placement=table.placement,
            randomness=run.randomness,
            steps_per_unit=steps_per_unit,
            detail={
                "divided_by": who.expected,
                "noise": table.noise,
                "steps_per_unit": steps_per_unit,
                "integers": padded,
                "bits": integers.bits,
            },
            charged=charged,
            slots=slots,
        )
        least = noise.shares if charged else None
        return run.target(made, Clip(), integers, z=z, clip=table.clip_norm, least_uploads=least)

    @property
    def in_rows(self) -> bool:
        return self.placement == "clients"

    def require_bound(self, stages: Sequence[Stage]) -> None:
        """Raise ConfigError for integers that may be longer than the charged bound."""
        for integers in (stage for stage in stages if isinstance(stage, Integers)):
            squared, charged = integers.fixed_point.largest_squared_norm(integers.clip_norm), self.noise.l2_bound
            if squared > charged**2 * (1 + 1e-12):
                raise ConfigError(
                    f"integers of squared norm up to {squared} with noise that is charged for {charged}: must be at "
                    "most its square. Give both equal steps and clip norms."
                )

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """Return one round, for the accountant, with the shares of `uploads` if the noise that arrived is charged."""
        return subsample(self._arrived_noise(uploads), self.sampling)

    def start_draws(self, ids: NDArray[np.int64], now: Round) -> None:
        if self.in_rows:
            now.ahead[SHARE] = DrawnAhead(self._share_draw(now), ids, self.noise.dimension)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.in_rows:
            draw = now.ahead.get(SHARE, self._share_draw(now))
            for row, client in zip(rows, ids, strict=True):
                row += draw(int(client)).to(row.device)
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        if self.placement != "server":
            return total
        noise = self._draw_noise(len(total), "noise.sum", now.number).to(total.device)
        if now.observer is not None:
            now.observer.noise(noise)
        return total.to(torch.int64) + noise

    def release(self, now: Round) -> Release:
        detail = {"dimension": now.projection.sent, **self.detail}
        if self.charged:
            detail["uploads"] = now.uploads
        return Release(
            round=now.number,
            mechanism=self.mechanism(now.uploads),
            clip_norm=now.clip_norm,
            noise_std=math.sqrt(self._arrived_noise(now.uploads).variance) / self.steps_per_unit,
            noise_placement=self.placement,
            detail=detail,
        )

    @property
    def law(self) -> IntegerDistribution:
        """Distribution of every draw."""
        return distribution_of(self.noise)

    @property
    def share_variance(self) -> int:
        """Variance of every draw, in squared steps."""
        return int(self.noise.share_variance)

    def _arrived_noise(self, uploads: int | None) -> NoisyIntegers:
        return replace(self.noise, shares=uploads) if self.charged and uploads is not None else self.noise

    def _share_draw(self, now: Round) -> Callable[[int], Tensor]:
        return lambda client: self._draw_noise(self.noise.dimension, SHARE, now.number, client)

    def _draw_noise(self, count: int, purpose: str, *path: int) -> Tensor:
        return torch.from_numpy(self.law.sample(count, self.randomness, purpose, *path))


def _refuse_schedules(table: IntegerPrivacy, law: Sampling, *, secure: bool) -> None:
    """Raise ConfigError for a schedule if sums need a fixed number of uploads."""
    if law.is_schedule and (table.placement == "clients" or secure):
        raise ConfigError(
            f"privacy.noise={table.noise!r} with federation.sampling={law.name!r}: shares of noise (privacy.placement="
            "'clients') and secure sums need a fixed number of uploads, which is proven for sampling 'poisson' and "
            "'fixed' alone. Use privacy.placement='server' with aggregation.kind='plain'."
        )
