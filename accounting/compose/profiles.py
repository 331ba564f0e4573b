"""Privacy profiles: delta at every epsilon, which is the complete claim of an account, as a callable.

An (epsilon, delta) pair is one point of a profile. A test of the claim needs all points, because at delta = 1e-5 alone
an audit has almost no power.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from accounting import gaussian
from accounting.arrays import Floats
from accounting.compose import adaptive, loss_grid, pld, rdp
from accounting.compose.pld import LossDistributions
from accounting.compose.twins import Continuous, allowed_loss, continuous, overflow, plain_shift
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian.sampled_profiles import symmetric_profile
from accounting.mechanisms import Mechanism, parts_of

_KNOTS = 4001
_FARTHEST = 50.0
_TYPICAL = 1e-6
_LOST = 1e-8  # a thousandth of it is the part of delta for domination by Gaussians, over all releases
_NOTHING = 1e-15  # smaller masses of a numerical convolution are rounding errors

Curve = Callable[[Floats], Floats]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Profile delta(epsilon) of a claim, for all neighbours in both orders. It is a function of any array of real
    numbers.

    `above_zero` returns the profile at epsilon >= 0. Below zero delta(-e) = 1 - e^-e + e^-e delta(e), as for every pair
    of distributions with exchanged order (the claim holds for both orders). `method`: name of the account.
    """

    above_zero: Curve
    method: str

    def __call__(self, epsilon: ArrayLike) -> Floats:
        """Return delta at `epsilon`, from max(0, 1 - e^epsilon) to 1. Shape: as `epsilon`; infinities are allowed."""
        eps = np.asarray(epsilon, dtype=float)
        if np.isnan(eps).any():
            raise InvalidParameter("epsilon=nan: must be real numbers, infinities included.")
        size = np.abs(eps).ravel()
        delta = np.clip(self.above_zero(size), 0.0, 1.0).reshape(eps.shape)
        return symmetric_profile(eps, delta)


def profile(
    mechanism: Mechanism, *, accountant: Literal["best", "pld", "rdp"] = "best", delta: float = _TYPICAL
) -> Profile:
    """Return the privacy profile of `mechanism` by the accountant.

    Claim: for all neighbours under the mechanism's adjacency, both orders, and every event S, P(S) <= e^epsilon Q(S) +
    delta(epsilon), epsilon any real number.
    Direction of error: upper bound (for unsampled Gaussians exact up to rounding, because their composition is
    Gaussian).
    pld: from the composed privacy loss distribution, interpolated between knots by chords in e^epsilon, in which delta
    is convex.
    rdp: the minimum over orders a of exp((a-1)(rho - epsilon)) (1 - 1/a)^(a-1) / a (Canonne, Kamath, Steinke 2020,
    Prop. 12, solved for delta); it need not be the profile of a pair. best: the minimum of the applicable accounts.
    Discrete Gaussians within e^±c of Gaussians have e^c delta_Gaussian(epsilon - 2c) (`integers.discrete_gaussian`).
    delta: the delta for which the adaptive account makes its grid; every grid gives a bound. The probability that a
    cohort exceeds the fixed number of uploads is added to delta.
    Errors: UnsupportedMechanism if the accountant has no bound."""
    makers: dict[str, Callable[[Mechanism], Curve]] = {
        "analytic-gaussian": _analytic_curve,
        "pld": _pld_curve,
        "adaptive": lambda mechanism: _adaptive_curve(mechanism, delta),
        "rdp": _rdp_curve,
    }
    if accountant not in ("best", "pld", "rdp"):
        raise InvalidParameter(f"accountant={accountant!r}: must be 'best', 'pld' or 'rdp'.")
    if accountant != "best":
        return Profile(above_zero=makers[accountant](mechanism), method=accountant)
    if plain_shift(mechanism) is not None:
        return Profile(above_zero=_analytic_curve(mechanism), method="analytic-gaussian")
    found, refusals = {}, []
    for name, maker in makers.items():
        try:
            found[name] = maker(mechanism)
        except (UnsupportedMechanism, InvalidParameter) as refusal:
            refusals.append(str(refusal))
    if not found:
        raise UnsupportedMechanism("accountant='best': no accountant has a profile. " + " ".join(refusals))
    curves = list(found.values())
    return Profile(above_zero=lambda eps: np.min([curve(eps) for curve in curves], axis=0), method="+".join(found))


def profile_of_pair(epsilon: float, delta: float) -> Profile:
    """Return the profile that a single pair (epsilon, delta) implies.

    delta(x) = delta + (1 - delta) (e^epsilon - e^x)_+ / (e^epsilon + 1)

    It is attained by randomised response that fails with probability delta (Kairouz, Oh, Viswanath 2015).
    Direction of error: upper bound for every mechanism that is (epsilon, delta)-DP.
    """

    def above_zero(eps: Floats) -> Floats:
        share = -np.expm1(np.minimum(eps - epsilon, 0.0)) / (1 + math.exp(-epsilon))
        return np.asarray(delta + (1 - delta) * share)

    if math.isinf(epsilon):
        return Profile(above_zero=np.ones_like, method="none")
    return Profile(above_zero=above_zero, method="one pair")


def _analytic_curve(mechanism: Mechanism) -> Curve:
    near = _with_gaussians(mechanism)
    mu = plain_shift(near.mechanism)
    if mu is None:
        raise UnsupportedMechanism("the closed form is for Gaussian noise without sampling.")
    exact = Profile(above_zero=partial(gaussian.privacy_profile, mu=mu), method="analytic-gaussian")
    return _profile_within_closeness(exact, near.closeness, overflow(mechanism) + near.lost)


def _pld_curve(mechanism: Mechanism) -> Curve:
    near = _with_gaussians(mechanism)
    if not pld.supports(near.mechanism):
        raise UnsupportedMechanism(f"{type(mechanism).__name__}: no privacy loss distribution is implemented.")
    rounds = sum(count for _, count in parts_of(near.mechanism))
    if rounds > pld.MOST_ROUNDS:
        raise InvalidParameter(f"rounds={rounds} with accountant='pld': must be at most {pld.MOST_ROUNDS}.")
    distributions = pld.distribution(near.mechanism, loss_grid.interval(near.mechanism))
    exact = profile_of_distribution(distributions, slack=pld.composition_slack(rounds))
    return _profile_within_closeness(exact, near.closeness, overflow(mechanism) + near.lost)


def _with_gaussians(mechanism: Mechanism) -> Continuous:
    return continuous(mechanism, lost=allowed_loss(_LOST, sum(count for _, count in parts_of(mechanism))))


def _adaptive_curve(mechanism: Mechanism, delta: float) -> Curve:
    """Return the values of the adaptive program, interpolated between its states by chords. Its grid is made for
    `delta`.
    """
    near = continuous(mechanism)
    found = adaptive.values(near.mechanism, delta=delta)
    if found is None:
        raise UnsupportedMechanism(f"{type(mechanism).__name__}: no adaptive account is implemented.")
    knots = found.grid.losses(np.arange(found.grid.states + 1))
    values = np.maximum(found.forward, found.reverse)
    exact = Profile(above_zero=lambda eps: _interpolated_by_chords(eps, knots, values), method="adaptive")
    return _profile_within_closeness(exact, near.closeness, overflow(mechanism))


def _profile_within_closeness(near: Profile, closeness: float, extra: float) -> Curve:
    """Return the curve of a mechanism whose distributions are within e^±closeness of those of `near`, except with
    probability `extra`.

    With c = closeness, P' <= e^c P and Q <= e^c Q' as measures: P'(S) - e^epsilon Q'(S) is at most e^c (P(S) -
    e^(epsilon - 2c) Q(S)) <= e^c near(epsilon - 2c), for every real epsilon - 2c. Below zero `near`, a `Profile`,
    mirrors its values above zero. That is an upper bound, because 1 - e^-x + e^-x delta(x) increases in delta. Chords
    are not extended below zero, where they would be below the convex curve.
    Direction of error: upper bound.
    """
    if closeness > _FARTHEST:
        raise UnsupportedMechanism(
            f"discrete noise is within e^{closeness:.3g} of a Gaussian, which is too far for any delta. Raise the "
            "scale."
        )
    return lambda eps: math.exp(closeness) * near(eps - 2 * closeness) + extra


def profile_of_distribution(distributions: LossDistributions, *, slack: float) -> Profile:
    """Return an upper bound on the profile of composed privacy loss distributions, the maximum over both orders.

    It is interpolated between knots by chords in e^epsilon, in which every profile is convex. `slack`: the mass that
    rounding errors of convolutions may misplace; it is added to every delta.
    """
    knots = np.linspace(0.0, _largest_knot(distributions, max(slack, _NOTHING)), _KNOTS)
    values = distributions.delta(knots) * (1 + 1e-9) + slack
    return Profile(above_zero=lambda eps: _interpolated_by_chords(eps, knots, values), method="pld")


def _largest_knot(distributions: LossDistributions, negligible: float) -> float:
    """Return an epsilon at which delta has nearly reached its limit, or is negligible."""
    end, last = 1.0, float(distributions.delta(math.inf))
    while float(distributions.delta(end)) > 1.001 * last + negligible and end < 1e6:
        end *= 1.5
    return end


def _interpolated_by_chords(eps: Floats, knots: Floats, values: Floats) -> Floats:
    """Return the curve that is linear in e^epsilon between the knots. It is an upper bound, because a profile is convex
    in e^epsilon.

    Above the last knot it is constant. Below the first knot it is not defined, because the first chord would be below
    the curve there.
    """
    assert np.all(eps >= knots[0])
    right = np.clip(np.searchsorted(knots, eps, side="right"), 1, len(knots) - 1)
    low, high = knots[right - 1], knots[right]
    share = np.expm1(np.minimum(eps, high) - low) / np.expm1(high - low)
    return np.asarray(values[right - 1] + share * (values[right] - values[right - 1]))


def _rdp_curve(mechanism: Mechanism) -> Curve:
    curves = [_curve_profile(one, overflow(mechanism) + lost) for one, lost in rdp.valid_mechanisms(mechanism)]
    return lambda eps: np.min([curve(eps) for curve in curves], axis=0)


def _curve_profile(mechanism: Mechanism, extra: float) -> Curve:
    orders = rdp.orders(mechanism)
    rho = rdp.curve(mechanism, orders)
    is_finite = np.isfinite(rho)
    if not is_finite.any():
        raise UnsupportedMechanism(f"{type(mechanism).__name__}: its Renyi curve is infinite at every order.")
    return lambda eps: delta_from_curve(eps, orders[is_finite], rho[is_finite]) + extra


def delta_from_curve(epsilon: ArrayLike, orders: ArrayLike, rho: ArrayLike) -> Floats:
    """Return the delta at `epsilon` that Renyi bounds `rho` at `orders` imply: the minimum over the orders, at most 1.

    delta = exp((a-1)(rho - epsilon)) (1 - 1/a)^(a-1) / a   (Canonne, Kamath, Steinke 2020, Prop. 12)

    It is valid at every real epsilon, in the direction of `rho`.
    Shape: as `epsilon`.
    Direction of error: upper bound.
    """
    eps, a, curve = np.asarray(epsilon, dtype=float), np.asarray(orders, dtype=float), np.asarray(rho, dtype=float)
    if a.ndim != 1 or a.shape != curve.shape or not a.size or not np.all(a > 1) or not np.all(curve >= 0):
        raise InvalidParameter(
            f"orders of shape {a.shape}, rho of shape {curve.shape}: must be lists of one length, orders above 1 and "
            "divergences of at least 0."
        )
    logs = (a - 1) * (curve - eps[..., None] + np.log1p(-1 / a)) - np.log(a)
    return np.asarray(np.exp(np.minimum(logs.min(axis=-1), 0.0)))
