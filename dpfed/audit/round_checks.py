"""Cheap tests of one round that need no two worlds: each finds faults that trials would need thousands for, or cannot.

Every random check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, chdtr, ndtri
from torch import Tensor

from accounting.ledger import Entry
from dpfed.audit.claims import Claim
from dpfed.audit.one_round import PUBLIC_SEEDS, Given, OneRound, Witness
from dpfed.compress.code import Code
from dpfed.compress.integer_upload import IntegerUpload
from dpfed.local.training import LocalTraining
from dpfed.round import run_round
from dpfed.secagg.ring import centred

FALSE_ALARM = 1e-6
_ROUNDING = 1e-5  # of float32 sums, relative
_TOSSES = 30_000
_MOST_TRIALS = 3_000
_ROUNDS = 10
_SAME = 0.9


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, whether it is as claimed, and the numbers."""

    name: str
    passed: bool
    detail: str


def norm_check(one: OneRound, claim: Claim, size: int) -> Check:
    """No update, however wrong, adds more than the claimed bound: what is added, noise off, after the bound."""
    worst, which = 0.0, "zeros"
    quiet = one.quiet
    for name, update in adversarial_updates(quiet, size).items():
        sent = quiet.upload(update[None], np.zeros(1, dtype=np.int64))
        rows = [sent.bounded]
        if claim.seen == "sum" and not claim.coins:
            rows.append(quiet.released(sent.arrived))
        longest = max(_norm(row) / claim.bound for row in rows)
        linf = claim.coins.linf_clip if claim.coins else None
        if linf is not None:
            longest = max(longest, float(sent.bounded.abs().max()) / linf)
        if not longest <= worst:
            worst, which = longest, name
    return Check(
        name="norm",
        passed=worst <= 1 + _ROUNDING,
        detail=f"largest row after the bound: {worst:.6f} of the claimed bound ({which})",
    )


def adversarial_updates(one: OneRound, size: int) -> dict[str, Tensor]:
    """Updates [d] that bounds get wrong: huge, tiny, not finite, all in one entry, in some entries only."""
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(size, generator=generator)
    along = one.map.adjoint(torch.ones(one.map.sent))
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


def noise_check(one: OneRound, claim: Claim, size: int, entries: int = 300_000) -> Check:
    """With nothing but zeros sent, the release has at least the claimed variance: chi-square, lower tail.

    In all entries together, and in the entry with the least (Bonferroni over entries). `entries` draws, about: 300,000
    see a standard deviation 1% short with probability 99%.
    """
    zeros, width = torch.zeros(size), one.map.sent
    trials = np.arange(min(_MOST_TRIALS, math.ceil(entries / width))) % PUBLIC_SEEDS
    noise = (noise_of(one, claim, zeros, trials) / claim.noise_std).double().square()
    count = noise.numel()
    in_all = float(chdtr(count, float(noise.sum())))
    least = float(noise.sum(dim=0).min())
    in_one = width * float(chdtr(len(trials), least))
    std = math.sqrt(float(noise.sum()) / count)
    return Check(
        name="noise",
        passed=min(in_all, in_one) >= FALSE_ALARM / 2,
        detail=f"standard deviation {std:.4f} of the claimed one in {count:,} draws; of so little or less in all of "
        f"them the probability is {in_all:.2g}, in the entry with the least {min(in_one, 1.0):.2g}",
    )


def noise_of(one: OneRound, claim: Claim, update: Tensor, trials: NDArray[np.int64]) -> Tensor:
    """What the noise adds [n, sent] where all clients send `update`."""
    quiet = one.quiet
    if claim.seen == "uploads":
        rows = [world.upload(update.expand(len(trials), -1), trials).coded for world in (one, quiet)]
        return rows[0] - rows[1]
    sums = [world.own(update, trials) + world.others(update, trials) for world in (one, quiet)]
    return one.released(sums[0]) - quiet.released(sums[1])


def floor_check(one: OneRound, claim: Claim, size: int) -> Check:
    """Coins of public probabilities 0 and 1 still come up with at least the claimed floor, and at most one minus it."""
    assert claim.coins is not None
    trials = np.arange(min(_MOST_TRIALS, math.ceil(_TOSSES / one.map.sent))) % PUBLIC_SEEDS
    rarest, likely = 1.0, 1.0
    for start in (0.0, 1.0):
        world = replace(one, state=replace(one.state, broadcast=torch.full_like(one.state.broadcast, start)))
        ones = float(world.own(torch.zeros(size), trials).double().sum())
        tosses = len(trials) * one.map.sent
        rare = ones if start == 0.0 else tosses - ones
        likely = min(likely, float(bdtr(rare, tosses, claim.coins.floor)))
        rarest = min(rarest, rare / tosses)
    return Check(
        name="floor",
        passed=likely >= FALSE_ALARM,
        detail=f"the rarer side comes up in {rarest:.4f} of the tosses, claimed at least {claim.coins.floor:g}; of so "
        f"few or fewer the probability is {likely:.2g}",
    )


def seeds_check(one: OneRound, claim: Claim, size: int) -> Check:
    """No two rounds or clients share noise, drawn from the run's own source: no two noise vectors are correlated."""
    zeros, vectors = torch.zeros(1, size), []
    alone = claim.seen == "uploads" or one.parts.privacy.in_shares or claim.coins is not None
    for number in range(_ROUNDS):
        world = replace(one, state=replace(one.state, round=number))
        if alone:
            sent = world.upload(zeros.expand(world.clients, -1), np.arange(world.clients))
            vectors += list(sent.coded if claim.seen == "uploads" and not claim.coins else sent.arrived)
        else:
            vectors.append(noise_of(world, claim, zeros[0], np.zeros(1, dtype=np.int64))[0])
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


def linear_check(one: OneRound, claim: Claim, size: int) -> Check | None:
    """Two clients' rows decoded together are their sum, noise off. None where nothing is claimed to be linear."""
    if claim.seen == "uploads" or claim.coins or one.parts.decode_first:
        return None
    quiet = replace(one.quiet, clients=2)
    updates = torch.randn(2, size, generator=torch.Generator().manual_seed(5)) * claim.bound
    rows = quiet.upload(updates, np.arange(2)).arrived
    apart, together = quiet.released(rows), quiet.released(rows.sum(dim=0, keepdim=True))
    off = _norm(together - apart.sum(dim=0, keepdim=True)) / claim.bound
    bounded = quiet.upload(updates, np.arange(2)).bounded
    room = _ROUNDING
    if isinstance(one.parts.code, IntegerUpload):
        room = math.sqrt(one.parts.code.fixed_point.padded) / one.parts.code.fixed_point.steps_per_unit / claim.bound
    lost = _norm(apart - bounded) / claim.bound
    return Check(
        name="linear",
        passed=off <= _ROUNDING * 10 and lost <= 2 * room,
        detail=f"decoded together and apart differ by {off:.2g} of the bound, from what was sent by {lost:.2g}",
    )


def sum_check(one: OneRound, size: int) -> Check:
    """A whole round, noise off: what is decoded is exactly the sum of what the clients sent."""
    clients = one.parts.sampler.clients
    updates = torch.randn(clients, size, generator=torch.Generator().manual_seed(6))
    code, quiet = Witness(one.parts.code), one.quiet.parts
    parts = replace(quiet, code=cast(Code, code), local=cast(LocalTraining, Given(quiet.local, updates)))
    _, facts = run_round(one.state, parts, seeds=one.seeds, ledger=None, cohort=np.arange(clients))
    if facts.aborted is not None or facts.arrived < clients:
        return Check(name="sum", passed=True, detail=f"not judged: {facts.arrived} of {clients} uploads arrived")
    rows = one.quiet.upload(updates, np.arange(clients)).bounded if parts.decode_first else code.arrived
    plain, total = rows.sum(dim=0), code.total
    bits = getattr(one.parts.code, "bits", None)
    if bits is not None and not torch.is_floating_point(rows):
        total, plain = centred(total, bits), centred(plain, bits)
    off = float((total.double() - plain.double()).abs().max())
    room = _ROUNDING * float(rows.abs().max()) if torch.is_floating_point(rows) else 0.0
    return Check(name="sum", passed=off <= room, detail=f"of {clients} uploads; largest difference {off:.2g}")


class _Charged:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


def empty_round_check(one: OneRound, claim: Claim) -> Check | None:
    """A round in which nobody was drawn releases noise like any other, and is charged: or its cost would tell."""
    if claim.seen == "uploads":
        return None
    book = _Charged()
    nobody = np.zeros(0, dtype=np.int64)
    _, facts = run_round(one.state, one.parts, seeds=one.seeds, ledger=book, cohort=nobody)
    charged = any(entry.to_dict()["kind"] == "release" for entry in book.entries)
    words = "has no result, and costs nothing" if facts.aborted else "is charged" if charged else "is not charged"
    return Check(
        name="empty round", passed=charged or facts.aborted is not None, detail=f"a round without clients {words}"
    )


def _norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows.double(), dim=-1).max())
