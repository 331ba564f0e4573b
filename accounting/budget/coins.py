"""Bernoulli uploads of a plan (masks, stochastic signs), in sums or individually visible.

The Bernoulli samples (and `noise_std`) provide the privacy, so there is no noise multiplier to solve for. Epsilon
follows from the rounds; rounds or the clip follow from epsilon.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from accounting import require
from accounting.bernoulli.sums import LARGEST_COHORT
from accounting.budget.gaussians import PlannedMechanism, Setting, most_uploads
from accounting.budget.integers import DIMENSION
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Adjacency, BernoulliAggregate, BernoulliChannel, Composed, SingleRelease, subsample
from accounting.mechanisms.samplings.independent import rarely_exceeded
from accounting.options import option

_TRUST = {
    "anywhere": "others anywhere: other clients' probabilities are only assumed to lie in [floor, 1 - floor]; sampled "
    "cohorts, in which one client takes another's place, rely on their clips, too",
    "near-reference": "others near the reference: all clients of a sum are trusted to clip their probabilities",
}


@dataclass(frozen=True, kw_only=True)
class BernoulliUploads(PlannedMechanism):
    """Individually visible Bernoulli uploads, so sampling does not amplify privacy.

    Under sampling "all", `rounds` is the number of uploads of one client; under "cyclic" that number follows from the
    public order. `edge` is c: probabilities are in [c, 1-c]. `clip_norm` and `linf_clip` bound a client's move from the
    public probabilities; `l2_sensitivity` may replace `clip_norm`. `noise_std`: Gaussian noise on the probabilities,
    before they are clipped to [c, 1-c]. `clip_metric` "fisher": both clips bound the move divided by sqrt(theta (1 -
    theta)), theta the public probability. `reference`: theta, if it is equal for all coordinates and rounds.
    Claim: each upload is `mechanisms.BernoulliChannel`.
    Source: docs/theory-bernoulli.md, Theorem 5.
    Units: clips, sensitivity and noise_std are probabilities.
    Adjacency: zero-out (sensitivity: the clip) or replace-one (twice the clip).
    Errors: InvalidParameter for a number outside its domain; UnsupportedMechanism for other samplings.

    >>> from accounting import Plan, budget
    >>> uploads = budget.BernoulliUploads(dimension=1, edge=0.25, linf_clip=0.5)
    >>> plan = Plan(clients=600, sampling="all", mechanism=uploads)
    >>> round(budget.epsilon(plan, rounds=1, accountant="exact"), 4)
    1.0985
    """

    dimension: int = option(DIMENSION)
    edge: float = option("Bernoulli uploads: c, all probabilities lie in [c, 1-c].")
    clip_norm: float | None = option(
        "Bernoulli uploads: largest L2 distance of a client from the public probabilities. The sensitivity follows.",
        None,
    )
    l2_sensitivity: float | None = option("Bernoulli uploads: the L2 sensitivity, instead of clip_norm.", None)
    linf_clip: float | None = option(
        "Bernoulli uploads: largest distance of one probability from the public one; with clip_norm it lowers epsilon.",
        None,
    )
    noise_std: float = option("Bernoulli uploads: Gaussian noise on the probabilities before they are clipped.", 0.0)
    clip_metric: Literal["euclidean", "fisher"] = option(
        "Bernoulli uploads: with fisher both clips bound the move over sqrt(theta (1 - theta)), theta the public "
        "probability.",
        "euclidean",
    )
    reference: float | None = None
    name: ClassVar[str] = "bernoulli-channel"
    words: ClassVar[str] = "Bernoulli samples, each upload visible"
    has_noise_multiplier: ClassVar[bool] = False
    advice: ClassVar[str] = "Lower the clip or raise the cohort."

    def default_adjacency(self, sampling: str) -> Adjacency:
        """Return replace-one for fixed-size sampling, else zero-out."""
        return Adjacency.REPLACE_ONE if sampling == "fixed" else Adjacency.ZERO_OUT

    def validated_for(self, setting: Setting) -> Self:
        """Return validated uploads, with a sensitivity converted to a clip norm. Errors: InvalidParameter,
        UnsupportedMechanism.
        """
        self._check_sampling(setting)
        for name in ("clip_norm", "linf_clip"):
            if getattr(self, name) is not None:
                require.clip_norm(**{name: getattr(self, name)})
        if self.l2_sensitivity is None:
            return self
        if self.clip_norm is not None:
            raise InvalidParameter(
                "clip_norm and l2_sensitivity: give one; the sensitivity follows from the clip norm."
            )
        clip = require.positive(l2_sensitivity=self.l2_sensitivity) / setting.adjacency.sensitivity_in_clips
        return replace(self, clip_norm=clip, l2_sensitivity=None)

    def _check_sampling(self, setting: Setting) -> None:
        if setting.sampling.name not in ("all", "cyclic"):
            raise UnsupportedMechanism(
                f"mechanism='bernoulli-channel' with sampling={setting.sampling.name!r}: each upload is individually "
                "visible, so sampling does not amplify privacy. Use sampling 'all' and count a client's uploads as "
                "rounds, or the public order 'cyclic'."
            )

    def _shared_fields(self, setting: Setting) -> dict[str, Any]:
        return {
            "dimension": self.dimension,
            "floor": self.edge,
            "adjacency": setting.adjacency,
            "l2_clip": self.clip_norm,
            "linf_clip": self.linf_clip,
            "noise_std": self.noise_std,
            "clip_metric": self.clip_metric,
            "reference": self.reference,
        }

    def release(self, setting: Setting) -> BernoulliAggregate | BernoulliChannel:
        """Return one round without its sampling."""
        return BernoulliChannel(**self._shared_fields(setting))

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one round, as a ledger line states it."""
        if noise_multiplier is not None:
            raise InvalidParameter(
                f"noise_multiplier={require.short_repr(noise_multiplier)} with mechanism={self.name!r}: its Bernoulli "
                "samples are the noise. Remove it."
            )
        return subsample(self.release(setting), setting.sampler)

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return the bounds on the probabilities, for the JSON of a budget."""
        names = ("dimension", "edge", "clip_norm", "linf_clip", "noise_std", "clip_metric")
        return {**{name: getattr(self, name) for name in names}, "others": "anywhere", "reference": self.reference}


@dataclass(frozen=True, kw_only=True)
class BernoulliSums(BernoulliUploads):
    """Sums of exactly K Bernoulli uploads; the server sees only the sum on each coordinate.

    K is the cohort under fixed and all, and the cohort cap under poisson (`Plan.cohort_cap`), where the server pads
    with samples of the public probabilities. `others` "near-reference": the other clients of a sum are trusted to keep
    `linf_clip` (or `clip_norm`); "anywhere": their probabilities are only in [edge, 1 - edge]. Sampling relies on
    both clips of other clients, since one may take another's place.
    Claim: each round is `mechanisms.BernoulliAggregate`.
    Source: docs/theory-bernoulli.md, Theorems 6 and 7.
    Units: as `BernoulliUploads`.
    Adjacency: zero-out, or replace-one except under poisson.
    Errors: as `BernoulliUploads`.

    >>> from accounting import Plan, budget
    >>> sums = budget.BernoulliSums(dimension=100, edge=0.1, clip_norm=0.5)
    >>> Plan(clients=600, sampling=budget.FixedSize(cohort=30), mechanism=sums).round().mechanism.cohort
    30
    """

    others: Literal["anywhere", "near-reference"] = option(
        "Bernoulli uploads: near-reference trusts all clients of a sum to keep linf_clip; anywhere (the default) "
        "only to keep the edge.",
        "anywhere",
    )
    name: ClassVar[str] = "bernoulli-aggregate"
    words: ClassVar[str] = "Bernoulli samples, only sums visible"

    def default_cap(self, cohort: int, clients: int, *, delta: float) -> int:
        """Return the smallest cap that is rarely exceeded: every upload adds the noise of its Bernoulli samples."""
        return rarely_exceeded(cohort, clients, delta=delta)

    def sums_have_fixed_size(self, sampling: str) -> bool:
        """Return True if the number of uploads in a sum does not depend on the number of drawn clients."""
        return sampling == "poisson"

    def _check_sampling(self, setting: Setting) -> None:
        """Accept every sampling: `Subsampled` rejects those without an account."""

    def release(self, setting: Setting) -> BernoulliAggregate | BernoulliChannel:
        """Return one round without its sampling."""
        return BernoulliAggregate(**self._shared_fields(setting), cohort=most_uploads(setting), others=self.others)

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return the bounds on the probabilities and the trust in other clients, for the JSON of a budget."""
        return {**super().details(setting, noise_multiplier, rounds), "others": self.others}

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return notes on trust, padding, and uploads that the account omits."""
        uploads, notes = most_uploads(setting), [_TRUST[self.others]]
        if setting.sampling.name == "poisson":
            notes.append(
                f"padded to {uploads} uploads; if more clients are drawn, a random part is left out, as accounted"
            )
        if uploads > LARGEST_COHORT:
            notes.append(
                f"the account uses {LARGEST_COHORT:,} of the {uploads:,} uploads in a sum, which is an upper bound"
            )
        return tuple(notes)
