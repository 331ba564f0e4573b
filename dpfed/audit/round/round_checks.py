"""Checks of rounds that need no trials: sums, distances, state, ledger, public maps, samplers and secure draws.

Every random check fails on a correct round with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import pdtrc
from scipy.stats import binom
from torch import Tensor

from accounting.budget import FixedSize, Poisson
from accounting.ledger import Release
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.audit.evidence.cohort_distribution import charge_covers, sizes_finding
from dpfed.audit.evidence.cohort_members import members_finding
from dpfed.audit.round.neighbours import PairGap
from dpfed.audit.round.one_round import Claim, LedgerInMemory, OneRound, RowRecorder
from dpfed.audit.round.whole_round import UpdatesByClient, WholeRounds
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.clients.training import LocalTraining
from dpfed.compress.fixed_point import centre_residues
from dpfed.mechanisms.integers import Integers
from dpfed.randomness import Secure, Simulated
from dpfed.round import Method, draw_round_cohort, run_round
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.project import PublicSigns, PublicTopMask

_CLIENTS, _COHORT, _COHORTS = 20, 1, 200

_CALLS = 200_000

_WORDS = 4

_FRESH = "from dpfed.randomness import Secure; print(Secure().bits(4, 'noise.sum', 0).tolist())"


def cohorts_check(method: Method, seeds: Seeds, others: Iterable[Sampler], charged: Release | None = None) -> Check:
    """Check the sampler of `method`, the samplers `others`, and three small ones by `sampler_check`; return one check.

    Cohorts are drawn as in a round. The small samplers include one whose cohorts are sometimes empty (Poisson
    sampling), and one whose cohorts exceed the cap in two of five rounds. charged: release of a round of `method`.
    """
    overfull = Poisson(cohort=_CLIENTS // 2, cohort_cap=_CLIENTS // 2)
    small = [one.cohorts(_CLIENTS) for one in (Poisson(cohort=_COHORT), FixedSize(cohort=_COHORT), overfull)]
    found = []
    for who in (method.sampler, *others, *small):
        drawing = replace(method, sampler=who, canaries=None, randomness=Simulated(seeds=seeds))
        release = charged if who is method.sampler else None
        found.append(sampler_check(who, partial(draw_round_cohort, drawing), charged=release))
    wrong = [one for one in found if not one.passed]
    fine = f"{_COHORTS} cohorts of each of {len(found)} samplers: sizes, members, overlaps and repetitions as charged"
    return wrong[0] if wrong else replace(found[0], detail=fine)


def sampler_check(
    who: Sampler, drawn: Callable[[int], NDArray[np.int64]], rounds: int = _COHORTS, charged: Release | None = None
) -> Check:
    """Check drawn cohorts by the tests of recorded ones: sizes, members, overlaps, repetitions, schedules.

    drawn: function that draws the cohort of a round. charged: release of a round with cohorts of `who`.
    A correct sampler fails with probability at most FALSE_ALARM.
    """
    cohorts = [np.sort(drawn(number)) for number in range(rounds)]
    found = [sizes_finding(who, [len(one) for one in cohorts], FALSE_ALARM / 2)]
    if who.law.probability < 1 or who.law.is_schedule:
        numbered = list(enumerate(cohorts, 1))
        found.append(members_finding(who.law, who.clients, numbered, alpha=FALSE_ALARM / 2, ids=who.ids))
    if charged and not charge_covers(charged.mechanism, who.law, seen=charged.noise_placement == "uploads"):
        found.append((False, f"Rounds are charged for other cohorts than those of {who.law}."))
    wrong = [one for one in found if one[0] is False]
    mean, often = rounds * who.law.probability, 0
    with suppress(ValueError):
        often = int(binom.isf(FALSE_ALARM / 12 / who.clients, rounds, who.law.probability)) + 1
    return Check(
        name="sampler",
        passed=not wrong,
        detail=" ".join(one[1] for one in wrong or found),
        would_find=f"a charge for another sampler, a cohort that is drawn twice, or a client drawn {often} times in "
        f"{rounds} rounds in place of {mean:.0f}",
    )


def secure_check(source: Secure | None = None) -> Check:
    """Check that no draw repeats.

    Draws are compared under equal names, after equal seeds of all libraries, in two new processes, and in 200,000
    calls. In that number of calls, 64 fresh bits repeat with probability 1.1e-9; bits computed from 32 bits of entropy
    repeat with probability 0.99. One seed of 32 bits or more for a whole process is not found.
    """
    drawn_from = Secure() if source is None else source
    named = [_draws_after_equal_seeds(drawn_from) for _ in range(2)]
    processes = [_draws_of_new_process() for _ in range(2)] if source is None else [b"1", b"2"]
    fresh = named[0] != named[1] and processes[0] != processes[1]
    again = _CALLS - len(np.unique([drawn_from.bits(1, "audit", 0)[0] for _ in range(_CALLS)]))
    expected = _CALLS**2 / 2 * 2.0**-64
    words = (
        "fresh after the same seed and in a new process" if fresh else "equal after the same seed or in a new process"
    )
    return Check(
        name="secure draws",
        passed=fresh and (again == 0 or float(pdtrc(again - 1, expected)) >= FALSE_ALARM),
        detail=f"{words}; {again} of {_CALLS:,} draws were repeated",
        would_find="draws from a seed of a library, or from 32 bits of entropy each",
    )


def _draws_after_equal_seeds(source: Secure) -> list[int]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    drawn = source.bits(_WORDS, "noise.sum", 0).tolist() + source.subset(8, 1 << 30, "cohort", 0).tolist()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    return [int(word) for word in drawn]


def _draws_of_new_process() -> bytes:
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, check=True)
    return done.stdout


_ROUNDING = 1e-5  # relative rounding error of float32 sums


def linear_check(one: OneRound, claim: Claim) -> Check | None:
    """Check, without noise, that the release of two clients is the sum of the releases of each client alone.

    Returns None if the claim does not depend on it, or the round has one upload.
    """
    if claim.visible_output == "uploads" or claim.coins or one.method.stages.decodes_before_the_clip or one.clients < 2:
        return None
    updates, found = _loud_and_quiet(one, claim), list[Tensor]()
    for senders in ([0], [1], [0, 1]):
        moves = torch.zeros(one.method.sampler.clients, one.size)
        moves[senders] = updates[senders]
        rounds = WholeRounds(one_round=one.without_noise)  # with new copies of custom stages
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


def rows_check(one: OneRound, claim: Claim) -> Check | None:
    """Check that a client's row after the bound is the same alone as among others, for releases without `linear_check`.

    Returns None for a round with one upload.
    """
    if one.clients < 2:
        return None
    updates = _loud_and_quiet(one, claim)

    def rows(*clients: int) -> Tensor:
        stages = Stages(*map(copy.copy, one.method.stages))
        new = replace(one, method=replace(one.method, stages=stages)).without_noise
        return new.upload(updates[list(clients)], np.array(clients)).bounded.double()

    off = _largest_norm(rows(0, 1) - torch.cat([rows(0), rows(1)])) / claim.bound
    return Check(
        name="rows",
        passed=off <= _ROUNDING,
        detail=f"a client's row after the bound differs by {off:.2g} of the bound, alone and beside another client",
        would_find=f"a client that changes another's row by {_ROUNDING:.2g} of the bound",
    )


def _loud_and_quiet(one: OneRound, claim: Claim) -> Tensor:
    """Return updates [2, d]: beyond the bound, and inside it, where no clip hides what the other client changes."""
    updates = torch.randn(2, one.size, generator=torch.Generator().manual_seed(5)) * claim.bound
    updates[1] *= 0.5 / one.size**0.5
    return updates


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


def sum_check(one: OneRound) -> Check:
    """Check that a whole round without noise decodes exactly to the sum of the clients' rows."""
    clients = one.method.sampler.clients
    updates = torch.randn(clients, one.size, generator=torch.Generator().manual_seed(6))
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


def empty_round_check(one: OneRound) -> Check:
    """Check that a round without clients releases noise and is charged, since a missing charge would reveal it."""
    book = LedgerInMemory()
    no_clients = np.zeros(0, dtype=np.int64)
    no_updates = UpdatesByClient(moves=torch.zeros(0, one.size))
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

    The map is computed with the clients' data and, in their memory, with zeros in place of them. Returns None for a map
    of dpfed that depends on seeds only. The check is exact for data that the map reads from `Settings.clients`.
    """
    choice, local, state = one.method.stages.project.choice, one.method.clients, one.state
    inner = choice.choice if isinstance(choice, PublicSigns) else choice
    trained = isinstance(inner, PublicTopMask) and isinstance(inner.trainer, LocalTraining)
    if not trained and type(inner).__module__.startswith("dpfed."):
        return None
    maps, samples = [copy.copy(choice).for_round(state.broadcast, state.round, one.seeds)], (local.inputs, local.labels)
    kept = [each.clone() for each in samples]
    try:
        for each in samples:
            each.zero_()
        maps.append(copy.copy(choice).for_round(state.broadcast, state.round, one.seeds))
    finally:
        for each, before in zip(samples, kept, strict=True):
            each.copy_(before)
    unit = torch.ones(one.projection.sent)
    same = torch.equal(maps[0].adjoint(unit), maps[1].adjoint(unit))
    shown = "the map is unchanged" if same else "the map changes"
    if not isinstance(inner, PublicTopMask):
        detail = f"{shown} if all private data are zero"
        return Check(name="public map", passed=same, detail=detail, would_find="a map that private data change")
    held = torch.from_numpy(np.concatenate([local.partition.of(client) for client in range(local.partition.clients)]))
    common = _number_of_held_samples(inner.inputs, inner.labels, local.inputs[held], local.labels[held])
    return Check(
        name="public map",
        passed=same and common == 0,
        detail=f"{shown} if all private data are zero; clients hold {common} of the {len(inner.labels)} public samples",
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
