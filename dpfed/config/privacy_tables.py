"""[privacy], [privacy.adaptive] and [audit]: clip norm, noise, budget, and what an audit needs of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from accounting.budget.noise_schedule import MOST_PARTS
from dpfed.config.limits import LARGEST_FLOAT, Canaries, Clients, ClipNorm, Positive
from dpfed.config.table import Table


class Adaptive(Table):
    """The clip norm follows a quantile of the updates' norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The fraction of updates that is to be within the clip norm."""

    rate: Positive = 0.2
    """Step of the logarithm of the clip norm, per round."""

    count_noise_std: Positive | None = None
    """Standard deviation of the noise on the count of updates within it; default: a twentieth of the cohort, at
    least the noise multiplier."""


class PrivacyTable(Table):
    """A noise multiplier, or an epsilon to calibrate one for, or both: then the run stops at epsilon.

    Coins (fedpm; with noise = "coins" also stochastic-sign and fedmrns) are noise themselves: a clip norm of the move
    of their probabilities, or an epsilon to calibrate it for, or both.

    Integer noise (discrete-gaussian, skellam) is added to integers before their sum is reduced modulo 2^b. In shares of
    the clients (placement), or in a secure sum, Poisson sampling has sums of `slots` uploads: those who were drawn and
    others that send noise only, or zeros.
    """

    clip_norm: ClipNorm | None = None
    """C, the L2 clip norm of an update, as it is before noise."""

    noise: Literal["gaussian", "discrete-gaussian", "skellam", "coins"] | None = None
    """Default: discrete-gaussian in secure sums (aggregation.kind), where only integer noise is sound; elsewhere
    gaussian; the coins of fedpm need none."""

    edge: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """c of noise = "coins" and of coins of moves: their probabilities are kept in [c, 1 - c]; default: 1/2 - linf_clip,
    which changes no coin, but at least 0.1; 0.1 without linf_clip or with noise_std."""

    linf_clip: ClipNorm | None = None
    """Of coins: how far one probability may move."""

    clip_metric: Literal["euclidean", "fisher"] = "euclidean"
    """Of coins: fisher has clip_norm and linf_clip of the move over sqrt(theta (1 - theta)), theta the public
    probability."""

    others: Literal["near-reference", "anywhere"] | None = None
    """Of coins: whether the other clients of a sum are relied on to keep to linf_clip, which a run with plain sums does
    itself, or only to the edge; default: near-reference in plain sums of simulated clients, anywhere
    in secure sums and on nodes with data of their own."""

    trials: Annotated[int, Field(ge=1, le=1024)] = 1
    """Of signs as coins: coins of each probability in an upload, which holds how many of them are ones (the Poisson
    binomial mechanism). More trials need a smaller clip_norm for the same epsilon."""

    count_bits: Annotated[int, Field(ge=1, le=32)] | None = None
    """Of coins under a sum: bits of an entry of an upload. The sum is known modulo 2^count_bits and read as the count
    nearest to what is expected without any move; default: as many bits as hold every count. A ring of ten standard
    deviations, 5 sqrt(trials x slots), seldom wraps around."""

    noise_std: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] | None = None
    """Of coins: standard deviation of Gaussian noise on probabilities before them."""

    release: Literal["sum", "uploads"] | None = None
    """What is seen: the sum of a round, or every upload."""

    slots: Clients | None = None
    """Uploads in a sum of fixed size; default: so many that what Poisson cohorts above it take of delta is small."""

    correction: Literal["none", "linear", "invert"] | None = None
    """Of coins: how the bias of probabilities that were noised and clipped is corrected; default: linear."""

    noise_multiplier: Positive | None = None
    """z: the sum's noise has standard deviation z times clip_norm."""

    noise_schedule: tuple[Positive, ...] | None = Field(default=None, strict=False, min_length=1, max_length=MOST_PARTS)
    """Factors of noise_multiplier in equal parts of the run, such as [1.2, 1.0, 0.8]; each round is charged as it
    is."""

    bands: Annotated[int, Field(ge=1)] | None = None
    """Rounds over which noise is taken back, so that it cancels in the model, with federation.sampling 'cyclic' or
    'min-separation'. noise_multiplier is then that of the fresh noise of a round."""

    buffers: Annotated[int, Field(ge=1, le=20)] | None = None
    """Instead of bands: noise that is taken back by so many buffers (BLT), over all later rounds."""

    factorisation: Literal["optimised", "square-root"] = "optimised"
    """Of bands: the matrix of least error for the run's rounds and server.momentum, or the square root of prefix
    sums."""

    epsilon: Positive | None = None
    """The budget of the run."""

    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: the smaller of clients^-1.1 and 1e-4."""

    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    """What neighbours are; default: replace-one under fixed; otherwise add-remove, or zero-out where the
    number of participants shows. Zero-out: one client's row and its count of an adaptive clip are 0."""

    accountant: Literal["best", "rdp", "pld"] = "best"
    """Whose account is stated: the smallest upper bound, Renyi DP, or privacy loss distributions."""

    placement: Literal["server", "clients"] = "server"
    """Who adds the noise: the server, or every client a share of it."""

    missing_shares: Literal["sized", "charged"] = "sized"
    """Shares are sized so that the noise suffices with aggregation.tolerance of them missing, or what arrived is
    charged."""

    adaptive: Adaptive | None = None
    """[privacy.adaptive]."""


class Audit(Table):
    """What `dpfed audit run` needs of a run."""

    canaries: Canaries = 0
    """So many simulated clients, each in one round by a fair coin, for a lower bound on epsilon."""
