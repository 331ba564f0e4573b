"""A second opinion: the same mechanism, stated by dp-accounting, an implementation that shares no code with ours."""

import math
import warnings
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np

from accounting import require
from accounting.compose import loss_grid
from accounting.mechanisms import FixedSizeSampling, Gaussian, Mechanism, Subsampled
from accounting.mechanisms.adjacency import Adjacency

_ORDERS = [float(order) for order in (*range(2, 65), 80, 96, 128, 160, 192, 224, 256)]


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """An epsilon at `delta` that dp-accounting computes for the same mechanism.

    epsilon:    an upper bound, too, by its own discretisation or its own Renyi bound; often looser than ours
    accountant: "pld" or "rdp", of dp-accounting `version`
    """

    epsilon: float
    delta: float
    accountant: str
    version: str
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def second_opinion(mechanism: Mechanism, *, delta: float) -> SecondOpinion | None:
    """What dp-accounting states for `mechanism`, under its own adjacency; None where it has no account of it.

    Claim: an upper bound by another implementation, where its documented errors are avoided: noise multipliers are
    Python floats and events are never nested; replace-one doubles the sensitivity before the library sees it, since its
    Renyi accountant takes the noise as if already halved; fixed-size orders stay at 256 and below, beyond which its
    curve jumps; its own privacy loss distribution of fixed-size sampling, which lies below a proven lower bound, is not
    asked. Poisson sampling and none: PLD. Fixed-size sampling: Renyi (Wang, Balle, Kasiviswanathan 2019), replace-one,
    which covers zero-out. Integer noise, coins: None. Direction of error: upper bound. Loads dp-accounting.
    """
    target = require.open_probability(delta=delta)
    parts = loss_grid.parts_of(mechanism)
    inside = [part.mechanism if isinstance(part, Subsampled) else part for part, _ in parts]
    if not all(isinstance(one, Gaussian) for one in inside):
        return None
    fixed = [isinstance(part, Subsampled) and isinstance(part.sampling, FixedSizeSampling) for part, _ in parts]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if not any(fixed):
            return _opinion(_by_losses(mechanism, target), target, "pld")
        epsilon = _by_orders(mechanism, target) if all(fixed) else None
    return None if epsilon is None else _opinion(epsilon, target, "rdp", note="replace-one, Wang et al. 2019")


def _opinion(epsilon: float, delta: float, accountant: str, note: str = "") -> SecondOpinion:
    version = metadata.version("dp-accounting")
    return SecondOpinion(epsilon=epsilon, delta=delta, accountant=accountant, version=version, note=note)


def _by_losses(mechanism: Mechanism, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as library

    relations = {
        Adjacency.ADD_REMOVE: library.NeighborRel.ADD_OR_REMOVE_ONE,
        Adjacency.ZERO_OUT: library.NeighborRel.REPLACE_SPECIAL,
        Adjacency.REPLACE_ONE: library.NeighborRel.REPLACE_ONE,
    }
    interval, composed = loss_grid.interval(mechanism), None
    for part, count in loss_grid.parts_of(mechanism):
        noise: Any = part.mechanism if isinstance(part, Subsampled) else part
        one = library.from_gaussian_mechanism(
            noise.noise_multiplier,
            sampling_prob=part.sampling.probability if isinstance(part, Subsampled) else 1.0,
            value_discretization_interval=interval,
            neighboring_relation=relations[Adjacency.of(mechanism.adjacency)],
        ).self_compose(count)
        composed = one if composed is None else composed.compose(one)
    assert composed is not None
    return float(composed.get_epsilon_for_delta(delta))


def _by_orders(mechanism: Mechanism, delta: float) -> float | None:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_ONE)
    for part, count in loss_grid.parts_of(mechanism):
        gaussian = GaussianDpEvent(part.mechanism.noise_multiplier / 2)
        try:
            theirs.compose(
                SampledWithoutReplacementDpEvent(part.sampling.clients, part.sampling.cohort, gaussian), count
            )
        except (ValueError, OverflowError):  # its alternating sums fail where the noise is huge
            return None
    found = float(theirs.get_epsilon(delta))
    return found if math.isfinite(found) else None
