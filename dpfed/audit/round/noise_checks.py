"""Checks of the noise of whole rounds against the claimed noise: size, tails, independent coordinates and rounds.

Every check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, chdtr, ndtr, ndtri, stdtrit
from torch import Tensor

from accounting.factorisation import column
from accounting.mechanisms import CorrelatedRounds
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.evidence.noise_evidence import shortfall_found
from dpfed.audit.round.bound_checks import largest_effect, mean_of_samples
from dpfed.audit.round.one_round import Claim, OneRound
from dpfed.audit.round.whole_round import RoundOutcome, WholeRounds
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.compress.fixed_point import centre_residues
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.randomness import Simulated

ROUNDS = 10
"""Number of first rounds that are tested one by one."""
_SAME = 0.9
_CENTRE = 0.01
_EQUAL = 1e-4
"""Difference of noise, in standard deviations, by which rounding changes it."""
_LOUD, _INSIDE = 10.0, 0.01

_MOST_ROUNDS = 3_000
_UPPER = 6.4  # standard deviations: error probability 1e-6, found with 95%
_LEVELS = (1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0)
_LEAST_EXPECTED = 18.0
_MOST_ENTRIES = 2_000
_FEWEST_ROUNDS = 10
_COUNTS = 300


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseDraws:
    """Noise of rounds in which all clients send zeros, in units of the claimed noise's standard deviation.

    released: noise of the release [m, sent]. added: noise where it is added [m, width]: for integer noise the whole
    numbers before decoding, else equal to `released`. half_step: half a step of these whole numbers; else 0.
    """

    released: Tensor
    added: Tensor
    half_step: float


def short_text(degrees: int, alpha: float) -> str:
    """Return by how much noise must be short for a chi-square test at alpha to find it with probability 95%."""
    return f"{math.ceil(shortfall_found(degrees, alpha) * 1000) / 10:g}% short"


def draw_noise(one: OneRound, claim: Claim, entries: int) -> NoiseDraws:
    """Return about `entries` draws of noise, from whole rounds."""
    rounds, quiet = WholeRounds(one_round=one), WholeRounds(one_round=one.without_noise)
    zeros = rounds.moves(None, torch.zeros(one.size))
    least = quiet.run(zeros, quiet.smallest_cohort())
    released: list[Tensor] = []
    whole: list[Tensor] = []
    wanted = min(_MOST_ROUNDS, math.ceil(entries / one.projection.sent))
    while len(released) < wanted:
        done = rounds.run(zeros, rounds.smallest_cohort())
        released += _noise_of_round(rounds, quiet, claim, done, least)
        if claim.integers is not None:
            whole.append(_sum_of_integers(one, done) - _sum_of_integers(one, least))
    rows = torch.stack(released[:wanted]) / claim.noise_std
    if claim.integers is None:
        return NoiseDraws(released=rows, added=rows, half_step=0.0)
    std = math.sqrt(claim.integers.variance)
    return NoiseDraws(released=rows, added=torch.stack(whole) / std, half_step=0.5 / std)


def _noise_of_round(
    noisy: WholeRounds,
    quiet: WholeRounds,
    claim: Claim,
    done: RoundOutcome,
    least: RoundOutcome,
    *,
    by_state: bool = True,
) -> list[Tensor]:
    """Return the noise [sent] of one round; if every upload is visible, the noise of each upload."""
    if claim.visible_output == "uploads":
        return [given.double() - least.uploads[client][0].double() for client, (given, _) in done.uploads.items()]
    return [noisy.released_sum(done, by_state=by_state) - quiet.released_sum(least, by_state=by_state)]


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
        would_find=f"noise {short_text(count, FALSE_ALARM / 2)} in all entries, or "
        f"{short_text(rounds, FALSE_ALARM / 2 / width)} in one of {width}",
    )


def tail_check(noise: NoiseDraws) -> Check:
    """Check that enough draws are beyond 1 to 5 standard deviations, by the lower tail of the binomial distribution.

    Noise that is cut off excludes outputs that should be possible. Draws within 0.01 standard deviations must not be
    too many, since an entry without noise now and then reveals its value. Levels beyond which fewer than 18 draws
    are expected are left out. 300,000 draws reach 4 standard deviations; noise that is cut off there is found with
    certainty. Whole numbers are compared with the normal distribution half a step farther out.
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
    near, chance = int((draws < _CENTRE).sum()), 1 - 2 * float(ndtr(-_CENTRE))
    crowded = 1.0 if noise.half_step > _CENTRE else float(bdtrc(near - 1, count, chance)) if near else 1.0
    missing = 3 * _UPPER * math.sqrt(chance / count) if noise.half_step <= _CENTRE else 1.0
    return Check(
        name="tails",
        passed=min(likely, crowded) >= FALSE_ALARM / 2,
        detail=f"up to {levels[-1]:g} claimed standard deviations; {words}; p-value of so few draws: {likely:.2g}, of "
        f"{near:,} draws within {_CENTRE:g}: {crowded:.2g}",
        would_find=f"noise cut off at {levels[-1]:g} standard deviations"
        + (f", or {min(missing, 1.0):.1%} of draws without noise" if missing < 1 else ""),
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
        would_find=f"two coordinates whose noise has correlation {min(limit + 2 / math.sqrt(rounds), 1.0):.2f}",
    )


def seeds_check(one: OneRound, claim: Claim) -> Check:
    """Check that no two rounds or clients share noise: no two noise vectors are correlated.

    The noise is drawn from the run's source of randomness, not from the audit's.
    """
    vectors, samples, spread = list[Tensor](), one.method.stages.find(PrivateCoins), 0.0
    alone = claim.visible_output == "uploads" or one.method.stages.noise_in_rows or claim.coins is not None
    for number in range(ROUNDS):
        world = replace(one, state=replace(one.state, round=number))
        if alone:
            sent = world.upload(torch.zeros(world.clients, world.size), np.arange(world.clients))
            rows = sent.coded if claim.visible_output == "uploads" and not claim.coins else sent.arrived
            if samples is not None:
                theta = mean_of_samples(world.reference.double(), samples)
                rows, variances = rows.double() - samples.trials * theta, theta * (1 - theta)
                spread = max(spread, float(variances.norm() / variances.sum()))
            vectors += list(rows)
        else:
            vectors.append(_noise_of_sum(world))
    stacked = torch.stack(vectors).double()
    if not samples and stacked.shape[1] > 2:
        stacked = stacked - stacked.mean(dim=1, keepdim=True)
    repeated = len(stacked) - len(torch.unique(stacked, dim=0))
    lengths = torch.linalg.vector_norm(stacked, dim=1).clamp_min(1e-300)
    products = ((stacked @ stacked.T) / lengths / lengths[:, None]).fill_diagonal_(0.0)
    count = len(vectors)
    largest = float(products.abs().max()) if count > 1 else 0.0
    spread = max(spread, stacked.shape[1] ** -0.5)
    limit = float(-ndtri(FALSE_ALARM / count**2)) * spread
    fault = "noise that is repeated"
    if limit <= _SAME:
        alike = min(limit + 2 * spread, 1.0)
        fault += f", or has correlation {alike:.2f} with that of another round"
    return Check(
        name="seeds",
        passed=repeated == 0 and (largest < limit or limit > _SAME),
        detail=f"{count} noise vectors of {ROUNDS} rounds: {repeated} equal to another one, largest correlation "
        f"{largest:.3f}" + (f", expected below {limit:.3f}" if limit <= _SAME else " (too short to judge)"),
        would_find=fault,
    )


def single_rounds_check(one: OneRound, claim: Claim, numbers: tuple[int, ...]) -> Check | None:
    """Check rounds one by one: the noise of each, its bound, and that its noise depends on no update.

    In each of the rounds, all clients send zeros, then a loud update, then one inside the bound; then all but one send
    zeros. With equal names of draws, the noise must be equal. None for Bernoulli samples, and for dithered noise, whose
    draws round the update itself.
    """
    if claim.coins is not None or one.method.stages.find(DitheredNoise) is not None:
        return None
    zeros, loud, inside = (torch.full((one.size,), part * claim.bound / one.size**0.5) for part in (0.0, _LOUD, 0.5))
    named, least, worst, moved = isinstance(one.method.randomness, Simulated), (1.0, 0), (0.0, 0), (0.0, 0)
    degrees = 1
    for number in numbers:
        world = replace(one, state=replace(one.state, round=number))
        silent, *others = (_noise_of_round_with(world, claim, update) for update in (zeros, loud, inside))
        if claim.visible_output == "sum" and not one.method.stages.noise_in_rows:
            others.append(_noise_of_round_with(world, claim, zeros, absent=1))
        degrees = silent.numel()
        least = min(least, (float(chdtr(degrees, float((silent / claim.noise_std).square().sum()))), number))
        if named:
            furthest = max(float((noise - silent).abs().max()) for noise in others)
            moved = max(moved, (furthest / claim.noise_std, number))
        quiet = WholeRounds(one_round=world.without_noise)
        # A later round's server may move the state without any update: FedSparsify sets small weights to zero.
        still = largest_effect(quiet, claim, zeros, 0) <= _EQUAL
        worst = max(worst, (largest_effect(quiet, claim, loud, 0, on_release=still), number))
    alpha = FALSE_ALARM / len(numbers)
    shown = f"{', '.join(map(str, numbers[:3]))} to {numbers[-1]}" if len(numbers) > 3 else str(numbers)
    return Check(
        name="single rounds",
        passed=least[0] >= alpha and worst[0] <= 1 + _EQUAL and moved[0] <= _EQUAL,
        detail=f"rounds {shown}: p-value of the smallest noise {least[0]:.2g} (round {least[1]}); largest row "
        f"{worst[0]:.6f} of the bound (round {worst[1]}); noise changes by {moved[0]:.2g} standard deviations with "
        f"updates and their number (round {moved[1]})",
        would_find=f"one of these rounds with noise {short_text(degrees, alpha)}, without its bound"
        + (", or with noise that depends on an update or their number" if named else ""),
    )


def correlated_check(one: OneRound, law: CorrelatedRounds, noise_std: float, rounds: int) -> Check:
    """Check the noise w of several rounds: C w has independent rows of the charged size, C the charged matrix."""
    drawn = torch.stack([_noise_of_sum(replace(one, state=replace(one.state, round=k))) for k in range(rounds)])
    c = column(law, rounds)
    matrix = torch.from_numpy(scipy.linalg.toeplitz(np.pad(c, (0, rounds - len(c))), np.zeros(rounds)))
    fresh = (matrix @ drawn.double()).T / noise_std
    draws = NoiseDraws(released=fresh, added=fresh, half_step=0.0)
    found = [each for each in (size_check(draws), coordinates_check(draws)) if each is not None]
    return Check(
        name="noise over rounds",
        passed=all(each.passed for each in found),
        detail=f"{rounds} rounds, with the rounds as coordinates: " + "; ".join(each.detail for each in found),
        would_find="; ".join(each.would_find or "" for each in found).replace("coordinates", "rounds"),
    )


def _noise_of_round_with(world: OneRound, claim: Claim, update: Tensor, *, absent: int = 0) -> Tensor:
    """Return the noise of a round in which all clients but the first `absent` send `update`, before the server's rule.

    If so few uploads are not released, it is the noise of all of them.
    """
    noisy, quiet = WholeRounds(one_round=world), WholeRounds(one_round=world.without_noise)
    moves = noisy.moves(update, update)
    done, least = (rounds.run(moves, rounds.smallest_cohort()[absent:]) for rounds in (noisy, quiet))
    if done.sum_of_moves is None and absent:
        return _noise_of_round_with(world, claim, update)
    return torch.stack(_noise_of_round(noisy, quiet, claim, done, least, by_state=False))


def count_check(one: OneRound, claim: Claim) -> Check | None:
    """Check that the count of clients inside the bound, which adaptive clipping releases, has the claimed noise.

    One client must not move the count, without its noise, by more than 1/2 (replace-one: 1). The next clip norm C' = C
    exp(-rate (fraction - quantile)) reveals the count. None if no count is released.
    """
    rule = one.method.stages.adaptive_clip
    if rule is None or not claim.count_separation or claim.visible_output != "sum":
        return None
    noisy, quiet = WholeRounds(one_round=one), WholeRounds(one_round=one.without_noise)
    zeros, everyone = torch.zeros(one.size), noisy.smallest_cohort()

    def count(rounds: WholeRounds, own: Tensor, cohort: NDArray[np.int64]) -> float:
        norm = rounds.run(rounds.moves(own, zeros), cohort).state.clip_norm
        return math.log(norm / one.state.clip_norm) / rule.rate * rule.cohort

    sent = [count(quiet, zeros + part * claim.bound / one.size**0.5, everyone) for part in (0.0, _LOUD, _INSIDE)]
    without = {Adjacency.ADD_REMOVE: [count(quiet, zeros, everyone[1:])], Adjacency.REPLACE_ONE: sent}
    others = without.get(claim.adjacency, sent[:1])
    moved = max(abs(one - other) for one in sent for other in others) / claim.adjacency.sensitivity_in_clips
    counts = torch.tensor([count(noisy, zeros, everyone) for _ in range(_COUNTS)], dtype=torch.float64)
    counts /= rule.count_noise_std
    likely = float(chdtr(_COUNTS - 1, float((counts - counts.mean()).square().sum())))
    return Check(
        name="count",
        passed=likely >= FALSE_ALARM and moved <= 0.5 + _EQUAL,
        detail=f"one client added or removed moves the count by {moved:.4f}, 0.5 is charged; standard deviation "
        f"of the released count {float(counts.std()):.4f} of the claimed one in {_COUNTS} rounds; p-value "
        f"of so small a variance: {likely:.2g}",
        would_find=f"noise of the count {short_text(_COUNTS - 1, FALSE_ALARM)}, or a client that counts more than once",
    )


def _noise_of_sum(world: OneRound) -> Tensor:
    """Return the noise [sent] of one whole round in which all clients send zeros."""
    noisy, quiet = WholeRounds(one_round=world), WholeRounds(one_round=world.without_noise)
    moves = noisy.moves(None, torch.zeros(world.size))
    return noisy.released_sum(noisy.run(moves, noisy.smallest_cohort())) - quiet.released_sum(
        quiet.run(moves, quiet.smallest_cohort())
    )
