"""[privacy], [privacy.adaptive] and [audit]: clip norm, noise, budget, and canaries for an audit."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from accounting.budget.gaussians import MOST_PARTS
from dpfed.config.limits import LARGEST_FLOAT, Canaries, ClipNorm, Positive, Table


class AdaptiveClipping(Table):
    """Adaptive clip norm, which follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Target fraction of updates whose norm is at most the clip norm."""

    rate: Positive = 0.2
    """Learning rate of the clip norm's logarithm, which moves once a round."""

    count_noise_std: Positive | None = None
    """Standard deviation of the noise on the count of updates within the clip norm; default: a twentieth of the cohort,
    but at least the noise multiplier."""


class PrivacyTable(Table):
    """Clip norm, noise and budget of a private run. Give epsilon, the noise, or both; with both, the run stops before
    it would exceed epsilon.
    """

    clip_norm: ClipNorm | None = None
    """C, the L2 clip norm of an update before noise.

    For privacy.noise = "coins" it bounds the L2 norm of the moves of an upload's probabilities; default: the largest
    value that epsilon allows.
    """

    epsilon: Positive | None = None
    """Privacy budget of the run: the epsilon that it never exceeds."""

    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: the smaller of clients^-1.1 and 1e-4."""

    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    """Neighbouring data sets; default: replace-one under fixed; otherwise add-remove, or zero-out if the number of
    participants is visible. Zero-out: one client's row, and its part in the count of an adaptive clip, are 0."""

    accountant: Literal["best", "rdp", "pld"] = "best"
    """Accountant of the stated epsilon: the smallest upper bound, Renyi DP, or privacy loss distributions."""

    bernoulli: ClassVar[bool] = False
    """True if uploads are Bernoulli samples, whose randomness is the noise."""
    in_integers: ClassVar[bool] = False
    """True if the noise is drawn exactly, as integers, and added to rows that are rounded to integers."""


class NoiseMultiplierTable(PrivacyTable):
    """Keys of every noise that has a noise multiplier."""

    noise_multiplier: Positive | None = None
    """z: the sum's noise has standard deviation z times clip_norm."""

    trials: ClassVar[int] = 1
    noise_std: ClassVar[None] = None
    edge: ClassVar[None] = None
    others: ClassVar[None] = None

    @model_validator(mode="after")
    def _require_noise_or_epsilon(self) -> Self:
        if self.clip_norm is None:
            raise ValueError("privacy.clip_norm is missing and has no default")
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError(
                "[privacy]: give noise_multiplier, or epsilon to calibrate a noise_multiplier for the rounds, or both"
            )
        return self


class GaussianPrivacy(NoiseMultiplierTable):
    """Gaussian noise on a plain sum, in shares of the clients, or on every upload."""

    noise: Literal["gaussian"] = "gaussian"
    """Gaussian noise, the default in plain sums."""

    release: Literal["sum", "uploads"] = "sum"
    """The released output: the sum of a round, or every upload."""

    placement: Literal["server", "clients"] = "server"
    """The party that adds the noise: the server, or every client a share of it."""

    missing_shares: Literal["sized", "charged"] = "sized"
    """Treatment of missing noise shares. sized: shares are large enough if a fraction aggregation.tolerance of them is
    missing; charged: each round is charged with the noise that arrived.
    """

    noise_schedule: tuple[Positive, ...] | None = Field(default=None, strict=False, min_length=1, max_length=MOST_PARTS)
    """Factors of noise_multiplier, one for each of equally long parts of the run, such as [1.2, 1.0, 0.8]. Each round
    is charged with the noise of its part.
    """

    bands: Annotated[int, Field(ge=1)] | None = None
    """Number of rounds over which a round's noise is subtracted again, so that it cancels in the model.

    Requires federation.sampling 'cyclic' or 'min-separation', or 'balls-and-bins' with at least this number of
    federation.lanes (default there: the number of lanes). noise_multiplier then describes the fresh noise of a round.
    """

    buffers: Annotated[int, Field(ge=1, le=20)] | None = None
    """Instead of bands: number of buffers (BLT) by which noise is subtracted again over all later rounds."""

    factorisation: Literal["optimised", "square-root"] = "optimised"
    """Matrix of the banded noise: the matrix of least error for the run's rounds and server.momentum, or the square
    root of the prefix-sum matrix.
    """

    factorisation_power: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Instead of a factorisation: the bands of this power of the prefix-sum matrix, where 0.5 is the square root.
    `dpfed budget --certificate sampled` finds the power for secret lanes."""

    certificate: Literal["none", "sampled"] = "none"
    """sampled: the summary also has an epsilon certified by simulation, which fails with probability 1e-12, for
    federation.sampling 'min-separation' or secret lanes. The run's budget is still enforced by the deterministic
    bound. The simulation takes minutes.
    """

    adaptive: AdaptiveClipping | None = None
    """Table [privacy.adaptive]."""


class _EqualRounds(PrivacyTable):
    """Noise that is independent and equal in all rounds, at one clip norm."""

    adaptive: ClassVar[None] = None
    noise_schedule: ClassVar[None] = None
    bands: ClassVar[None] = None
    buffers: ClassVar[None] = None
    certificate: ClassVar[str] = "none"


class IntegerPrivacy(NoiseMultiplierTable, _EqualRounds):
    """Integer noise, added before a sum is reduced modulo 2^b. With Poisson sampling and noise shares or secure sums,
    every sum has federation.cohort_cap uploads: those of the drawn clients, filled up with uploads of noise only, or of
    zeros."""

    noise: Literal["discrete-gaussian", "skellam"] = "discrete-gaussian"
    """Integer noise; discrete-gaussian is the default in secure sums, where only integer noise is sound."""

    placement: Literal["server", "clients"] = "server"
    """The party that adds the noise: the server, or every client a share of it."""

    missing_shares: Literal["sized", "charged"] = "sized"
    """Treatment of missing noise shares. sized: shares are large enough if a fraction aggregation.tolerance of them is
    missing; charged: each round is charged with the noise that arrived.
    """

    release: Literal["sum"] = "sum"
    in_integers: ClassVar[bool] = True


class BernoulliPrivacy(_EqualRounds):
    """Uploads of Bernoulli samples, whose randomness is the noise: masks of fedpm, signs of stochastic-sign and
    fedmrns.
    """

    noise: Literal["coins"] = "coins"
    """Bernoulli samples, the default and only noise of fedpm."""

    release: Literal["sum", "uploads"] = "sum"
    """The released output: the sum of a round, or every upload."""

    edge: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """c: probabilities are kept in [c, 1 - c]; default: 1/2 - linf_clip, which changes no probability, but at least
    0.1; 0.1 without linf_clip or with noise_std. For fedpm without mask.bound: mask.edge.
    """

    linf_clip: ClipNorm | None = None
    """Largest allowed move of one probability from its public reference value."""

    clip_metric: Literal["euclidean", "fisher"] = "euclidean"
    """Metric of clip_norm and linf_clip. euclidean: the moves themselves; fisher: each move divided by
    sqrt(theta (1 - theta)), where theta is the public probability.
    """

    others: Literal["near-reference", "anywhere"] | None = None
    """Bound on the other clients' probabilities that epsilon relies on. near-reference: linf_clip, which a plain sum
    enforces; anywhere: only the edge. Sampled cohorts rely on clip_norm, too. Default: near-reference in plain sums of
    simulated clients, anywhere in secure sums and on nodes with local data.
    """

    trials: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of Bernoulli samples of each probability. An upload contains their sum (the Poisson binomial mechanism).
    More trials need a smaller clip_norm for the same epsilon.
    """

    count_bits: Annotated[int, Field(ge=1, le=32)] | None = None
    """Bits of an entry of an upload, under release = "sum".

    The sum is known modulo 2^count_bits, and read as the count nearest to the count of clients that move no
    probability. Default: enough bits for every count. A ring of ten standard deviations, 5 sqrt(trials x uploads),
    seldom wraps around.
    """

    noise_std: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] | None = None
    """Standard deviation of Gaussian noise on probabilities before they are sampled."""

    correction: Literal["none", "linear", "invert"] | None = None
    """Correction of the bias that clipping adds to noised probabilities (docs/bias-correction.md); default: linear."""

    bernoulli: ClassVar[bool] = True
    noise_multiplier: ClassVar[None] = None
    placement: ClassVar[str] = "server"
    missing_shares: ClassVar[str] = "sized"

    @model_validator(mode="after")
    def _require_noise_or_epsilon(self) -> Self:
        if self.clip_norm is None and self.epsilon is None:
            raise ValueError("[privacy]: give clip_norm, epsilon to calibrate it for the rounds, or both")
        if self.noise_std and (self.trials > 1 or self.clip_metric == "fisher" or self.count_bits is not None):
            raise ValueError("privacy.noise_std with trials, count_bits or clip_metric='fisher': is not built")
        if self.count_bits is not None and self.trials >= 1 << self.count_bits:
            raise ValueError(
                f"privacy.count_bits={self.count_bits} with privacy.trials={self.trials}: an upload alone counts to "
                f"{self.trials}. Use at least {self.trials.bit_length()} bits"
            )
        for key in ("others", "count_bits"):
            if self.release == "uploads" and getattr(self, key) is not None:
                raise ValueError(
                    f"privacy.{key} with privacy.release='uploads': is for sums of Bernoulli samples, "
                    "and there is no sum to pad. Remove it, or use release 'sum'"
                )
        return self


class DitheredPrivacy(NoiseMultiplierTable, _EqualRounds):
    """Dithered quantiser whose error is the Gaussian noise (dp-dithered)."""

    noise: Literal["dithered"] = "dithered"
    """Dithered noise, the default and only noise of dp-dithered."""

    release: Literal["sum"] = "sum"
    placement: ClassVar[str] = "server"
    missing_shares: ClassVar[str] = "sized"


Privacy = Annotated[GaussianPrivacy | IntegerPrivacy | BernoulliPrivacy | DitheredPrivacy, Field(discriminator="noise")]
"""Table [privacy]; privacy.noise selects the kind of table, and its default depends on the method and on
aggregation.kind."""


class AuditTable(Table):
    """Canaries for `dpfed audit FOLDER`."""

    canaries: Canaries = 0
    """Number of simulated clients, each put into one round by a fair coin flip, for a lower bound on epsilon."""
