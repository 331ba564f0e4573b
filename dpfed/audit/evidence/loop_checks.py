"""Does the ledger of a training loop of one's own say what its plan promises, and its diagnostics what was charged?"""

from __future__ import annotations

import math

from accounting.ledger import Aborted, Release
from accounting.rounding import downwards, upwards
from dpfed.audit.evidence.conformance import more_noise, plan_problem, same
from dpfed.audit.evidence.loop_files import LoopFiles
from dpfed.audit.verdict import rounds_in_words

Finding = tuple[bool | None, str]

_SAME = 1e-9


def epsilon_keeps_to_the_plan(files: LoopFiles) -> Finding:
    """What was released costs no more than the plan allows, at the plan's delta."""
    assert files.config.privacy is not None
    found, allowed = files.spent, files.config.privacy.epsilon
    planned = float(files.config.privacy.delta or 0)
    if not math.isclose(found.delta, planned, rel_tol=_SAME):
        return False, f"the header states delta {upwards(found.delta)}, the plan's is {upwards(planned)}."
    words = f"the ledger gives {upwards(found.epsilon, digits=6)} at delta {upwards(found.delta)}"
    if allowed is None:
        return True, f"{words}; the plan sets no limit."
    return found.epsilon <= allowed * (1 + _SAME), f"{words}; the plan allows {downwards(allowed)}."


def rounds_are_charged_once(files: LoopFiles) -> Finding:
    """Every round stands in the ledger once, and whatever the diagnostics know of was charged."""
    entries, planned, table = files.entries, files.config.federation.rounds, files.config.privacy
    prolonged = table is not None and table.epsilon is not None and table.noise_multiplier is not None
    last = max(entries, default=0)
    problems = {
        "stands in the ledger more than once": [number for number, some in entries.items() if len(some) > 1],
        "is not in the ledger, later ones are": [number for number in range(1, last + 1) if number not in entries],
        "is beyond the rounds that were planned": [number for number in entries if number > planned and not prolonged],
    }
    skipped = [number for number, some in entries.items() if isinstance(some[0], Aborted)]
    known: set[int] = set()
    if (files.path / files.diagnostics_name).exists():
        known = {one.round for one in files.rounds}
        problems["was released without a charge"] = sorted(known - entries.keys())
        problems["was released and is said to have been skipped"] = sorted(known & set(skipped))
    found = [f"{rounds_in_words(rounds)} {problem}" for problem, rounds in problems.items() if rounds]
    if found:
        return False, "; ".join(found) + "."
    lost = len(entries) - len(skipped) - len(known) if known else 0
    words = f"{len(entries)} rounds, each with one line; {len(skipped)} of them were skipped and released nothing"
    return True, words + (f"; of {lost} charged ones there is no diagnosis: they were interrupted." if lost else ".")


def ledger_follows_the_plan(files: LoopFiles) -> Finding:
    """Each line is the one that the plan's own goal gives. Of a chain of one's own the plan says nothing: None."""
    header, config = files.trusted_ledger.header, files.config
    if (header.unit, header.clients, header.randomness) != ("client", config.federation.clients, config.run.randomness):
        return False, (
            f"the header is of {header.clients} clients, unit {header.unit!r}, randomness {header.randomness!r}; its "
            f"plan says {config.federation.clients}, 'client', {config.run.randomness!r}."
        )
    if problem := plan_problem(files, "its plan", kinds=not files.own_stages):
        return False, problem
    wrong = {
        number: words for number, line in files.released.items() if (words := _difference(files, line)) is not None
    }
    if wrong and files.own_stages:
        return (
            None,
            f"the chain is one's own: lines differ from the plan's ({wrong[min(wrong)]}), and count as they are.",
        )
    if wrong:
        return False, f"{rounds_in_words(sorted(wrong))}: {wrong[min(wrong)]}."
    return True, (
        "mechanism, sampler, adjacency, clip norm, noise and denominator of every line are those of the plan"
        f"{more_noise(files)}."
    )


def _difference(files: LoopFiles, line: Release) -> str | None:
    assert files.config.privacy is not None
    assert files.config.privacy.clip_norm is not None
    norm = files.config.privacy.clip_norm
    expected = files.promise.release(clip_norm=norm, number=line.round, uploads=0).to_dict()
    found = line.to_dict()
    different = [key for key in expected.keys() | found.keys() if not same(expected.get(key), found.get(key))]
    if not different:
        return None
    key = sorted(different)[0]
    return f"the ledger has {key} = {found.get(key)}, the plan gives {expected.get(key)}"
