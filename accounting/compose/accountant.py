"""Guarantee of a mechanism: epsilon with everything that must be stated with it."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Literal, cast, get_args

from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli.exact import MOST_COINS
from accounting.caveats import DELTA_NOTE_START, caveats
from accounting.compose import adaptive, central_moments, lower_bound, pld, rdp
from accounting.compose.adaptive_grid import Game
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.compose.profiles import Profile, profile, profile_of_pair
from accounting.compose.rdp import Conversion
from accounting.compose.readings import Readings, readings, readings_of_profile, tradeoff, true_positive_rate
from accounting.compose.twins import Continuous, delta_without_overflow, nearly_gaussian, plain_shift
from accounting.errors import ContradictoryBounds, InvalidParameter, UnsupportedMechanism
from accounting.gaussian import sampled_profiles, smallest_epsilon
from accounting.mechanisms import (
    Adjacency,
    FixedSizeSampling,
    Mechanism,
    SingleRelease,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    unsampled,
    with_whole_noise,
)
from accounting.mechanisms.kinds import account_of
from accounting.participation.ratio_distribution import divergence_of_first_rounds
from accounting.roots import crossing_bracket
from accounting.rounding import downwards, html_table, upwards

Accountant = Literal["best", "rdp", "pld", "adaptive", "exact", "fed-smp-theorem", "fed-smp-lemma"]
_LEAST_DELTA = 1e-290
"""Smallest delta for closed-form profiles. Below it they are too near the smallest double."""
_ROUNDING_TOLERANCE = 1e-6
"""Largest relative amount by which a lower bound may exceed epsilon because of rounding."""
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)
"""Names of the accountants; "best" is the smallest of the valid bounds."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Guarantee of (epsilon, delta)-DP for a mechanism, with everything that must be stated with it.

    Claim: if `valid`, the mechanism is (epsilon, delta)-DP for its adjacency and unit. `lower_bound`: no correct
    account of the mechanism can be below it (None if not computed). `method`: the accountant; `order`: its Renyi order.
    `notes`: conditions and remarks, including those of `accounting.caveats`.
    Direction of error: epsilon upwards, `lower_bound` downwards.

    >>> from accounting import Gaussian, guarantee
    >>> print(guarantee(Gaussian(noise_multiplier=2.0, adjacency="add-remove"), delta=1e-5))
    epsilon 1.9931 at delta 1e-05 for one client, add-remove neighbours, all sampling, accountant analytic-gaussian
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
    mechanism: Mechanism | None = field(default=None, repr=False, compare=False)

    def profile(self) -> Profile:
        """Return the privacy profile of the mechanism by the best account. Direction of error: upper bound.

        Without a mechanism (a budget, or different releases of several clients) it is the profile that (epsilon, delta)
        implies.
        """
        return profile_of_pair(self.epsilon, self.delta) if self.mechanism is None else profile(self.mechanism)

    def tradeoff(self, false_positive_rate: ArrayLike) -> Floats:
        """Return the smallest false-negative rate at each false-positive rate. Direction of error: lower bound."""
        return tradeoff(self.profile(), false_positive_rate)

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> Floats:
        """Return the largest true-positive rate of any membership test at each false-positive rate.

        Direction of error: upper bound for every test of two neighbouring datasets, in both orders."""
        return true_positive_rate(self.profile(), false_positive_rate)

    def readings(self, delta_min: float | None = None) -> Readings:
        """Return advantage, true-positive rates and a Gaussian DP summary of the mechanism (`compose.readings`).

        delta_min: smallest delta at which mu describes the profile; None: the guarantee's delta. Direction of error:
        upper bounds.
        """
        least = self.delta if delta_min is None else delta_min
        if self.mechanism is None:
            return readings_of_profile(self.profile(), least)
        return readings(self.mechanism, least, (self.epsilon, self.delta) if self.valid else None)

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks, rounded as in `__str__`."""
        rows = [
            ("epsilon, at most" if self.valid else "epsilon (NOT an upper bound)", upwards(self.epsilon)),
            ("delta", upwards(self.delta)),
            ("for", f"one {self.unit}, {self.adjacency} neighbours"),
            ("sampling", self.sampling),
            ("accountant", self.method),
        ]
        if self.lower_bound is not None:
            rows.append(("no account can state less than", downwards(self.lower_bound)))
        return html_table("Guarantee", rows, self.notes)

    def __str__(self) -> str:
        """Return epsilon with everything that must be stated with it, rounded in the direction that keeps the
        statement true.
        """
        if self.method == "none":
            return f"nothing was released about a {self.unit}: epsilon 0"
        return (
            f"epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)} for one {self.unit}, {self.adjacency} "
            f"neighbours, {self.sampling} sampling, accountant {self.method}"
            + ("" if self.valid else "; NOT an upper bound, see its notes")
            + "".join(f"; {note}" for note in self.notes if note.startswith(DELTA_NOTE_START))
        )


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
    units: int | None = None,
    with_lower_bound: bool = True,
    precise: bool = False,
) -> Guarantee:
    """Return the guarantee of `mechanism` at `delta`.

    Claim: for all neighbours under the mechanism's adjacency, P(S) <= e^epsilon Q(S) + delta for every event S.
    best: the smallest of the valid upper bounds (closed form for unsampled Gaussians; else PLD, RDP, central moments
    for tiny sampling probabilities, and the adaptive account under fixed-size sampling). rdp, pld: this accountant
    alone. adaptive: `compose.adaptive`, with a finer grid and cover if `precise` (error 0.05% instead of 0.3%, for up
    to minutes). exact: individually visible Bernoulli uploads with few coordinates (bernoulli.exact). fed-smp-theorem,
    fed-smp-lemma: the paper's bounds with the sensitivity that the sampling needs; an unmet condition gives
    valid=False.
    units: number of clients (or records), for a note on a delta above 1/units.
    Source: Balle, Wang 2018 (closed form); Mironov 2017 (RDP); docs/theory.md, Theorems 1 to 9;
    docs/theory-bernoulli.md; docs/theory-participation.md; Hu, Guo, Gong 2022 (Fed-SMP).
    Adjacency: that of the mechanism.
    Direction of error: upper bound if `valid`.
    Errors: UnsupportedMechanism if the accountant has no bound for this mechanism, InvalidParameter for a delta outside
    (0, 1), ContradictoryBounds for a lower bound above epsilon.

    >>> from accounting import Gaussian, guarantee
    >>> found = guarantee(Gaussian(noise_multiplier=2.0, adjacency="add-remove"), delta=1e-5)
    >>> round(found.epsilon, 4), found.method
    (1.9931, 'analytic-gaussian')
    """
    delta = require.open_probability(delta=delta)
    bound = _bound_by_accountant(mechanism, delta, accountant, conversion, precise)
    lower, in_lanes = None, all(sampling_of(part).secret_lanes for part, _ in parts_of(mechanism))
    if with_lower_bound and not in_lanes and pld.supports(with_whole_noise(mechanism)):
        lower = lower_bound.epsilon(mechanism, delta=delta)
    if lower is not None and not bound.violated:
        if lower > bound.epsilon * (1 + _ROUNDING_TOLERANCE) + _ROUNDING_TOLERANCE**2:
            raise ContradictoryBounds(
                f"epsilon {bound.epsilon!r} by accountant {bound.method!r} at delta={delta!r}: a lower bound of the "
                f"same mechanism is {lower!r}, so one of the two is wrong, and no epsilon is stated. Report this as an "
                f"error of the account, with the mechanism: {mechanism!r}. Another accountant may have a bound."
            )
        lower = min(lower, bound.epsilon)  # rounding errors may put the lower bound above epsilon
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
        mechanism=mechanism,
        notes=(
            *bound.notes,
            *hypothesis_notes(mechanism),
            *(f"not a guarantee: {condition}" for condition in bound.violated),
            *caveats(epsilon=bound.epsilon, delta=delta, units=units, unit=unit),
        ),
    )


def epsilon(
    mechanism: Mechanism,
    *,
    delta: float,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    precise: bool = False,
) -> float:
    """Return only the epsilon of `guarantee`, without its lower bound, for solvers and progress bars; infinite if it is
    not valid.
    """
    delta = require.open_probability(delta=delta)
    bound = _bound_by_accountant(mechanism, delta, accountant, conversion, precise)
    return math.inf if bound.violated else bound.epsilon


def quick_epsilon(mechanism: Mechanism, *, delta: float) -> float | None:
    """Return an approximation of `epsilon` for solvers if the adaptive account takes long, else None. It is not a
    bound.
    """
    delta = require.open_probability(delta=delta)
    try:
        replacement, target = nearly_gaussian(mechanism, delta)
    except UnsupportedMechanism:
        return None
    if replacement.pairwise or Game.of(replacement.mechanism) is None:
        return None
    others = _best_bound(mechanism, delta, without_adaptive=True).epsilon
    if others == 0:
        return 0.0
    found = adaptive.epsilon(replacement.mechanism, delta=target, fineness=adaptive.QUICK)
    return None if found is None else min(found + 2 * replacement.closeness, others)


def hypothesis_notes(mechanism: Mechanism) -> tuple[str, ...]:
    """Return notes on the conditions under which the account of the samplings holds."""
    notes = [sampling_of(part).hypotheses(part.adjacency) for part, _ in parts_of(mechanism)]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(notes)))


def sampling_name(mechanism: Mechanism) -> str:
    """Return the name of the sampling; several names are joined by '+' for a mixed composition."""
    names = {sampling_of(part).name for part, _ in parts_of(mechanism)}
    return "+".join(sorted(names))


def _bound_by_accountant(
    mechanism: Mechanism, delta: float, accountant: str, conversion: Conversion, precise: bool
) -> _Bound:
    accounts: dict[str, Callable[[Mechanism, float], _Bound]] = {
        "best": partial(_best_bound, precise=precise),
        "rdp": partial(_rdp_bound, conversion=conversion),
        "pld": _pld_bound,
        "adaptive": partial(_adaptive_bound, precise=precise),
        "exact": _exact_bound,
        "fed-smp-theorem": partial(_fed_smp_bound, accountant="fed-smp-theorem", conversion=conversion),
        "fed-smp-lemma": partial(_fed_smp_bound, accountant="fed-smp-lemma", conversion=conversion),
    }
    return accounts[require.one_of(ACCOUNTANTS, accountant=accountant)](mechanism, delta)


@lru_cache(maxsize=1024)  # a run needs the same bound before its rounds, after them and in its summary
def _best_bound(mechanism: Mechanism, delta: float, *, precise: bool = False, without_adaptive: bool = False) -> _Bound:
    if plain_shift(mechanism) is not None:
        return _analytic_bound(mechanism, delta)
    candidates: list[_Bound] = []
    refusals = []
    accountants: list[Callable[[Mechanism, float], _Bound]] = [
        _analytic_bound,
        _pld_bound,
        _central_moments_bound,
        partial(_rdp_bound, conversion="improved"),
        _exact_bound,
        *([] if without_adaptive else [partial(_adaptive_bound, precise=precise)]),
    ]
    for accountant in accountants:
        try:
            candidates.append(accountant(mechanism, delta))
        except (UnsupportedMechanism, InvalidParameter) as refusal:
            refusals.append(str(refusal))
        if candidates and candidates[-1].epsilon == 0:  # no other account can be below 0
            break
    if not candidates:
        raise UnsupportedMechanism("accountant='best': no accountant has a bound. " + " ".join(dict.fromkeys(refusals)))
    return min(candidates, key=lambda bound: bound.epsilon)


def _bound_by_gaussians(
    mechanism: Mechanism, delta: float, *, method: str, account: Callable[[Continuous, float], float]
) -> _Bound:
    """Return the bound by an account of the Gaussians that replace the releases."""
    replacement, target = nearly_gaussian(mechanism, delta)
    found = account(replacement, target) + 2 * replacement.closeness
    return _Bound(epsilon=found, method=method, notes=_domination_note(replacement))


def analytic_epsilon(replacement: Continuous, delta: float) -> float:
    """Return epsilon by a closed form: of unsampled Gaussians, or of the first rounds of some samplings.

    Direction of error: upper bound.
    Errors: UnsupportedMechanism if there is no closed form.
    """
    shift = plain_shift(replacement.mechanism)
    return _epsilon_of_beginning(replacement.mechanism, delta) if shift is None else smallest_epsilon(delta, mu=shift)


def _epsilon_of_beginning(mechanism: Mechanism, delta: float) -> float:
    """Return epsilon of one Poisson-sampled Gaussian round by closed-form profiles (`gaussian.sampled_profiles`), for a
    delta that is too small for loss distributions; of the first round of a secret schedule, which is such a round; or
    of the first two or three rounds of an allocation (`participation.ratio_distribution`).
    Adjacency: add-remove, zero-out.
    Direction of error: upper bound, by 1e-12 relative and 1e-12 absolute, far above the rounding errors of the
    profiles, about 1e-15 (1 + log 1/delta).
    """
    ((release, rounds), *more), sampling = parts_of(mechanism), sampling_of(parts_of(mechanism)[0][0])
    noise, replaces = gaussian_of(release), mechanism.adjacency is Adjacency.REPLACE_ONE
    probability, sets = sampling.first_round_probability, sampling.sets_of_first_rounds(rounds)
    if more or (rounds > 1 and sets is None) or noise is None or replaces or probability is None:
        raise UnsupportedMechanism(
            "the closed form is for Gaussian noise without sampling, or one Poisson round under add-remove or zero-out."
        )
    largest = pld.SMALLEST_DELTA if schedule_of(release) is None else 1.0
    if not (0 < probability < 1 and _LEAST_DELTA <= delta < largest):
        raise UnsupportedMechanism(
            "the closed form of a sampled round is only for a delta that is too small for other accounts."
        )
    if sets is not None:
        divergence = divergence_of_first_rounds(sets, 1 / noise.noise_multiplier, delta)
    else:
        round_ = {"sampling_probability": probability, "noise_multiplier": noise.noise_multiplier}

        def divergence(eps: float) -> float:
            both = sampled_profiles.removal_profile(eps, **round_), sampled_profiles.addition_profile(eps, **round_)
            return max(map(float, both))

    if divergence(0.0) <= delta:
        return 0.0
    rtol, limit = (1e-15, math.inf) if sets is None else (1e-9, 1000.0)
    _, high = crossing_bracket(lambda eps: divergence(eps) <= delta, 1.0, rtol=rtol, limit=limit)
    return high * (1 + 1e-12) + 1e-12


_analytic_bound = partial(_bound_by_gaussians, method="analytic-gaussian", account=analytic_epsilon)
_pld_bound = partial(
    _bound_by_gaussians, method="pld", account=lambda near, delta: pld.epsilon(near.mechanism, delta=delta)
)
_central_moments_bound = partial(
    _bound_by_gaussians,
    method="central-moments",
    account=lambda near, delta: central_moments.epsilon(near.mechanism, delta=delta),
)


def _domination_note(replacement: Continuous) -> tuple[str, ...]:
    """Return the note on releases that are replaced by a dominating Gaussian; () if there are none."""
    if not replacement.pairwise:
        return ()
    noises = {gaussian_of(part) for part, _ in parts_of(replacement.mechanism)}
    shifts = {noise.mu for noise in noises if noise is not None}
    shift = f"mu = {upwards(max(shifts))} a round" + (" at most" if len(shifts) > 1 else "")
    return (f"each round is dominated by a Gaussian of {shift}; this uses {upwards(replacement.lost)} of delta",)


def _adaptive_bound(mechanism: Mechanism, delta: float, precise: bool) -> _Bound:
    def account(near: Continuous, target: float) -> float:
        fineness = adaptive.FINE if precise else adaptive.STANDARD
        found = None if near.pairwise else adaptive.epsilon(near.mechanism, delta=target, fineness=fineness)
        if found is None:
            raise UnsupportedMechanism(
                "accountant='adaptive': only for Gaussian noise on sums under fixed-size sampling, under replace-one "
                "or zero-out, and for up to several thousand rounds. Use 'best'."
            )
        return found

    return _bound_by_gaussians(mechanism, delta, method="adaptive", account=account)


def _exact_bound(mechanism: Mechanism, delta: float) -> _Bound:
    exact = exact_account(mechanism)
    if exact is None:
        raise UnsupportedMechanism(
            "accountant='exact': only for individually visible Bernoulli uploads (bernoulli-channel) of one kind, "
            f"with up to {MOST_COINS} coordinates times rounds. Use accountant 'best'."
        )
    return _Bound(epsilon=exact(delta), method="exact")


def exact_account(mechanism: Mechanism) -> Callable[[float], float] | None:
    """Return epsilon by the exact distribution (`bernoulli.exact`) as a function of delta; None if it is unknown or
    takes too long to compute.

    The mechanism must repeat one release whose participants are public.
    Direction of error: upper bound.
    """
    (release, rounds), *more = parts_of(mechanism)
    noise, schedule = unsampled(release), schedule_of(release)
    is_secret = noise is not release if schedule is None else schedule.secret
    account, times = account_of(noise), rounds if schedule is None else schedule.most_participations(rounds)
    if more or is_secret or account.exact is None or not account.exact_fits(noise, times):
        return None
    return partial(account.exact, noise, times)


def _rdp_bound(mechanism: Mechanism, delta: float, conversion: Conversion) -> _Bound:
    target = delta_without_overflow(mechanism, delta)
    found = []
    for one, lost in rdp.valid_mechanisms(mechanism):
        if lost < target:
            at = rdp.orders(one)
            found.append(rdp.epsilon_from_curve(at, rdp.curve(one, at), delta=target - lost, conversion=conversion))
    best = min(found, key=lambda one: one.epsilon)
    notes = (f"order {best.order:g} is an end of the grid: a longer grid might lower epsilon",) if best.at_end else ()
    return _Bound(epsilon=best.epsilon, method="rdp", conversion=conversion, order=best.order, notes=notes)


def _fed_smp_bound(mechanism: Mechanism, delta: float, accountant: str, conversion: Conversion) -> _Bound:
    parts = parts_of(mechanism)
    part, rounds = parts[0]
    noise, sampling = gaussian_of(part), cast(FixedSizeSampling, sampling_of(part))
    if len(parts) > 1 or not sampling.fixed_size:
        raise UnsupportedMechanism(
            f"accountant={accountant!r} with sampling={sampling_name(mechanism)!r}: the paper's bounds are for "
            "fixed-size sampling. Use --sampling fixed, or accountant 'best' for this sampling."
        )
    if noise is None:
        raise UnsupportedMechanism(f"accountant={accountant!r}: the paper's bounds are for Gaussian noise.")
    z, is_theorem = noise.noise_multiplier, accountant == "fed-smp-theorem"
    if is_theorem:
        reading = theorem_1(z, rounds, sampling, delta=delta, sensitivity_in_clips=2.0)
    else:
        reading = lemma_3(z, rounds, sampling, delta=delta, sensitivity_in_clips=2.0, conversion=conversion)
    return _Bound(
        epsilon=reading.epsilon,
        method=accountant,
        conversion=None if is_theorem else conversion,
        order=reading.order,
        violated=reading.violated,
        notes=("sensitivity 2C, as fixed-size sampling needs (the paper inserts C)",),
    )


def no_bound_message(accountant: Accountant, mechanism: SingleRelease, delta: float) -> str:
    """Return the error message for an accountant without a bound for this mechanism at `delta`."""
    kind = unsampled(mechanism).kind
    return f"accountant={accountant!r}: it has no bound for {kind} at delta={upwards(delta)}. Use 'best'."
