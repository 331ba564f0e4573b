"""Number of lanes, schedule and kind of noise with the smallest error in the model at a given epsilon.

Lanes, equal to the number of bands: with more lanes, noise cancels over more rounds, but a client's round is hidden
among fewer rounds. So the error first decreases and then increases with the number of lanes. The search moves over the
divisors of an epoch until the error increases. Every number of lanes is equally private, because its noise is
calibrated for it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from accounting import require
from accounting.budget import calibrate
from accounting.budget.correlated import BandedNoise, BufferedNoise
from accounting.budget.gaussians import GaussianNoise
from accounting.budget.plan import Plan
from accounting.compose import accountant
from accounting.compose.accountant import Accountant
from accounting.errors import CalibrationError, InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.allocation import BallsAndBins, divisors
from accounting.mechanisms.samplings.independent import Poisson
from accounting.mechanisms.samplings.public_orders import Cyclic
from accounting.rounding import upwards

_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class AdvisedPlan:
    """Plan whose noise multiplier meets the given epsilon, with the resulting error of the model.

    error: root mean square over rounds, in clip norms. Noise multiplier and error are at most 0.3% above the smallest
    possible values, never below.
    """

    plan: Plan
    error: float

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier that meets the given epsilon."""
        return float(self.plan.noise_multiplier or 0)

    @property
    def lanes(self) -> int | None:
        """Public lanes under balls-and-bins; None if there are none."""
        return getattr(self.plan.sampling, "lanes", None)

    def __str__(self) -> str:
        noise, sampling = self.plan.mechanism, self.plan.sampling.name
        noise_text = {
            "banded": f"noise in {getattr(noise, 'bands', None)} bands",
            "blt": f"noise in {getattr(noise, 'buffers', None)} buffers (BLT)",
        }.get(noise.noise, "independent noise")
        lanes = f" in {self.lanes} public lanes" if self.lanes else ""
        return f"{noise_text} under {sampling}{lanes}, {upwards(self.error)} C"

    def to_dict(self) -> dict[str, object]:
        noise = self.plan.mechanism
        return {
            "sampling": self.plan.sampling.name,
            "lanes": self.lanes,
            "noise": noise.noise,
            "bands": getattr(noise, "bands", None),
            "buffers": getattr(noise, "buffers", None),
            "noise_multiplier": self.noise_multiplier,
            "prefix_error_in_clips": self.error,
            "run": True,
        }


@lru_cache(maxsize=64)
def search_lanes(plan: Plan, *, epsilon: float, rounds: int, stated_by: Accountant = "best") -> AdvisedPlan:
    """Return the plan with the number of lanes and bands of smallest error over `rounds` rounds at `epsilon`.

    plan: one that needs lanes (`Plan.needs_lanes`): banded noise under balls-and-bins.
    Errors: CalibrationError if a number of lanes cannot meet epsilon; InvalidParameter for secret lanes in an
    epoch that has one lane only.
    """
    noise, sampling = cast(BandedNoise, plan.mechanism), cast(BallsAndBins, plan.sampling)
    require.positive(epsilon=epsilon)
    least = 2 if sampling.secret_lanes else 1
    choices = [one for one in divisors(plan.period) if least <= one <= require.count(rounds=rounds)]
    if not choices:
        raise InvalidParameter(
            f"secret_lanes with epochs of {plan.period} rounds: no number of lanes above 1 divides them. Remove it."
        )
    found: dict[int, AdvisedPlan] = {}

    def error(place: int) -> float:
        if place not in found:
            lanes = choices[place]
            nearest = min(found, key=lambda other: abs(choices[other] - lanes), default=None)
            one = replace(plan, sampling=replace(sampling, lanes=lanes), mechanism=replace(noise, bands=lanes))
            start = 1.0 if nearest is None else found[nearest].noise_multiplier
            z = _calibrated_multiplier(one, epsilon, rounds, start=start, tolerance=_TOLERANCE, stated_by=stated_by)
            error_of_model = one.mechanism.prefix_error(one, z, rounds)
            found[place] = AdvisedPlan(plan=one.changed(noise_multiplier=z), error=error_of_model)
        return found[place].error

    start = min(range(len(choices)), key=lambda place: abs(choices[place] - plan.period**0.5))
    error(calibrate.least_place(error, len(choices), start=start))
    return min(found.values(), key=lambda one: one.error)


def _calibrated_multiplier(
    plan: Plan, epsilon: float, rounds: int, *, start: float, tolerance: float, stated_by: Accountant = "best"
) -> float:
    """Return the noise multiplier that meets epsilon, at most `tolerance` (relative) above the threshold."""
    return calibrate.smallest(
        lambda z: accountant.epsilon(plan.run(z, rounds), delta=plan.delta, accountant=stated_by),
        epsilon,
        name="noise multiplier",
        start=start,
        tolerance=tolerance,
    )


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
    return search_lanes(plan, epsilon=epsilon, rounds=rounds, stated_by=stated_by).plan.changed(noise_multiplier=None)


_ADVICE_TOLERANCE = 3e-3
_BUFFERS = 2


def advised_plans(plan: Plan, *, epsilon: float, rounds: int) -> tuple[AdvisedPlan, ...]:
    """Return plans with the same cohort and epsilon under each schedule and kind of noise, by increasing error.

    The error is that of prefix sums over rounds. Returns () without an alternative: noise other than the server's
    Gaussian, replace-one, all clients in every round, or earlier releases on the same clients.
    """
    one_client = plan.adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    if plan.mechanism.name != "gaussian" or not one_client or plan.before is not None or plan.period < 2:
        return ()
    found: list[AdvisedPlan] = []
    for other in _alternative_plans(plan, rounds):
        with suppress(CalibrationError):  # no noise multiplier meets epsilon
            if other.needs_lanes:
                best = search_lanes(other, epsilon=epsilon, rounds=rounds)
                if best.lanes != 1:  # one lane has independent noise, which is a separate choice
                    found.append(best)
                continue
            start = found[-1].noise_multiplier if found else 1.0
            z = _calibrated_multiplier(other, epsilon, rounds, start=start, tolerance=_ADVICE_TOLERANCE)
            error = other.mechanism.prefix_error(other, z, rounds)
            found.append(AdvisedPlan(plan=other.changed(noise_multiplier=z), error=error))
    return tuple(sorted(found, key=lambda one: one.error))


def advice_lines(found: tuple[AdvisedPlan, ...]) -> tuple[str, ...]:
    """Return the advice as lines of text; empty if there is no advised plan."""
    if not found:
        return ()
    lines = [f"smallest error of the model's prefix sums at this epsilon: {found[0]}"]
    public = next((one for one in found if one.plan.sampling.name == "cyclic"), None)
    if public is not None and public is not found[0]:
        lines.append(f"if participation cannot be kept secret: {public}")
    return tuple(lines)


def _alternative_plans(plan: Plan, rounds: int) -> Iterator[Plan]:
    in_turn = Cyclic(cohort=plan.cohort)
    yield replace(plan, sampling=BallsAndBins(cohort=plan.cohort), mechanism=GaussianNoise())
    yield replace(plan, sampling=Poisson(cohort=plan.cohort), mechanism=GaussianNoise())
    yield replace(plan, sampling=in_turn, mechanism=BandedNoise(bands=min(plan.period, rounds)))
    yield replace(plan, sampling=in_turn, mechanism=BufferedNoise(buffers=_BUFFERS))
    # Under add-remove a new client could change the lanes of others.
    zero_out = replace(plan, adjacency=Adjacency.ZERO_OUT)
    yield replace(zero_out, sampling=BallsAndBins(cohort=plan.cohort), mechanism=BandedNoise())
