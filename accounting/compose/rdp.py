"""Renyi differential privacy: curves of the mechanisms, and conversion of a curve to epsilon."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial, singledispatch
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import fixed_size_rdp, poisson_rdp, subsampling
from accounting.integers import discrete_gaussian, skellam
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    PoissonSampling,
    Sampling,
    SingleRelease,
    Subsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.integers import DiscreteGaussian, Skellam

Floats = NDArray[np.float64]
Conversion = Literal["improved", "classical"]

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


COIN_ORDERS: Floats = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64], dtype=float)
"""Orders at which sums of coins are computed: each takes a search of its own."""


SAMPLED_COIN_ORDERS: Floats = np.arange(2.0, COIN_ORDERS[-1] + 1)
"""Orders of sampled coins: every whole one, amplified from chords between COIN_ORDERS, so nearly free."""


@singledispatch
def curve(mechanism: Mechanism, orders: ArrayLike) -> Floats:
    """Upper bound on the Renyi divergence of each order, in both directions, over all neighbours.

    Orders above 1; the result has their shape. An order at which no bound is known or none could be computed
    is infinite, which keeps every conversion valid. Gaussian: alpha mu^2 / 2, exact (Mironov 2017, Prop. 7).
    Poisson: `gaussian.poisson_rdp` (add-remove; zero-out has the same pair of output laws).
    Fixed size: `gaussian.fixed_size_rdp` (replace-one, shift 2C; zero-out is a special case).
    Integer noise: `integers.discrete_gaussian`, `integers.skellam`; sampled, the first is a Gaussian nearly and the
    second has the generic bounds of `gaussian.subsampling`. Composition: the sum.
    """
    raise UnsupportedMechanism(f"{type(mechanism).__name__}: no Renyi curve is implemented.")


def checked_orders(orders: ArrayLike) -> Floats:
    """Renyi orders as an array, or an error that says what they must be."""
    try:
        given = np.asarray(orders, dtype=float)
        valid = given.ndim <= 1 and given.size > 0 and bool(np.all((given > 1) & (given < np.inf)))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidParameter(f"orders={orders!r}: must be finite numbers above 1, one or a list of them.")
    return given


@curve.register
def _(mechanism: Gaussian, orders: ArrayLike) -> Floats:
    return np.asarray(checked_orders(orders) * (mechanism.mu**2 / 2))


@curve.register
def _(mechanism: BernoulliChannel, orders: ArrayLike) -> Floats:
    from accounting.bernoulli import channel_rdp

    return np.asarray(
        channel_rdp(
            checked_orders(orders),
            dimension=mechanism.dimension,
            c=mechanism.floor,
            noise_std=mechanism.noise_std,
            l2_sensitivity=mechanism.sensitivity(mechanism.l2_clip),
            linf_sensitivity=mechanism.sensitivity(mechanism.linf_clip),
        )
    )


@curve.register
def _(mechanism: BernoulliAggregate, orders: ArrayLike) -> Floats:
    from accounting.bernoulli.sums import aggregate_rdp

    return np.asarray(
        aggregate_rdp(
            checked_orders(orders),
            cohort=mechanism.cohort,
            dimension=mechanism.dimension,
            c=mechanism.floor,
            noise_std=mechanism.noise_std,
            l2_sensitivity=mechanism.sensitivity(mechanism.l2_clip),
            linf_sensitivity=mechanism.sensitivity(mechanism.linf_clip),
        )
    )


@curve.register
def _(mechanism: DiscreteGaussian, orders: ArrayLike) -> Floats:
    return discrete_gaussian.renyi(checked_orders(orders), mechanism)


@curve.register
def _(mechanism: Skellam, orders: ArrayLike) -> Floats:
    return skellam.renyi(checked_orders(orders), mechanism)


@curve.register
def _(mechanism: Composed, orders: ArrayLike) -> Floats:
    return np.asarray(np.sum([_repeated(part, count, orders) for part, count in mechanism.parts], axis=0))


@curve.register
def _(mechanism: Subsampled, orders: ArrayLike) -> Floats:
    return _repeated(mechanism, 1, orders)


def _repeated(part: SingleRelease, count: int, orders: ArrayLike) -> Floats:
    """The curve of `count` times `part`."""
    if not isinstance(part, Subsampled):
        return count * curve(part, orders)
    given = checked_orders(orders)
    near = discrete_gaussian.continuous(Composed(parts=((part, count),)))
    ((sampled, _),) = near.mechanism.parts if isinstance(near.mechanism, Composed) else ((part, count),)
    values = np.array(_sampled_curve(sampled, tuple(np.atleast_1d(given).tolist()))).reshape(given.shape)
    return np.asarray(count * values + discrete_gaussian.penalty(given, near.closeness))


@lru_cache(maxsize=512)
def _sampled_curve(mechanism: Subsampled, orders: tuple[float, ...]) -> tuple[float, ...]:
    match mechanism.mechanism:
        case BernoulliAggregate() as coins:
            return _amplified(_chords(_for_lemma(coins, mechanism.sampling)), COIN_ORDERS[-1], mechanism, orders)
        case Skellam() as noise:
            base = _for_lemma(noise, mechanism.sampling)
            return _amplified(partial(skellam.renyi, mechanism=base), subsampling.LARGEST_ORDER, mechanism, orders)
        case Gaussian(noise_multiplier=z):
            return _sampled_gaussian_curve(mechanism, z, orders)
    raise UnsupportedMechanism(f"{type(mechanism.mechanism).__name__}, sampled: no Renyi curve is implemented.")


def _sampled_gaussian_curve(
    mechanism: Subsampled, noise_multiplier: float, orders: tuple[float, ...]
) -> tuple[float, ...]:
    match mechanism.sampling:
        case PoissonSampling(probability=q):
            _refuse_replacement_under_poisson(mechanism, "Use accountant 'pld' (exact for this case), or")
            rho = poisson_rdp.renyi(orders, sampling_probability=q, noise_multiplier=noise_multiplier)
            return tuple(rho.tolist())
        case FixedSizeSampling(probability=q):
            # Under zero-out the displaced client still moves the sum by 2C, so both adjacencies use 2C here.
            rho = fixed_size_rdp.renyi(orders, sampling_probability=q, noise_multiplier=noise_multiplier)
            return tuple(rho.tolist())
    raise UnsupportedMechanism(f"sampling={mechanism.sampling!r}: no Renyi curve is implemented.")


def _refuse_replacement_under_poisson(mechanism: Subsampled, remedy: str) -> None:
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedMechanism(
            "accountant='rdp' with Poisson sampling and replace-one: no Renyi bound is implemented. "
            f"{remedy} adjacency 'add-remove' or 'zero-out'."
        )


_Lemma = TypeVar("_Lemma", BernoulliAggregate, Skellam)


def _for_lemma(mechanism: _Lemma, sampling: Sampling) -> _Lemma:
    """The neighbours that the sampling lemma asks of its base curve: replace-one under fixed size, which covers
    zero-out."""
    return replace(mechanism, adjacency=Adjacency.REPLACE_ONE) if isinstance(sampling, FixedSizeSampling) else mechanism


def _amplified(
    base: subsampling.RenyiCurve, largest: float, mechanism: Subsampled, orders: tuple[float, ...]
) -> tuple[float, ...]:
    """The generic amplification bounds, at integer orders up to `largest`; infinite at the others."""
    given = np.array(orders)
    inside = (given == np.round(given)) & (given >= 2) & (given <= largest)
    result = np.full(len(given), np.inf)
    if isinstance(mechanism.sampling, FixedSizeSampling):
        amplify = subsampling.fixed_size
    else:
        _refuse_replacement_under_poisson(mechanism, "Use")
        amplify = subsampling.poisson
    if inside.any():
        result[inside] = amplify(given[inside], base, sampling_probability=mechanism.sampling.probability)
    return tuple(result.tolist())


def _chords(coins: BernoulliAggregate) -> subsampling.RenyiCurve:
    computed = _knots(coins)

    def between(at: Floats) -> Floats:
        # (alpha - 1) rho is convex in alpha, so its chords are upper bounds.
        return np.interp(at, COIN_ORDERS, (COIN_ORDERS - 1) * computed) / (at - 1)

    return between


@lru_cache(maxsize=64)
def _knots(coins: BernoulliAggregate) -> Floats:
    return curve(coins, COIN_ORDERS)


@dataclass(frozen=True, kw_only=True)
class Converted:
    """An epsilon from a Renyi curve, the order that gave it, and whether that order is an end of the grid."""

    epsilon: float
    order: float
    at_end: bool


def epsilon_from_curve(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Conversion = "improved"
) -> Converted:
    """The smallest epsilon that the Renyi bounds `rdp` at `orders` imply at `delta`, by `converted`.

    Never below 0. Direction of error: upper bound for every set of orders; `at_end` says that a longer grid
    might lower it.
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
    """Epsilon at each order on its own, possibly below 0; infinite where `rdp` is infinite or undefined.

    improved:   rho + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)   (Canonne, Kamath, Steinke 2020, Prop. 12),
                and 0 where 1 - e^-rho <= delta^2: the total variation is at most sqrt(1 - e^-KL) (Bretagnolle and
                Huber 1979), KL <= rho
    classical:  rho + log(1/delta) / (alpha - 1)                          (Mironov 2017, Prop. 3)
    """
    if conversion == "improved":
        values = rdp + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        settled = (rdp >= 0) & (-np.expm1(-rdp) <= np.square(delta))
        values = np.where(settled, np.minimum(values, 0.0), values)
    elif conversion == "classical":
        values = rdp - np.log(delta) / (orders - 1)
    else:
        raise InvalidParameter(f"conversion={conversion!r}: must be 'improved' or 'classical'.")
    return np.asarray(np.where(np.isnan(values), np.inf, values))
