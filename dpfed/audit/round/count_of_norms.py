"""Score of the noisy count of clients inside the bound, which a round with adaptive clipping releases as well."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfed.audit.round.claims import Claim
from dpfed.audit.round.neighbours import Neighbours
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.server.state import ServerState
from dpfed.stages.clip import AdaptiveClip, Clip


@dataclass(frozen=True, kw_only=True)
class CountScore:
    """Noisy count that the next clip norm C' = C exp(-rate (fraction - quantile)) reveals.

    start:    clip norm C of the round
    expected_clients: public number of clients by which the count is divided
    base:     count without noise in world 0
    mu:       distance of the count without noise between the worlds, over the claimed noise
    sign:     sign of the count in world 1 minus that in world 0
    """

    adaptive: AdaptiveClip
    start: float
    expected_clients: float
    base: float
    mu: float
    sign: float

    @classmethod
    def prepare(cls, quiet: WholeRounds, pair: Neighbours, claim: Claim) -> CountScore:
        """Prepare the count's score by two rounds without noise, one in each world; mu is at most
        `claim.count_separation`.
        """
        clip = quiet.one_round.method.stages.find(Clip)
        assert clip is not None
        assert clip.adaptive is not None
        plain = cls(
            adaptive=clip.adaptive,
            start=quiet.one_round.state.clip_norm,
            expected_clients=clip.adaptive.cohort,
            base=0.0,
            mu=0.0,
            sign=1.0,
        )
        together, counts = quiet.smallest_cohort(), []
        for own in (pair.neighbour_update, pair.tested_update):
            done = quiet.run(quiet.moves(own, pair.common_update), together[1:] if own is None else together)
            counts.append(plain.count(done.state))
        apart = counts[1] - counts[0]
        return cls(
            adaptive=plain.adaptive,
            start=plain.start,
            expected_clients=plain.expected_clients,
            base=counts[0],
            mu=min(abs(apart) / plain.adaptive.count_noise_std, claim.count_separation),
            sign=math.copysign(1.0, apart),
        )

    def count(self, after: ServerState) -> float:
        """Return the noisy count, minus half the expected number of clients, from the state `after` the round."""
        fraction = self.adaptive.quantile - math.log(after.clip_norm / self.start) / self.adaptive.rate
        return (fraction - 0.5) * self.expected_clients

    def score(self, after: ServerState) -> float:
        """Return a score that is N(0, 1) in world 0 and N(mu, 1) in world 1, if the claim holds."""
        return self.sign * (self.count(after) - self.base) / self.adaptive.count_noise_std

    def joint_score(self, score: float, after: ServerState, mu: float) -> float:
        """Return the best score from the count and from `score`, which is N(0, 1) in world 0 and N(mu,
        1) in world 1.
        """
        return (mu * score + self.mu * self.score(after)) / (math.hypot(mu, self.mu) or 1.0)
