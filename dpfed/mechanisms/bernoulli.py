"""Bernoulli uploads: masks of FedPM and FedMask, stochastic signs, and the decoding of their sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting import budget
from accounting.bernoulli import debias
from accounting.budget.coin_clip import widest_clip
from accounting.ledger import Release
from accounting.mechanisms import (
    BernoulliAggregate,
    BernoulliChannel,
    Composed,
    FullParticipation,
    Sampling,
    SingleRelease,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.counter import at_least, true_positions
from dpfed.compress.fixed_point import centre_residues
from dpfed.config.privacy_tables import BernoulliPrivacy
from dpfed.config.tables import Config
from dpfed.config.training_tables import MaskTable
from dpfed.errors import ConfigError
from dpfed.mechanisms.target import NoiseSettings, PrivacyTarget
from dpfed.randomness import Randomness
from dpfed.stages.clip import ClipMoves
from dpfed.stages.stage import Private, Round, Stage

EDGE_OF_SIGNS = 0.1
"""Smallest default of privacy.edge for stochastic signs."""
_REST = 53 - 16
_DOUBT = 2.0**-6
"""Largest error of 2^16 p in float32: sum and edge are each rounded by at most 2^-24, the difference by less."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Coins(Stage):
    """Bernoulli uploads: rows are moves of mask probabilities; a client sends samples of its final probabilities
    (FedPM).

        p = clip(reference + row, edge, 1 - edge);   m ~ Bern(p), or 1[p >= 1/2] if not `stochastic`

    with p in float64 and 53-bit uniforms, so that a sample has its probability to 2^-53. 16 of the bits are drawn
    first, the others if those do not decide. The sum S of m over K uploads decodes to S - K g(reference), with g the
    mean of a sample: g(p) = p without noise before the clip (`PrivateCoins` may have such noise).

    bits: bits of the ring of a secure sum, None without one. The ring holds every count of zeros and ones with
          certainty, including those of canaries. A client may send any residue instead: then the count is wrong
    """

    randomness: Randomness
    edge: float = 0.0
    stochastic: bool = True
    bits: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.edge < 0.5:
            raise ConfigError(f"edge {self.edge} of Bernoulli uploads (mask.edge, privacy.edge): must be in [0, 1/2).")

    @property
    def ring_bits(self) -> int | None:
        return self.bits

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return zeros and ones in the dtype of rows."""
        masks = torch.empty_like(rows)
        for row, mask, client in zip(rows, masks, ids, strict=True):
            mask.copy_(self._draw_samples(now.reference, row, now.number, int(client)))
        return masks

    def server(self, total: Tensor, now: Round) -> Tensor:
        start = now.reference.clamp(self.edge, 1 - self.edge)
        return reduce_in_ring(total, self.bits).to(start.dtype) - now.uploads * start

    def _draw_samples(self, reference: Tensor, row: Tensor, *path: int) -> Tensor:
        if self.stochastic:
            return bernoulli_draws(reference, row, self.edge, self.randomness, "coins", *path)
        return (reference.double() + row.double()).clamp(self.edge, 1 - self.edge).ge(0.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateCoins(Private):
    """Bernoulli uploads that are private without added noise, as `coins` describes them, on a cohort of `sampling`.

        p = clip(reference + row, edge, 1 - edge), or clip(p + N(0, noise_std^2), edge, 1 - edge);   m ~ Bern(p)

    with edge and noise_std of the description: the charged samples are the drawn ones. Claim: a round is `mechanism()`,
    if every row obeys the description's clips (`dpfed.stages.clip.ClipMoves`; `dpfed.stages.chain` ensures it).
    Nothing is added to the sum; everything after it is post-processing.
    Source: docs/theory-bernoulli.md, Theorems 5 to 7. Adjacency: zero-out or replace-one. Errors: ConfigError for moves
    that are clipped otherwise than charged.

    The sum S of m over K uploads decodes to S - K g(reference), with g the mean of a sample,
    `accounting.bernoulli.debias.clipped_mean`. With `correction` "linear" that is divided by g'; with "invert" the sum
    decodes to K (g^-1(S / K) - reference). A sum that must always have K uploads is padded with samples of the public
    reference; the caller sends the uploads of at most K clients.

    canaries: number of canaries that take part in a round beside the clients
    bits:     bits of the ring of a sum. The ring may hold every count, or be smaller. In a smaller ring the sum is read
              as the count nearest to the expected count of the reference. A count farther away, or a client that sends
              another residue, makes it wrong, which lowers accuracy. The release is post-processing of the number of
              ones in any case, padding included, since `server` reduces the sum again after it is added
    trials:   m samples of each probability; an upload has the number of ones among them: the Poisson binomial mechanism
              (Chen, Ozgur, Kairouz 2022). `coins` then describes m times as many individually visible samples and a
              clip sqrt(m) times as long; the number of ones is post-processing of these. The sum decodes to that of
              the moves as the sum of m times as many uploads would, divided by m

    >>> from accounting.mechanisms import BernoulliAggregate, FixedSizeSampling
    >>> from dpfed.randomness import Secure
    >>> coins = BernoulliAggregate(dimension=4, floor=0.1, adjacency="replace-one", l2_clip=0.5, cohort=10)
    >>> sampling = FixedSizeSampling(cohort=10, clients=100)
    >>> PrivateCoins(coins=coins, sampling=sampling, randomness=Secure()).slots
    10
    """

    coins: BernoulliAggregate | BernoulliChannel
    sampling: Sampling
    randomness: Randomness
    correction: Literal["none", "linear", "invert"] = "linear"
    canaries: Callable[[int], int] | None = None
    bits: int | None = None
    trials: int = 1
    rests_on = (ClipMoves,)

    @classmethod
    def calibrated(cls, table: BernoulliPrivacy, run: NoiseSettings) -> PrivacyTarget:
        """Return the target of a run with the Bernoulli samples of [privacy], by default of the largest clip norm
        within epsilon.

        Single uploads reveal who sends: every client is charged in every round or, if the order of the clients is
        public, by that order. m trials are m samples of each probability. Their probabilities move together, so the L2
        norm of the moves is sqrt(m) times that of one trial.
        """
        law, edge = run.who.law, edge_of_probabilities(run.config, masks=run.masks)
        default = law.base_adjacency(Adjacency.ZERO_OUT) if table.release == "sum" else Adjacency.ZERO_OUT
        root, size = math.sqrt(table.trials), table.trials * run.sent
        coins: BernoulliAggregate | BernoulliChannel
        common: dict[str, Any] = {
            "dimension": size,
            "floor": edge,
            "adjacency": Adjacency.of(table.adjacency or default),
            "l2_clip": root * table.clip_norm if table.clip_norm else (None if table.linf_clip else 1.0),
            "linf_clip": table.linf_clip,
            "noise_std": table.noise_std or 0.0,
            "clip_metric": table.clip_metric,
            "reference": None if run.masks else 0.5,
        }
        if table.release == "uploads":
            coins = BernoulliChannel(**common)
        else:
            uploads, others = law.cohort_cap or int(run.who.expected), bound_on_other_clients(run.config)
            coins = BernoulliAggregate(**common, cohort=uploads, others=others)
        made = cls(
            coins=coins,
            sampling=law if table.release == "sum" or law.public_order else FullParticipation(),
            randomness=run.randomness,
            correction=table.correction or "linear",
            bits=table.count_bits,
            trials=table.trials,
        )
        clip = table.clip_norm or table.solved.get("clip_norm")
        if clip is None:
            assert table.epsilon is not None
            clip = budget.largest_clip(
                lambda clip: Composed(parts=((made._with_clip(clip).mechanism(), run.config.charged_rounds),)),
                widest=widest_clip(edge, size, table.clip_metric),
                epsilon=table.epsilon,
                delta=run.config.delta,
                accountant=table.accountant,
            )
            clip /= root
        if table.clip_norm is None:
            made = made._with_clip(root * clip)
        moves = ClipMoves(linf=made.coins.linf_clip, metric=made.coins.clip_metric, edge=edge)
        return run.target(made, moves, z=None, clip=clip)

    def _with_clip(self, clip: float) -> PrivateCoins:
        return replace(self, coins=replace(self.coins, l2_clip=clip))

    @property
    def edge(self) -> float:
        """Floor c: probabilities are in [c, 1 - c]."""
        return self.coins.floor

    @property
    def slots(self) -> int | None:
        """Number K of uploads in every sum; None if each upload is seen individually."""
        return self.coins.cohort if isinstance(self.coins, BernoulliAggregate) else None

    @property
    def ring_bits(self) -> int | None:
        return self.bits

    def require_bound(self, stages: Sequence[Stage]) -> None:
        """Raise ConfigError for moves that are clipped to another bound, or in another metric, than the charged one."""
        for clip in (stage for stage in stages if isinstance(stage, ClipMoves)):
            kept, wanted = (clip.linf, clip.metric), (self.coins.linf_clip, self.coins.clip_metric)
            if kept != wanted or (clip.metric == "fisher" and clip.edge != self.edge):
                raise ConfigError(
                    f"moves clipped to {clip.linf} in each coordinate (metric {clip.metric!r}, edge {clip.edge}) with "
                    f"uploads that are charged for {wanted[0]} (metric {wanted[1]!r}, edge {self.edge}): must be equal."
                )

    @property
    def in_every_upload(self) -> bool:
        return self.slots is None

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """Return one round, for the accountant: sampling does not amplify visible uploads, except a public order."""
        seen = self.in_every_upload and not self.sampling.public_order
        return self.coins if seen else subsample(self.coins, self.sampling)

    def release(self, now: Round) -> Release:
        bound = self.coins.l2_clip
        if bound is not None and math.sqrt(self.trials) * now.clip_norm > bound * (1 + 1e-9):
            raise ConfigError(
                f"round {now.number}: its clip norm {now.clip_norm} is above that of the charge. With Bernoulli "
                "samples no server.rule may raise clip_norm: their noise does not follow it."
            )
        detail: dict[str, float] = {"dimension": now.projection.sent, "edge": self.edge}
        if self.coins.linf_clip is not None:
            detail["linf_clip"] = self.coins.linf_clip
        if self.trials > 1:
            detail["trials"] = self.trials
        return Release(
            round=now.number,
            mechanism=self.mechanism(),
            clip_norm=now.clip_norm,
            noise_std=self.coins.noise_std,
            noise_placement="uploads" if self.in_every_upload else "coins",
            detail=detail,
        )

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return zeros and ones, or the number of ones among the trials, in the dtype of rows."""
        self._check_reference(now.reference)
        masks = torch.empty_like(rows)
        for row, mask, client in zip(rows, masks, ids, strict=True):
            mask.copy_(self._count_ones(now.reference, row, "coins", now.number, int(client)))
        return masks

    def server(self, total: Tensor, now: Round) -> Tensor:
        uploads = now.uploads
        if self.slots is not None:
            slots = self.slots + (0 if self.canaries is None else self.canaries(now.number))
            for missing in range(slots - uploads):
                total = total + self._count_ones(now.reference, None, "coins.padding", now.number, missing)
            uploads = slots
        start = now.reference.clamp(self.edge, 1 - self.edge)
        total = self._read_count(total, start, uploads).to(start.dtype)
        if not self.coins.noise_std:
            return total / self.trials - uploads * start
        return self._correct_bias(total, now.reference, uploads)

    def _read_count(self, total: Tensor, start: Tensor, uploads: int) -> Tensor:
        """Return the number of ones in `uploads` uploads."""
        if self.bits is None or uploads * self.trials < 1 << self.bits:
            return reduce_in_ring(total, self.bits)
        expected = (start.double() * (uploads * self.trials)).round().to(torch.int64)
        return expected + centre_residues(total.to(torch.int64) - expected, self.bits)

    def _check_reference(self, reference: Tensor) -> None:
        """Raise ConfigError for public probabilities that differ from the charged one."""
        known = self.coins.reference
        if known is not None and not bool((reference == known).all()):
            raise ConfigError(f"public probabilities other than {known}, the probability that is charged.")

    def _count_ones(self, reference: Tensor, row: Tensor | None, purpose: str, *path: int) -> Tensor:
        """Return the number of ones [k] among the trials."""
        if self.trials == 1:
            return self._draw_samples(reference, row, purpose, *path)
        counts = torch.zeros_like(reference, dtype=torch.int64)
        for trial in range(self.trials):
            counts += self._draw_samples(reference, row, purpose + ".trial", *path, trial)
        return counts

    def _draw_samples(self, reference: Tensor, row: Tensor | None, purpose: str, *path: int) -> Tensor:
        """Return samples [k], bool, of the probabilities reference + row, after noise and clip."""
        if not self.coins.noise_std:
            return bernoulli_draws(reference, row, self.edge, self.randomness, purpose, *path)
        probabilities = _moved_reference(reference, row).clamp(self.edge, 1 - self.edge)  # as charged, before the noise
        noise = self.randomness.normal(len(reference), purpose + ".noise", *path, device=str(reference.device))
        clipped = (probabilities + self.coins.noise_std * noise).clamp(self.edge, 1 - self.edge)
        uniforms = torch.from_numpy(self.randomness.uniform(len(clipped), purpose, *path)).to(clipped.device)
        return uniforms.lt(clipped)

    def _correct_bias(self, total: Tensor, reference: Tensor, uploads: int) -> Tensor:
        setting = {"c": self.edge, "noise_std": self.coins.noise_std}
        start = np.clip(reference.cpu().numpy().astype(np.float64), self.edge, 1 - self.edge)
        mean = total.cpu().numpy().astype(np.float64) / uploads
        if self.correction == "invert":
            moves = debias.invert(mean, **setting) - start
        else:
            moves = mean - debias.clipped_mean(start, **setting)
            if self.correction == "linear":
                moves = moves / debias.clipped_mean_slope(start, **setting)
        return torch.from_numpy((uploads * moves).astype(np.float32)).to(total.device)


def bernoulli_draws(
    reference: Tensor, row: Tensor | None, edge: float, randomness: Randomness, purpose: str, *path: int
) -> Tensor:
    """Return 1 where U < p: U of 53 bits, h the first 16 of them, p = clip(reference + row, edge, 1 - edge) in float64.

    2^16 p is computed in float32 with an error below `_DOUBT`. If it is above h + 1 + _DOUBT the sample is 1, if it is
    below h - _DOUBT the sample is 0, for any other bits. Else, once in about 2^16 samples, the other 37 bits are drawn.
    """
    heads = randomness.bits(-(-len(reference) // 4), purpose, *path).view(np.uint16)[: len(reference)]
    near = reference.clone() if row is None else reference + row
    above = near.clamp_(edge, 1 - edge).mul_(1 << 16)
    above -= torch.from_numpy(heads.astype(np.float32)).to(above.device)
    ones, perhaps = at_least(above, 1 + _DOUBT), at_least(above, -_DOUBT)
    unsure = true_positions(ones ^ perhaps)
    if len(unsure):
        chosen = unsure.cpu().numpy()
        rest = randomness.bits(len(chosen), purpose + ".rest", *path) >> np.uint64(64 - _REST)
        uniforms = np.ldexp((heads[chosen].astype(np.uint64) << np.uint64(_REST) | rest).astype(np.float64), -53)
        exact = _moved_reference(reference[unsure], None if row is None else row[unsure]).clamp(edge, 1 - edge)
        ones[unsure] = torch.from_numpy(uniforms).to(exact.device).lt(exact)
    return ones


def reduce_in_ring(total: Tensor, bits: int | None) -> Tensor:
    """Return a sum modulo 2^bits, if `bits` is given; else the sum itself."""
    return total if bits is None else total.remainder(1 << bits)


def _moved_reference(reference: Tensor, row: Tensor | None) -> Tensor:
    """Return reference + row in float64, accurate enough to be the charged probability."""
    return reference.double() if row is None else reference.double() + row.double()


def edge_of_probabilities(config: Config, *, masks: bool) -> float:
    """Return c, the edge: probabilities of Bernoulli samples are clipped to [c, 1 - c].

    Moves from 1/2 that are clipped to t have probabilities in [1/2 - t, 1/2 + t] for every edge, so c = 1/2 - t changes
    no probability. With privacy.others = "anywhere" the account assumes that other clients' probabilities lie in
    [c, 1 - c], which for this c is the same as assuming that their moves are clipped to t.

    masks: True if clients send samples of the mask's probabilities
    """
    table = config.privacy
    assert isinstance(table, BernoulliPrivacy)
    if masks:
        return (config.mask or MaskTable()).edge
    if table.edge is not None:
        return table.edge
    if table.linf_clip is None or table.noise_std:
        return EDGE_OF_SIGNS
    farthest = table.linf_clip / (2 if table.clip_metric == "fisher" else 1)
    return max(EDGE_OF_SIGNS, 0.5 - farthest)


def bound_on_other_clients(config: Config) -> str:
    """Return the assumed bound on the other clients' probabilities in the account of a sum of Bernoulli samples.

    The result is the argument `others` of `accounting.mechanisms.BernoulliAggregate`.

    In a plain sum of one process the run clips every client. In a secure sum, and on nodes with local data, the other
    clients may send any probability within the edge. There the account assumes that they clip only with
    privacy.others = "near-reference".
    """
    table = config.privacy
    if table is not None and table.others is not None:
        return table.others
    own_clients = config.aggregation.kind == "plain" and config.data.partition != "nodes"
    return "near-reference" if own_clients else "anywhere"
