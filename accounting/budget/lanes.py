"""Search for the number of lanes, equal to the number of bands, with the smallest error in the model at an epsilon.

With more lanes, noise cancels over more rounds, but a client's round is hidden among fewer rounds. So the error first
decreases and then increases with the number of lanes. The search moves over the divisors of an epoch until the error
increases. Every number of lanes is equally private, because its noise is calibrated for it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from accounting import require
from accounting.budget import calibrate
from accounting.budget.correlated import BandedNoise
from accounting.budget.plan import Plan
from accounting.budget.samplings import BallsAndBins
from accounting.compose import accountant
from accounting.compose.accountant import Accountant
from accounting.errors import InvalidParameter
from accounting.mechanisms.schedules import divisors

_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class PlanWithLanes:
    """Plan with lanes, its calibrated noise multiplier, at most `_TOLERANCE` above the threshold, and the model's
    error.
    """

    plan: Plan
    noise_multiplier: float
    error: float


@lru_cache(maxsize=64)
def search_lanes(plan: Plan, *, epsilon: float, rounds: int, stated_by: Accountant = "best") -> PlanWithLanes:
    """Return the plan with the number of lanes and bands of smallest error over `rounds` rounds at `epsilon`.

    Errors: CalibrationError if a number of lanes cannot meet epsilon; InvalidParameter for a plan that has lanes, or
    without banded noise.
    """
    noise, sampling = plan.mechanism, plan.sampling
    if not (isinstance(noise, BandedNoise) and isinstance(sampling, BallsAndBins) and plan.needs_lanes):
        raise InvalidParameter("lanes are searched only for noise='banded' with sampling='balls-and-bins'.")
    require.positive(epsilon=epsilon)
    least = 2 if sampling.secret_lanes else 1
    choices = [one for one in divisors(plan.period) if least <= one <= require.count(rounds=rounds)]
    if not choices:
        raise InvalidParameter(
            f"secret_lanes with epochs of {plan.period} rounds: no number of lanes above 1 divides them. Remove it."
        )
    found: dict[int, PlanWithLanes] = {}

    def error(place: int) -> float:
        lanes = choices[place]
        if lanes not in found:
            nearest = min(found, key=lambda one: abs(one - lanes), default=None)
            one = replace(plan, sampling=replace(sampling, lanes=lanes), mechanism=replace(noise, bands=lanes))
            z = calibrate.smallest(
                lambda z: accountant.epsilon(one.run(z, rounds), delta=plan.delta, accountant=stated_by),
                epsilon,
                name="noise multiplier",
                start=1.0 if nearest is None else found[nearest].noise_multiplier,
                tolerance=_TOLERANCE,
            )
            made = one.mechanism
            assert isinstance(made, BandedNoise)
            found[lanes] = PlanWithLanes(plan=one, noise_multiplier=z, error=made.prefix_error(one, z, rounds))
        return found[lanes].error

    place = min(range(len(choices)), key=lambda k: abs(choices[k] - plan.period**0.5))
    for step in (1, -1):
        while 0 <= place + step < len(choices) and error(place + step) < error(place):
            place += step
    error(place)
    return min(found.values(), key=lambda one: one.error)


def with_lanes(plan: Plan, *, epsilon: float | None, rounds: int | None, stated_by: Accountant = "best") -> Plan:
    """Return the plan with lanes, which are searched if the plan does not state them.

    Errors: InvalidParameter without an epsilon or rounds, on which the best lanes depend.
    """
    if not plan.needs_lanes:
        return plan
    if epsilon is None or rounds is None:
        raise InvalidParameter(
            "lanes is missing: lanes are searched for an epsilon and a number of rounds. Give both, or lanes or bands."
        )
    return search_lanes(plan, epsilon=epsilon, rounds=rounds, stated_by=stated_by).plan
