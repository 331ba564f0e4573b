"""Renyi differential privacy: curves of the mechanisms, and conversion of a curve to epsilon."""

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
from accounting.gaussian import fixed_size_rdp, subsampling
from accounting.gaussian.account import closeness_penalty
from accounting.gaussian.subsampling import amplified_curve
from accounting.mechanisms import (
    BallsAndBins,
    CappedPoissonSampling,
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    PoissonSampling,
    SingleRelease,
    Unsampled,
    parts_of,
    sampling_of,
    schedule_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.kinds import Account, account_of

Conversion = Literal["improved", "classical"]

_PARTS = 10**9
"""Denominator of the probability to take part in a full round, which is rounded up."""

ORDERS: Floats = np.concatenate(
    [
        [1.01, 1.025, 1.05, 1.075],
        np.arange(11, 110) / 10.0,
        np.arange(11.0, 65.0),
        [
            72.0,
            80.0,
            96.0,
            112.0,
            128.0,
            160.0,
            192.0,
            256.0,
            384.0,
            512.0,
            768.0,
            1024.0,
            1536.0,
            2048.0,
            4096.0,
        ],
    ]
)
"""Default orders: those of Opacus and beyond at both ends. An optimum at an end is reported as such."""

FAR_ORDERS: Floats = np.concatenate([ORDERS, 2.0 ** np.arange(13, 41)])
"""Orders for a plain Gaussian, whose curve is closed-form: up to 2^40, for epsilons near 0."""


def curve(mechanism: Mechanism, orders: ArrayLike) -> Floats:
    """Return an upper bound on the Renyi divergence of each order, in both directions, over all neighbours.

    Orders above 1; the result has their shape. An order without a known or computable bound is infinite, which keeps
    every conversion valid. Gaussian: alpha mu^2 / 2, exact (Mironov 2017, Prop. 7). Poisson: `gaussian.poisson_rdp`
    (add-remove; zero-out has the same pair of output distributions). Poisson with a cap: the mean of full rounds and
    others (`gaussian.capped`). Fixed size: `gaussian.fixed_size_rdp` (replace-one, shift 2C; zero-out is a special
    case). Schedules: without their secrecy, alpha k mu^2 / 2 with k the most participations (divergences are
    quasi-convex), or the squared sensitivity of a stream of correlated noise. Other kinds: their accounts
    (`mechanisms.kinds`); a sampled kind with a twin is nearly a Gaussian. Composition: the sum.
    """
    return np.asarray(np.sum([_repeated(part, count, orders) for part, count in parts_of(mechanism)], axis=0))


def choices(mechanism: Mechanism) -> list[tuple[Mechanism, float]]:
    """Return mechanisms whose curves may be used for `mechanism`, each with the part of delta that it takes.

    With a cap: the mechanism itself, and the one without caps, which takes zeta p in every round, the probability that
    the round is full and the client takes part (h' <= p in `gaussian.capped`). Direction of error: upper bound.
    """
    parts = parts_of(mechanism)
    lost = math.fsum(count * _left_out(part) for part, count in parts)
    if not lost:
        return [(mechanism, 0.0)]
    free = tuple((uncapped(part), count) for part, count in parts)
    return [(mechanism, 0.0), (Composed(parts=free, order=None), lost)]


def uncapped(part: SingleRelease) -> SingleRelease:
    """Return the release under Poisson sampling without a cap."""
    sampling = sampling_of(part)
    if not isinstance(sampling, CappedPoissonSampling):
        return part
    return subsample(unsampled(part), PoissonSampling(probability=sampling.probability))


def _left_out(part: SingleRelease) -> float:
    sampling = sampling_of(part)
    if not isinstance(sampling, CappedPoissonSampling):
        return 0.0
    return max(zeta * p for zeta, p in sampling.full_rounds(part.adjacency))


def checked_orders(orders: ArrayLike) -> Floats:
    """Return Renyi orders as an array. Errors: InvalidParameter for orders that are not finite and above 1."""
    try:
        given = np.asarray(orders, dtype=float)
        valid = given.ndim <= 1 and given.size > 0 and bool(np.all((given > 1) & (given < np.inf)))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidParameter(f"orders={orders!r}: must be finite numbers above 1, one or a list of them.")
    return given


def _repeated(part: SingleRelease, count: int, orders: ArrayLike) -> Floats:
    """Return the curve of `count` times `part`."""
    given = checked_orders(orders)
    if unsampled(part) is part:
        return np.asarray(count * account_of(part).renyi(given, part))
    if schedule := schedule_of(part):
        shown = schedule.norm**2 if isinstance(schedule, BallsAndBins) else 1.0
        times = shown * schedule.most_participations(count) if schedule.secret else squared_sensitivity(schedule, count)
        return np.asarray(times * account_of(unsampled(part)).renyi(given, unsampled(part)))
    near = continuous(Composed(parts=((part, count),)))
    twin: SingleRelease | None
    ((twin, _),) = parts_of(near.mechanism)
    values = np.reshape(_sampled_curve(twin, tuple(np.atleast_1d(given).tolist())), given.shape)
    return np.asarray(count * values + closeness_penalty(given, near.closeness))


@lru_cache(maxsize=512)
def _sampled_curve(release: SingleRelease, orders: tuple[float, ...]) -> tuple[float, ...]:
    noise, sampling = unsampled(release), sampling_of(release)
    account, at = account_of(noise), np.array(orders)
    if account.sampled is None:
        raise UnsupportedMechanism(f"{type(noise).__name__}, sampled: no Renyi curve is implemented.")
    if isinstance(sampling, CappedPoissonSampling):
        return tuple(_capped_curve(at, noise, account, sampling).tolist())
    return tuple(account.sampled(at, noise, sampling).tolist())


def _capped_curve(orders: Floats, noise: Unsampled, account: Account, sampling: CappedPoissonSampling) -> Floats:
    """Return Renyi divergences of Poisson sampling with a cap: a mean over full and other rounds, as if that were
    released.

    e^((a-1) rho) = (1 - zeta) e^((a-1) rho_Poisson) + zeta e^((a-1) rho_full) (`gaussian.capped`). Direction of error:
    upper bound.
    """
    assert account.sampled is not None  # the caller has asked
    free = account.sampled(orders, noise, PoissonSampling(probability=sampling.probability))
    found = []
    for zeta, p in sampling.full_rounds(noise.adjacency):
        if not zeta:
            found.append(free)
            continue
        full = _full_round(orders, noise, account, p)
        if zeta >= 1:
            found.append(full)
            continue
        both = np.log1p(-zeta) + (orders - 1) * free, np.log(zeta) + (orders - 1) * full
        found.append(np.maximum(np.logaddexp(*both), 0.0) / (orders - 1))
    return np.asarray(np.max(found, axis=0))


def _full_round(orders: Floats, noise: Any, account: Account, p: float) -> Floats:
    """Return Renyi divergences of a full round, in which the client takes part with probability p and displaces
    another.

    Under add-remove that of Poisson sampling with a move of 2 clips; else of fixed-size sampling. Orders between whole
    numbers have chords of (a - 1) rho, which is convex; never above the divergence without sampling.
    """
    assert account.sampled is not None
    displaced = replace(noise, adjacency=Adjacency.REPLACE_ONE)
    if noise.adjacency is Adjacency.ADD_REMOVE:
        once = PoissonSampling(probability=p)
        if isinstance(noise, Gaussian):
            return account.sampled(orders, replace(noise, noise_multiplier=noise.noise_multiplier / 2), once)
        return amplified_curve(
            orders, lambda at: account.renyi(at, displaced), noise.adjacency, once, largest=subsampling.LARGEST_ORDER
        )
    once_of_many = FixedSizeSampling(cohort=min(math.ceil(p * _PARTS), _PARTS), clients=_PARTS)
    if not isinstance(noise, Gaussian):
        return account.sampled(orders, noise, once_of_many)
    whole = np.arange(2.0, fixed_size_rdp.LARGEST_ORDER + 1)
    knots = np.concatenate([[0.0], (whole - 1) * account.sampled(whole, noise, once_of_many)])
    chords = np.interp(orders, np.concatenate([[1.0], whole]), knots, right=np.inf) / (orders - 1)
    return np.asarray(np.minimum(chords, account.renyi(orders, displaced)))


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Epsilon from a Renyi curve and the order that gave it; at_end: True if that order is an end of the grid."""

    epsilon: float
    order: float
    at_end: bool


def epsilon_from_curve(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Conversion = "improved"
) -> Converted:
    """Return the smallest epsilon that the Renyi bounds `rdp` at `orders` imply at `delta`, by `converted`.

    Never below 0. Direction of error: upper bound for every set of orders; if `at_end`, a longer grid might lower it.
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
    """Return epsilon at each order alone, possibly below 0; infinite where `rdp` is infinite or undefined.

    improved:   rho + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)   (Canonne, Kamath, Steinke 2020, Prop. 12),
                and 0 if 1 - e^-rho <= delta^2: the total variation is at most sqrt(1 - e^-KL) (Bretagnolle and
                Huber 1979), KL <= rho
    classical:  rho + log(1/delta) / (alpha - 1)                          (Mironov 2017, Prop. 3)
    """
    if conversion == "improved":
        values = rdp + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        settled = (rdp >= 0) & (-np.expm1(-rdp) <= np.square(delta))
        # The same near delta 1, where squares round to 1.
        settled &= np.exp(-np.maximum(rdp, 0.0)) >= (1 - np.asarray(delta)) * (1 + np.asarray(delta))
        values = np.where(settled, np.minimum(values, 0.0), values)
    elif conversion == "classical":
        values = rdp - np.log(delta) / (orders - 1)
    else:
        raise InvalidParameter(f"conversion={conversion!r}: must be 'improved' or 'classical'.")
    return np.asarray(np.where(np.isnan(values), np.inf, values))


def orders(mechanism: Mechanism) -> Floats:
    """Return the Renyi orders for an account of this mechanism."""
    parts = [part for part, _ in parts_of(mechanism)]
    sampled = [unsampled(part) is not part for part in parts]
    for part in parts:
        few = account_of(unsampled(part)).orders
        if few is not None:
            return few[all(sampled)]
    return ORDERS if any(sampled) else FAR_ORDERS
