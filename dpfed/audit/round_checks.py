"""Cheap tests of one round that need no two worlds: each finds faults that trials would need thousands for, or cannot.

Those of the bound are in `clip_check`, those of the noise in `noise_checks`.

Every random check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import bdtr, ndtri
from torch import Tensor

from dpfed.audit.claims import Claim
from dpfed.audit.one_round import PUBLIC_SEEDS, OneRound
from dpfed.audit.seen import KeptEntries, SeenRows
from dpfed.audit.two_worlds import TwoWorlds
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.audit.whole_round import ByClient, WholeRounds
from dpfed.compress.ring import centred
from dpfed.round import run_round
from dpfed.stages.coins import PrivateCoins
from dpfed.stages.integers import Integers

_ROUNDING = 1e-5  # of float32 sums, relative
_COINS = 30_000
_MOST_TRIALS = 3_000
_ROUNDS = 10
_SAME = 0.9


def floor_check(one: OneRound, claim: Claim, size: int) -> Check:
    """Coins of public probabilities 0 and 1 still come up with at least the claimed floor, and at most one minus it."""
    stage = one.method.stages.find(PrivateCoins)
    assert claim.coins is not None
    assert stage is not None
    trials = np.arange(min(_MOST_TRIALS, math.ceil(_COINS / one.projection.sent))) % PUBLIC_SEEDS
    rarest, likely = 1.0, 1.0
    for start in (0.0, 1.0):
        world = replace(one, state=replace(one.state, broadcast=torch.full_like(one.state.broadcast, start)))
        ones = float(world.own(torch.zeros(size), trials).double().sum())
        drawn = len(trials) * one.projection.sent * stage.trials
        rare = ones if start == 0.0 else drawn - ones
        likely = min(likely, float(bdtr(rare, drawn, claim.coins.floor)))
        rarest = min(rarest, rare / drawn)
    return Check(
        name="floor",
        passed=likely >= FALSE_ALARM,
        detail=f"the rarer side comes up in {rarest:.4f} of the coins, claimed at least {claim.coins.floor:g}; of so "
        f"few or fewer the probability is {likely:.2g}",
    )


def seeds_check(one: OneRound, claim: Claim, size: int) -> Check:
    """No two rounds or clients share noise, drawn from the run's own source: no two noise vectors are correlated."""
    zeros, vectors = torch.zeros(1, size), []
    alone = claim.seen == "uploads" or one.method.stages.noise_in_rows or claim.coins is not None
    for number in range(_ROUNDS):
        world = replace(one, state=replace(one.state, round=number))
        if alone:
            sent = world.upload(zeros.expand(world.clients, -1), np.arange(world.clients))
            vectors += list(sent.coded if claim.seen == "uploads" and not claim.coins else sent.arrived)
        else:
            vectors.append(_of_the_sum(world, zeros[0]))
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
        detail=f"{count} noise vectors of {_ROUNDS} rounds: {repeated} the same as another, largest correlation "
        f"{largest:.3f}" + (f", expected below {limit:.3f}" if limit <= _SAME else " (too short to judge)"),
    )


def _of_the_sum(world: OneRound, zeros: Tensor) -> Tensor:
    """The noise [sent] of one whole round in which all clients send zeros."""
    noisy, quiet = WholeRounds(one=world), WholeRounds(one=world.quiet)
    moves = noisy.moves(None, zeros)
    return noisy.released(noisy.run(moves, noisy.together())) - quiet.released(quiet.run(moves, quiet.together()))


def linear_check(one: OneRound, claim: Claim, size: int) -> Check | None:
    """What two clients add to a whole round together is what they add apart, noise off. None where nothing is claimed
    to be linear."""
    if claim.seen == "uploads" or claim.coins or one.method.stages.decodes_before_the_clip or one.clients < 2:
        return None
    rounds = WholeRounds(one=one.quiet)
    updates = torch.randn(2, size, generator=torch.Generator().manual_seed(5)) * claim.bound
    found = []
    for senders in ([0], [1], [0, 1]):
        moves = torch.zeros(one.method.sampler.clients, size)
        moves[senders] = updates[senders]
        found.append(rounds.released(rounds.run(moves, rounds.together()), by_state=False))
    bounded = one.quiet.upload(updates, np.arange(2)).bounded.double()
    off = _norm(found[2] - found[0] - found[1]) / claim.bound
    lost = max(_norm(found[k] - bounded[k]) / claim.bound for k in (0, 1))
    room = max(_ROUNDING * 2, _random_rounding(one) / claim.bound)
    return Check(
        name="linear",
        passed=off <= 5 * room and lost <= 2 * room,
        detail=f"decoded together and apart differ by {off:.2g} of the bound, from what was sent by {lost:.2g}",
    )


def _random_rounding(one: OneRound) -> float:
    """Largest norm of one row's random rounding to integers, which is drawn anew in every round; 0 for floats."""
    integers = one.method.stages.find(Integers)
    if integers is None:
        return 0.0
    return math.sqrt(integers.fixed_point.padded) / integers.fixed_point.steps_per_unit


def distance_check(one: OneRound, claim: Claim, worlds: Sequence[TwoWorlds]) -> Check:
    """Without noise, no pair of neighbours moves the release farther than the claimed sensitivity: two calls a pair,
    with the same draws. Exact but for float32 and for the random rounding of rows to integers."""
    farthest = max(worlds, key=lambda world: world.gap)
    room = _ROUNDING + 2 * _random_rounding(one) / claim.sensitivity if claim.coins is None else _ROUNDING
    return Check(
        name="distance",
        passed=farthest.gap <= 1 + room,
        detail=f"without noise, one client moves the release by {farthest.gap:.6f} of the claimed sensitivity at most, "
        f"over {len(worlds)} pairs of neighbours (“{farthest.pair.name}”)",
    )


def sum_check(one: OneRound, size: int) -> Check:
    """A whole round, noise off: what is decoded is exactly the sum of what the clients sent."""
    clients = one.method.sampler.clients
    updates = torch.randn(clients, size, generator=torch.Generator().manual_seed(6))
    quiet = one.quiet.method
    seen, given = SeenRows(quiet.stages), ByClient(moves=updates)
    cohort = np.arange(clients)
    facts = run_round(one.state, quiet, given, seeds=one.seeds, ledger=None, cohort=cohort, observer=seen).record
    if facts.aborted is not None or facts.arrived < clients:
        return Check(name="sum", passed=True, detail=f"not judged: {facts.arrived} of {clients} uploads arrived")
    rows, total, bits = seen.arrived, seen.total, quiet.stages.bits
    plain = rows.sum(dim=0)
    if bits is not None and not torch.is_floating_point(rows):
        total, plain = centred(total, bits), centred(plain, bits)
    off = float((total.double() - plain.double()).abs().max())
    room = _ROUNDING * float(rows.abs().max()) if torch.is_floating_point(rows) else 0.0
    return Check(name="sum", passed=off <= room, detail=f"of {clients} uploads; largest difference {off:.2g}")


def empty_round_check(one: OneRound, claim: Claim) -> Check | None:
    """A round in which nobody was drawn releases noise like any other, and is charged: or the charge would show it."""
    if claim.seen == "uploads":
        return None
    book = KeptEntries()
    no_clients = np.zeros(0, dtype=np.int64)
    nobody = ByClient(moves=torch.zeros(0, one.method.clients.course.size))
    facts = run_round(one.state, one.method, nobody, seeds=one.seeds, ledger=book, cohort=no_clients).record
    charged = any(entry.to_dict()["kind"] == "release" for entry in book.entries)
    words = "has no result, and is not charged" if facts.aborted else "is charged" if charged else "is not charged"
    return Check(
        name="empty round", passed=charged or facts.aborted is not None, detail=f"a round without clients {words}"
    )


def _norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows.double(), dim=-1).max())
