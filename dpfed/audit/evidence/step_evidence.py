"""Evidence that rows are bounded and counted as charged, and that a round's sum and the model follow from them.

Sums and steps are linear, so they are recomputed from probes: inner products of each vector with a public direction of
random signs (`dpfed.diagnostics.watch`). An additional vector of norm r changes a probe by about r.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from accounting.factorisation import column, inverse
from accounting.mechanisms import BernoulliAggregate, BernoulliChannel, noise_matrix, schedule_of, unsampled
from dpfed.audit.evidence.noise_evidence import charged_noise
from dpfed.audit.evidence.run_files import RunFiles, value_or
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.config.server_tables import AdagradServer, AdamServer, StepServer
from dpfed.diagnostics.watch import probe_of
from dpfed.methods.catalogue import method_specification
from dpfed.methods.choices import sums_integers
from dpfed.participation.sampling import canaries_of
from dpfed.records.reading import Unavailable
from dpfed.records.round import Probes, RoundRecord
from dpfed.server.rules import Kind
from dpfed.stages.project import SendAll

_ROUNDING = 1e-9


def rows_are_bounded(files: RunFiles) -> Finding:
    """Check that no summed row was longer than the clip norm, on which the charge of every release relies."""
    if files.config.privacy is None:
        return True, "the unit is a record: gradients are clipped inside the clients, which these files do not show."
    norms = {one.round: one.largest_norm for one in files.opened_rounds if one.largest_norm is not None}
    over = [number for number, norm in norms.items() if norm > 1 + _ROUNDING]
    if over:
        return False, (
            f"{rounds_text(over)}: a row with a norm of {max(norms.values()):.6g} times the clip norm was summed."
        )
    added = _rows_beyond_bound(files)
    if added:
        number, times = max(added.items(), key=lambda item: item[1])
        return False, (
            f"{rounds_text(list(added))}: a row with a norm of {times:.6g} times the bound (round {number}) was "
            "added to the sum without a clip."
        )
    unknown = [one.round for one in files.results if one.largest_norm is None or one.longest_added is None]
    if unknown:
        return None, f"{rounds_text(unknown)}: diagnostics.jsonl does not state the norms of the summed rows."
    return True, (
        f"the longest row of {len(files.opened_rounds)} rounds has {max(norms.values(), default=0.0):.6f} of the clip "
        "norm; no row exceeds its bound when it is added to the sum."
    )


def _rows_beyond_bound(files: RunFiles) -> dict[int, float]:
    """Return the rounds with a summed row beyond its bound, and the row's norm over the bound."""
    found = {}
    for one in files.results if files.releases else ():
        bound = files.promise.longest_row(files.clip_norm_before(one.round)) if one.longest_added else None
        if bound is not None and one.longest_added is not None and one.longest_added > bound * (1 + _ROUNDING):
            found[one.round] = one.longest_added / bound
    return found


def denominator_is_public(files: RunFiles) -> Finding:
    """Check that sums are divided by the expected cohort, since a divisor from the drawn cohort would
    reveal its size.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: the number of clients that took part is public."
    expected = files.sampler.expected
    wrong = [one for one in files.results if not math.isclose(one.divisor or 0.0, expected, rel_tol=_ROUNDING)]
    if wrong:
        return False, (
            f"{rounds_text([one.round for one in wrong])}: the sum was divided by {wrong[0].divisor}, the expected "
            f"cohort is {expected:g}."
        )
    return True, f"every sum was divided by {expected:g}, the expected cohort."


def uploads_are_as_accounted(files: RunFiles) -> Finding:
    """Check that no cohort exceeds the cap, sums are padded if required, and every charged noise share has arrived."""
    for one in files.opened_rounds:
        problem = _participants_problem(files, one)
        if problem is None and one.has_result:
            problem = _shares_problem(files, one)
        if problem is not None:
            return False, f"round {one.round}: {problem}."
    return True, _shares_text(files)


def _participants_problem(files: RunFiles, one: RoundRecord) -> str | None:
    if one.arrived > one.participants:
        return f"{one.arrived} uploads arrived, but {one.participants} were requested"
    if (one.counted or 0) > one.cohort:
        return f"{one.counted} rows of clients were clipped, but {one.cohort} clients were drawn"
    cap = files.config.cohort_cap
    canaries = canaries_of(files.config).present_count(one.round - 1) if files.config.audit.canaries else 0
    if cap is not None and one.cohort > cap:
        return f"{one.cohort} clients exceed the cap of {cap} that is charged"
    if files.config.privacy is not None and not files.releases:
        return None  # nothing was released, and the length of uploads, which decides the fill, is unknown
    fill = None if files.config.privacy is None else files.promise.fill
    expected = max(one.cohort, fill or 0) + canaries
    if one.participants != expected:
        return f"{one.participants} uploads were requested, but {expected} are accounted"
    return None


def _shares_problem(files: RunFiles, one: RoundRecord) -> str | None:
    release = files.releases.get(one.round)
    charged = charged_noise(release) if release is not None else None
    if release is None or charged is None or one.noise is None:
        return None  # another check finds missing noise
    if release.noise_placement == "server":
        return (
            None if one.noise.draws == 1 else f"{one.noise.draws} draws of the server's noise, which must be drawn once"
        )
    expected = max(one.arrived, charged.least_draws) if release.detail.get("filled") else one.arrived
    if one.noise.draws != expected:
        return f"{one.noise.draws} noise shares arrived with {one.arrived} uploads, but {expected} are required"
    if one.noise.draws < charged.least_draws and release.noise_placement == "clients":
        return f"{one.noise.draws} noise shares arrived, but {charged.least_draws} are charged"
    return None


def _shares_text(files: RunFiles) -> str:
    if files.config.privacy is None or not files.releases:
        return "only the drawn clients sent uploads."
    release = next(iter(files.releases.values()))
    mechanism = unsampled(release.mechanism)
    if isinstance(mechanism, BernoulliAggregate):
        return (
            f"no sum has more than {mechanism.cohort} Bernoulli uploads; their padding leaves no trace in these files."
        )
    if release.noise_placement == "clients":
        draws = [one.noise.draws for one in files.results if one.noise is not None]
        least = min(draws, default=min((one.arrived for one in files.results), default=0))
        return f"every sum has at least {least} noise shares, and at least the charged number."
    return "only the drawn clients sent uploads; the noise was added once."


_OF_SUMS = 1e-5
"""Rounding error of sums of float32 rows, relative to the largest possible norm of the sum."""
_ROUNDS_OF_MEMORY = 10
"""Number of rounds whose rounding errors are allowed to add up in the server's memory; older rounds weigh less."""
_OF_STEPS = 1e-5
"""Rounding error of a step in float32, relative to the norms of model and move."""


def sums_match_rows(files: RunFiles) -> Finding:
    """Check that the sum has every added row once, and that the release is the sum plus its noise.

    For integers and Bernoulli samples, the decoding of the sum is not checked.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: privacy does not depend on sums."
    wrong, unknown, decoded = [], [], True
    for one, probes in _rounds_with_probes(files):
        if probes.added is None and one.arrived:
            unknown.append(one.round)
        elif not _sum_matches_rows(probes, one, _norm_limit_of_sum(files, one)):
            wrong.append(one.round)
        if not _summed_in_floats(files):
            decoded = False
        elif not _release_matches_sum(files, one, probes):
            wrong.append(one.round)
    if wrong:
        found = rounds_text(sorted(set(wrong)))
        return False, f"{found}: the release is not the sum of the added rows plus its noise."
    if unknown:
        return None, f"{rounds_text(unknown)}: the rows are not recorded, since only the clients know them."
    words = "the release is that sum plus its noise" if decoded else "the decoding of sums is not checked"
    return True, f"the sums of {len(files.results)} rounds have every added row once; {words}."


def model_moves_by_releases(files: RunFiles) -> Finding:
    """Check that every round starts from the model of the round before, and that its step follows from the release.

    If the run sends all entries and can be built here, the move must be the release; else the public map between them
    is not checked. The last step must give the model of the checkpoint, and the rounds' models its moving average. For
    adaptive rules, the mean of updates in the checkpoint is checked in place of the steps. For other rules that are not
    linear (the posterior of masks, purging, clipped probabilities) only the start of each round is checked.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: each upload that moves the model is private itself."
    last: Probes | None = None
    velocity, wrong, server = 0.0, [], files.config.server
    whole = value_or(False, lambda: isinstance(files.experiment.method.stages.project.choice, SendAll))
    momentum, rate = (server.momentum, server.learning_rate) if isinstance(server, StepServer) else (0.0, 0.0)
    for one, probes in _rounds_with_probes(files):
        room = _rounding_allowance(files, probes, one, velocity)
        velocity = momentum * velocity + probes.moved / (one.divisor or 1.0)
        stepped = probes.before + rate * velocity
        broken = last is not None and abs(probes.before - last.after) > room
        broken |= whole and abs(probes.moved - probes.released) > _OF_SUMS * _norm_limit_of_sum(files, one)
        if broken or (_has_linear_step(files) and abs(probes.after - stepped) > room * max(1.0, rate)):
            wrong.append(one.round)
        last = probes
    if wrong:
        return False, f"{rounds_text(wrong)}: the move of the model does not follow from the release."
    if last is None:
        return None, "no round has a result."
    reached = probe_of(files.checkpoint.broadcast)
    if abs(reached - last.after) > 1e-9 * max(1.0, abs(reached)):
        return False, "checkpoint.safetensors: its model is not the model after the last round."
    beside = _memory_problem(files)
    if beside is not None:
        return False, f"checkpoint.safetensors: {beside}"
    words = "its step follows from the release"
    if not _has_linear_step(files):
        words = "the server's step is not linear and was not checked"
    if _has_adaptive_rule(files):
        words = "the mean of updates that determines its steps follows from the releases"
    words += "" if whole else "; the map from the release to the model's move was not checked"
    return True, f"each of {len(files.results)} rounds starts from the model of the round before; {words}."


def _memory_problem(files: RunFiles) -> str | None:
    """Return the problem with the server's memory in the checkpoint; None if it agrees with the rounds.

    Compared are the moving average of models, and the mean of updates of adaptive rules.
    """
    server, memory, rounds = files.config.server, files.checkpoint.memory, list(_rounds_with_probes(files))
    beta = server.beta1 if isinstance(server, AdamServer | AdagradServer) else 0.0
    first_moment, average, decay, rounding = 0.0, rounds[0][1].after, server.average or 0.0, 0.0
    for one, probes in rounds:
        first_moment = beta * first_moment + (1 - beta) * probes.moved / (one.divisor or 1.0)
        average = decay * average + (1 - decay) * probes.after
        rounding = max(rounding, _rounding_allowance(files, probes, one, 0.0), _OF_STEPS * abs(probes.after))
    expected = {"average": average} if server.average is not None else {}
    if _has_adaptive_rule(files):
        expected["first"] = first_moment
    for name, value in expected.items():
        if name not in memory:
            return f"has no {name!r}, which config.toml requires."
        if not abs(float(probe_of(memory[name])) - value) <= _ROUNDS_OF_MEMORY * rounding:
            return f"its {name!r} does not follow from the rounds' releases."
    return None


def _has_adaptive_rule(files: RunFiles) -> bool:
    return files.config.server.rule in get_args(Kind)


def _rounds_with_probes(files: RunFiles) -> Iterator[tuple[RoundRecord, Probes]]:
    for one in files.results:
        if one.probes is None:
            raise Unavailable(
                f"diagnostics.jsonl, line {one.round}: has no 'probes'. The run was made by a version that did not "
                "record them."
            )
        yield one, one.probes


def _sum_matches_rows(probes: Probes, one: RoundRecord, longest: float) -> bool:
    added = 0 if probes.added is None else probes.added
    if isinstance(added, float) and added.is_integer() and isinstance(probes.summed, int):
        added = int(added)  # counts of Bernoulli samples are floats in rows, but integers in a secure sum
    if isinstance(added, int) and isinstance(probes.summed, int):
        return (added - probes.summed) % (1 << (64 if probes.bits is None else min(probes.bits, 64))) == 0
    return abs(added - probes.summed) <= _OF_SUMS * longest


def _release_matches_sum(files: RunFiles, one: RoundRecord, probes: Probes) -> bool:
    own = probes.filled
    release = files.releases.get(one.round)
    if release is None:
        raise Unavailable(f"ledger.jsonl: has no release of round {one.round}.")
    if release.noise_placement == "server" and one.noise is not None:
        if one.noise.probe is None:
            raise Unavailable(f"diagnostics.jsonl, line {one.round}: has no probe of the noise.")
        own = one.noise.probe + _cancelled_noise_probe(files, one)
    return abs(probes.released - probes.summed - own) <= _OF_SUMS * _norm_limit_of_sum(files, one)


def _cancelled_noise_probe(files: RunFiles, one: RoundRecord) -> float:
    """Return the probe of the earlier noise that this round's correlated noise cancels, from the earlier probes."""
    schedule = schedule_of(files.releases[one.round].mechanism)
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


def _norm_limit_of_sum(files: RunFiles, one: RoundRecord) -> float:
    """Return a norm that a sum with its noise rarely exceeds, in units of updates."""
    rows = max(one.arrived, 1) * max(files.clip_norm_before(one.round), one.longest_added or 0.0)
    noise = math.sqrt(one.noise.mean_square * one.noise.entries) if one.noise is not None else 0.0
    return rows + noise


def _summed_in_floats(files: RunFiles) -> bool:
    """Return True if sums need no decoding: they are not of integers or Bernoulli samples, and not majority votes."""
    of_coins = BernoulliAggregate, BernoulliChannel
    coins = any(isinstance(unsampled(release.mechanism), of_coins) for release in files.releases.values())
    return not (coins or sums_integers(files.config) or files.config.method.purge == "clients")


def _has_linear_step(files: RunFiles) -> bool:
    chosen = method_specification(files.config.method.name)
    purging = chosen.sends_models and files.config.method.purge != "clients"
    return files.config.server.rule == "step" and not chosen.sends_masks and not purging


def _rounding_allowance(files: RunFiles, probes: Probes, one: RoundRecord, velocity: float) -> float:
    """Return the allowed rounding error of the probe of a step."""
    move = max(abs(probes.moved), _norm_limit_of_sum(files, one)) / (one.divisor or 1.0)
    return _OF_STEPS * (probes.before_norm + move + abs(velocity))
