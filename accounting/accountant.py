"""What a mechanism guarantees: one epsilon with everything that must be named beside it."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from accounting import coin_pairs, lower_bound, pld, rdp, require
from accounting.coins import BernoulliAggregate
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.fed_smp import Reading, lemma_3, theorem_1
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, Mechanism, SingleRelease, Subsampled
from accounting.rdp import Conversion, Floats

Accountant = Literal["best", "rdp", "pld", "exact", "fed-smp-theorem", "fed-smp-lemma"]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An (epsilon, delta) statement about a mechanism.

    `epsilon` is an upper bound if `valid`; `lower_bound` is an epsilon that no account of the same mechanism can
    go below (None where none is computed). `method` is the accountant that gave it; `order` the Renyi order.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    sampling: str
    method: str
    conversion: str | None = None
    order: float | None = None
    lower_bound: float | None = None
    valid: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Bound:
    epsilon: float
    method: str
    conversion: str | None = None
    order: float | None = None
    violated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def guarantee(
    mechanism: Mechanism,
    *,
    delta: float,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    unit: str = "client",
    with_lower_bound: bool = True,
) -> Guarantee:
    """The epsilon of `mechanism` at `delta`.

    Claim: for all neighbours under the mechanism's adjacency, P(S) <= e^epsilon Q(S) + delta for every event S.
    best: the smallest of the valid upper bounds (closed form for plain Gaussians; else PLD and RDP).
    rdp, pld: that accountant. exact: single uploads of coins in few coordinates (accounting.coin_pairs).
    fed-smp-theorem, fed-smp-lemma: the paper's readings with the sensitivity that the
    sampling needs; an unmet condition gives valid=False. Errors: UnsupportedMechanism where the accountant has no
    bound for this mechanism, InvalidParameter for a delta outside (0, 1).
    """
    require.open_probability(delta=delta)
    bound = _bound(mechanism, delta, accountant, conversion)
    lower = lower_bound.epsilon(mechanism, delta=delta) if with_lower_bound and pld.supports(mechanism) else None
    if lower is not None and not bound.violated:
        lower = min(lower, bound.epsilon)  # two computations of one number may cross by rounding
    return Guarantee(
        epsilon=bound.epsilon,
        delta=delta,
        unit=unit,
        adjacency=str(mechanism.adjacency),
        sampling=sampling_name(mechanism),
        method=bound.method,
        conversion=bound.conversion,
        order=bound.order,
        lower_bound=lower,
        valid=not bound.violated,
        notes=(*bound.notes, *(f"not a guarantee: {condition}" for condition in bound.violated)),
    )


def epsilon(mechanism: Mechanism, *, delta: float, accountant: Accountant = "best") -> float:
    """Only the number of `guarantee`, without its lower bound: for solvers and progress bars."""
    require.open_probability(delta=delta)
    return _bound(mechanism, delta, accountant, "improved").epsilon


def sampling_name(mechanism: Mechanism) -> str:
    """poisson, fixed or all; several of them joined by '+' for a mixed composition."""
    parts = [part for part, _ in mechanism.parts] if isinstance(mechanism, Composed) else [mechanism]
    names = {part.sampling.name if isinstance(part, Subsampled) else "all" for part in parts}
    return "+".join(sorted(names))


def _bound(mechanism: Mechanism, delta: float, accountant: str, conversion: Conversion) -> _Bound:
    match accountant:
        case "best":
            return _best(mechanism, delta)
        case "rdp":
            return _rdp(mechanism, delta, conversion)
        case "pld":
            return _Bound(epsilon=pld.epsilon(mechanism, delta=delta), method="pld")
        case "exact":
            return _Bound(epsilon=coin_pairs.epsilon(mechanism, delta=delta), method="exact")
        case "fed-smp-theorem" | "fed-smp-lemma":
            return _fed_smp(mechanism, delta, accountant, conversion)
    raise InvalidParameter(f"accountant={accountant!r}: must be one of {', '.join(ACCOUNTANTS)}.")


def _best(mechanism: Mechanism, delta: float) -> _Bound:
    shift = _plain_shift(mechanism)
    if shift is not None:
        return _Bound(epsilon=smallest_epsilon(delta, mu=shift), method="analytic-gaussian")
    candidates = []
    refusals = []
    for accountant in ("pld", "rdp", "exact"):
        try:
            candidates.append(_bound(mechanism, delta, accountant, "improved"))
        except (UnsupportedMechanism, InvalidParameter) as refusal:
            refusals.append(str(refusal))
    if not candidates:
        raise UnsupportedMechanism("accountant='best': no accountant has a bound. " + " ".join(refusals))
    return min(candidates, key=lambda bound: bound.epsilon)


def _plain_shift(mechanism: Mechanism) -> float | None:
    """mu of a composition of plain Gaussians, which is one Gaussian; None if anything is sampled."""
    parts = mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)
    squares = [count * part.mu**2 for part, count in parts if isinstance(part, Gaussian)]
    return math.sqrt(sum(squares)) if len(squares) == len(parts) else None


def _orders(mechanism: Mechanism) -> Floats:
    if not pld.supports(mechanism):
        return rdp.SAMPLED_COIN_ORDERS if _sampled_only(mechanism) else rdp.COIN_ORDERS
    return rdp.ORDERS if _plain_shift(mechanism) is None else rdp.FAR_ORDERS


def _sampled_only(mechanism: Mechanism) -> bool:
    parts = mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)
    return all(isinstance(part, Subsampled) for part, _ in parts)


def _overflow(mechanism: Mechanism) -> float:
    """Probability that some release of coins had more clients than slots: the account is silent about that event."""
    parts = mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)
    coins = [(part.mechanism if isinstance(part, Subsampled) else part, count) for part, count in parts]
    return math.fsum(count * part.overflow for part, count in coins if isinstance(part, BernoulliAggregate))


def _rdp(mechanism: Mechanism, delta: float, conversion: Conversion) -> _Bound:
    orders = _orders(mechanism)
    target = delta - _overflow(mechanism)
    if target <= 0:
        raise UnsupportedMechanism(
            f"delta={delta}: the cohort overflows its slots with probability {_overflow(mechanism):.3g} over the run, "
            "which alone is more. Use more slots."
        )
    best = rdp.epsilon_from_curve(orders, rdp.curve(mechanism, orders), delta=target, conversion=conversion)
    notes = (f"order {best.order:g} is an end of the grid: a longer grid might lower epsilon",) if best.at_end else ()
    return _Bound(epsilon=best.epsilon, method="rdp", conversion=conversion, order=best.order, notes=notes)


def _fed_smp(mechanism: Mechanism, delta: float, accountant: str, conversion: Conversion) -> _Bound:
    parts = mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)
    part, rounds = parts[0]
    sampling = part.sampling if isinstance(part, Subsampled) and len(parts) == 1 else None
    if not isinstance(part, Subsampled) or not isinstance(sampling, FixedSizeSampling):
        raise UnsupportedMechanism(
            f"accountant={accountant!r} with sampling={sampling_name(mechanism)!r}: the paper's readings are for "
            "fixed-size sampling. Use --sampling fixed, or accountant 'best' for the sampler that you run."
        )
    if not isinstance(part.mechanism, Gaussian):
        raise UnsupportedMechanism(f"accountant={accountant!r}: the paper's readings are for Gaussian noise.")
    z = part.mechanism.noise_multiplier
    reading: Reading
    if accountant == "fed-smp-theorem":
        reading = theorem_1(z, rounds, sampling, delta=delta, sensitivity_in_clips=2.0)
        conversion_used = None
    else:
        reading = lemma_3(z, rounds, sampling, delta=delta, sensitivity_in_clips=2.0, conversion=conversion)
        conversion_used = conversion
    return _Bound(
        epsilon=reading.epsilon,
        method=accountant,
        conversion=conversion_used,
        order=reading.order,
        violated=reading.violated,
        notes=("sensitivity 2C, as fixed-size sampling needs (the paper inserts C)",),
    )


def epsilons(
    mechanism: SingleRelease, *, delta: float, rounds: int, accountant: Accountant = "best"
) -> Iterator[float]:
    """Epsilon after 1, 2, ... rounds of `mechanism`, each an upper bound, cheaply: for progress and for stopping.

    `rounds` is how many are planned. Equal to `epsilon` of the composition within the tolerance of the grid.
    """
    shift = _plain_shift(mechanism)
    if shift is not None:
        return (smallest_epsilon(delta, mu=shift * math.sqrt(count)) for count in itertools.count(1))
    streams: list[Iterator[float]] = []
    if accountant in ("best", "pld") and delta >= pld.SMALLEST_DELTA and pld.supports(mechanism):
        streams.append(pld.epsilons(mechanism, delta=delta, rounds=rounds))
    if accountant == "exact" or (accountant == "best" and coin_pairs.supports(Composed(parts=((mechanism, rounds),)))):
        streams.append(_exact_epsilons(mechanism, delta))
    try:
        if accountant in ("best", "rdp"):
            streams.append(_rdp_epsilons(mechanism, delta))
    except UnsupportedMechanism:
        if not streams:
            raise
    if not streams:
        raise UnsupportedMechanism(
            f"accountant={accountant!r}: has no bound for {type(mechanism).__name__} at {delta}."
        )
    return map(min, zip(*streams, strict=False))


def _exact_epsilons(mechanism: SingleRelease, delta: float) -> Iterator[float]:
    for count in itertools.count(1):
        run = Composed(parts=((mechanism, count),))
        yield coin_pairs.epsilon(run, delta=delta) if coin_pairs.supports(run) else math.inf


def _rdp_epsilons(mechanism: SingleRelease, delta: float) -> Iterator[float]:
    orders = _orders(mechanism)
    curve, overflow = rdp.curve(mechanism, orders), _overflow(mechanism)
    return (
        rdp.epsilon_from_curve(orders, count * curve, delta=delta - count * overflow).epsilon
        if delta > count * overflow
        else math.inf
        for count in itertools.count(1)
    )
