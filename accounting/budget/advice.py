"""Advice of `dpfed budget --compare`: the schedule and the noise with the least error at an epsilon."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from accounting.budget import calibrate
from accounting.budget.correlated import BandedNoise, BufferedNoise, CorrelatedNoise
from accounting.budget.gaussians import GaussianNoise
from accounting.budget.lanes import searched
from accounting.budget.plan import Plan
from accounting.budget.samplings import BallsAndBins, Cyclic, Poisson
from accounting.compose import accountant
from accounting.errors import CalibrationError
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards

_TOLERANCE = 3e-3
_BUFFERS = 2


@dataclass(frozen=True, kw_only=True)
class Advised:
    """Plan with the noise multiplier of its epsilon, and the error of the model.

    error: in clip norms, root mean square over rounds. Error of both: at most 0.3% above the smallest, never below it.
    """

    plan: Plan
    error: float

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the epsilon."""
        return float(self.plan.noise_multiplier or 0)

    @property
    def lanes(self) -> int | None:
        """Public lanes under balls-and-bins; None if there are none."""
        sampling = self.plan.sampling
        return sampling.lanes if isinstance(sampling, BallsAndBins) else None

    def __str__(self) -> str:
        noise, sampling = self.plan.mechanism, self.plan.sampling.name
        words = "independent noise"
        if isinstance(noise, BandedNoise):
            words = f"noise in {noise.bands} bands"
        if isinstance(noise, BufferedNoise):
            words = f"noise in {noise.sizes['buffers']} buffers (BLT)"
        lanes = f" in {self.lanes} public lanes" if self.lanes else ""
        return f"{words} under {sampling}{lanes}, {upwards(self.error)} C"

    def to_dict(self) -> dict[str, object]:
        noise = self.plan.mechanism
        return {
            "sampling": self.plan.sampling.name,
            "lanes": self.lanes,
            "noise": noise.noise,
            "bands": noise.bands if isinstance(noise, BandedNoise) else None,
            "buffers": noise.buffers if isinstance(noise, BufferedNoise) else None,
            "noise_multiplier": self.noise_multiplier,
            "prefix_error_in_clips": self.error,
            "run": True,
        }


def choices(plan: Plan, *, epsilon: float, rounds: int) -> tuple[Advised, ...]:
    """Return the plan's cohort by other schedules and noises at the same epsilon, the least error first.

    Error is that of prefix sums, over rounds. Returns () if there is no choice: noise that is not the server's
    Gaussian, replace-one, all clients in every round, releases before.
    """
    one_client = plan.adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    if plan.mechanism.name != "gaussian" or not one_client or plan.before is not None or plan.period < 2:
        return ()
    found: list[Advised] = []
    for other in _other_accounts(plan, rounds):
        if other.needs_lanes:
            found += _with_best_lanes(other, epsilon, rounds)
            continue
        one = _solved(other, epsilon, rounds, start=found[-1].noise_multiplier if found else 1.0)
        found += [] if one is None else [one]
    return tuple(sorted(found, key=lambda one: one.error))


def words(found: tuple[Advised, ...]) -> tuple[str, ...]:
    """Return the advice as text; empty if there is no choice."""
    if not found:
        return ()
    lines = [f"least error of the model's sums at this epsilon: {found[0]}"]
    public = next((one for one in found if one.plan.sampling.name == "cyclic"), None)
    if public is not None and public is not found[0]:
        lines.append(f"where participation cannot be kept secret: {public}")
    return tuple(lines)


def _other_accounts(plan: Plan, rounds: int) -> Iterator[Plan]:
    in_turn = Cyclic(cohort=plan.cohort)
    yield replace(plan, sampling=BallsAndBins(cohort=plan.cohort), mechanism=GaussianNoise())
    yield replace(plan, sampling=Poisson(cohort=plan.cohort), mechanism=GaussianNoise())
    yield replace(plan, sampling=in_turn, mechanism=BandedNoise(bands=min(plan.period, rounds)))
    yield replace(plan, sampling=in_turn, mechanism=BufferedNoise(buffers=_BUFFERS))
    zero_out = replace(plan, adjacency=Adjacency.ZERO_OUT)  # a client more might move the lanes of others
    yield replace(zero_out, sampling=BallsAndBins(cohort=plan.cohort), mechanism=BandedNoise())


def _with_best_lanes(plan: Plan, epsilon: float, rounds: int) -> list[Advised]:
    """Return the plan with the lanes of least error; nothing if none meets epsilon."""
    try:
        found = searched(plan, epsilon=epsilon, rounds=rounds)
    except CalibrationError:
        return []
    if found.plan.options["lanes"] == 1:
        return []  # independent noise, which is a separate choice
    return [Advised(plan=found.plan.changed(noise_multiplier=found.noise_multiplier), error=found.error)]


def _solved(plan: Plan, epsilon: float, rounds: int, *, start: float) -> Advised | None:
    try:
        z = calibrate.smallest(
            lambda z: accountant.epsilon(plan.run(z, rounds), delta=plan.delta),
            epsilon,
            name="noise multiplier",
            start=start,
            tolerance=_TOLERANCE,
        )
    except CalibrationError:
        return None
    return Advised(plan=plan.changed(noise_multiplier=z), error=z * _error(plan, rounds))


def _error(plan: Plan, rounds: int) -> float:
    if isinstance(plan.mechanism, CorrelatedNoise):
        return plan.mechanism.prefix_error(plan, 1.0, rounds)
    return math.sqrt((rounds + 1) / 2)
