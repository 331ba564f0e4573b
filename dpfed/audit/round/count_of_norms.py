"""Second number of a round with adaptive clipping: the count of clients inside the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfed.audit.round.claims import Claim
from dpfed.audit.round.neighbours import Neighbours
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.server.state import ServerState
from dpfed.stages.clip import AdaptiveClip, Clip


@dataclass(frozen=True, kw_only=True)
class CountOfNorms:
    """Noisy count in the next clip norm, C' = C exp(-rate (fraction - quantile)).

    start:    the clip norm of the round
    expected: the public number of clients that the count is divided by
    base:     the count without noise in world 0; mu: distance of world 1 from it, over the claimed noise
    sign:     of that difference
    """

    adaptive: AdaptiveClip
    start: float
    expected: float
    base: float
    mu: float
    sign: float

    @classmethod
    def of(cls, quiet: WholeRounds, pair: Neighbours, claim: Claim) -> CountOfNorms:
        """Return the count's score from two rounds without noise. The claim allows a difference of at most
        `claim.count_mu`.
        """
        clip = quiet.one.method.stages.find(Clip)
        assert clip is not None
        assert clip.adaptive is not None
        plain = cls(
            adaptive=clip.adaptive,
            start=quiet.one.state.clip_norm,
            expected=clip.adaptive.cohort,
            base=0.0,
            mu=0.0,
            sign=1.0,
        )
        together, counts = quiet.together(), []
        for own in (pair.other, pair.one):
            done = quiet.run(quiet.moves(own, pair.rest), together[1:] if own is None else together)
            counts.append(plain.count(done.state))
        apart = counts[1] - counts[0]
        return cls(
            adaptive=plain.adaptive,
            start=plain.start,
            expected=plain.expected,
            base=counts[0],
            mu=min(abs(apart) / plain.adaptive.count_noise_std, claim.count_mu),
            sign=math.copysign(1.0, apart),
        )

    def count(self, after: ServerState) -> float:
        """Return the centred count in this state."""
        fraction = self.adaptive.quantile - math.log(after.clip_norm / self.start) / self.adaptive.rate
        return (fraction - 0.5) * self.expected

    def score(self, after: ServerState) -> float:
        """Return a score that is N(0, 1) in world 0 and N(mu, 1) in world 1, if the claim holds."""
        return self.sign * (self.count(after) - self.base) / self.adaptive.count_noise_std

    def joint(self, score: float, after: ServerState, mu: float) -> float:
        """Return the best score of both numbers together, `score` being N(0, 1) or N(mu, 1)."""
        return (mu * score + self.mu * self.score(after)) / (math.hypot(mu, self.mu) or 1.0)
