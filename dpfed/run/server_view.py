"""What a secure sum promises where it is known who took part: no amplification by sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scipy.stats import binom

from accounting.compose import accountant
from accounting.mechanisms import Composed, Subsampled
from dpfed.config.tables import Config
from dpfed.methods.goals import PrivacyGoal
from dpfed.methods.records import RecordGoal

_SHARE_OF_DELTA = 0.02
"""What of delta goes to clients that are drawn more often than is accounted for."""


@dataclass(frozen=True, kw_only=True)
class KnownCohorts:
    """Epsilon of every client at the run's delta, from `rounds` rounds without their sampling.

    charged: the part of delta that pays for a client being drawn in more rounds
    """

    epsilon: float
    rounds: int
    charged: float


def server_view(config: Config, goal: PrivacyGoal | RecordGoal | None, released: int) -> KnownCohorts | None:
    """Against the server itself. None where no secure sum with the clients' own noise shields clients from it.

    Claim: the server is honest but curious, no client colludes with it, and it sees all but the uploads: who was drawn,
    who was lost, every sum. Then what it learns of a client is the rounds that it was drawn in, without their sampling.
    Adjacency: the run's own. Direction of error: upper bound.
    """
    return _without_sampling(config, goal, released, noise_of="clients")


def hostile_clients_view(config: Config, goal: PrivacyGoal | RecordGoal | None, released: int) -> KnownCohorts | None:
    """Against those who see the models, whatever all other clients send. None without a secure sum whose noise is the
    server's: a trusted sum bounds every upload, so epsilon itself holds; and shares of noise, or coins, are only there
    if clients add them.

    Claim: nothing bounds what is under masks, so that others may show in a sum who took part, the differing client
    included, but no more than that: given who took part, what is released is post-processing of this client's own
    integers with the server's noise (docs/theory.md, section 7). Adjacency: the run's own. Direction of error: upper
    bound.
    """
    return _without_sampling(config, goal, released, noise_of="server")


def _without_sampling(
    config: Config,
    goal: PrivacyGoal | RecordGoal | None,
    released: int,
    *,
    noise_of: Literal["clients", "server"],
) -> KnownCohorts | None:
    """m of the rounds without sampling. A client is drawn in more with probability at most a fiftieth of delta, which
    is charged: the draws do not depend on data, so delta(m rounds) + P(more) is a delta for every client."""
    if config.aggregation.kind == "plain" or not isinstance(goal, PrivacyGoal) or not released:
        return None
    if goal.integers is None or goal.integers.placement != noise_of:
        return None
    most, charged, once = released, 0.0, goal.mechanism
    if isinstance(once, Subsampled):
        chance = config.federation.cohort / config.federation.clients
        most = max(int(binom.isf(_SHARE_OF_DELTA * goal.delta, released, chance)), 1)
        charged, once = float(binom.sf(most, released, chance)), once.mechanism
    run = Composed(parts=((once, most),))
    epsilon = accountant.epsilon(run, delta=goal.delta - charged)
    return KnownCohorts(epsilon=epsilon, rounds=most, charged=charged)
