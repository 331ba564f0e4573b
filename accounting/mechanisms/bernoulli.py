"""Bernoulli uploads (masks, stochastic signs), as frozen descriptions.

Accounts: `accounting.bernoulli`, `bernoulli.sums`. A client's probabilities p lie in [floor, 1 - floor]^dimension,
within L2 distance `l2_clip` of the public probabilities and within `linf_clip` of them on each coordinate. Zero-out
replaces p by the public probabilities, which moves it by at most the clip; replace-one moves p by at most twice the
clip. Sensitivities follow from clip and adjacency. With `clip_metric` "fisher" both clips bound (p - theta) /
sqrt(theta (1 - theta)), theta the public probabilities of the round in [floor, 1 - floor]. `reference`: the public
probability, if it is equal for all coordinates and rounds (1/2 for stochastic signs).
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency, Unsampled

OTHERS = ("anywhere", "near-reference")
"""Bounds on the probabilities of the other clients of a sum."""
CLIP_METRICS = ("euclidean", "fisher")
"""Metrics in which a client's move from the public probabilities is bounded."""


@dataclass(frozen=True, kw_only=True)
class _BernoulliUploads(Unsampled):
    dimension: int
    floor: float
    adjacency: Adjacency
    l2_clip: float | None = None
    linf_clip: float | None = None
    noise_std: float = 0.0
    clip_metric: str = "euclidean"
    reference: float | None = None

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "dimension")
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        object.__setattr__(self, "floor", require.real("a number in (0, 1/2)", floor=self.floor))
        if not 0 < self.floor < 0.5:
            raise InvalidParameter(f"floor={self.floor!r}: must be in (0, 1/2).")
        if self.l2_clip is None and self.linf_clip is None:
            raise InvalidParameter("l2_clip and linf_clip are both missing: give at least one bound on the move.")
        require.replace_fields(self, require.or_none(require.clip_norm), "l2_clip", "linf_clip")
        require.replace_fields(self, require.nonnegative, "noise_std")
        require.one_of(CLIP_METRICS, clip_metric=self.clip_metric)
        number = partial(require.real, "a number in [floor, 1 - floor]")
        require.replace_fields(self, require.or_none(number), "reference")
        if self.reference is not None and not self.floor <= self.reference <= 1 - self.floor:
            raise InvalidParameter(f"reference={self.reference}: must be in [{self.floor}, 1 - {self.floor}].")
        if self.clip_metric == "fisher" and self.noise_std:
            raise UnsupportedMechanism(
                f"clip_metric='fisher' with noise_std={self.noise_std}: the Fisher metric has no account with noise. "
                "Use clip_metric 'euclidean', or no noise."
            )
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                "adjacency='add-remove' with Bernoulli uploads: one client added or removed changes their visible "
                "number. Use 'zero-out' (samples of the public probabilities in its place) or 'replace-one'."
            )

    def sensitivity(self, clip: float | None) -> float | None:
        """Return the largest distance between the probabilities of neighbours, for a clip on one client's move."""
        return None if clip is None else clip * self.adjacency.sensitivity_in_clips

    def euclidean_sensitivity(self, clip: float | None) -> float | None:
        """Return `sensitivity` in the Euclidean metric. It is half the Fisher sensitivity, attained at theta = 1/2."""
        distance = self.sensitivity(clip)
        return distance / 2 if distance is not None and self.clip_metric == "fisher" else distance

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Return the standard deviation of the noise on the probabilities that the account assumes."""
        return self.noise_std


@dataclass(frozen=True, kw_only=True)
class BernoulliChannel(_BernoulliUploads):
    """Individually visible Bernoulli upload of one client: samples of clip(p + N(0, noise_std^2), floor, 1 - floor),
    p the client's probability.

    Claim: its Renyi divergence is at most `bernoulli.channel_bound`; sampling does not amplify it.
    Source: docs/theory-bernoulli.md, Theorem 5.
    Units: clips and noise_std are probabilities; under clip_metric "fisher" clips are probabilities over sqrt(theta (1
    - theta)).
    Adjacency: zero-out (public samples in its place) or replace-one.
    Errors: UnsupportedMechanism for add-remove and for Fisher clips with noise; InvalidParameter for a number outside
    its domain, or no clip.

    >>> from accounting import BernoulliChannel, guarantee
    >>> coin = BernoulliChannel(dimension=1, floor=0.25, adjacency="zero-out", linf_clip=0.5)
    >>> round(guarantee(coin, delta=1e-5, accountant="exact").epsilon, 4)  # log 3
    1.0986
    """

    kind: ClassVar[str] = "bernoulli-channel"
    words: ClassVar[str] = "Bernoulli samples in every upload"
    account: ClassVar[str] = "accounting.bernoulli.accounts:CHANNEL"
    sums: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class BernoulliAggregate(_BernoulliUploads):
    """Sum of exactly `cohort` clients' Bernoulli uploads; only the sum is visible.

    An upload has samples with probabilities p, or with `noise_std` p + N(0, noise_std^2) clipped to [floor, 1 - floor].
    Padding uploads are drawn in the same way from the public probabilities. `overflow`: the probability that a release
    draws more than `cohort` clients, added to delta for every release. `others`: "near-reference" if every sample of
    the sum, padding included, has a probability within the clip of the public probability on each coordinate. This
    trusts the other clients to clip. "anywhere": their probabilities are only in [floor, 1 - floor]. In sampled cohorts
    one client may take another's place, so that amplification relies on both clips of every client.
    Claim: its Renyi divergence is at most `bernoulli.sums.aggregate_bound`. If a dominating mu is known, its
    hockey-stick divergence is at most that of a mu-Gaussian plus a part of delta.
    Source: docs/theory-bernoulli.md, Theorems 6 and 7.
    Units: as `BernoulliChannel`.
    Adjacency: zero-out or replace-one; zero-out alone under Poisson sampling.
    Errors: as `BernoulliChannel`.

    >>> from accounting import BernoulliAggregate
    >>> BernoulliAggregate(dimension=100, floor=0.1, adjacency="replace-one", l2_clip=0.5, cohort=30).sensitivity(0.5)
    1.0
    """

    cohort: int
    overflow: float = 0.0
    others: str = "anywhere"
    kind: ClassVar[str] = "bernoulli-aggregate"
    words: ClassVar[str] = "Bernoulli samples in a sum of fixed size"
    account: ClassVar[str] = "accounting.bernoulli.accounts:AGGREGATE"

    def __post_init__(self) -> None:
        super().__post_init__()
        require.replace_fields(self, require.count, "cohort")
        require.replace_fields(self, require.probability, "overflow")
        require.one_of(OTHERS, others=self.others)

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Reject a sampler whose number of uploads, or whose neighbours, the account does not cover."""
        if name in ("poisson", "capped-poisson") and self.adjacency is not Adjacency.ZERO_OUT:
            raise UnsupportedMechanism(
                f"adjacency={str(self.adjacency)!r} with Poisson-sampled Bernoulli uploads: the server pads to a "
                "fixed number of uploads, which is zero-out. Use adjacency 'zero-out', or fixed-size sampling."
            )
        if name == "capped-poisson" and cohort is not None and cohort > self.cohort:
            raise InvalidParameter(
                f"cap={cohort} of the sampler, {self.cohort} uploads in a sum: a sum must hold at least `cap` uploads."
            )
        if name == "fixed" and cohort != self.cohort:
            raise InvalidParameter(
                f"cohort={cohort} of the sampler, {self.cohort} of the sum: under fixed-size sampling the two must be "
                "equal."
            )
