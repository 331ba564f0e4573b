"""Schedules as blocks of rounds: in each block a client takes part at most once, and blocks compose.

A block is a list of (probability to take part, number of rounds). With Y_b = e^(s x_b - s^2/2) the likelihood ratio of
a round in which the client takes part, that of the block is S = 1 - sum w_b + sum w_b Y_b. Claim: the composition of
the blocks dominates the first `count` rounds of the schedule, in both orders. Direction of error: upper bound.

- balls-and-bins: one block an epoch, w = 1/B; exact, an epoch in progress included: of r released rounds w = 1/B each,
  and with probability 1 - r/B the client's round is still to come. In lanes: of the B/L rounds of its lane, in the
  first ceil(T/L) rounds of a lane; the columns of two of them do not overlap, so noise in bands has a shift of the
  columns' norm in each (docs/theory-participation.md, Theorem 5).
- allocation, k of T: a uniform partition of the rounds into k groups, one uniform round of each, is a uniform k-subset
  for any sizes, since its distribution is invariant under permutations of the rounds. Divergences are jointly convex,
  so k blocks of T/k rounds dominate. In the first n rounds the number of participations is a sum of independent
  Bernoulli(p_i) (`participations_of_beginning`); blocks of n_i rounds, sum n_i = n, with one participation by
  probability p_i each dominate.
- min-separation: in B rounds in a row at most one participation. In the first ones each round has it with probability
  p, exactly. Later, given everything published before, the client rests for some number of rounds or is free; the
  block's distribution is a mixture over that, and the worst of its parts is the free client, since the others' blocks
  are beginnings of that one's. So w_b = c (1 - c)^b, c the probability of a free client, in every later block.

The number of rounds must be fixed, or chosen independently of results.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from accounting.arrays import Floats, Ints
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.schedules import Allocation, BallsAndBins, MinSeparation, Schedule

_MOST_WEIGHTS, _EDGES = 150, 128
"""Different weights of a block that all count as they are; edges to which weights of a block with more are moved."""
_MOST_COINS = 24
"""Most different blocks of an unfinished allocation; beyond it neighbouring ones count as the largest of them."""


@dataclass(frozen=True, kw_only=True)
class OnceInBlock:
    """Rounds of which a client takes part in at most one: (weight, number of rounds), weights positive, sum <= 1."""

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

    @cached_property
    def with_few_weights(self) -> "OnceInBlock":
        """A block with at most some hundred different weights, whose divergences are no smaller.

        Weights between two edges are moved to these edges, as many to each as keeps their sum, one to a rest between:
        the vector of weights then majorises this one. Divergences are convex and symmetric in the weights at a fixed
        sum, as the Y_b are independent and alike, so they do not fall (Schur). The squares of geometric weights grow by
        at most 5e-4 of their sum, the variance of the loss likewise.
        """
        if len(self.weights) <= _MOST_WEIGHTS:
            return self
        once = np.repeat([weight for weight, _ in self.weights], [count for _, count in self.weights])
        moved, rests = _at_edges(once, _EDGES)
        again, last = _at_edges(np.array(rests), _EDGES // 8)
        counted = Counter([*moved, *again, *last])
        return OnceInBlock(weights=tuple(counted.items()))


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks that compose, with the number of each."""

    repeated: tuple[tuple[OnceInBlock, int], ...]


def _at_edges(weights: Floats, count: int) -> tuple[list[float], list[float]]:
    """Return the weights at the ends of `count` cells, zeros left out, and one rest for each cell: in all the same
    sum."""
    if not weights.size:
        return [], []
    edges = np.linspace(weights.min(), weights.max(), count + 1)
    cells = np.clip(np.searchsorted(edges, weights, side="right") - 1, 0, count - 1)
    moved, rests = list[float](), list[float]()
    for cell in np.unique(cells):
        inside = weights[cells == cell].tolist()
        low, high = float(edges[cell]) if cell else 0.0, max(inside)
        if len(inside) <= 2 or high == min(inside):
            moved += inside
            continue
        up = min(int((math.fsum(inside) - low * len(inside)) / (high - low)), len(inside) - 1)
        moved += [high] * up + [low] * (len(inside) - up - 1) * (low > 0)
        rests.append(max(math.fsum([*inside, *[-high] * up, *[-low] * (len(inside) - up - 1)]), 0.0))
    return moved, [rest for rest in rests if rest > 0]


def blocks_of(schedule: Schedule, count: int) -> Blocks:
    """Return the first `count` rounds as blocks. Errors: UnsupportedMechanism for a public order, which hides
    nothing.
    """
    if isinstance(schedule, BallsAndBins):
        bins, epochs, rest = schedule.of_a_lane.bins, *divmod(schedule.lane_rounds(count), schedule.of_a_lane.bins)
        return _whole_and_rest(((1 / bins, bins),), epochs, ((1 / bins, rest),))
    if isinstance(schedule, Allocation):
        return _allocation(schedule, count)
    if isinstance(schedule, MinSeparation):
        return _blocks_with_rests(schedule, count)
    raise UnsupportedMechanism(f"sampling={schedule.name!r}: the order is public, so that nothing is hidden.")


def _whole_and_rest(whole: Sequence[tuple[float, int]], count: int, rest: Sequence[tuple[float, int]]) -> Blocks:
    repeated = [(OnceInBlock(weights=tuple(whole)), count)] if count else []
    rest = tuple((weight, rounds) for weight, rounds in rest if rounds)
    if rest:
        repeated.append((OnceInBlock(weights=rest), 1))
    return Blocks(repeated=tuple(repeated))


def _blocks_with_rests(schedule: MinSeparation, count: int) -> Blocks:
    """Return an exact first block, a whole one or the incomplete one, and blocks of clients that may have rested."""
    waiting = schedule.coin * (1 - schedule.coin) ** np.arange(schedule.separation)
    weights = tuple((float(weight), 1) for weight in waiting if weight > 0)
    choices = []
    for first in {min(count, schedule.separation), count % schedule.separation} - {0}:
        later = count - first
        blocks = _whole_and_rest(weights, later // schedule.separation, weights[: later % schedule.separation])
        exact = OnceInBlock(weights=((schedule.probability, first),)), 1
        choices.append(Blocks(repeated=(exact, *blocks.repeated)))
    return min(choices, key=lambda one: sum(times * block.squares for block, times in one.repeated))


def _allocation(schedule: Allocation, count: int) -> Blocks:
    coins = _few_probabilities(participations_of_beginning(schedule.rounds, schedule.participations, count))
    blocks = [
        (OnceInBlock(weights=((float(coin / rounds), int(rounds)),)), 1)
        for coin, rounds in zip(coins, _sizes(coins, count), strict=True)
    ]
    counted = Counter(block for block, _ in blocks)
    return Blocks(repeated=tuple(counted.items()))


def participations_of_beginning(rounds: int, participations: int, count: int) -> Floats:
    """Return p_i, falling: the participations in the first `count` rounds are a sum of independent Bernoulli(p_i).

    k of T, the first n: (1 + x_i) / 2, x_i the roots of the Jacobi polynomial P_d^(T-n-k, |n-k|), d = min(n, k), if n +
    k <= T; otherwise n + k - T of them are 1 and the others those of T - k and T - n in place of k and n
    (docs/theory-participation.md, Theorem 6). Rounded up by 1e-9.
    """
    total, k, n = rounds, participations, count
    sure = max(n + k - total, 0)
    if sure:
        k, n = total - k, total - n
    coins = (1 + _jacobi_roots(min(n, k), total - n - k, abs(n - k))) / 2
    found = np.concatenate([np.ones(sure), np.sort(coins)[::-1]])
    return np.asarray(np.minimum(found * (1 + 1e-9) + 1e-12, 1.0))


def _jacobi_roots(degree: int, a: int, b: int) -> Floats:
    """Return the roots of P_degree^(a, b), as eigenvalues of the three-term recurrence (Golub, Welsch 1969)."""
    if not degree:
        return np.zeros(0)
    from scipy.linalg import eigh_tridiagonal

    k = np.arange(1.0, degree)
    twice = 2 * k + a + b
    diagonal = np.concatenate([[(b - a) / (a + b + 2)], (b * b - a * a) / (twice * (twice + 2))])
    squares = 4 * k * (k + a) * (k + b) * (k + a + b) / (twice**2 * (twice + 1) * (twice - 1))
    return np.asarray(eigh_tridiagonal(diagonal, np.sqrt(squares), eigvals_only=True))


def _few_probabilities(coins: Floats) -> Floats:
    """Return the falling probabilities with at most _MOST_COINS different ones: each the largest of its neighbours."""
    different = np.unique(coins)
    if len(different) <= _MOST_COINS:
        return coins
    groups = np.array_split(coins, _MOST_COINS)
    return np.concatenate([np.full(len(group), group[0]) for group in groups])


def _sizes(coins: Floats, count: int) -> Ints:
    """Return numbers of rounds, at least 1, in proportion to the probabilities, `count` in all.

    Equal, up to 1, for equal probabilities.
    """
    exact = coins / coins.sum() * count
    sizes = np.maximum(np.floor(exact).astype(int), 1)
    while (missing := count - int(sizes.sum())) != 0:
        if missing > 0:
            sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
        else:
            larger = np.where(sizes > 1, sizes - exact, -np.inf)
            sizes[np.argsort(-larger, kind="stable")[: min(-missing, int((sizes > 1).sum()))]] -= 1
    return np.asarray(sizes)
