"""Checks of the claimed bound on one client's contribution to a sum, for each client and for adversarial updates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from scipy.special import bdtr, ndtr
from scipy.stats import chi2
from torch import Tensor

from accounting.bernoulli import debias
from accounting.mechanisms import BernoulliAggregate
from dpfed.audit.round.one_round import PUBLIC_SEEDS, Claim, OneRound
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.mechanisms.bernoulli import PrivateCoins

_COINS = 30_000
_MOST_TRIALS = 3_000

_ROUNDING = 1e-5  # relative rounding error of float32 sums

_ABOVE = (1e-6, 1e-3, 5e-3, 1e-2, 0.1, 9.0)
"""Excess of a norm over the bound, as a part of it: from one millionth to nine times the bound."""


def norm_check(one: OneRound, claim: Claim) -> Check:
    """Check that no client moves the new state of a round without noise by more than the claimed bound.

    The bounded row is checked as well. Every client of the round is tested in turn, since a clip of only some clients
    bounds nothing. The check is exact except for float32 rounding: it finds a bound that is 0.002% too wide, and a clip
    that leaves rows slightly or far above the bound unchanged.
    """
    rounds, worst, which = WholeRounds(one_round=one.without_noise), 0.0, "zeros"
    for name, update in (adversarial_updates(one) | updates_around_the_bound(one, claim)).items():
        for client in range(one.clients):
            longest = largest_effect(rounds, claim, update, client)
            if not longest <= worst:
                worst, which = longest, f"{name}, client {client}"
    return Check(
        name="norm",
        passed=worst <= 1 + _ROUNDING,
        detail=f"largest row after the bound, and effect on the new state: {worst:.6f} of the claimed bound ({which})",
        would_find="a client whose row is 0.002% beyond the bound, for an update among these",
    )


def largest_effect(rounds: WholeRounds, claim: Claim, update: Tensor, client: int, *, on_release: bool = True) -> float:
    """Return the norm of one client's bounded row and, if `on_release`, of its effect on sum and new state, the
    largest, over the claimed bound; infinity for a row that is not finite.
    """
    one = rounds.one_round
    bounded = in_charged_metric(one, claim, one.upload(update[None], np.full(1, client)).bounded)
    lengths = [_l2_norm(bounded)]
    if on_release and claim.visible_output == "sum" and not claim.coins:
        moves = torch.zeros(one.method.sampler.clients, len(update))
        moves[client] = update
        done = rounds.run(moves, rounds.smallest_cohort())
        lengths.append(_l2_norm(rounds.released_sum(done, by_state=False)))
        lengths.append(_l2_norm(rounds.released_sum(done)) - rounds.rounding(done))
    if claim.coins and claim.coins.linf_clip is not None:
        lengths.append(float(bounded.abs().max()) / claim.coins.linf_clip * claim.bound)
    return max(math.inf if math.isnan(length) else length / claim.bound for length in lengths)


def in_charged_metric(one: OneRound, claim: Claim, rows: Tensor) -> Tensor:
    """Return rows in the charged metric: divided by sqrt(theta (1 - theta)) for the Fisher metric, else unchanged."""
    if claim.coins is None or claim.coins.clip_metric == "euclidean":
        return rows
    theta = one.reference.double().clamp(claim.coins.floor, 1 - claim.coins.floor)
    return rows / (theta * (1 - theta)).sqrt()


def _l2_norm(row: Tensor) -> float:
    return float(torch.linalg.vector_norm(row.double()))


def updates_around_the_bound(one: OneRound, claim: Claim) -> dict[str, Tensor]:
    """Return updates [d], by name, whose rows have a norm just above the bound, or ten times the bound."""
    normal = torch.randn(one.size, generator=torch.Generator().manual_seed(4))
    row = one.projection.forward(normal[None].clone(), np.zeros(1, dtype=np.int64))
    length = _l2_norm(in_charged_metric(one, claim, row))
    return {f"{1 + excess:g} C": normal * (claim.bound * (1 + excess) / length) for excess in _ABOVE if length}


def adversarial_updates(one: OneRound) -> dict[str, Tensor]:
    """Return updates [d], by name, on which clips often fail: huge, tiny, not finite, sparse, or along
    the public map.
    """
    size, generator = one.size, torch.Generator().manual_seed(3)
    normal = torch.randn(size, generator=generator)
    along = one.projection.adjoint(torch.ones(one.projection.sent))
    entry = torch.zeros(size)
    entry[int(along.abs().argmax())] = 1.0
    broken = normal.clone()
    broken[size // 3] = float("nan")
    infinite = normal.clone()
    infinite[0] = float("inf")
    return {
        "normal": normal,
        "along the map": along * 1e3,
        "one entry": entry * 1e3,
        "one entry of 1e30": entry * 1e30,
        "all 1e30": torch.full((size,), 1e30),
        "all 3e38": torch.full((size,), 3e38),
        "1e15": normal * 1e15,
        "1e-3": normal * 1e-3,
        "1e-30": normal * 1e-30,
        "first half": torch.where(torch.arange(size) < size // 2, 1e4, 0.0),
        "NaN": broken,
        "infinity": infinite,
    }


def window_check(one: OneRound, claim: Claim) -> Check | None:
    """Check that no move exceeds the clip in any coordinate, and that padding has the public probabilities.

    Returns None if the account relies on neither. Rows of every client are checked, exactly except for float32
    rounding. Padding is tested by the sum of squared standard scores of all counts of a round without uploads, against
    a chi-squared distribution (false-alarm probability nearly 1e-6); it is not tested if noise is added to the
    probabilities. Canaries are not part of the fixed number of uploads: independent Bernoulli samples that are added to
    a sum are a post-processing of it, for any probabilities.
    """
    stage, coins = one.method.stages.find(PrivateCoins), claim.coins
    if stage is None or not isinstance(coins, BernoulliAggregate) or coins.others != "near-reference":
        return None
    l2_clip = None if coins.l2_clip is None else coins.l2_clip / stage.trials**0.5
    reach = min(clip for clip in (coins.linf_clip, l2_clip) if clip is not None)
    ids = np.arange(one.clients)
    farthest = max(
        float(in_charged_metric(one, claim, one.upload(update.expand(one.clients, -1), ids).bounded).abs().max())
        / reach
        for update in adversarial_updates(one).values()
    )
    chance = None if coins.noise_std else _p_value_of_padding(one, stage)
    return Check(
        name="window",
        passed=farthest <= 1 + _ROUNDING and (chance is None or chance >= FALSE_ALARM),
        detail=f"largest move of a client in a coordinate: {farthest:.6f} of the clip"
        + ("" if chance is None else f"; p-value of the samples that pad a sum: {chance:.2g}"),
        would_find="a coordinate that moves 0.002% beyond the clip"
        + ("" if chance is None else ", or a sum that is not padded"),
    )


def _p_value_of_padding(one: OneRound, stage: PrivateCoins) -> float:
    """Return the p-value of the counts of a round without uploads, given the public probabilities."""
    now = replace(one.announcement, uploads=0)
    count = (stage.slots or 0) + (0 if stage.canaries is None else stage.canaries(now.number))
    off = stage.server(torch.zeros_like(one.reference), now).double()
    theta = one.reference.double().clamp(stage.edge, 1 - stage.edge)
    scores = stage.trials * off.square() / (count * theta * (1 - theta))
    total = float(scores.sum())
    return 2 * min(float(chi2.sf(total, len(scores))), float(chi2.cdf(total, len(scores))))


def floor_check(one: OneRound, claim: Claim) -> Check | None:
    """Check that a sample of public probability 0 or 1 has each value with at least the claimed floor probability.

    Returns None if the public probability is fixed, as for stochastic signs.
    """
    stage = one.method.stages.find(PrivateCoins)
    assert claim.coins is not None
    assert stage is not None
    if claim.coins.reference is not None:
        return None
    trials = np.arange(min(_MOST_TRIALS, math.ceil(_COINS / one.projection.sent))) % PUBLIC_SEEDS
    rarest, likely = 1.0, 1.0
    least, _ = debias.reachable(c=claim.coins.floor, noise_std=claim.coins.noise_std)
    for start in (0.0, 1.0):
        world = replace(one, state=replace(one.state, broadcast=torch.full_like(one.state.broadcast, start)))
        ones = float(world.rows_of_client(torch.zeros(one.size), trials).double().sum())
        drawn = len(trials) * one.projection.sent * stage.trials
        rare = ones if start == 0.0 else drawn - ones
        likely = min(likely, float(bdtr(rare, drawn, least)))
        rarest = min(rarest, rare / drawn)
    return Check(
        name="floor",
        passed=likely >= FALSE_ALARM,
        detail=f"the rarer value has {rarest:.4f} of the samples, the claim is at least {least:g}; p-value "
        f"of so small a part: {likely:.2g}",
        would_find=f"the rarer value with {max(0.0, 1 - 6.4 / math.sqrt(drawn * max(least, 1e-9))):.0%} of "
        "the claimed probability",
    )


def samples_check(one: OneRound, claim: Claim) -> Check:
    """Check that a client's samples are 1 as often as its bounded move says, in every coordinate and for every seed.

    The counts of ones are compared with their probabilities by the sum of squared standard scores, and by the standard
    score of their product with the move, which a longer move changes; in both tails.
    """
    stage = one.method.stages.find(PrivateCoins)
    assert claim.coins is not None
    assert stage is not None
    update = torch.randn(one.size, generator=torch.Generator().manual_seed(8))
    client, drawn = np.zeros(1, dtype=np.int64), np.zeros(_MOST_TRIALS, dtype=np.int64)
    theta = one.reference.double() + one.upload(update[None], client).bounded[0].double()
    theta, start = (mean_of_samples(each, stage) for each in (theta, one.reference.double()))
    move, ones = theta - start, one.rows_of_client(update, drawn).double().sum(dim=0).cpu()
    number = len(drawn) * stage.trials
    scores = (ones - number * theta) / (number * theta * (1 - theta)).sqrt()
    total = float(scores.square().sum())
    spread_along = math.sqrt(number * float(theta * (1 - theta) @ move.square()))
    along = float(move @ (ones - number * theta)) / spread_along if spread_along else 0.0
    tails = float(chi2.sf(total, len(scores))), float(chi2.cdf(total, len(scores))), float(ndtr(-abs(along)))
    likely = min(1.0, 4 * min(tails))
    return Check(
        name="samples",
        passed=likely >= FALSE_ALARM,
        detail=f"{number} samples of a client in {len(scores)} coordinates; p-value of their frequencies: {likely:.2g}",
        would_find=f"probabilities {math.sqrt((1 + 8 / math.sqrt(len(scores))) / number):.2g} away from the move's, or "
        f"a move {7 * spread_along / max(number * float(move.square().sum()), 1e-300):.0%} longer",
    )


def mean_of_samples(probabilities: Tensor, stage: PrivateCoins) -> Tensor:
    """Return the means of samples of these probabilities, after their floor and noise."""
    near, far = stage.edge, 1 - stage.edge
    return torch.from_numpy(
        debias.clipped_mean(probabilities.clamp(near, far).cpu(), c=near, noise_std=stage.coins.noise_std)
    )
