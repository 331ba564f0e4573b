"""Second opinion: epsilon of the same mechanism by dp-accounting, an implementation that shares no code with this
one.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from accounting import require
from accounting.compose import loss_grid
from accounting.compose.pld import SMALLEST_DELTA
from accounting.errors import MissingLibrary
from accounting.mechanisms import (
    CappedPoissonSampling,
    Composed,
    Cyclic,
    FixedSizeSampling,
    Mechanism,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    unsampled,
    with_whole_noise,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import downwards, upwards

_ORDERS = [float(order) for order in (*range(2, 65), 80, 96, 128, 160, 192, 224, 256)]

INSTALL = "Install it: pip install 'dpfed[train]', or dp-accounting."

_MOST_PARTS = 50
"""Most different releases of a composition: the library has one distribution for each."""

_FAR = 0.01
"""Relative difference above which discretisation alone is no explanation."""
_GRID = 1e-4
"""Relative difference of two discretisations."""


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """Epsilon at `delta` by dp-accounting for the same mechanism, or the reason why it has none.

    epsilon:    an upper bound too, by its own discretisation or Renyi bound; often looser than ours
    accountant: "pld" or "rdp", of dp-accounting `version`
    note:       kind of the bound; the reason if epsilon and accountant are None
    """

    epsilon: float | None
    delta: float
    accountant: str | None
    version: str
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)

    @property
    def by(self) -> str:
        """Library, version and accountant as text."""
        note = f", {self.note}" if self.note else ""
        return f"dp-accounting {self.version}, {self.accountant}{note}"

    def remarks(self, *, epsilon: float, lower_bound: float | None) -> tuple[str, ...]:
        """Return remarks on this opinion for a reader of `epsilon`, which is an upper bound too.

        They name its source or the reason for a missing number, a contradiction to a proven lower bound, and a large
        distance from `epsilon`.
        """
        if self.epsilon is None:
            return (f"no second opinion: {self.note}",)
        stated = f"second opinion {upwards(self.epsilon)} by {self.by}"
        if lower_bound is not None and self.epsilon < lower_bound * (1 - _GRID):
            return (f"wrong {stated}: no account can state less than {downwards(lower_bound)}, which is proven",)
        if abs(self.epsilon - epsilon) <= _FAR * epsilon + _GRID:
            return (f"{stated}: agrees",)
        if self.epsilon > epsilon:
            return (f"{stated}: far above {upwards(epsilon)}; both are upper bounds, its account is the looser one",)
        return (f"{stated}: far below {upwards(epsilon)}; both are upper bounds, and this account is the looser one",)


def second_opinion(mechanism: Mechanism, *, delta: float) -> SecondOpinion:
    """Return the epsilon of dp-accounting for `mechanism`, under its own adjacency, or the reason why it has none.

    Claim: an upper bound by another implementation, with its documented errors avoided: noise multipliers are Python
    floats and events are never nested; replace-one doubles the sensitivity before the library receives it, since its
    Renyi accountant treats the noise as already halved; fixed-size orders stay at 256 and below, beyond which its curve
    jumps. Not
    used: its privacy loss distribution of fixed-size sampling, which is below a proven lower bound, and any at a delta
    below 1e-12, where rounding decides. Poisson sampling, with a cap or without, and no sampling: PLD. Fixed-size
    sampling: Renyi (Wang, Balle, Kasiviswanathan 2019), replace-one, which covers zero-out. Noise in shares counts as
    the noise of the sum, at delta minus its overflow; rounds in a public order as the most that one client takes part
    in.
    Direction of error: upper bound. Loads dp-accounting.
    """
    target = require.open_probability(delta=delta)
    left = target - math.fsum(count * unsampled(part).overflow for part, count in parts_of(mechanism))
    mechanism = _by_participations(with_whole_noise(mechanism))
    parts = parts_of(mechanism)
    why = _why_none(parts, left)
    if why:
        return _no_opinion(target, why)
    by_orders = sampling_of(parts[0][0]).name == "fixed"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of its discretisation; what it states is judged here
            epsilon = (_by_orders if by_orders else _by_losses)(mechanism, left)
    except ImportError as error:
        return _no_opinion(target, f"dp-accounting cannot be loaded ({error}). {INSTALL}")
    except (ValueError, ArithmeticError, MemoryError) as error:  # its alternating sums fail at huge noise
        return _no_opinion(target, f"dp-accounting fails ({type(error).__name__}: {str(error)[:100]})")
    if not math.isfinite(epsilon):
        return _no_opinion(target, "dp-accounting states that epsilon is infinite")
    return SecondOpinion(
        epsilon=epsilon,
        delta=target,
        accountant="rdp" if by_orders else "pld",
        version=_version(),
        note="replace-one, Wang et al. 2019" if by_orders else "",
    )


def _by_participations(mechanism: Mechanism) -> Mechanism:
    """Return rounds in a public order as the rounds that one client takes part in."""
    parts = parts_of(mechanism)
    orders = [(part, count, sampling_of(part)) for part, count in parts]
    if not any(isinstance(sampling, Cyclic) for _, _, sampling in orders):
        return mechanism
    plain: Any = tuple(
        (unsampled(part), sampling.most_participations(count)) if isinstance(sampling, Cyclic) else (part, count)
        for part, count, sampling in orders
    )
    return Composed(parts=plain, order=None)


def require_library() -> None:
    """Raise MissingLibrary if dp-accounting cannot be loaded."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise MissingLibrary(
            f"a second opinion needs dp-accounting, which cannot be loaded ({error}). {INSTALL}"
        ) from None


def _no_opinion(delta: float, why: str) -> SecondOpinion:
    return SecondOpinion(epsilon=None, delta=delta, accountant=None, version=_version(), note=why)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("dp-accounting")
    except metadata.PackageNotFoundError:
        return "not installed"


def _why_none(parts: Sequence[tuple[Any, int]], delta: float) -> str:
    """Return the reason not to use the library; empty if there is none."""
    others = sorted({unsampled(part).kind for part, _ in parts if gaussian_of(part) is None})
    if others:
        return f"dp-accounting has no account of {', '.join(others)}"
    schedules = sorted({one.name for part, _ in parts if (one := schedule_of(part)) is not None})
    if schedules:
        return f"dp-accounting has no account of {', '.join(schedules)} over rounds"
    if delta <= 0:
        return "all of delta is charged for cohorts that are too large"
    if len(parts) > _MOST_PARTS:
        return (
            f"{len(parts)} different releases, of which dp-accounting would compose at most {_MOST_PARTS} in good time"
        )
    fixed = [sampling_of(part).name == "fixed" for part, _ in parts]
    if any(fixed) and not all(fixed):
        return "dp-accounting has no account of fixed-size sampling together with other rounds"
    if not any(fixed) and delta < SMALLEST_DELTA:
        return (
            f"delta is below {downwards(SMALLEST_DELTA)}, where the rounding of dp-accounting's distributions decides"
        )
    return ""


def _by_losses(mechanism: Mechanism, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as library

    relations = {
        Adjacency.ADD_REMOVE: library.NeighborRel.ADD_OR_REMOVE_ONE,
        Adjacency.ZERO_OUT: library.NeighborRel.REPLACE_SPECIAL,
        Adjacency.REPLACE_ONE: library.NeighborRel.REPLACE_ONE,
    }
    interval, composed = loss_grid.interval(mechanism), None
    for part, count in parts_of(mechanism):
        noise: Any = unsampled(part)
        relation, sampling = relations[Adjacency.of(mechanism.adjacency)], sampling_of(part)
        if isinstance(sampling, CappedPoissonSampling):
            one = library.from_truncated_subsampled_gaussian_mechanism(
                dataset_size=sampling.clients,
                sampling_probability=sampling.probability,
                truncated_batch_size=sampling.cap,
                noise_multiplier=noise.noise_multiplier,
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
        else:
            one = library.from_gaussian_mechanism(
                noise.noise_multiplier,
                sampling_prob=sampling.probability,
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
        one = one.self_compose(count)
        composed = one if composed is None else composed.compose(one)
    assert composed is not None
    return float(composed.get_epsilon_for_delta(delta))


def _by_orders(mechanism: Mechanism, delta: float) -> float:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_ONE)
    for part, count in parts_of(mechanism):
        noise, sampling = gaussian_of(part), sampling_of(part)
        assert noise is not None  # `_why_none` has been asked
        assert isinstance(sampling, FixedSizeSampling)
        gaussian = GaussianDpEvent(noise.noise_multiplier / 2)
        event = SampledWithoutReplacementDpEvent(sampling.clients, sampling.cohort, gaussian)
        theirs.compose(event, count)
    return float(theirs.get_epsilon(delta))
