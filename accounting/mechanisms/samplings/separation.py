"""Minimum separation: after a participation a client rests for some rounds, then takes part at random."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from accounting import require
from accounting.arrays import Floats, Ints
from accounting.cohorts import Draws, NamedClients, clients_in_blocks
from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings.planned import CohortSampling
from accounting.mechanisms.samplings.sampling import Schedule
from accounting.options import option


@dataclass(frozen=True, kw_only=True)
class MinSeparationSchedule(Schedule):
    """Schedule with rests: a client skips `separation` - 1 rounds after a participation. Then an independent Bernoulli
    sample of each round decides whether it participates.

    `probability`: probability that a client participates in a given round. It is equal in all rounds, because the
    schedule starts stationary.
    Claim: T rounds are dominated by independent blocks of `separation` rounds with at most one participation each.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a probability of 0 or above 1 / separation.

    >>> from accounting.mechanisms import MinSeparation
    >>> round(MinSeparation(separation=10, probability=0.05).coin, 4)
    0.0909
    """

    separation: int
    probability: float
    stream: str = ""
    name: ClassVar[str] = "min-separation"
    begins_as_poisson: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", require.count(separation=self.separation))
        rate = require.probability(sampling_probability=self.probability)
        object.__setattr__(self, "probability", rate)
        require.stream_name(self.stream)
        if not 0 < rate * self.separation <= 1 + 1e-12:
            raise InvalidParameter(
                f"separation={self.separation} with probability={rate}: a client that takes part every "
                f"{1 / rate if rate else float('inf'):g} rounds cannot rest for {self.separation - 1} rounds. The "
                "separation must be at most clients / cohort, and the probability above 0."
            )

    @property
    def rounds_apart(self) -> int:
        """Least number of rounds from one participation of a client to the next."""
        return self.separation

    @property
    def coin(self) -> float:
        """Participation probability of a client that does not rest: p / (1 - p (separation - 1))."""
        return min(self.probability / (1 - self.probability * (self.separation - 1)), 1.0)

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        rate, coin = self.probability, self.coin

        def takes_part(found: Ints, block: int) -> NDArray[np.bool_]:
            count = len(found)
            begun = randomness.uniform(count, "participation.rest", block)
            resting = begun < rate * (self.separation - 1)
            at = np.where(resting, np.floor(begun / rate) + 1, 0.0)
            at += _geometric(randomness.uniform(count, "participation.gap", 0, block), coin)
            times = 1
            while (at < number).any():
                gap = self.separation + _geometric(randomness.uniform(count, "participation.gap", times, block), coin)
                at, times = np.where(at < number, at + gap, at), times + 1
            return np.asarray(at == number)

        return clients_in_blocks(clients, takes_part)


def _geometric(uniforms: Floats, coin: float) -> Floats:
    """Return the number of failures before the first success of Bernoulli trials, `coin` their probability."""
    if coin >= 1:
        return np.zeros(len(uniforms))
    return np.asarray(np.floor(np.log1p(-uniforms) / np.log1p(-coin)))


@dataclass(frozen=True, kw_only=True)
class MinSeparation(CohortSampling):
    """Schedule with rests: a client skips separation - 1 rounds after a participation and joins each
    later round at random.

    Claim: accounted as `mechanisms.MinSeparation`.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1, or a separation above clients / cohort.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.MinSeparation(cohort=10, separation=20)).period
    60
    """

    separation: int = option(
        "min-separation, banded, blt: after a participation a client skips the next separation - 1 rounds."
    )
    name: ClassVar[str] = "min-separation"
    words: ClassVar[str] = "min-separation: at random, then excluded for some rounds"
    table_keys: ClassVar[tuple[str, ...]] = ("separation",)

    def description(self, clients: int) -> str:
        chance = f"with probability {self.cohort / clients:.6g} a round"
        return f"min-separation, each of {clients} clients {chance}, at most once in {self.separation} rounds"

    def law(self, clients: int, stream: str) -> MinSeparationSchedule:
        return MinSeparationSchedule(separation=self.separation, probability=self.cohort / clients, stream=stream)
