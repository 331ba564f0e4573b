"""Checks of the noise of whole rounds against the claimed noise: size, tails, and independence of coordinates.

Every check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import bdtr, chdtr, ndtr, ndtri, stdtrit
from torch import Tensor

from dpfed.audit.round.claims import Claim
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.whole_round import RoundOutcome, WholeRounds
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.compress.ring import centre_residues

_ROUNDS = 10
_SAME = 0.9

_MOST_ROUNDS = 3_000
_LEVELS = (1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0)
_LEAST_EXPECTED = 18.0
_MOST_ENTRIES = 2_000
_FEWEST_ROUNDS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseDraws:
    """Noise of rounds in which all clients send zeros, in units of the claimed noise's standard deviation.

    released: noise of the release [m, sent]. added: noise where it is added [m, width]: for integer noise the whole
    numbers before decoding, else equal to `released`. half_step: half a step of these whole numbers; else 0.
    """

    released: Tensor
    added: Tensor
    half_step: float


def draw_noise(one: OneRound, claim: Claim, size: int, entries: int) -> NoiseDraws:
    """Return about `entries` draws of noise, from whole rounds."""
    rounds, quiet = WholeRounds(one_round=one), WholeRounds(one_round=one.without_noise)
    zeros = rounds.moves(None, torch.zeros(size))
    least = quiet.run(zeros, quiet.smallest_cohort())
    released: list[Tensor] = []
    whole: list[Tensor] = []
    wanted = min(_MOST_ROUNDS, math.ceil(entries / one.projection.sent))
    while len(released) < wanted:
        done = rounds.run(zeros, rounds.smallest_cohort())
        released += list(_noise_of_round(rounds, quiet, claim, done, least))
        if claim.integers is not None:
            whole.append(_sum_of_integers(one, done) - _sum_of_integers(one, least))
    rows = torch.stack(released[:wanted]) / claim.noise_std
    if claim.integers is None:
        return NoiseDraws(released=rows, added=rows, half_step=0.0)
    std = math.sqrt(claim.integers.variance)
    return NoiseDraws(released=rows, added=torch.stack(whole) / std, half_step=0.5 / std)


def _noise_of_round(
    rounds: WholeRounds, quiet: WholeRounds, claim: Claim, done: RoundOutcome, least: RoundOutcome
) -> Iterator[Tensor]:
    """Yield the noise [sent] of one round; if every upload is visible, the noise of each upload."""
    if claim.visible_output == "uploads":
        for client, (given, _) in done.uploads.items():
            yield given.double() - least.uploads[client][0].double()
    else:
        yield rounds.released_sum(done) - quiet.released_sum(least)


def _sum_of_integers(one: OneRound, done: RoundOutcome) -> Tensor:
    bits = one.method.stages.bits
    return (done.total if bits is None else centre_residues(done.total, bits)).double()


def size_check(noise: NoiseDraws) -> Check:
    """Check that the noise has at least the claimed variance, in all entries together and in each entry.

    Both are tested by the lower tail of chi-square, single entries with Bonferroni. 300,000 draws find a standard
    deviation that is 1% short with probability 99%.
    """
    squares = noise.released.square()
    rounds, width = squares.shape
    count = squares.numel()
    in_all = float(chdtr(count, float(squares.sum())))
    in_one = width * float(chdtr(rounds, float(squares.sum(dim=0).min())))
    return Check(
        name="noise",
        passed=min(in_all, in_one) >= FALSE_ALARM / 2,
        detail=f"standard deviation {math.sqrt(float(squares.sum()) / count):.4f} of the claimed one in {count:,} "
        f"draws; p-value of so small a variance in all entries: {in_all:.2g}, in the smallest entry: "
        f"{min(in_one, 1.0):.2g}",
    )


def tail_check(noise: NoiseDraws) -> Check:
    """Check that enough draws are beyond 1 to 5 standard deviations, by the lower tail of the binomial distribution.

    Noise that is cut off excludes outputs that should be possible. Levels beyond which fewer than 18 draws are expected
    are left out. 300,000 draws reach 4 standard deviations; noise that is cut off there is found with certainty. Whole
    numbers are compared with the normal distribution half a step farther out, which is close enough for this check.
    """
    draws, count = noise.added.abs(), noise.added.numel()
    levels = [level for level in _LEVELS if 2 * count * float(ndtr(-level)) >= _LEAST_EXPECTED] or [_LEVELS[0]]
    likely, words = 1.0, ""
    for level in levels:
        chance = 2 * float(ndtr(-level - noise.half_step))
        seen = int((draws > level).sum())
        least = min(1.0, len(levels) * float(bdtr(seen, count, chance)))
        if least <= likely or not words:
            likely, words = least, f"{seen:,} of {count:,} draws beyond {level:g}, {count * chance:,.0f} expected"
    return Check(
        name="tails",
        passed=likely >= FALSE_ALARM,
        detail=f"up to {levels[-1]:g} claimed standard deviations; {words}; p-value of so few draws: {likely:.2g}",
    )


def coordinates_check(noise: NoiseDraws) -> Check | None:
    """Check that no two coordinates share noise; None for a single coordinate or fewer than 10 draws.

    The largest correlation of two columns over draws is compared with its exact distribution for independent normal
    columns (Student's t), with Bonferroni over pairs.
    """
    rows = noise.added[:, :_MOST_ENTRIES]
    rounds, width = rows.shape
    if width < 2 or rounds < _FEWEST_ROUNDS:
        return None
    columns = rows / torch.linalg.vector_norm(rows, dim=0).clamp_min(1e-300)
    largest = float((columns.T @ columns).fill_diagonal_(0.0).abs().max())
    quantile = -float(stdtrit(rounds - 1, FALSE_ALARM / (width * (width - 1))))
    limit = quantile / math.sqrt(rounds - 1 + quantile**2)
    return Check(
        name="coordinates",
        passed=largest <= limit,
        detail=f"largest correlation of two of {width} coordinates over {rounds} draws: {largest:.3f}, expected below "
        f"{limit:.3f}",
    )


def seeds_check(one: OneRound, claim: Claim, size: int) -> Check:
    """Check that no two rounds or clients share noise: no two noise vectors are correlated.

    The noise is drawn from the run's source of randomness, not from the audit's.
    """
    zeros, vectors = torch.zeros(1, size), []
    alone = claim.visible_output == "uploads" or one.method.stages.noise_in_rows or claim.coins is not None
    for number in range(_ROUNDS):
        world = replace(one, state=replace(one.state, round=number))
        if alone:
            sent = world.upload(zeros.expand(world.clients, -1), np.arange(world.clients))
            vectors += list(sent.coded if claim.visible_output == "uploads" and not claim.coins else sent.arrived)
        else:
            vectors.append(_noise_of_sum(world, zeros[0]))
    stacked = torch.stack(vectors).double()
    stacked = stacked - stacked.mean(dim=1, keepdim=True) if stacked.shape[1] > 2 else stacked
    repeated = len(stacked) - len(torch.unique(stacked, dim=0))
    lengths = torch.linalg.vector_norm(stacked, dim=1).clamp_min(1e-300)
    products = ((stacked @ stacked.T) / lengths / lengths[:, None]).fill_diagonal_(0.0)
    count = len(vectors)
    largest = float(products.abs().max()) if count > 1 else 0.0
    limit = float(-ndtri(FALSE_ALARM / count**2)) / math.sqrt(stacked.shape[1])
    return Check(
        name="seeds",
        passed=repeated == 0 and (largest < limit or limit > _SAME),
        detail=f"{count} noise vectors of {_ROUNDS} rounds: {repeated} equal to another one, largest correlation "
        f"{largest:.3f}" + (f", expected below {limit:.3f}" if limit <= _SAME else " (too short to judge)"),
    )


def _noise_of_sum(world: OneRound, zeros: Tensor) -> Tensor:
    """Return the noise [sent] of one whole round in which all clients send zeros."""
    noisy, quiet = WholeRounds(one_round=world), WholeRounds(one_round=world.without_noise)
    moves = noisy.moves(None, zeros)
    return noisy.released_sum(noisy.run(moves, noisy.smallest_cohort())) - quiet.released_sum(
        quiet.run(moves, quiet.smallest_cohort())
    )
