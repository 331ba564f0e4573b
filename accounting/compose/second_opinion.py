"""Second opinion: epsilon of a mechanism by dp-accounting, an independent implementation."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, cast

import numpy as np

from accounting import require
from accounting.compose import loss_grid
from accounting.compose.pld import SMALLEST_DELTA
from accounting.compose.twins import overflow
from accounting.errors import MissingLibrary
from accounting.mechanisms import (
    Adjacency,
    CappedPoissonSampling,
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    SingleRelease,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    unsampled,
    with_whole_noise,
)
from accounting.rounding import downwards, upwards

_ORDERS = [float(order) for order in (*range(2, 65), 80, 96, 128, 160, 192, 224, 256)]

INSTALL = "Install it: pip install 'dpfed[train]', or dp-accounting."

_MOST_PARTS = 50
"""Largest number of distinct releases of a composition; the library computes one distribution for each."""

_LARGE_DIFFERENCE = 0.01
"""Relative difference above which discretisation alone does not explain a difference."""
_GRID_DIFFERENCE = 1e-4
"""Largest relative difference between two discretisations."""


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """Epsilon of a mechanism at `delta` by dp-accounting, or the reason why it has no result.

    epsilon: upper bound by the library's discretisation or Renyi bound, often looser than the epsilon of this package
    accountant: "pld" or "rdp", of dp-accounting `version`
    note: kind of the bound; the reason if epsilon and accountant are None"""

    epsilon: float | None
    delta: float
    accountant: str | None
    version: str
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)

    @property
    def source_text(self) -> str:
        """Text that names library, version and accountant."""
        note = f", {self.note}" if self.note else ""
        return f"dp-accounting {self.version}, {self.accountant}{note}"

    def remarks(self, *, epsilon: float, lower_bound: float | None) -> tuple[str, ...]:
        """Return notes that compare this opinion with `epsilon`, which is also an upper bound.

        They name the source or the reason for a missing number, a contradiction to a proven lower bound, and a large
        difference from `epsilon`.
        """
        if self.epsilon is None:
            return (f"no second opinion: {self.note}",)
        stated = f"second opinion {upwards(self.epsilon)} by {self.source_text}"
        if lower_bound is not None and self.epsilon < lower_bound * (1 - _GRID_DIFFERENCE):
            return (f"wrong {stated}: no account can state less than {downwards(lower_bound)}, which is proven",)
        if abs(self.epsilon - epsilon) <= _LARGE_DIFFERENCE * epsilon + _GRID_DIFFERENCE:
            return (f"{stated}: agrees",)
        if self.epsilon > epsilon:
            return (f"{stated}: far above {upwards(epsilon)}; both are upper bounds, its account is the looser one",)
        return (f"{stated}: far below {upwards(epsilon)}; both are upper bounds, and this account is the looser one",)


def second_opinion(mechanism: Mechanism, *, delta: float) -> SecondOpinion:
    """Return the epsilon of dp-accounting for `mechanism` under its adjacency, or the reason why it has no result.

    Claim: an upper bound by another implementation. Its documented errors are avoided: noise multipliers are Python
    floats and events are never nested; for replace-one the sensitivity is doubled before the library receives it,
    because its Renyi accountant assumes halved noise; fixed-size orders are at most 256, above which its curve jumps.
    Its privacy loss distribution for fixed-size sampling is not used, because it is below a proven lower bound. No
    distribution is used for a delta below 1e-12, where rounding errors dominate. Methods: PLD for Poisson sampling,
    with or without a cap, and without sampling. Renyi (Wang, Balle, Kasiviswanathan 2019) for fixed-size sampling under
    replace-one, which covers zero-out. Noise in shares is replaced by the noise of the sum, at delta minus its
    overflow. Rounds in a public order are replaced by the largest number of participations of one client.
    Direction of error: upper bound. Imports dp-accounting.
    """
    target = require.open_probability(delta=delta)
    delta_without_overflow = target - overflow(mechanism)
    mechanism = _with_participations(with_whole_noise(mechanism))
    parts = parts_of(mechanism)
    reason = _reason_against(parts, delta_without_overflow)
    if reason:
        return _no_opinion(target, reason)
    is_fixed_size = sampling_of(parts[0][0]).fixed_size
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # warnings about its discretisation; its result is checked here
            epsilon = (_epsilon_by_rdp if is_fixed_size else _epsilon_by_pld)(mechanism, delta_without_overflow)
    except ImportError as error:
        return _no_opinion(target, f"dp-accounting cannot be loaded ({error}). {INSTALL}")
    except (ValueError, ArithmeticError, MemoryError) as error:  # alternating sums of the library fail at huge noise
        return _no_opinion(target, f"dp-accounting fails ({type(error).__name__}: {str(error)[:100]})")
    if not math.isfinite(epsilon):
        return _no_opinion(target, "dp-accounting states that epsilon is infinite")
    return SecondOpinion(
        epsilon=epsilon,
        delta=target,
        accountant="rdp" if is_fixed_size else "pld",
        version=_version(),
        note="replace-one, Wang et al. 2019" if is_fixed_size else "",
    )


def _with_participations(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with rounds in a public order replaced by the participations of one client."""
    parts: list[tuple[SingleRelease, int]] = []
    for part, count in parts_of(mechanism):
        schedule = schedule_of(part)
        if schedule is not None and schedule.name in ("cyclic", "shuffled"):
            parts.append((unsampled(part), schedule.most_participations(count)))
        else:
            parts.append((part, count))
    return Composed(parts=tuple(parts), order=None)


def require_library() -> None:
    """Raise MissingLibrary if dp-accounting cannot be loaded."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise MissingLibrary(
            f"a second opinion needs dp-accounting, which cannot be loaded ({error}). {INSTALL}"
        ) from None


def _no_opinion(delta: float, reason: str) -> SecondOpinion:
    return SecondOpinion(epsilon=None, delta=delta, accountant=None, version=_version(), note=reason)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("dp-accounting")
    except metadata.PackageNotFoundError:
        return "not installed"


def _reason_against(parts: Sequence[tuple[SingleRelease, int]], delta: float) -> str:
    """Return the reason not to use the library; an empty string if it can be used."""
    others = sorted({unsampled(part).kind for part, _ in parts if gaussian_of(part) is None})
    if others:
        return f"dp-accounting has no account of {', '.join(others)}"
    schedules = sorted({one.name for part, _ in parts if (one := schedule_of(part)) is not None})
    if schedules:
        return f"dp-accounting has no account of {', '.join(schedules)} over rounds"
    if delta <= 0:
        return "all of delta is used for cohorts that exceed the uploads of a sum"
    if len(parts) > _MOST_PARTS:
        return (
            f"{len(parts)} different releases; dp-accounting is used for at most {_MOST_PARTS}, because more take too "
            "long"
        )
    fixed = [sampling_of(part).fixed_size for part, _ in parts]
    if any(fixed) and not all(fixed):
        return "dp-accounting has no account of fixed-size sampling together with other rounds"
    if not any(fixed) and delta < SMALLEST_DELTA:
        return (
            f"delta is below {downwards(SMALLEST_DELTA)}, where rounding errors of dp-accounting's distributions "
            "dominate"
        )
    return ""


def _epsilon_by_pld(mechanism: Mechanism, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as library

    relations = {
        Adjacency.ADD_REMOVE: library.NeighborRel.ADD_OR_REMOVE_ONE,
        Adjacency.ZERO_OUT: library.NeighborRel.REPLACE_SPECIAL,
        Adjacency.REPLACE_ONE: library.NeighborRel.REPLACE_ONE,
    }
    grid: dict[str, Any] = {
        "value_discretization_interval": loss_grid.interval(mechanism),
        "neighboring_relation": relations[mechanism.adjacency],
    }
    releases = []
    for part, count in parts_of(mechanism):
        noise, sampling = cast(Gaussian, unsampled(part)), sampling_of(part)
        z, q = noise.noise_multiplier, sampling.probability
        if isinstance(sampling, CappedPoissonSampling):
            capped = library.from_truncated_subsampled_gaussian_mechanism
            one = capped(sampling.clients, q, sampling.cap, z, **grid)
        else:
            one = library.from_gaussian_mechanism(z, sampling_prob=q, **grid)
        releases.append(one.self_compose(count))
    composed = reduce(lambda before, one: before.compose(one), releases)
    return float(composed.get_epsilon_for_delta(delta))


def _epsilon_by_rdp(mechanism: Mechanism, delta: float) -> float:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_ONE)
    for part, count in parts_of(mechanism):
        noise, sampling = cast(Gaussian, unsampled(part)), cast(FixedSizeSampling, sampling_of(part))
        gaussian = GaussianDpEvent(noise.noise_multiplier / 2)
        event = SampledWithoutReplacementDpEvent(sampling.clients, sampling.cohort, gaussian)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
