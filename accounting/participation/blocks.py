"""Schedules as blocks of rounds: in each block a client takes part at most once, and blocks compose.

A block is a list of (chance to take part, in how many rounds). With Y_b = e^(s x_b - s^2/2) the likelihood ratio of a
round in which the client takes part, that of the block is S = 1 - sum w_b + sum w_b Y_b. Claim: the composition of the
blocks dominates the first `count` rounds of the schedule, in both orders. Direction of error: upper bound.

- balls-and-bins: one block an epoch, w = 1/B; exact, an epoch in progress included: of r released rounds w = 1/B each,
  and with probability 1 - r/B the client's round is still to come. In lanes: of the B/L rounds of its lane, in the
  first ceil(T/L) rounds of a lane; the columns of two of them do not overlap, so that noise in bands shows a shift of
  the columns' norm in each (docs/theory-participation.md, Theorem 5).
- allocation, k of T: a uniform partition of the rounds into k groups, one uniform round of each, is a uniform k-subset
  whatever the sizes, since its law is invariant under permutations of the rounds. Divergences are jointly convex, so k
  blocks of T/k rounds dominate. Of the first n rounds a group has a hypergeometric number; each block gets a number
  that all groups keep to but for a probability `beyond`, which is an infinite loss.
- min-separation: in B rounds in a row at most one participation. Given everything published before, the client rests
  for some number of rounds or is free; the block's law is a mixture over that, and the worst of its parts is the free
  client, since the others' blocks are beginnings of that one's. So w_b = c (1 - c)^b, c the coin, in every block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.schedules import Allocation, BallsAndBins, MinSeparation, Schedule

_BEYOND = 1e-10
"""Probability that a group of an unfinished allocation has more rounds than it is charged for."""


@dataclass(frozen=True, kw_only=True)
class OnceInBlock:
    """Rounds of which a client takes part in at most one: (weight, how many rounds), weights positive, sum <= 1."""

    weights: tuple[tuple[float, int], ...]

    @property
    def rounds(self) -> int:
        return sum(count for _, count in self.weights)

    @property
    def taking_part(self) -> float:
        """Probability that the client takes part in one of the rounds."""
        return min(sum(weight * count for weight, count in self.weights), 1.0)

    @property
    def squares(self) -> float:
        return sum(weight * weight * count for weight, count in self.weights)

    @property
    def largest(self) -> float:
        return max(weight for weight, _ in self.weights)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks that compose, how often each, and a probability that is charged as an infinite loss."""

    repeated: tuple[tuple[OnceInBlock, int], ...]
    beyond: float = 0.0


def blocks_of(schedule: Schedule, count: int) -> Blocks:
    """The first `count` rounds as blocks. UnsupportedMechanism for a public order, which hides nothing."""
    if isinstance(schedule, BallsAndBins):
        bins, epochs, rest = schedule.of_a_lane.bins, *divmod(schedule.lane_rounds(count), schedule.of_a_lane.bins)
        return _whole_and_rest(((1 / bins, bins),), epochs, ((1 / bins, rest),))
    if isinstance(schedule, Allocation):
        return _allocation(schedule, count)
    if isinstance(schedule, MinSeparation):
        waiting = schedule.coin * (1 - schedule.coin) ** np.arange(schedule.separation)
        weights = tuple((float(weight), 1) for weight in waiting if weight > 0)
        return _whole_and_rest(weights, count // schedule.separation, weights[: count % schedule.separation])
    raise UnsupportedMechanism(f"sampling={schedule.name!r}: the order is public, so that nothing is hidden.")


def _whole_and_rest(whole: Sequence[tuple[float, int]], count: int, rest: Sequence[tuple[float, int]]) -> Blocks:
    repeated = [(OnceInBlock(weights=tuple(whole)), count)] if count else []
    rest = tuple((weight, rounds) for weight, rounds in rest if rounds)
    if rest:
        repeated.append((OnceInBlock(weights=rest), 1))
    return Blocks(repeated=tuple(repeated))


def _allocation(schedule: Allocation, count: int) -> Blocks:
    size, larger = divmod(schedule.rounds, schedule.participations)
    groups = [(size + 1, larger), (size, schedule.participations - larger)]
    groups = [(rounds, times) for rounds, times in groups if times]
    if count == schedule.rounds:
        return Blocks(repeated=tuple((OnceInBlock(weights=((1 / rounds, rounds),)), times) for rounds, times in groups))
    if schedule.participations == 1:
        return Blocks(repeated=((OnceInBlock(weights=((1 / size, count),)), 1),))
    repeated, beyond = [], 0.0
    for rounds, times in groups:
        most, chance = _most_of_group(schedule.rounds, rounds, count, _BEYOND / schedule.participations)
        repeated.append((OnceInBlock(weights=((1 / rounds, most),)), times))
        beyond += times * chance
    return Blocks(repeated=tuple(repeated), beyond=beyond)


def _most_of_group(rounds: int, size: int, count: int, allowed: float) -> tuple[int, float]:
    """Return the most of the first `count` rounds that a random group of `size` has, but for a chance <= allowed."""
    from scipy.stats import hypergeom

    numbers = np.arange(1, min(size, count) + 1)
    chances = hypergeom.sf(numbers, rounds, size, count)
    place = int(np.argmax(chances <= allowed))
    return int(numbers[place]), float(chances[place]) * (1 + 1e-6)
