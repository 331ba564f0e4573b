"""What a secure sum promises against the server itself, which knows who took part: no amplification by sampling."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import binom

from accounting import accountant
from accounting.mechanisms import Composed, Subsampled
from dpfed.build import PrivacyGoal, RecordGoal
from dpfed.config import Config

_SOMEBODY_MORE_OFTEN = 0.01


@dataclass(frozen=True, kw_only=True)
class ServerView:
    """Epsilon of a client that was drawn in `rounds` rounds; with 99% nobody was drawn more often."""

    epsilon: float
    rounds: int


def server_view(config: Config, goal: PrivacyGoal | RecordGoal | None, released: int) -> ServerView | None:
    """None where no secure sum with the clients' own noise shields clients from the server.

    Claim: the server is honest but curious, no client colludes with it, and it sees all but the uploads: who was drawn,
    who was lost, every sum. Then what it learns of a client that was drawn m times is m of the rounds without their
    sampling. m is a bound that holds for all clients at once with probability 99% over the draws, fixed beforehand.
    Adjacency: the run's own. Direction of error: upper bound.
    """
    if config.aggregation.kind == "plain" or not isinstance(goal, PrivacyGoal) or not released:
        return None
    if goal.integers is None or goal.integers.placement != "clients":
        return None
    sampled = isinstance(goal.mechanism, Subsampled)
    chance = config.federation.cohort / config.federation.clients if sampled else 1.0
    most = int(binom.isf(_SOMEBODY_MORE_OFTEN / config.federation.clients, released, chance)) if sampled else released
    once = goal.mechanism.mechanism if isinstance(goal.mechanism, Subsampled) else goal.mechanism
    run = Composed(parts=((once, max(most, 1)),))
    return ServerView(epsilon=accountant.epsilon(run, delta=goal.delta), rounds=max(most, 1))
