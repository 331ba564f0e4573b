"""Samplers of your own: a function that draws cohorts, with the distribution that the accountant charges.

The function sees no data: it receives the numbers of clients and of the cohort, a generator and the round. Before
round 1 its cohorts of 10,000 rounds are compared with that distribution. What this test cannot see is stated in
`LIMITS`; every report repeats it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, gammaln

from accounting.arrays import Floats, Ints
from accounting.cohorts import Draws
from accounting.mechanisms.samplings.planned import Cohorts, sampling_of_keys
from dpfed.config import own_code
from dpfed.errors import CUSTOM, ConfigError, require_name
from dpfed.randomness import Randomness

Distribution = Literal["poisson", "fixed"]
Drawing = Callable[[int, int, np.random.Generator, int], Any]
"""Function (clients, cohort, generator, round from 0) -> ids of the round's cohort."""

ROUNDS = 10_000
"""Number of rounds that are drawn for the test before round 1."""
FALSE_ALARM = 1e-6
"""Probability that the test refuses a sampler that has the stated distribution."""
_MOST_CLIENTS = 5_000
"""Largest population for the test; of a larger one, a population with the same sampling probability is drawn."""
_TWICE = 1_000
"""Number of rounds that are drawn twice, by generators with different seeds."""
_LAGS = (1, 2, 3, 4, 5)
"""Distances between two rounds that are tested for memory."""

LIMITS = (
    "sampler of the user's own, {name!r}: epsilon relies on draws of {distribution} sampling, for which 10,000 rounds "
    "were tested (frequencies, pairs, sizes, memory); rarer deviations remain"
)
"""Limitation of the guarantee of a run with a custom sampler."""


@dataclass(frozen=True, kw_only=True)
class CustomSampler:
    """Registered function and the name of its distribution; None: no account, so no epsilon."""

    name: str
    draw: Drawing
    distribution: Distribution | None

    def cohorts(self, clients: int, cohort: int) -> CustomCohorts:
        """Return the cohorts of these clients, charged as the stated distribution."""
        stated = sampling_of_keys(self.distribution or "poisson", {"cohort": cohort}).cohorts(clients)
        return CustomCohorts(sampler=self, law=stated.law, clients=clients, expected=stated.expected)


def register_sampler(name: str, *, distribution: Distribution | None) -> Callable[[Drawing], Drawing]:
    """Register a function as federation.sampler in this process, for federation.sampling = "custom".

    The function receives (clients, cohort, generator, round) and returns the ids of the cohort, from 0 to clients - 1,
    each at most once. The generator is seeded from the run's secret randomness. distribution: "poisson" or "fixed", the
    distribution that is charged; None: private runs are refused.
    Raises ConfigError for another distribution, or a name that another line of code has registered.

    >>> @register_sampler("by-chance", distribution="poisson")
    ... def by_chance(clients, cohort, generator, number):
    ...     return np.flatnonzero(generator.random(clients) < cohort / clients)
    """
    if distribution not in ("poisson", "fixed", None):
        raise ConfigError(
            f"sampler {name!r}: distribution={distribution!r} must be 'poisson', 'fixed', or None for a sampler that "
            "has no account, and so no epsilon."
        )

    def registering(draw: Drawing) -> Drawing:
        if not callable(draw):
            raise ConfigError(f"sampler {name!r}: is {type(draw).__name__}; must be a function that returns ids.")
        made = CustomSampler(name=name, draw=draw, distribution=distribution)
        own_code.register_object("sampler", name, made, taken=())
        return draw

    return registering


def custom_sampler(name: str) -> CustomSampler:
    """Return the registered sampler of this name. Raises ConfigError if there is none."""
    known = own_code.objects_of_kind("sampler")
    require_name(f"federation.sampler={name!r}: known samplers are", name, sorted(known), CUSTOM)
    found: CustomSampler = known[name]
    return found


@dataclass(frozen=True, kw_only=True)
class CustomCohorts(Cohorts):
    """Cohorts drawn by a registered function, charged as the distribution that it states.

    Claim: epsilon holds if the cohorts have the distribution of `law`. `sampler_problem` tests this.
    Adjacency: that of the stated distribution.
    """

    sampler: CustomSampler

    def sample(self, randomness: Draws, number: int) -> Ints:
        words = (randomness.uniform(8, "cohort", number) * 2.0**32).astype(np.uint32)
        return self._checked_cohort(np.random.default_rng(words.tolist()), number)

    def _checked_cohort(self, generator: np.random.Generator, number: int) -> Ints:
        """Return the sorted ids. Raises ConfigError if they are not ids of different clients."""
        try:
            drawn = self.sampler.draw(self.clients, int(self.expected), generator, number)
            ids = np.sort(np.asarray(drawn))
        except Exception as error:
            raise ConfigError(
                f"federation.sampler={self.sampler.name!r}, round {number}: {type(error).__name__}: {error}"
            ) from error
        whole = ids.ndim == 1 and (ids.dtype.kind in "iu" or not ids.size)  # an empty list is float64
        if not whole or (ids.size and (ids[0] < 0 or ids[-1] >= self.clients or np.diff(ids).min(initial=1) < 1)):
            raise ConfigError(
                f"federation.sampler={self.sampler.name!r}, round {number}: must return different whole numbers from 0 "
                f"to {self.clients - 1}."
            )
        return ids.astype(np.int64)


def refuse_wrong_sampler(who: CustomCohorts, randomness: Randomness) -> None:
    """Raise ConfigError if the cohorts of 10,000 rounds contradict the stated distribution (`sampler_problem`)."""
    problem = sampler_problem(who, randomness)
    if problem is not None:
        raise ConfigError(
            f"federation.sampler={who.sampler.name!r}: {problem} This contradicts {who.law.name!r}, which is charged. "
            f"(A correct sampler fails this test with probability {FALSE_ALARM:g}.) State another distribution, or "
            "None for a run without privacy."
        )


def sampler_problem(who: CustomCohorts, randomness: Draws) -> str | None:
    """Return how the cohorts of 10,000 rounds contradict the stated distribution; None if no test fails.

    Claim: a sampler with that distribution fails with probability at most FALSE_ALARM, by a union bound over exact
    binomial tests: the number of rounds of each client and
    of blocks of 2, 4, 8, ... neighbouring ids; rounds that neighbouring ids have in common; rounds with at
    most each size (fixed: every size is the cohort); clients in both of two rounds 1 to 5 rounds apart, each client by
    itself and all together, over disjoint pairs of rounds; pairs of consecutive rounds with at most each number of
    clients in common, which finds clients that are drawn together; equal cohorts from two seeds, and other cohorts from
    one seed. Under fixed,
    sums over clients are hypergeometric, with lighter tails (Hoeffding 1963, Theorem 4).
    """
    if who.clients > _MOST_CLIENTS:
        who = who.sampler.cohorts(_MOST_CLIENTS, max(round(who.expected * _MOST_CLIENTS / who.clients), 1))
    n, q, cohort, fixed = who.clients, who.law.probability, int(who.expected), who.law.fixed_size
    alpha = FALSE_ALARM / (5 + 2 * len(_LAGS))
    counts, neighbours, sizes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(ROUNDS, np.int64)
    again = {lag: np.zeros(n, dtype=np.int64) for lag in _LAGS}
    before: deque[NDArray[np.bool_]] = deque(maxlen=max(_LAGS))
    shared = np.zeros(ROUNDS // 2, dtype=np.int64)
    for number in range(ROUNDS):
        present = np.zeros(n, dtype=bool)
        present[who.sample(randomness, number)] = True
        sizes[number] = present.sum()
        counts += present
        neighbours += present & np.roll(present, -1)
        if number % 2:
            shared[number // 2] = (present & before[-1]).sum()
        for lag in _LAGS:
            if number % (2 * lag) >= lag:
                again[lag] += present & before[-lag]
        before.append(present)
    if fixed and (wrong := np.flatnonzero(sizes != cohort)).size:
        return f"round {wrong[0]} has {sizes[wrong[0]]} clients, not {cohort}."
    widths = [1 << level for level in range(n.bit_length() + 1)]
    blocks = [(first, min(first + width, n)) for width in widths for first in range(0, n, width)]
    parts = np.array([counts[first:end].sum() for first, end in blocks])
    place, chance = _least_likely(parts, np.array([ROUNDS * (end - first) for first, end in blocks]), q)
    if chance < alpha:
        first, end = blocks[place]
        return (
            f"clients {first} to {end - 1} take part {parts[place]} times in {ROUNDS} rounds; "
            f"{ROUNDS * q * (end - first):.0f} times are expected."
        )
    together = q * (cohort - 1) / max(n - 1, 1) if fixed else q * q
    place, chance = _least_likely(neighbours, ROUNDS, together)
    if n > 1 and chance < alpha:
        return (
            f"clients {place} and {(place + 1) % n} take part together in {neighbours[place]} of {ROUNDS} rounds; "
            f"{ROUNDS * together:.1f} are expected."
        )
    most = np.arange(n)
    place, chance = _least_likely(np.searchsorted(np.sort(sizes), most, side="right"), ROUNDS, bdtr(most, n, q))
    if not fixed and chance < alpha:
        return (
            f"cohorts have {sizes.mean():.2f} clients on average, with variance {sizes.var():.2f}; {n * q:.2f} and "
            f"{n * q * (1 - q):.2f} are expected."
        )
    for lag, both in again.items():
        pairs = sum(number % (2 * lag) >= lag for number in range(ROUNDS))
        of_all = np.array([both.sum()])
        for found, trials in ((both, pairs), (of_all, pairs * n)):
            place, chance = _least_likely(found, trials, q * q)
            if chance < alpha:
                who_is_it = f"client {place} is" if len(found) > 1 else "clients are"
                return (
                    f"{who_is_it} {found[place]} times in both of two rounds {lag} apart; {trials * q * q:.1f} times "
                    "are expected. Draws depend on earlier ones."
                )
    common = np.cumsum(np.exp(_log_ways(cohort, most) + _log_ways(n - cohort, cohort - most) - _log_ways(n, cohort)))
    expected = np.minimum(common, 1.0) if fixed else bdtr(most, n, q * q)
    place, chance = _least_likely(np.searchsorted(np.sort(shared), most, side="right"), len(shared), expected)
    if chance < alpha:
        return (
            f"{(shared <= place).sum()} of {len(shared)} cohorts have at most {place} clients of the cohort before; "
            f"{len(shared) * expected[place]:.0f} are expected. Clients are drawn together, or depend on earlier draws."
        )
    equal = 0
    for number in range(_TWICE):
        one, other, repeated = (
            who._checked_cohort(np.random.default_rng([seed, number]), number) for seed in (1, 2, 1)
        )
        equal += np.array_equal(one, other)
        if not np.array_equal(one, repeated):
            return (
                f"round {number} has another cohort if its generator has the same seed. Other draws than the "
                "generator's may be known to all who have the code."
            )
    chance = 1 / math.comb(n, cohort) if fixed else (q * q + (1 - q) ** 2) ** n
    if equal and bdtrc(equal - 1, _TWICE, chance) < alpha:
        return (
            f"{equal} of {_TWICE} cohorts are equal if its generator has another seed: all who have the code know them."
        )
    return None


def _log_ways(n: int, k: Ints | int) -> Floats:
    """Return log C(n, k); -infinity if there is no way."""
    return np.asarray(gammaln(n + 1) - gammaln(np.asarray(k) + 1) - gammaln(n - np.asarray(k) + 1))


def _least_likely(counts: Ints, trials: int | Ints, probability: float | Floats) -> tuple[int, float]:
    """Return the place of the least likely binomial count, and its two-sided p-value for all counts together."""
    low = bdtr(counts, trials, probability)
    high = np.where(counts > 0, bdtrc(np.maximum(counts - 1, 0), trials, probability), 1.0)
    chances = np.minimum(2 * np.minimum(low, high) * len(counts), 1.0)
    place = int(np.argmin(chances))
    return place, float(chances[place])
