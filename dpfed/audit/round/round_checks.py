"""Checks of one round that need no trials: sums, empty rounds, distances, state, ledger and public maps.

Every random check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.round.claims import Claim
from dpfed.audit.round.gaps import PairGap
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.recorders import LedgerInMemory, RowRecorder
from dpfed.audit.round.whole_round import UpdatesByClient, WholeRounds
from dpfed.audit.verdict import Check
from dpfed.clients.training import LocalTraining
from dpfed.compress.fixed_point import centre_residues
from dpfed.mechanisms.integers import Integers
from dpfed.round import run_round
from dpfed.stages.project import PublicSigns, PublicTopMask

_ROUNDING = 1e-5  # relative rounding error of float32 sums


def linear_check(one: OneRound, claim: Claim, size: int) -> Check | None:
    """Check, without noise, that the release of two clients is the sum of the releases of each client alone.

    Returns None if the claim does not depend on it, or the round has one upload.
    """
    if claim.visible_output == "uploads" or claim.coins or one.method.stages.decodes_before_the_clip or one.clients < 2:
        return None
    rounds = WholeRounds(one_round=one.without_noise)
    updates = torch.randn(2, size, generator=torch.Generator().manual_seed(5)) * claim.bound
    found = []
    for senders in ([0], [1], [0, 1]):
        moves = torch.zeros(one.method.sampler.clients, size)
        moves[senders] = updates[senders]
        found.append(rounds.released_sum(rounds.run(moves, rounds.smallest_cohort()), by_state=False))
    bounded = one.without_noise.upload(updates, np.arange(2)).bounded.double()
    off = _largest_norm(found[2] - found[0] - found[1]) / claim.bound
    lost = max(_largest_norm(found[k] - bounded[k]) / claim.bound for k in (0, 1))
    room = max(_ROUNDING * 2, _random_rounding(one) / claim.bound)
    return Check(
        name="linear",
        passed=off <= 5 * room and lost <= 2 * room,
        detail=f"the release of two clients differs from the sum of single releases by {off:.2g} of the bound; single "
        f"releases differ from the clients' rows by {lost:.2g}",
        would_find=f"a client that changes another's part of the release by {5 * room:.2g} of the bound",
    )


def _random_rounding(one: OneRound) -> float:
    """Return the largest norm of the error by random rounding of one row to integers; 0 for float rows."""
    integers = one.method.stages.find(Integers)
    if integers is None:
        return 0.0
    return math.sqrt(integers.fixed_point.padded) / integers.fixed_point.steps_per_unit


def distance_check(one: OneRound, claim: Claim, worlds: Sequence[PairGap]) -> Check:
    """Check that no pair's releases without noise are farther apart than the claimed sensitivity.

    Each pair has two rounds with equal draws. The check is exact except for float32 rounding, and for the random
    rounding of rows to integers.
    """
    farthest = max(worlds, key=lambda world: world.gap)
    room = _ROUNDING + 2 * _random_rounding(one) / claim.sensitivity if claim.coins is None else _ROUNDING
    return Check(
        name="distance",
        passed=farthest.gap <= 1 + room,
        detail=f"without noise, one client moves the release by {farthest.gap:.6f} of the claimed sensitivity at most, "
        f"over {len(worlds)} pairs of neighbours (“{farthest.name}”)",
        would_find=f"a client that moves the release {max(room, 1e-5):.2g} beyond the claim, for a pair among these",
    )


def sum_check(one: OneRound, size: int) -> Check:
    """Check that a whole round without noise decodes exactly to the sum of the clients' rows."""
    clients = one.method.sampler.clients
    updates = torch.randn(clients, size, generator=torch.Generator().manual_seed(6))
    quiet = one.without_noise.method
    seen, given = RowRecorder(quiet.stages), UpdatesByClient(moves=updates)
    cohort = np.arange(clients)
    facts = run_round(one.state, quiet, given, seeds=one.seeds, ledger=None, cohort=cohort, observer=seen).record
    if facts.aborted is not None or facts.arrived < clients:
        detail = f"not tested: {facts.arrived} of {clients} uploads arrived"
        return Check(name="sum", passed=None, detail=detail, decides=False)
    rows, total, bits = seen.arrived, seen.total, quiet.stages.bits
    plain = rows.sum(dim=0)
    if bits is not None and not torch.is_floating_point(rows):
        total, plain = centre_residues(total, bits), centre_residues(plain, bits)
    off = float((total.double() - plain.double()).abs().max())
    room = _ROUNDING * float(rows.abs().max()) if torch.is_floating_point(rows) else 0.0
    return Check(
        name="sum",
        passed=off <= room,
        detail=f"sum of {clients} uploads: largest difference {off:.2g}",
        would_find="an upload that is missing or counted twice, or a sum beyond rounding",
    )


def empty_round_check(one: OneRound, claim: Claim) -> Check | None:
    """Check that a round without clients releases noise and is charged, since a missing charge would reveal it."""
    if claim.visible_output == "uploads":
        return None
    book = LedgerInMemory()
    no_clients = np.zeros(0, dtype=np.int64)
    no_updates = UpdatesByClient(moves=torch.zeros(0, one.method.clients.course.size))
    facts = run_round(one.state, one.method, no_updates, seeds=one.seeds, ledger=book, cohort=no_clients).record
    charged = any(entry.to_dict()["kind"] == "release" for entry in book.entries)
    words = "has no result, and is not charged" if facts.aborted else "is charged" if charged else "is not charged"
    return Check(
        name="empty round",
        passed=charged or facts.aborted is not None,
        detail=f"a round without clients {words}",
        would_find="a round without clients that is released and not charged",
    )


def _largest_norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows.double(), dim=-1).max())


def public_map_check(one: OneRound) -> Check | None:
    """Check that the public map does not depend on private data, and that no client holds a public sample.

    The map is computed with the clients' data and with zeros in place of them. Returns None for a map that depends on
    seeds only. The check is exact.
    """
    choice, local = one.method.stages.project.choice, one.method.clients
    choice = choice.choice if isinstance(choice, PublicSigns) else choice
    if not isinstance(choice, PublicTopMask) or not isinstance(choice.trainer, LocalTraining):
        return None
    state, trainer = one.state, choice.trainer
    others = replace(trainer, inputs=torch.zeros_like(trainer.inputs), labels=torch.zeros_like(trainer.labels))
    maps = [
        each.for_round(state.broadcast, state.round, one.seeds) for each in (choice, replace(choice, trainer=others))
    ]
    unit = torch.ones(one.projection.sent)
    same = torch.equal(maps[0].adjoint(unit), maps[1].adjoint(unit))
    held = torch.from_numpy(np.concatenate([local.partition.of(client) for client in range(local.partition.clients)]))
    common = _number_of_held_samples(choice.inputs, choice.labels, local.inputs[held], local.labels[held])
    return Check(
        name="public map",
        passed=same and common == 0,
        detail=("the map is unchanged" if same else "the map changes") + " if all private data are zero; clients hold "
        f"{common} of the {len(choice.labels)} public samples",
        would_find="a map that private data change, or one public sample that a client holds",
    )


def _number_of_held_samples(inputs: Tensor, labels: Tensor, held: Tensor, held_labels: Tensor) -> int:
    """Return the number of public samples that clients hold."""
    private = {_sample_bytes(sample, label) for sample, label in zip(held, held_labels, strict=True)}
    return sum(_sample_bytes(sample, label) in private for sample, label in zip(inputs, labels, strict=True))


def _sample_bytes(sample: Tensor, label: Tensor) -> bytes:
    return bytes(sample.cpu().contiguous().numpy().tobytes()) + bytes(label.cpu().numpy().tobytes())


def state_check(trials: Sequence[PairGap]) -> Check:
    """Check that every new state follows, by the server's rule, from the released mean and the next clip norm."""
    whole = all(one.follows_rule for one in trials)
    return Check(
        name="state",
        passed=whole,
        detail="every new state follows from the released sum"
        if whole
        else "a new state does not follow from the released sum by the server's rule: it depends on something else",
        would_find="a new state with one other bit",
    )


def ledger_check(trials: Sequence[PairGap]) -> Check:
    """Check that all rounds of both worlds write equal ledger lines, with exactly one line, a release.

    The charge and the record then do not depend on data.
    """
    lines = frozenset[tuple[str, ...]]().union(*(one.lines for one in trials))
    return Check(
        name="ledger",
        passed=len(lines) == 1 and all(len(one) == 1 for one in lines),
        detail="all rounds wrote one equal release"
        if len(lines) == 1
        else f"rounds with different updates wrote {len(lines)} different sets of ledger lines",
        would_find="a charge that depends on an update",
    )
