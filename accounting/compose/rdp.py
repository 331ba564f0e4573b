"""Renyi differential privacy: curves of mechanisms, and conversion of a curve to epsilon."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.compose.twins import continuous
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.factorisation.toeplitz import squared_sensitivity
from accounting.gaussian import sampled_renyi, subsampling
from accounting.gaussian.account import closeness_penalty
from accounting.gaussian.subsampling import amplified_curve
from accounting.mechanisms import (
    Adjacency,
    Composed,
    FixedSizeSampling,
    Mechanism,
    PoissonSampling,
    Sampling,
    SingleRelease,
    Unsampled,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.kinds import Account, account_of

Conversion = Literal["improved", "classical"]

_PARTS = 10**9
"""Denominator of the participation probability in a full round, which is rounded up."""

_FAR = (72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
ORDERS: Floats = np.concatenate([[1.01, 1.025, 1.05, 1.075], np.arange(11, 110) / 10.0, np.arange(11.0, 65.0), _FAR])
"""Default orders: those of Opacus, extended at both ends. A note reports an optimum at an end."""

FAR_ORDERS: Floats = np.concatenate([ORDERS, 2.0 ** np.arange(13, 41)])
"""Orders for an unsampled Gaussian, whose curve has a closed form: up to 2^40, for epsilons near 0."""


def curve(mechanism: Mechanism, orders: ArrayLike) -> Floats:
    """Return an upper bound on the Renyi divergence at each order, in both directions, over all neighbours.

    Orders must be above 1; the result has their shape. The bound is infinite at an order without a computable bound,
    which keeps every conversion valid. Gaussian: alpha mu^2 / 2, exact (Mironov 2017, Prop. 7). Poisson:
    `gaussian.sampled_renyi` (add-remove; zero-out has the same pair of output distributions). Poisson with a cap: the
    mean of full and other rounds (`gaussian.sampled_profiles`). Fixed size: `gaussian.sampled_renyi` (replace-one,
    shift 2C; zero-out is a special case). Schedules: as if participation were public, alpha k mu^2 / 2 with k the
    largest number of participations (divergences are quasi-convex), or the squared sensitivity of a stream of
    correlated noise in place of k. Other kinds: their accounts (`mechanisms.kinds`); a sampled kind with a twin uses
    that Gaussian.
    Composition: the sum.
    """
    return np.asarray(np.sum([_repeated_curve(part, count, orders) for part, count in parts_of(mechanism)], axis=0))


def valid_mechanisms(mechanism: Mechanism) -> list[tuple[Mechanism, float]]:
    """Return mechanisms whose curves are valid for `mechanism`, each with the part of delta that this needs.

    With a cap they are the mechanism itself, and the mechanism without caps. The latter needs zeta p of delta in every
    round, the probability that the round is full and the client takes part (h' <= p in `gaussian.sampled_profiles`).
    Direction of error: upper bound.
    """
    parts = parts_of(mechanism)
    lost = math.fsum(count * _full_participation_probability(part) for part, count in parts)
    if not lost:
        return [(mechanism, 0.0)]
    uncapped_parts = tuple((uncapped(part), count) for part, count in parts)
    return [(mechanism, 0.0), (Composed(parts=uncapped_parts, order=None), lost)]


def uncapped(part: SingleRelease) -> SingleRelease:
    """Return the release with Poisson sampling without a cap in place of capped Poisson sampling."""
    sampling = sampling_of(part)
    if sampling.cohort_cap is None:
        return part
    return subsample(unsampled(part), PoissonSampling(probability=sampling.probability))


def _full_participation_probability(part: SingleRelease) -> float:
    return max((zeta * p for zeta, p in sampling_of(part).full_rounds(part.adjacency)), default=0.0)


def checked_orders(orders: ArrayLike) -> Floats:
    """Return Renyi orders as an array. Errors: InvalidParameter for orders that are not finite and above 1."""
    try:
        given = np.asarray(orders, dtype=float)
        valid = given.ndim <= 1 and given.size > 0 and bool(np.all((given > 1) & (given < np.inf)))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidParameter(f"orders={orders!r}: must be a finite number above 1, or a list of such numbers.")
    return given


def _repeated_curve(part: SingleRelease, count: int, orders: ArrayLike) -> Floats:
    """Return the curve of the composition of `count` releases `part`."""
    given = checked_orders(orders)
    noise, schedule = unsampled(part), schedule_of(part)
    if noise is part or schedule is not None:
        times: float = count
        if schedule is not None:
            most = schedule.norm(count) ** 2 * schedule.most_participations(count)
            times = most if schedule.secret else squared_sensitivity(schedule, count)
        return np.asarray(times * account_of(noise).renyi(given, noise))
    replacement = continuous(Composed(parts=((part, count),)))
    ((twin, _),) = parts_of(replacement.mechanism)
    values = np.reshape(_sampled_curve(twin, tuple(np.atleast_1d(given).tolist())), given.shape)
    return np.asarray(count * values + closeness_penalty(given, replacement.closeness))


@lru_cache(maxsize=512)
def _sampled_curve(release: SingleRelease, orders: tuple[float, ...]) -> tuple[float, ...]:
    noise, sampling = unsampled(release), sampling_of(release)
    account, at = account_of(noise), np.array(orders)
    if account.sampled is None:
        raise UnsupportedMechanism(f"{type(noise).__name__}, sampled: no Renyi curve is implemented.")
    if sampling.cohort_cap is not None:
        return tuple(_capped_curve(at, noise, account, sampling).tolist())
    return tuple(account.sampled(at, noise, sampling).tolist())


def _capped_curve(orders: Floats, noise: Unsampled, account: Account[Unsampled], sampling: Sampling) -> Floats:
    """Return Renyi divergences of Poisson sampling with a cap, as if it were public whether the round is full.

    e^((a-1) rho) = (1 - zeta) e^((a-1) rho_Poisson) + zeta e^((a-1) rho_full) (`gaussian.sampled_profiles`). Direction
    of error: upper bound.
    """
    assert account.sampled is not None  # the caller has checked
    uncapped_curve = account.sampled(orders, noise, PoissonSampling(probability=sampling.probability))
    found = []
    for zeta, p in sampling.full_rounds(noise.adjacency):
        curve = _full_round_curve(orders, noise, account, p) if zeta else uncapped_curve
        if 0 < zeta < 1:
            both = np.log1p(-zeta) + (orders - 1) * uncapped_curve, np.log(zeta) + (orders - 1) * curve
            curve = np.maximum(np.logaddexp(*both), 0.0) / (orders - 1)
        found.append(curve)
    return np.asarray(np.max(found, axis=0))


def _full_round_curve(orders: Floats, noise: Any, account: Account[Unsampled], p: float) -> Floats:
    """Return Renyi divergences of a full round, in which the client takes part with probability p and displaces another
    client.

    Under add-remove they are those of Poisson sampling with a move of 2 clips, else those of fixed-size sampling.
    Between integer orders they are given by chords of (a - 1) rho, which is convex. They are at most the divergence
    without sampling.
    """
    assert account.sampled is not None
    displaced = replace(noise, adjacency=Adjacency.REPLACE_ONE)
    if noise.adjacency is Adjacency.ADD_REMOVE:
        once = PoissonSampling(probability=p)
        if gaussian_of(noise) is not None:
            return account.sampled(orders, replace(noise, noise_multiplier=noise.noise_multiplier / 2), once)
        return amplified_curve(
            orders, lambda at: account.renyi(at, displaced), noise.adjacency, once, largest=subsampling.LARGEST_ORDER
        )
    once_of_many = FixedSizeSampling(cohort=min(math.ceil(p * _PARTS), _PARTS), clients=_PARTS)
    if gaussian_of(noise) is None:
        return account.sampled(orders, noise, once_of_many)
    whole = np.arange(2.0, sampled_renyi.LARGEST_FIXED_SIZE_ORDER + 1)
    knots = np.concatenate([[0.0], (whole - 1) * account.sampled(whole, noise, once_of_many)])
    chords = np.interp(orders, np.concatenate([[1.0], whole]), knots, right=np.inf) / (orders - 1)
    return np.asarray(np.minimum(chords, account.renyi(orders, displaced)))


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Epsilon from a Renyi curve, with its order. at_end: True if the order is an end of the grid of orders."""

    epsilon: float
    order: float
    at_end: bool


def epsilon_from_curve(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Conversion = "improved"
) -> Converted:
    """Return the smallest epsilon that the Renyi bounds `rdp` at `orders` imply at `delta`, by `converted`.

    Epsilon is at least 0.
    Direction of error: upper bound for every set of orders; if `at_end`, more orders might decrease it.
    """
    target = require.open_probability(delta=delta)
    alpha = np.atleast_1d(checked_orders(orders))
    rho = np.atleast_1d(np.asarray(rdp, dtype=float))
    if alpha.shape != rho.shape:
        raise InvalidParameter(
            f"orders of shape {alpha.shape} for rdp of shape {rho.shape}: need equal lengths, orders above 1."
        )
    candidates = converted(alpha, rho, target, conversion)
    best = int(np.argmin(candidates))
    finite = np.flatnonzero(np.isfinite(candidates))
    at_end = finite.size > 0 and best in (finite[0], finite[-1]) and candidates[best] > 0
    return Converted(epsilon=max(0.0, float(candidates[best])), order=float(alpha[best]), at_end=bool(at_end))


def converted(orders: Floats, rdp: Floats, delta: ArrayLike, conversion: Conversion) -> Floats:
    """Return the epsilon that each single order implies, possibly below 0; infinite where `rdp` is infinite or nan.

    improved:   rho + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)   (Canonne, Kamath, Steinke 2020, Prop. 12),
                and 0 if 1 - e^-rho <= delta^2: the total variation is at most sqrt(1 - e^-KL) (Bretagnolle and
                Huber 1979), KL <= rho
    classical:  rho + log(1/delta) / (alpha - 1)                          (Mironov 2017, Prop. 3)
    """
    if conversion == "improved":
        values = rdp + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        zero_epsilon = (rdp >= 0) & (-np.expm1(-rdp) <= np.square(delta))
        # Equivalent condition for delta near 1, where squares round to 1.
        zero_epsilon &= np.exp(-np.maximum(rdp, 0.0)) >= (1 - np.asarray(delta)) * (1 + np.asarray(delta))
        values = np.where(zero_epsilon, np.minimum(values, 0.0), values)
    elif conversion == "classical":
        values = rdp - np.log(delta) / (orders - 1)
    else:
        raise InvalidParameter(f"conversion={conversion!r}: must be 'improved' or 'classical'.")
    return np.asarray(np.where(np.isnan(values), np.inf, values))


def orders(mechanism: Mechanism) -> Floats:
    """Return the Renyi orders at which the curve of this mechanism is computed."""
    parts = [part for part, _ in parts_of(mechanism)]
    sampled = [unsampled(part) is not part for part in parts]
    of_kinds = (account_of(unsampled(part)).orders for part in parts)
    if of_kind := next(filter(None, of_kinds), None):
        return of_kind[all(sampled)]
    return ORDERS if any(sampled) else FAR_ORDERS
