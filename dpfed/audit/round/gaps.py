"""Pairs of neighbouring rounds, without trials: how far apart they are without noise, and what else differs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.round.bound_checks import in_charged_metric
from dpfed.audit.round.claims import Claim
from dpfed.audit.round.neighbours import Neighbours
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.whole_round import RoundOutcome, WholeRounds
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.integers import Integers

_ROUNDINGS = 8
_ROUNDS = 3
"""Number of noisy rounds in each world, for the ledger's lines and the rule of the state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairGap:
    """Two neighbouring worlds of one round.

    gap:          distance of the noiseless releases over the claimed sensitivity; 1 if the pair attains it
    lines:        different sets of ledger lines of noisy rounds
    follows_rule: True if every new state follows from the released sum alone
    """

    name: str
    gap: float
    lines: frozenset[tuple[str, ...]]
    follows_rule: bool


def gap_of_pair(one: OneRound, claim: Claim, pair: Neighbours) -> PairGap:
    """Return the noiseless gap of a pair, from two rounds, and the records of a few noisy rounds in each world.

    one: round that draws new noise in every call."""
    if pair.broadcast is not None:
        one = replace(one, state=replace(one.state, broadcast=pair.broadcast))
    rounds = WholeRounds(one_round=one)
    done = [_round(rounds, claim, pair, own) for own in _worlds(pair) for _ in range(_ROUNDS)]
    lines = {tuple(json.dumps(entry.to_dict(), sort_keys=True) for entry in each.entries) for each in done}
    return PairGap(
        name=pair.name,
        gap=(_gap_of_vectors if claim.coins is None else _gap_of_probabilities)(one, claim, pair),
        lines=frozenset(lines),
        follows_rule=all(each.follows_rule for each in done),
    )


def _worlds(pair: Neighbours) -> tuple[Tensor | None, Tensor]:
    return pair.neighbour_update, pair.tested_update


def _round(rounds: WholeRounds, claim: Claim, pair: Neighbours, own: Tensor | None) -> RoundOutcome:
    if claim.visible_output == "uploads":
        given = torch.zeros_like(pair.tested_update) if own is None else own
        return rounds.run(rounds.moves(given, given), rounds.smallest_cohort())
    together = rounds.smallest_cohort()
    return rounds.run(rounds.moves(own, pair.common_update), together[1:] if own is None else together)


def _gap_of_vectors(one: OneRound, claim: Claim, pair: Neighbours) -> float:
    """Return the gap of a noised vector; rows that are rounded at random are averaged."""
    quiet = WholeRounds(one_round=one.without_noise)
    times = _ROUNDINGS if one.method.stages.find(Integers) is not None else 1

    def releases(own: Tensor | None) -> Tensor:
        done = [_round(quiet, claim, pair, own) for _ in range(times)]
        if claim.visible_output == "uploads":  # rows that enter the encoding
            return torch.stack([done[0].uploads[k][0] for k in range(len(done[0].uploads))]).double()
        return torch.stack([quiet.released_sum(each, by_state=False) for each in done])

    absent, present = (releases(own) for own in _worlds(pair))
    return float(torch.linalg.vector_norm(present - absent, dim=1).mean()) / claim.sensitivity


def _gap_of_probabilities(one: OneRound, claim: Claim, pair: Neighbours) -> float:
    """Return the gap of Bernoulli samples: the largest move of their probabilities over the claimed clips."""
    coins, stage = claim.coins, one.method.stages.find(PrivateCoins)
    assert coins is not None
    trials = 1 if stage is None else stage.trials
    client, start, edge = np.zeros(1, dtype=np.int64), one.reference.double(), coins.floor
    ends = [
        (start + one.upload(own[None], client).bounded[0].double()).clamp(edge, 1 - edge)
        for own in _worlds(pair)
        if own is not None
    ]
    moved = in_charged_metric(one, claim, ends[1] - ends[0])
    sizes = ((trials**0.5 * moved.norm(), coins.l2_clip), (moved.abs().max(), coins.linf_clip))
    return max(float(size) / (coins.sensitivity(clip) or 1.0) for size, clip in sizes if clip is not None)
