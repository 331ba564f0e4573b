"""Evidence that a round's sum consists of its rows and noise, and that this sum alone moved the model.

Everything is linear, so it is computed again from probes: one product of each vector with a public direction of random
signs (`dpfed.diagnostics.probes`). An additional vector of norm r changes a probe by about r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from accounting.factorisation import column, inverse
from accounting.mechanisms import noise_matrix, schedule_of
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from dpfed.audit.evidence.noise_evidence import unsampled
from dpfed.audit.evidence.run_files import RunFiles, clip_norm_before
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.config.server_tables import AdagradServer, AdamServer, StepServer
from dpfed.diagnostics.probes import probe_of
from dpfed.methods.catalogue import method_specification
from dpfed.methods.choices import sums_integers
from dpfed.records.reading import Unavailable
from dpfed.records.round import Probes, RoundRecord
from dpfed.server.rules import Kind

_OF_SUMS = 1e-5
"""Rounding of sums of float32 rows, relative to their largest possible length."""
_ROUNDS_OF_MEMORY = 10
"""Number of rounds whose rounding errors add up in the server's memory; older rounds weigh less."""
_OF_STEPS = 1e-5
"""Rounding of a step in float32, relative to the norms of model and move."""


def sums_match_rows(files: RunFiles) -> Finding:
    """Check that the sum is of the added rows, each once, and the release is that sum and its noise.

    For integers and Bernoulli samples the decoding of their sum is not checked.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: sums are not what is private."
    wrong, unknown, decoded = [], [], True
    for one, probes in _probed(files):
        if probes.added is None and one.arrived:
            unknown.append(one.round)
        elif not _same_sum(probes, one, _longest_sum(files, one)):
            wrong.append(one.round)
        if not _summed_in_floats(files):
            decoded = False
        elif not _released_alone(files, one, probes):
            wrong.append(one.round)
    if wrong:
        found = rounds_text(sorted(set(wrong)))
        return False, f"{found}: what was released is not the sum of the rows that went in, and its noise."
    if unknown:
        return None, f"{rounds_text(unknown)}: only the clients have seen their rows."
    words = "and what was released is that sum and its noise" if decoded else "decoding it is not looked at"
    return True, f"the sums of {len(files.results)} rounds are of the rows that went into them; {words}."


def model_moves_by_releases(files: RunFiles) -> Finding:
    """Check that every round starts from the model of the one before, and its step is the server's step by the release.

    The last step gives the model of the checkpoint, whose moving average is that of the rounds' models. For adaptive
    rules the mean of updates is checked, which the checkpoint has; of other rules that are not linear (the posterior of
    masks, purging, probabilities kept off the ends) only the start of rounds.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: the model moves by uploads that are private already."
    last: Probes | None = None
    velocity, wrong, kept, server = 0.0, [], _Kept(), files.config.server
    momentum, rate = (server.momentum, server.learning_rate) if isinstance(server, StepServer) else (0.0, 0.0)
    for one, probes in _probed(files):
        kept = _kept_after(files, kept, one, probes)
        room = _rounding_allowance(files, probes, one, velocity)
        velocity = momentum * velocity + probes.moved / (one.divisor or 1.0)
        stepped = probes.before + rate * velocity
        broken = last is not None and abs(probes.before - last.after) > room
        if broken or (_linear(files) and abs(probes.after - stepped) > room * max(1.0, rate)):
            wrong.append(one.round)
        last = probes
    if wrong:
        return False, f"{rounds_text(wrong)}: the model did not move by what was released."
    if last is None:
        return None, "no round has a result."
    reached = probe_of(files.checkpoint.broadcast)
    if abs(reached - last.after) > 1e-9 * max(1.0, abs(reached)):
        return False, "checkpoint.safetensors: is not the model that the last round left."
    beside = _wrong_beside(files, kept)
    if beside is not None:
        return False, f"checkpoint.safetensors: {beside}"
    words = "its step is that of what was released"
    if not _linear(files):
        words = "the server's step is not linear and not looked at"
    if _adaptive(files):
        words = "the mean of updates that its steps follow is that of what was released"
    return True, f"each of {len(files.results)} rounds starts where the one before ended; {words}."


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Expected probes of the server's memory beside the model, and their room for rounding."""

    first: float = 0.0
    average: float | None = None
    room: float = 0.0


def _kept_after(files: RunFiles, before: _Kept, one: RoundRecord, probes: Probes) -> _Kept:
    server, move = files.config.server, probes.moved / (one.divisor or 1.0)
    beta = server.beta1 if isinstance(server, AdamServer | AdagradServer) else 0.0
    decay, average = server.average or 0.0, before.average
    return _Kept(
        first=beta * before.first + (1 - beta) * move,
        average=probes.after if average is None else decay * average + (1 - decay) * probes.after,
        room=max(before.room, _rounding_allowance(files, probes, one, 0.0), _OF_STEPS * abs(probes.after)),
    )


def _wrong_beside(files: RunFiles, kept: _Kept) -> str | None:
    """Return the problem with the server's memory, computed again from the rounds, if any."""
    memory, expected = files.checkpoint.memory, {}
    if files.config.server.average is not None and kept.average is not None:
        expected["average"] = kept.average
    if _adaptive(files):
        expected["first"] = kept.first
    for name, value in expected.items():
        if name not in memory:
            return f"holds no {name!r}, which config.toml requires."
        if not abs(float(probe_of(memory[name])) - value) <= _ROUNDS_OF_MEMORY * kept.room:
            return f"its {name!r} is not that of the rounds' releases."
    return None


def _adaptive(files: RunFiles) -> bool:
    return files.config.server.rule in get_args(Kind)


def _probed(files: RunFiles) -> Iterator[tuple[RoundRecord, Probes]]:
    for one in files.results:
        if one.probes is None:
            raise Unavailable(
                f"diagnostics.jsonl, line {one.round}: has no 'probes'. The run was made by a version that did not "
                "write them."
            )
        yield one, one.probes


def _same_sum(probes: Probes, one: RoundRecord, longest: float) -> bool:
    added = 0 if probes.added is None else probes.added
    if isinstance(added, float) and added.is_integer() and isinstance(probes.summed, int):
        added = int(added)  # counts of Bernoulli samples are floats in the rows, and integers in a secure sum
    if isinstance(added, int) and isinstance(probes.summed, int):
        return (added - probes.summed) % (1 << (64 if probes.bits is None else min(probes.bits, 64))) == 0
    return abs(added - probes.summed) <= _OF_SUMS * longest


def _released_alone(files: RunFiles, one: RoundRecord, probes: Probes) -> bool:
    own = probes.filled
    release = files.released.get(one.round)
    if release is None:
        raise Unavailable(f"ledger.jsonl: has no release of round {one.round}.")
    if release.noise_placement == "server" and one.noise is not None:
        if one.noise.probe is None:
            raise Unavailable(f"diagnostics.jsonl, line {one.round}: has no probe of the noise.")
        own = one.noise.probe + _taken_back(files, one)
    return abs(probes.released - probes.summed - own) <= _OF_SUMS * _longest_sum(files, one)


def _taken_back(files: RunFiles, one: RoundRecord) -> float:
    """Return the probe of the part of earlier rounds' correlated noise that this round cancels: linear in theirs."""
    schedule = schedule_of(files.released[one.round].mechanism)
    stream = None if schedule is None else noise_matrix(schedule)
    if stream is None:
        return 0.0
    fresh = {earlier.round: earlier.noise for earlier in files.results}
    returned = inverse(column(stream, one.round), rounds=one.round)
    total = 0.0
    for lag in range(1, one.round):
        noise = fresh.get(one.round - lag)
        if noise is None or noise.probe is None:
            raise Unavailable(f"diagnostics.jsonl, line {one.round - lag}: has no probe of the noise.")
        total += float(returned[lag]) * noise.probe
    return total


def _longest_sum(files: RunFiles, one: RoundRecord) -> float:
    """Return a length that a sum with its noise rarely exceeds, in units of updates."""
    rows = max(one.arrived, 1) * max(clip_norm_before(files, one.round), one.longest_added or 0.0)
    noise = math.sqrt(one.noise.mean_square * one.noise.entries) if one.noise is not None else 0.0
    return rows + noise


def _summed_in_floats(files: RunFiles) -> bool:
    """Return True if a sum needs no decoding: neither in integers nor in Bernoulli samples, and without majority
    votes.
    """
    of_coins = (BernoulliAggregate, BernoulliChannel)
    coins = any(isinstance(unsampled(release), of_coins) for release in files.released.values())
    return not (coins or sums_integers(files.config) or files.config.method.purge == "clients")


def _linear(files: RunFiles) -> bool:
    chosen = method_specification(files.config.method.name)
    purging = chosen.sends_models and files.config.method.purge != "clients"
    return files.config.server.rule == "step" and not chosen.sends_masks and not purging


def _rounding_allowance(files: RunFiles, probes: Probes, one: RoundRecord, velocity: float) -> float:
    """Return the allowed rounding error of a step."""
    move = max(abs(probes.moved), _longest_sum(files, one)) / (one.divisor or 1.0)
    return _OF_STEPS * (probes.before_norm + move + abs(velocity))
