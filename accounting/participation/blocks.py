"""Reduction of schedules to independent blocks of rounds, in each of which a client takes part at most once.

A block is a list of (participation probability w, number of rounds). Let Y_b = e^(s x_b - s^2/2) be the likelihood
ratio of a round in which the client takes part. The likelihood ratio of the block is S = 1 - sum w_b + sum w_b Y_b.
Claim: the composition of the blocks dominates the first `count` rounds of the schedule, in both orders. Direction of
error: upper bound.

- balls-and-bins: one block per epoch with w = 1/B, which is exact. In an incomplete epoch with r released rounds each
  has w = 1/B, and with probability 1 - r/B the client's round is not yet released. With L lanes a block has the B/L
  rounds of one lane in an epoch, and a lane has the first ceil(T/L) rounds. Columns of two rounds of a lane do not
  overlap, so under banded noise each round has a shift of the columns' norm (docs/theory-participation.md, Theorem 5).
- allocation of k among T rounds: partition the rounds uniformly into k groups and draw one uniform round of each group.
  The result is a uniform k-subset for any group sizes, because its distribution is invariant under permutations of the
  rounds. Divergences are jointly convex, so k blocks of T/k rounds dominate. In the first n rounds the number of
  participations is a sum of independent Bernoulli(p_i) (`participations_of_beginning`). They are dominated by blocks of
  n_i rounds, sum n_i = n, each with one participation of probability p_i.
- min-separation: B consecutive rounds have at most one participation. In the first block each round has it with
  probability p, which is exact. Later, given everything published before, the client rests for some number of rounds or
  is free, and the block's distribution is a mixture of these cases. The free client is the worst case, because the
  blocks of resting clients are prefixes of its block. So w_b = c (1 - c)^b in every later block, c the participation
  probability of a free client.

The number of rounds must be fixed, or chosen independently of results.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from accounting.arrays import Floats, Ints
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Allocation, BallsAndBins, MinSeparation, Schedule

_MOST_WEIGHTS, _EDGES = 150, 128
"""Largest number of distinct weights of a block without reduction, and number of grid edges to which weights are moved
otherwise.
"""
_MOST_PROBABILITIES = 24
"""Largest number of distinct blocks of an incomplete allocation. Further blocks are replaced by neighbouring blocks
with larger probability.
"""


@dataclass(frozen=True, kw_only=True)
class OnceInBlock:
    """Block of rounds in at most one of which a client takes part. weights: pairs (probability > 0, number of rounds),
    total <= 1.
    """

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
        """Block with at most a few hundred distinct weights, whose divergences are at least as large.

        Weights between two grid edges are moved to these edges such that their sum is kept, with one remaining weight
        in between. The new vector of weights majorises the old one. Divergences are convex and symmetric in the weights
        at a fixed sum, because the Y_b are independent and identically distributed, so they do not decrease (Schur).
        For geometric weights the sum of squares increases by at most 5e-4, and so does the variance of the loss.
        """
        if len(self.weights) <= _MOST_WEIGHTS:
            return self
        each_weight = np.repeat([weight for weight, _ in self.weights], [count for _, count in self.weights])
        moved, rests = _moved_to_grid_edges(each_weight, _EDGES)
        moved_rests, last_rests = _moved_to_grid_edges(np.array(rests), _EDGES // 8)
        block_counts = Counter([*moved, *moved_rests, *last_rests])
        return OnceInBlock(weights=tuple(block_counts.items()))


Blocks = tuple[tuple[OnceInBlock, int], ...]
"""Independent blocks whose composition dominates a schedule: pairs (block, number of such blocks)."""


def _moved_to_grid_edges(weights: Floats, count: int) -> tuple[list[float], list[float]]:
    """Return (weights moved to the ends of `count` cells, one remaining weight per cell), without zeros. The total is
    kept.
    """
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


def dominating_blocks(schedule: Schedule, count: int) -> Blocks:
    """Return blocks that dominate the first `count` rounds of a schedule. Errors: UnsupportedMechanism for a public
    order.
    """
    if schedule.name not in _BLOCKS:
        raise UnsupportedMechanism(f"sampling={schedule.name!r}: the order is public, so there is no amplification.")
    return _BLOCKS[schedule.name](schedule, count)


def _epoch_blocks(schedule: BallsAndBins, count: int) -> Blocks:
    bins = schedule.lane_schedule.bins
    epochs, rest = divmod(-(-count // schedule.lanes), bins)  # the lane with the most of these rounds
    return _complete_and_incomplete_blocks(((1 / bins, bins),), epochs, ((1 / bins, rest),))


def _complete_and_incomplete_blocks(
    whole: Sequence[tuple[float, int]], count: int, rest: Sequence[tuple[float, int]]
) -> Blocks:
    rest = tuple((weight, rounds) for weight, rounds in rest if rounds)
    blocks = (OnceInBlock(weights=tuple(whole)), count), (OnceInBlock(weights=rest), int(bool(rest)))
    return tuple((block, times) for block, times in blocks if times)


def _blocks_with_rests(schedule: MinSeparation, count: int) -> Blocks:
    """Return an exact first block, complete or incomplete, followed by blocks of free clients. Of the two
    choices that with the smaller sum of squared weights is returned.
    """
    waiting = schedule.coin * (1 - schedule.coin) ** np.arange(min(schedule.separation, count))
    weights = tuple((float(weight), 1) for weight in waiting if weight > 0)
    choices = []
    for first in {min(count, schedule.separation), count % schedule.separation} - {0}:
        later = count - first
        blocks = _complete_and_incomplete_blocks(
            weights, later // schedule.separation, weights[: later % schedule.separation]
        )
        exact_block = OnceInBlock(weights=((schedule.probability, first),)), 1
        choices.append((exact_block, *blocks))
    return min(choices, key=lambda one: sum(times * block.squares for block, times in one))


def _allocation_blocks(schedule: Allocation, count: int) -> Blocks:
    probabilities = _with_few_distinct(participations_of_beginning(schedule.rounds, schedule.participations, count))
    block_counts = Counter(
        OnceInBlock(weights=((float(probability / rounds), int(rounds)),))
        for probability, rounds in zip(probabilities, _block_sizes(probabilities, count), strict=True)
    )
    return tuple(block_counts.items())


def participations_of_beginning(rounds: int, participations: int, count: int) -> Floats:
    """Return decreasing p_i: the number of participations in the first `count` rounds is a sum of Bernoulli(p_i).

    For k participations in T rounds and the first n rounds, p_i = (1 + x_i) / 2 if n + k <= T. The x_i are the roots of
    the Jacobi polynomial P_d^(T-n-k, |n-k|), d = min(n, k). Otherwise n + k - T of the p_i are 1, and the remaining p_i
    are those for T - k and T - n in place of k and n (docs/theory-participation.md, Theorem 6). The p_i are rounded up
    by 1e-9.
    """
    total, k, n = rounds, participations, count
    certain = max(n + k - total, 0)
    if certain:
        k, n = total - k, total - n
    probabilities = (1 + _jacobi_roots(min(n, k), total - n - k, abs(n - k))) / 2
    found = np.concatenate([np.ones(certain), np.sort(probabilities)[::-1]])
    return np.asarray(np.minimum(found * (1 + 1e-9) + 1e-12, 1.0))


def _jacobi_roots(degree: int, a: int, b: int) -> Floats:
    """Return the roots of the Jacobi polynomial P_degree^(a, b), as eigenvalues of its recurrence (Golub, Welsch
    1969).
    """
    if not degree:
        return np.zeros(0)
    k = np.arange(1.0, degree)
    twice = 2 * k + a + b
    diagonal = np.concatenate([[(b - a) / (a + b + 2)], (b * b - a * a) / (twice * (twice + 2))])
    squares = 4 * k * (k + a) * (k + b) * (k + a + b) / (twice**2 * (twice + 1) * (twice - 1))
    return np.asarray(scipy.linalg.eigh_tridiagonal(diagonal, np.sqrt(squares), eigvals_only=True))


def _with_few_distinct(probabilities: Floats) -> Floats:
    """Return decreasing probabilities with at most `_MOST_PROBABILITIES` distinct values, by raising each to the
    largest of its group.
    """
    different = np.unique(probabilities)
    if len(different) <= _MOST_PROBABILITIES:
        return probabilities
    groups = np.array_split(probabilities, _MOST_PROBABILITIES)
    return np.concatenate([np.full(len(group), group[0]) for group in groups])


def _block_sizes(probabilities: Floats, count: int) -> Ints:
    """Return numbers of rounds in proportion to the probabilities, each at least 1, with sum `count`.

    For equal probabilities they differ by at most 1.
    """
    exact_sizes = probabilities / probabilities.sum() * count
    sizes = np.maximum(np.floor(exact_sizes).astype(int), 1)
    while (missing := count - int(sizes.sum())) != 0:
        if missing > 0:
            sizes[np.argsort(sizes - exact_sizes, kind="stable")[:missing]] += 1
        else:
            larger = np.where(sizes > 1, sizes - exact_sizes, -np.inf)
            sizes[np.argsort(-larger, kind="stable")[: min(-missing, int((sizes > 1).sum()))]] -= 1
    return np.asarray(sizes)


_BLOCKS: dict[str, Callable[[Any, int], Blocks]] = {
    "balls-and-bins": _epoch_blocks,
    "allocation": _allocation_blocks,
    "min-separation": _blocks_with_rests,
}
