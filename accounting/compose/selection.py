"""Privacy of hyperparameter tuning: release of the best of a random number of runs (docs/theory.md, section 8)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accounting import require
from accounting.arrays import Floats
from accounting.compose import accountant as accountants
from accounting.compose import rdp
from accounting.compose.profiles import Profile, delta_from_curve, profile
from accounting.compose.twins import overflow
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Mechanism
from accounting.roots import brentq
from accounting.rounding import downwards, upwards

LAWS = ("negative-binomial", "poisson")
_LEVELS = 1200
_SMALLEST_LEVEL = 1e-12
_LARGEST_LOSS = 30.0
_NEVER = -57.0
"""Logarithm of a probability below which larger numbers of runs are not drawn."""
_LOG_GAMMAS = (-60.0, -1e-9)


@dataclass(frozen=True, kw_only=True)
class RandomRuns:
    """Distribution of the random number K of runs. K must be drawn, not chosen, and must not be known in advance.

    law: "negative-binomial", truncated to K >= 1, with parameter `eta` > -1 (0: logarithmic, 1: geometric; for smaller
    eta epsilon is smaller and K = 1 more likely); or "poisson" (if K = 0, nothing is released). mean: the expectation
    of K.
    """

    mean: float
    law: str = "negative-binomial"
    eta: float = 0.0

    def __post_init__(self) -> None:
        require.one_of(LAWS, law=self.law)
        object.__setattr__(self, "mean", require.positive(mean=self.mean))
        object.__setattr__(self, "eta", require.real("a number above -1", eta=self.eta))
        if self.eta <= -1:
            raise InvalidParameter(f"eta={self.eta}: must be above -1.")
        if self.law == "negative-binomial" and not 1 < self.mean <= 1e6:
            raise InvalidParameter(f"mean={self.mean} of a number of runs of at least 1: must be above 1, up to 1e6.")
        if self.mean > 1e6:
            raise InvalidParameter(f"mean={self.mean} of a number of runs: must be at most 1e6.")
        ends = [_expected_runs(math.exp(log_gamma), self.eta) for log_gamma in _LOG_GAMMAS]
        if self.law == "negative-binomial" and not ends[1] < self.mean < ends[0]:
            raise InvalidParameter(
                f"mean={self.mean} with eta={self.eta}: must be from {upwards(ends[1])} to {downwards(ends[0])}."
            )

    @property
    def gamma(self) -> float:
        """Parameter gamma of the negative binomial distribution with this mean, rounded downwards."""

        def excess(log_gamma: float) -> float:
            return _expected_runs(math.exp(log_gamma), self.eta) - self.mean

        return math.exp(float(brentq(excess, *_LOG_GAMMAS, xtol=1e-13, rtol=1e-15))) * (1 - 1e-9)

    @property
    def largest_mean(self) -> float:
        """Expectation of K for the rounded `gamma`, an upper bound."""
        return self.mean if self.law == "poisson" else max(self.mean, _expected_runs(self.gamma, self.eta))

    def drawn(self, uniform: float) -> int:
        """Return K for a uniform number in [0, 1): the smallest k with Pr[K <= k] above the number, summed in
        floating point.
        """
        if self.law == "poisson":
            k, log_weight = 0, -self.mean
        else:
            k, gamma = 1, self.gamma
            log_weight = math.log(_expected_runs(gamma, self.eta)) + (1 + self.eta) * math.log(gamma)
        below = math.exp(log_weight)  # the weight itself may be below the smallest double
        while below <= uniform and (k < self.mean or log_weight > _NEVER):
            k += 1
            log_weight += math.log(self.mean / k if self.law == "poisson" else (1 - gamma) * (k - 1 + self.eta) / k)
            below += math.exp(log_weight)
        return k


def _expected_runs(gamma: float, eta: float) -> float:
    """Return the expectation of the truncated negative binomial distribution."""
    if abs(eta) < 1e-9:
        return (1 / gamma - 1) / -math.log(gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def renyi(orders: Floats, curve: Floats, runs: RandomRuns) -> Floats:
    """Return the Renyi divergence of the best of K runs at `orders`; `curve` has the divergences of one run.

    Claim (Papernot, Steinke 2022, Theorems 2 and 6): with K negative binomial of eta and gamma, at every order a and
    for any second order b,

        rho'(a) = rho(a) + (1 + eta) (1 - 1/b) rho(b) + (1 + eta) log(1/gamma) / b + log(E K) / (a - 1),

    and with K Poisson of mean m,

        e^((a - 1) rho'(a)) = e^-m + m e^((a - 1) (rho(a) + m delta')),

    delta' that of one run at log(1 + 1/(a - 1)). Their Theorem 6 omits e^-m, the probability of no release, so that
    bound is below 0 for m < 1. b is the best of `orders`.
    Conditions: the runs are independent and identically distributed (a candidate is drawn for each), the score that
    compares them is part of their release, and K is drawn independently.
    Adjacency: that of the curve, both orders of the neighbours.
    Direction of error: upper bound."""
    is_finite = np.isfinite(curve)
    if runs.law == "poisson":
        losses = np.log1p(1 / (orders - 1))
        delta = (
            delta_from_curve(losses, orders[is_finite], curve[is_finite]) if is_finite.any() else np.ones_like(orders)
        )
        log_release_term = math.log(runs.mean) + (orders - 1) * (curve + runs.mean * delta)
        return np.asarray(np.logaddexp(-runs.mean, log_release_term) / (orders - 1))
    gamma, more = runs.gamma, 1 + runs.eta
    second = np.where(
        is_finite, (1 - 1 / orders) * np.where(is_finite, curve, 0.0) - math.log(gamma) / orders, np.inf
    ).min()
    return np.asarray(curve + more * second + math.log(_expected_runs(gamma, runs.eta)) / (orders - 1))


def epsilon_shift(profiles: Sequence[Profile], runs: RandomRuns) -> float:
    """Return s such that, for every epsilon, H_(e^epsilon) of the best of K runs is at most E K times H_(e^(epsilon -
    s)) of one run.

    s = log sup phi'(1 - x) / phi'(1 - x'), phi the generating function of K, x and x' the probabilities that one run
    beats a given score under the two neighbours, so that x' <= e^e x + delta(e) for all e >= 0. With K negative
    binomial phi'(1 - x) is (gamma + (1 - gamma) x)^-(1 + eta) up to a factor, with K Poisson of mean m e^(-m x). Proof:
    docs/theory.md, section 8. The supremum is over cells of x, in each of which one linear bound on x' is evaluated at
    both ends.
    Direction of error: upper bound.
    """
    levels = np.concatenate([[0.0], np.geomspace(_SMALLEST_LEVEL, 1.0, _LEVELS)])
    losses = np.concatenate([np.linspace(0.0, 4.0, 801), np.geomspace(4.02, _LARGEST_LOSS, 200)])
    deltas = np.max([one(losses) for one in profiles], axis=0)
    slopes, offsets = np.append(np.exp(losses), 0.0), np.append(deltas, 1.0)  # the last line is x' <= 1
    low, high = levels[:-1], levels[1:]
    if runs.law == "poisson":
        # The bound on x' - x is linear in x, so its maximum is at an end of a cell.
        gaps = [np.maximum(offsets + (slopes - 1) * x[:, None], 0.0) for x in (low, high)]
        return float(runs.mean * np.maximum(*gaps).min(axis=1).max()) * (1 + 1e-12)
    gamma = runs.gamma

    def ratio(x: Floats) -> Floats:
        better = offsets + slopes * x[:, None]
        return np.asarray((gamma + (1 - gamma) * better) / (gamma + (1 - gamma) * x[:, None]))

    # A quotient of linear functions is monotone, so its maximum in a cell is at an end.
    largest = np.maximum(ratio(low), ratio(high)).min(axis=1).max()
    return float((1 + runs.eta) * math.log(largest)) * (1 + 1e-12)


def epsilon(*mechanisms: Mechanism, runs: RandomRuns, delta: float) -> float:
    """Return the epsilon of releasing the best of a random number of runs, including its choice.

    mechanisms: the mechanism of one run. Several mechanisms: each run draws one of them at random and releases the
    choice.
    Claim: epsilon is the smaller of two bounds, that of `renyi`, converted, and s + epsilon_run(delta / E K) with s
    from `epsilon_shift`. It is never below that of one run. Runs whose sums may overflow have only the second bound.
    Direction of error: upper bound.
    """
    target = require.open_probability(delta=delta)
    neighbours = dict.fromkeys(str(one.adjacency) for one in mechanisms)
    if not neighbours:
        raise InvalidParameter("no mechanism is given: give the mechanism of one run.")
    if len(neighbours) > 1:
        raise UnsupportedMechanism(
            f"the candidates have neighbours {', '.join(neighbours)}, but one epsilon is for one kind of neighbours. "
            "Set an adjacency that all candidates have (privacy.adjacency)."
        )
    bounds = [_epsilon_by_profiles(mechanisms, runs, target)]
    if not any(overflow(one) > 0 for one in mechanisms):
        bounds.append(_epsilon_by_renyi(mechanisms, runs, target))
    if not math.isfinite(min(bounds)):
        raise UnsupportedMechanism(f"no bound on the best of {runs.mean:g} runs on average is known at delta={delta}.")
    single = 0.0
    if runs.law == "negative-binomial":
        single = max(accountants.epsilon(one, delta=target) for one in mechanisms)
    return max(min(bounds), single)


def _epsilon_by_renyi(mechanisms: Sequence[Mechanism], runs: RandomRuns, delta: float) -> float:
    """Return epsilon by `renyi`. A mixture over candidates has at most the largest divergence of its parts."""
    orders = min((rdp.orders(one) for one in mechanisms), key=len)
    try:
        curve = np.max([rdp.curve(one, orders) for one in mechanisms], axis=0)
    except UnsupportedMechanism:
        return math.inf
    most = renyi(orders, curve, runs)
    return float(rdp.epsilon_from_curve(orders, np.maximum(most, 0.0), delta=delta).epsilon)


def _epsilon_by_profiles(mechanisms: Sequence[Mechanism], runs: RandomRuns, delta: float) -> float:
    try:
        more = epsilon_shift([profile(one) for one in mechanisms], runs)
        share = delta / max(runs.largest_mean, 1.0)
        return more + max(accountants.epsilon(one, delta=share) for one in mechanisms)
    except (UnsupportedMechanism, InvalidParameter):
        return math.inf
