"""What the adversary of the adaptive account plays: which rounds of fixed size, in which order, and what else."""

import math
from dataclasses import dataclass

import numpy as np
import scipy

from accounting.mechanisms import Composed, Mechanism, SingleRelease, gaussian_of, in_order, parts_of, sampling_of
from accounting.mechanisms.adjacency import Adjacency


@dataclass(frozen=True, kw_only=True)
class RoundKind:
    """Rounds of fixed size that are all alike."""

    q: float
    s: float

    @classmethod
    def of(cls, release: SingleRelease) -> "RoundKind | None":
        """None for a release that is no Gaussian sum over a sampled cohort of fixed size."""
        noise, sampling = gaussian_of(release), sampling_of(release)
        if noise is None or sampling.name != "fixed" or not 0 < sampling.probability < 1:
            return None
        return cls(q=sampling.probability, s=1 / noise.noise_multiplier)

    def largest_loss(self, mass: float) -> float:
        """A loss that one round exceeds with at most this probability: of a shift 2s with probability q."""
        shift = 2 * self.s
        tail = float(-scipy.special.ndtri(min(0.5, mass / self.q)))
        return float(np.logaddexp(math.log1p(-self.q), math.log(self.q) + shift * shift / 2 + tail * shift))


@dataclass(frozen=True, kw_only=True)
class Game:
    """What the adversary plays: rounds of fixed size in their order, and releases without a choice.

    A release without a choice (a plain Gaussian, a Poisson-sampled one, whose one dominating pair is attained) counts
    as if it came first: the adversary who knows its outcome before choosing can do no worse.
    """

    runs: tuple[tuple[RoundKind, int], ...]
    fixed: Composed
    others: Composed | None
    whole: Mechanism

    @classmethod
    def of(cls, mechanism: Mechanism) -> "Game | None":
        """None where there is no choice, where a release is not Gaussian, or where it matters and is not known in which
        order rounds of fixed size came."""
        parts = parts_of(mechanism)
        if mechanism.adjacency is Adjacency.ADD_REMOVE or any(gaussian_of(part) is None for part, _ in parts):
            return None
        one_kind = len({RoundKind.of(part) for part, _ in parts} - {None}) == 1
        sequence = parts if one_kind else in_order(mechanism)
        runs = [
            (kind, count) for kind, count in ((RoundKind.of(part), count) for part, count in sequence or ()) if kind
        ]
        others = tuple((p, n) for p, n in parts if RoundKind.of(p) is None and sampling_of(p).probability > 0)
        if not runs:
            return None
        return cls(
            runs=tuple(runs),
            fixed=Composed(parts=tuple((part, count) for part, count in parts if RoundKind.of(part))),
            others=Composed(parts=others) if others else None,
            whole=mechanism,
        )

    @property
    def rounds(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def kinds(self) -> tuple[RoundKind, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.runs))

    @property
    def symmetric(self) -> bool:
        """Whether both orders of the worlds are alike."""
        return self.whole.adjacency is Adjacency.REPLACE_ONE
