"""[privacy], [privacy.adaptive] and [audit]: clip norm, noise, budget, and canaries for an audit."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from accounting.budget.noise_schedule import MOST_PARTS
from dpfed.config.limits import LARGEST_FLOAT, Canaries, ClipNorm, Positive
from dpfed.config.table import Table


class Adaptive(Table):
    """Adaptive clip norm, which follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The fraction of updates that is to be within the clip norm."""

    rate: Positive = 0.2
    """Step of the logarithm of the clip norm, per round."""

    count_noise_std: Positive | None = None
    """Standard deviation of the noise on the count of updates within the clip norm; default: a twentieth of the cohort,
    at least the noise multiplier."""


class Promise(Table):
    """Clip norm, noise and budget of a private run. Give an epsilon, the noise, or both: then the run stops at
    epsilon.
    """

    clip_norm: ClipNorm | None = None
    """C, the L2 clip norm of an update before noise.

    For privacy.noise = "coins": of the move of its probabilities; default: the largest that epsilon allows.
    """

    epsilon: Positive | None = None
    """The budget of the run."""

    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: the smaller of clients^-1.1 and 1e-4."""

    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    """Neighbouring data sets; default: replace-one under fixed; otherwise add-remove, or zero-out if the number of
    participants is visible. Zero-out: one client's row and its count of an adaptive clip are 0."""

    accountant: Literal["best", "rdp", "pld"] = "best"
    """Accountant of the stated epsilon: the smallest upper bound, Renyi DP, or privacy loss distributions."""


class Noised(Promise):
    """Noise with a noise multiplier."""

    noise_multiplier: Positive | None = None
    """z: the sum's noise has standard deviation z times clip_norm."""

    @model_validator(mode="after")
    def _has_strength(self) -> Self:
        if self.clip_norm is None:
            raise ValueError("privacy.clip_norm: is missing and has no default")
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("[privacy]: give noise_multiplier, or epsilon to calibrate one for the rounds, or both")
        return self


class GaussianPrivacy(Noised):
    """Gaussian noise on a plain sum, in shares of the clients, or on every upload."""

    noise: Literal["gaussian"] = "gaussian"
    """Gaussian noise, the default in plain sums."""

    release: Literal["sum", "uploads"] = "sum"
    """The released output: the sum of a round, or every upload."""

    placement: Literal["server", "clients"] = "server"
    """The party that adds the noise: the server, or every client a share of it."""

    missing_shares: Literal["sized", "charged"] = "sized"
    """Shares are sized so that the noise suffices with aggregation.tolerance of them missing, or the noise that
    arrived is charged.
    """

    noise_schedule: tuple[Positive, ...] | None = Field(default=None, strict=False, min_length=1, max_length=MOST_PARTS)
    """Factors of noise_multiplier in equal parts of the run, such as [1.2, 1.0, 0.8]; each round is charged with its
    factor.
    """

    bands: Annotated[int, Field(ge=1)] | None = None
    """Number of rounds over which noise is subtracted again, so that it cancels in the model.

    Needs federation.sampling 'cyclic' or 'min-separation', or 'balls-and-bins' with at least as many federation.lanes
    (default there: equally many). noise_multiplier is then that of a round's fresh noise.
    """

    buffers: Annotated[int, Field(ge=1, le=20)] | None = None
    """Instead of bands: number of buffers (BLT) by which noise is subtracted again over all later rounds."""

    factorisation: Literal["optimised", "square-root"] = "optimised"
    """Matrix of bands: the one of least error for the run's rounds and server.momentum, or the square root of prefix
    sums.
    """

    factorisation_power: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Instead of a factorisation: bands of this power of prefix sums, which `dpfed budget --certificate sampled` finds
    for secret lanes. 0.5 is the square root."""

    certificate: Literal["none", "sampled"] = "none"
    """sampled: the summary also has an epsilon certified by simulation, which fails with probability 1e-12, for
    federation.sampling 'min-separation' or secret lanes. The run's budget is kept by the bound that always holds.
    Takes minutes.
    """

    adaptive: Adaptive | None = None
    """Table [privacy.adaptive]."""

    trials: ClassVar[int] = 1


class IntegerPrivacy(Noised):
    """Integer noise, added before a sum is reduced modulo 2^b. With Poisson sampling, shares of noise and secure sums
    have federation.cohort_cap uploads: those of the drawn clients, and others of noise only, or zeros."""

    noise: Literal["discrete-gaussian", "skellam"] = "discrete-gaussian"
    """Integer noise; discrete-gaussian is the default in secure sums, where only integer noise is sound."""

    placement: Literal["server", "clients"] = "server"
    """The party that adds the noise: the server, or every client a share of it."""

    missing_shares: Literal["sized", "charged"] = "sized"
    """Shares are sized so that the noise suffices with aggregation.tolerance of them missing, or the noise that
    arrived is charged.
    """

    release: Literal["sum"] = "sum"
    adaptive: ClassVar[None] = None
    noise_schedule: ClassVar[None] = None
    bands: ClassVar[None] = None
    buffers: ClassVar[None] = None
    trials: ClassVar[int] = 1


class CoinPrivacy(Promise):
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
    """The largest move of one probability."""

    clip_metric: Literal["euclidean", "fisher"] = "euclidean"
    """Metric of clip_norm and linf_clip. fisher: of the move over sqrt(theta (1 - theta)), theta the public
    probability.
    """

    others: Literal["near-reference", "anywhere"] | None = None
    """Bound on the other clients' probabilities that epsilon relies on: linf_clip, which a plain sum enforces, or
    only the edge. Default: near-reference in plain sums of simulated clients, anywhere in secure sums and on nodes
    with local data.
    """

    trials: Annotated[int, Field(ge=1, le=1024)] = 1
    """Bernoulli samples of each probability in an upload, which holds the number of ones (the Poisson binomial
    mechanism). More trials need a smaller clip_norm for the same epsilon.
    """

    count_bits: Annotated[int, Field(ge=1, le=32)] | None = None
    """Under a sum: bits of an entry of an upload.

    The sum is known modulo 2^count_bits and read as the count nearest to that of clients that move nothing. Default:
    enough bits for every count. A ring of ten standard deviations, 5 sqrt(trials x uploads), seldom wraps around.
    """

    noise_std: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] | None = None
    """Standard deviation of Gaussian noise on probabilities before they are sampled."""

    correction: Literal["none", "linear", "invert"] | None = None
    """Correction of the bias of probabilities that were noised and clipped; default: linear."""

    noise_multiplier: ClassVar[None] = None
    placement: ClassVar[str] = "server"
    missing_shares: ClassVar[str] = "sized"
    adaptive: ClassVar[None] = None
    noise_schedule: ClassVar[None] = None
    bands: ClassVar[None] = None
    buffers: ClassVar[None] = None

    @model_validator(mode="after")
    def _has_strength(self) -> Self:
        if self.clip_norm is None and self.epsilon is None:
            raise ValueError("[privacy]: give clip_norm, or epsilon to calibrate one for the rounds, or both")
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


class DitheredPrivacy(Noised):
    """Dithered quantiser whose error is the Gaussian noise (dp-dithered)."""

    noise: Literal["dithered"] = "dithered"
    """Dithered noise, the default and only noise of dp-dithered."""

    release: Literal["sum"] = "sum"
    placement: ClassVar[str] = "server"
    missing_shares: ClassVar[str] = "sized"
    adaptive: ClassVar[None] = None
    noise_schedule: ClassVar[None] = None
    bands: ClassVar[None] = None
    buffers: ClassVar[None] = None
    trials: ClassVar[int] = 1


Privacy = Annotated[GaussianPrivacy | IntegerPrivacy | CoinPrivacy | DitheredPrivacy, Field(discriminator="noise")]
"""[privacy]: its keys follow from `noise`, whose default follows from the method and the sum."""


class Audit(Table):
    """Canaries for `dpfed audit run`."""

    canaries: Canaries = 0
    """Number of simulated clients, each put into one round by a fair coin flip, for a lower bound on epsilon."""
