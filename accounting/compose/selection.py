"""The cost of tuning: the best of a random number of runs of one mechanism (Papernot, Steinke 2022)."""

import math
from dataclasses import dataclass

import numpy as np

from accounting import require
from accounting.compose import accountant as accountants
from accounting.compose import rdp
from accounting.compose.profiles import delta_from_curve
from accounting.compose.rdp import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Mechanism


@dataclass(frozen=True, kw_only=True)
class RandomRuns:
    """How many runs are made: a number K drawn from this law, which nobody may choose or know before.

    law: "negative-binomial", truncated to K >= 1, of this `eta` > -1 (0: logarithmic, 1: geometric; the lower, the less
    it costs and the likelier is K = 1), or "poisson" (K may be 0: then nothing comes out). mean: the expectation of K.
    """

    mean: float
    law: str = "negative-binomial"
    eta: float = 0.0

    def __post_init__(self) -> None:
        require.one_of(("poisson", "negative-binomial"), law=self.law)
        object.__setattr__(self, "mean", require.positive(mean=self.mean))
        if require.real("a number above -1", eta=self.eta) <= -1:
            raise InvalidParameter(f"eta={self.eta}: must be above -1.")
        if self.law == "negative-binomial" and not 1 < self.mean <= 1e6:
            raise InvalidParameter(f"mean={self.mean} of a number of runs of at least 1: must be above 1, up to 1e6.")

    @property
    def gamma(self) -> float:
        """Of the negative binomial law: the chance parameter that gives the mean, rounded downwards."""
        from scipy.optimize import brentq

        def excess(log_gamma: float) -> float:
            return _mean(math.exp(log_gamma), self.eta) - self.mean

        return math.exp(float(brentq(excess, -60.0, -1e-9, xtol=1e-13))) * (1 - 1e-9)


def _mean(gamma: float, eta: float) -> float:
    """E K of the truncated negative binomial law."""
    if abs(eta) < 1e-9:
        return (1 / gamma - 1) / -math.log(gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def renyi(orders: Floats, curve: Floats, runs: RandomRuns) -> Floats:
    """Renyi divergence of the best of K runs, each of which has the divergences `curve` at `orders`.

    Claim (Papernot, Steinke 2022, Theorems 2 and 6): with K negative binomial of eta and gamma, at every order a and
    for any second order b
        rho'(a) = rho(a) + (1 + eta) (1 - 1/b) rho(b) + (1 + eta) log(1/gamma) / b + log(E K) / (a - 1),
    and with K Poisson of mean m
        rho'(a) = rho(a) + m delta' + log(m) / (a - 1),  delta' that of one run at epsilon' = log(1 + 1/(a - 1)).
    b is the best of `orders`. Conditions: the runs are independent and alike (a candidate is drawn for each), what they
    are compared by is part of what they release, and K is drawn apart. Adjacency: that of the curve, both orders of the
    worlds. Direction of error: upper bound.
    """
    known = np.isfinite(curve)
    if runs.law == "poisson":
        at = np.log1p(1 / (orders - 1))
        delta = delta_from_curve(at, orders[known], curve[known]) if known.any() else np.ones_like(orders)
        return np.asarray(curve + runs.mean * delta + math.log(runs.mean) / (orders - 1))
    gamma, more = runs.gamma, 1 + runs.eta
    second = np.where(known, (1 - 1 / orders) * np.where(known, curve, 0.0) - math.log(gamma) / orders, np.inf).min()
    return np.asarray(curve + more * second + math.log(_mean(gamma, runs.eta)) / (orders - 1))


def epsilon(mechanism: Mechanism, *, runs: RandomRuns, delta: float) -> float:
    """Epsilon of the best of a random number of runs of `mechanism`: one epsilon for the chosen run and its choice.

    Claim: `renyi`, converted; never below that of one run. Direction of error: upper bound. UnsupportedMechanism where
    a round may fail with a probability that is charged to delta: what K runs of it cost is not proven here.
    """
    target = require.open_probability(delta=delta)
    if accountants.overflow(mechanism) > 0:
        raise UnsupportedMechanism(
            "the best of several runs, of rounds that may overflow their slots: no bound is implemented. Use sampling "
            "without slots (fixed size, all)."
        )
    orders = accountants.orders(mechanism)
    curve = renyi(orders, rdp.curve(mechanism, orders), runs)
    found = rdp.epsilon_from_curve(orders, np.maximum(curve, 0.0), delta=target).epsilon
    return max(found, accountants.epsilon(mechanism, delta=target) if runs.law == "negative-binomial" else 0.0)
