"""Bernoulli uploads (masks, stochastic signs), as frozen descriptions.

Accounts: `accounting.bernoulli`, `bernoulli.sums`. A client's probabilities theta lie in [floor, 1 - floor]^dimension
and within `l2_clip` (L2) and `linf_clip` (each coordinate) of the public ones. Zero-out puts the public probabilities
in their place, which moves theta by at most the clip; replace-one moves it by at most twice the clip. Sensitivities
follow from clip and adjacency. With `clip_metric` "fisher" both clips are of (p - theta) / sqrt(theta (1 - theta)),
theta the public probabilities of the round in [floor, 1 - floor]. `reference`: the public probability of all
coordinates and rounds, where there is only one (1/2 for stochastic signs).
"""

from dataclasses import asdict, dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency

OTHERS = ("anywhere", "near-reference")
"""Bounds on the probabilities of the other clients of a sum."""
CLIP_METRICS = ("euclidean", "fisher")
"""Metrics in which a client's move from the public probabilities is bounded."""


@dataclass(frozen=True, kw_only=True)
class _Coins:
    dimension: int
    floor: float
    adjacency: Adjacency
    l2_clip: float | None = None
    linf_clip: float | None = None
    noise_std: float = 0.0
    clip_metric: str = "euclidean"
    reference: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", require.count(dimension=self.dimension))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        if not 0 < require.real("a number in (0, 1/2)", floor=self.floor) < 0.5:
            raise InvalidParameter(f"floor={self.floor!r}: must be in (0, 1/2).")
        if self.l2_clip is None and self.linf_clip is None:
            raise InvalidParameter("l2_clip and linf_clip are both missing: give at least one bound on the move.")
        for name in ("l2_clip", "linf_clip"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, require.clip_norm(**{name: getattr(self, name)}))
        object.__setattr__(self, "noise_std", require.nonnegative(noise_std=self.noise_std))
        require.one_of(CLIP_METRICS, clip_metric=self.clip_metric)
        if self.reference is not None:
            inside = require.real("a number in [floor, 1 - floor]", reference=self.reference)
            if not self.floor <= inside <= 1 - self.floor:
                raise InvalidParameter(f"reference={inside}: must be in [{self.floor}, 1 - {self.floor}].")
        if self.clip_metric == "fisher" and self.noise_std:
            raise UnsupportedMechanism(
                f"clip_metric='fisher' with noise_std={self.noise_std}: that metric is for no noise. Use "
                "clip_metric 'euclidean', or no noise."
            )
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                "adjacency='add-remove' with Bernoulli uploads: one client added or removed changes their visible "
                "number. Use 'zero-out' (samples of the public probabilities in its place) or 'replace-one'."
            )

    def sensitivity(self, clip: float | None) -> float | None:
        """Return the distance of neighbours' probabilities, from the clip of one client's move."""
        return None if clip is None else clip * self.adjacency.sensitivity_in_clips

    def euclidean_sensitivity(self, clip: float | None) -> float | None:
        """Return `sensitivity` in the Euclidean metric: of a Fisher clip at most half, attained at theta = 1/2."""
        found = self.sensitivity(clip)
        return found / 2 if found is not None and self.clip_metric == "fisher" else found

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Return the standard deviation of the noise on the probabilities that is charged."""
        return self.noise_std


@dataclass(frozen=True, kw_only=True)
class BernoulliChannel(_Coins):
    """Bernoulli upload of one client, seen by itself: samples of clip(theta + N(0, noise_std^2), floor, 1 - floor).

    Claim: its Renyi divergence is at most `bernoulli.channel_bound`; sampling does not amplify it.
    Source: docs/theory-bernoulli.md, Theorem 5. Units: clips and noise_std are probabilities; under clip_metric
    "fisher" clips are probabilities over sqrt(theta (1 - theta)). Adjacency: zero-out (public samples in its place) or
    replace-one.
    Errors: UnsupportedMechanism for add-remove and for Fisher clips with noise; InvalidParameter for a number outside
    its domain, or no clip.

    >>> from accounting import BernoulliChannel, guarantee
    >>> coin = BernoulliChannel(dimension=1, floor=0.25, adjacency="zero-out", linf_clip=0.5)
    >>> round(guarantee(coin, delta=1e-5, accountant="exact").epsilon, 4)  # log 3
    1.0986
    """

    kind: ClassVar[str] = "bernoulli-channel"
    sums: ClassVar[bool] = False

    @property
    def overflow(self) -> float:
        """Probability of a failure in a release that is charged to delta: 0."""
        return 0.0

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Accept every sampling: each upload is seen by itself, so sampling hides nothing (`sums`)."""

    def to_dict(self) -> dict[str, object]:
        return {"kind": self.kind, **asdict(self), "adjacency": str(self.adjacency)}


@dataclass(frozen=True, kw_only=True)
class BernoulliAggregate(_Coins):
    """Sum of exactly `cohort` clients' Bernoulli uploads, the only thing that is seen.

    An upload has samples of theta, or with `noise_std` of theta + N(0, noise_std^2) clipped to [floor, 1 - floor];
    padding uploads are drawn alike from the public theta. `overflow`: the probability that a release draws more than
    `cohort` clients, added to delta for every release. `others`: "near-reference" if every sample of the sum, padding
    included, has its probability within the clip on each coordinate of the public one, which the other clients are
    trusted to keep to; "anywhere" if only the floor holds for them.
    Claim: its Renyi divergence is at most `bernoulli.sums.aggregate_bound`, its hockey-stick divergence, where a mu is
    known, that of a Gaussian plus a part of delta. Source: docs/theory-bernoulli.md, Theorems 6 and 7. Units: as
    `BernoulliChannel`.
    Adjacency: zero-out or replace-one; zero-out alone under Poisson sampling. Errors: as `BernoulliChannel`.

    >>> from accounting import BernoulliAggregate
    >>> BernoulliAggregate(dimension=100, floor=0.1, adjacency="replace-one", l2_clip=0.5, cohort=30).sensitivity(0.5)
    1.0
    """

    cohort: int
    overflow: float = 0.0
    others: str = "anywhere"
    kind: ClassVar[str] = "bernoulli-aggregate"
    sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "cohort", require.count(cohort=self.cohort))
        object.__setattr__(self, "overflow", require.probability(overflow=self.overflow))
        require.one_of(OTHERS, others=self.others)

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Reject a sampler under which the number of uploads, or the neighbours, would not be the accounted ones."""
        if name in ("poisson", "capped-poisson") and self.adjacency is not Adjacency.ZERO_OUT:
            raise UnsupportedMechanism(
                f"adjacency={str(self.adjacency)!r} with Poisson-sampled Bernoulli uploads: the server pads to a "
                "fixed number of uploads, which is zero-out. Use adjacency 'zero-out', or fixed-size sampling."
            )
        if name == "capped-poisson" and cohort is not None and cohort > self.cohort:
            raise InvalidParameter(
                f"cap={cohort} of the sampler, {self.cohort} uploads: a sum must hold at least as many."
            )
        if name == "fixed" and cohort != self.cohort:
            raise InvalidParameter(
                f"cohort={cohort} of the sampler, {self.cohort} of the sum: under fixed-size sampling they are one."
            )

    def to_dict(self) -> dict[str, object]:
        return {"kind": self.kind, **asdict(self), "adjacency": str(self.adjacency)}
