"""Is the bound on one client's part of a sum kept, whoever the client is and whatever it sends?"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.round.claims import Claim
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.audit.verdict import Check

_ROUNDING = 1e-5  # of float32 sums, relative
_ABOVE = (1e-6, 1e-3, 5e-3, 1e-2, 0.1, 9.0)
"""Norms just above the bound, and ten times of it: an excess over it."""


def norm_check(one: OneRound, claim: Claim, size: int) -> Check:
    """No client's update, however wrong, adds more than the claimed bound to the new state of a whole round without
    noise; and no row is longer than the bound after it.

    Every client of the round in turn: a bound that is not put on all of them is none. Exact but for float32: a bound
    that is 0.002% too wide is seen, and so is one that lets through rows a little or a lot beyond it.
    """
    rounds, worst, which = WholeRounds(one=one.quiet), 0.0, "zeros"
    for name, update in (adversarial_updates(one, size) | around_the_bound(one, claim, size)).items():
        for client in range(one.clients):
            longest = _longest(rounds, claim, update, client)
            if not longest <= worst:
                worst, which = longest, f"{name}, client {client}"
    return Check(
        name="norm",
        passed=worst <= 1 + _ROUNDING,
        detail=f"largest row after the bound, and effect on the new state: {worst:.6f} of the claimed bound ({which})",
    )


def _longest(rounds: WholeRounds, claim: Claim, update: Tensor, client: int) -> float:
    """The longest of what comes of one client's update, over the bound."""
    bounded = in_metric(rounds.one, claim, rounds.one.upload(update[None], np.full(1, client)).bounded)
    lengths = [_norm(bounded)]
    if claim.seen == "sum" and not claim.coins:
        moves = torch.zeros(rounds.one.method.sampler.clients, len(update))
        moves[client] = update
        done = rounds.run(moves, rounds.together())
        lengths.append(_norm(rounds.released(done, by_state=False)))
        lengths.append(_norm(rounds.released(done)) - rounds.rounding(done))
    linf = claim.coins.linf_clip if claim.coins else None
    entries = 0.0 if linf is None else float(bounded.abs().max()) / linf
    return max(*(length / claim.bound for length in lengths), entries)


def in_metric(one: OneRound, claim: Claim, rows: Tensor) -> Tensor:
    """Rows in the metric that is charged: of coins in the Fisher metric, over sqrt(theta (1 - theta))."""
    if claim.coins is None or claim.coins.clip_metric == "euclidean":
        return rows
    theta = one.reference.double().clamp(claim.coins.floor, 1 - claim.coins.floor)
    return rows / (theta * (1 - theta)).sqrt()


def _norm(row: Tensor) -> float:
    return float(torch.linalg.vector_norm(row.double()))


def around_the_bound(one: OneRound, claim: Claim, size: int) -> dict[str, Tensor]:
    """Updates [d] whose rows have a norm just above the bound, or ten times the bound."""
    normal = torch.randn(size, generator=torch.Generator().manual_seed(4))
    length = float(
        torch.linalg.vector_norm(
            in_metric(one, claim, one.projection.forward(normal[None].clone(), np.zeros(1, dtype=np.int64))).double()
        )
    )
    return {f"{1 + excess:g} C": normal * (claim.bound * (1 + excess) / length) for excess in _ABOVE if length}


def adversarial_updates(one: OneRound, size: int) -> dict[str, Tensor]:
    """Updates [d] that bounds get wrong: huge, tiny, not finite, all in one entry, in some entries only."""
    generator = torch.Generator().manual_seed(3)
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
