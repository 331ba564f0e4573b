"""Plans with coin uploads: masks under secure aggregation, or seen one by one. The privacy is in the coins (and in
`noise_std`), so there is no noise multiplier to solve for: epsilon from rounds, rounds or the clip from epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accounting import require
from accounting.bernoulli.sums import LARGEST_COHORT
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import SingleRelease, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards

if TYPE_CHECKING:
    from accounting.budget.plan import Plan

_TRUST = {
    "anywhere": "others anywhere: of the other clients' probabilities only the floor is relied on",
    "near-reference": "others near the reference: all clients of a sum are relied on to keep to the clip",
}


@dataclass(frozen=True, kw_only=True)
class CoinRounds:
    """Rounds of coin uploads as the accountant sees them.

    mechanism "bernoulli-aggregate": the server sees sums of exactly K coins; K is the cohort under fixed and all, and
    `slots` under poisson (default: exceeded with probability 1e-5 delta a round), where the server pads with coins of
    the public probabilities. "bernoulli-channel": every upload is seen by itself, so sampling hides nothing: under
    "all" `rounds` counts the uploads of one client, under "cyclic" they are counted by the public order.
    `edge` is c: probabilities lie in [c, 1-c]. `clip_norm` and `linf_clip` bound a client's move from the public
    probabilities; the sensitivity is that (zero-out) or twice that (replace-one). `noise_std`: of Gaussian noise on the
    probabilities, before they are clipped to [c, 1-c]. `clip_metric` "fisher": both clips are of the move over
    sqrt(theta (1 - theta)), theta the public probability. `others` "near-reference": the other clients of a sum are
    trusted to keep to `linf_clip` as well (or to `clip_norm`), "anywhere": to the floor only.
    """

    plan: Plan
    takes: ClassVar[frozenset[str]] = frozenset(
        {"dimension", "edge", "clip_norm", "linf_clip", "noise_std", "slots", "clip_metric", "others", "reference"}
    )
    has_noise_multiplier: ClassVar[bool] = False
    advice: ClassVar[str] = "Lower the clip or raise the cohort."

    def resolved(self) -> Mapping[str, Any]:
        """The adjacency: replace-one for fixed, else zero-out."""
        plan = self.plan
        if self._seen_one_by_one and plan.sampling not in ("all", "cyclic"):
            raise UnsupportedMechanism(
                f"mechanism='bernoulli-channel' with sampling={plan.sampling!r}: the server sees who uploads, so "
                "sampling hides nothing. Use sampling 'all' and count a client's uploads as rounds, or the public "
                "order 'cyclic'."
            )
        for name in ("dimension", "edge"):
            if getattr(plan, name) is None:
                raise InvalidParameter(f"{name}: is missing, and mechanism={plan.mechanism!r} has no default for it.")
        for name in ("clip_norm", "linf_clip"):
            if getattr(plan, name) is not None:
                require.clip_norm(**{name: getattr(plan, name)})
        default = Adjacency.REPLACE_ONE if plan.sampling == "fixed" else Adjacency.ZERO_OUT
        return {"adjacency": Adjacency.of(plan.adjacency or default)}

    @property
    def _seen_one_by_one(self) -> bool:
        return self.plan.mechanism == "bernoulli-channel"

    @property
    def noise_kept(self) -> float:
        """All of it: coins that are missing are no part of the sum's K."""
        return 1.0

    def coins(self) -> BernoulliAggregate | BernoulliChannel:
        """One round without its sampling."""
        plan = self.plan
        common: dict[str, Any] = {
            "dimension": plan.dimension,
            "floor": plan.edge,
            "adjacency": plan.adjacency,
            "l2_clip": plan.clip_norm,
            "linf_clip": plan.linf_clip,
            "noise_std": plan.noise_std,
            "clip_metric": plan.clip_metric,
            "reference": plan.reference,
        }
        if self._seen_one_by_one:
            return BernoulliChannel(**common)
        slots, overflow = self._slots
        return BernoulliAggregate(**common, cohort=slots, overflow=overflow, others=plan.others)

    @property
    def _slots(self) -> tuple[int, float]:
        """Coins in a sum, and the probability that more clients are drawn."""
        plan = self.plan
        if plan.sampling != "poisson":
            return (plan.clients if plan.sampling == "all" else plan.cohort), 0.0
        return default_slots(
            plan.cohort, plan.clients, delta=float(plan.delta or 0), adjacency=plan.adjacency, slots=plan.slots
        )

    def round(self, noise_multiplier: float | None) -> SingleRelease:
        """The mechanism of one round."""
        return subsample(self.coins(), self.plan.sampler)

    def details(self, noise_multiplier: float | None) -> Mapping[str, Any]:
        """What the coins are."""
        names = ("dimension", "edge", "clip_norm", "linf_clip", "noise_std", "clip_metric", "others", "reference")
        return {name: getattr(self.plan, name) for name in names}

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """What is padded, and what is not counted."""
        if self._seen_one_by_one:
            return ()
        (slots, overflow), notes = self._slots, [_TRUST[self.plan.others]]
        if self.plan.sampling == "poisson":
            charged = overflow(self.plan.run(None, rounds))
            notes.append(
                f"padded to {slots} slots; more are drawn with probability {upwards(overflow)} a round: "
                f"{upwards(charged)} of delta is charged for that"
            )
        if slots > LARGEST_COHORT:
            notes.append(f"of {slots:,} uploads in a sum {LARGEST_COHORT:,} are counted, an upper bound")
        return tuple(notes)
