"""Are a simulated run's cohorts those that its seed gives, and a secure run's not?"""

from __future__ import annotations

import itertools
import math

import numpy as np

from accounting.mechanisms import FullParticipation, Schedule
from dpfed import __version__
from dpfed.audit.evidence.cohort_members import cohorts_of, log_choose
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import rounds_in_words
from dpfed.participation.of_run import sampler_of
from dpfed.participation.sampling import draw_cohort
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

Finding = tuple[bool | None, str]

_BY_CHANCE = 1e-9
_COINS = 1 << 31
"""So many clients in all rounds together are drawn again at most."""


def cohorts_and_the_seed(files: RunFiles) -> Finding:
    """Claim checked: with run.randomness = "simulated" every cohort is the one that run.seed gives; with "secure" none
    is that chance would not give (one of that size in 1e9 runs). Which streams a seed means may change with the
    package's version: a run of another one is not judged."""
    who = sampler_of(files.config)
    if isinstance(who.law, FullParticipation) or who.law.probability >= 1:
        return True, "all clients are in every round, whatever the seed."
    if isinstance(who.law, Schedule) and not who.law.secret:
        return True, "the order is public, whatever the seed."
    made_by = str(files.trusted_ledger.header.about.get("package", "")).removeprefix("dpfed ")
    if made_by != __version__:
        return (
            None,
            f"the run was made by version {made_by or 'unknown'}, this is {__version__}; seeds may mean others.",
        )
    of_seed = Simulated(seeds=Seeds(root=files.config.run.seed))
    slots = files.promise.slots if files.config.privacy is not None and files.released else None
    same: dict[int, int] = {}
    other: list[int] = []
    looked_at = _COINS // who.clients
    if not looked_at:
        return None, f"{who.clients} clients are too many to draw again."
    for one, ids in itertools.islice(cohorts_of(files), looked_at):
        drawn = draw_cohort(who, of_seed, slots, one.round - 1)
        if np.array_equal(np.sort(drawn), ids):
            same[one.round] = one.cohort
        else:
            other.append(one.round)
    if files.config.run.randomness == "simulated":
        if other:
            return False, f"{rounds_in_words(other)}: is not the cohort that run.seed={files.config.run.seed} gives."
        return True, f"the cohorts of {len(same)} rounds are those that run.seed={files.config.run.seed} gives."
    rare = math.log(len(files.rounds) or 1) - math.log(_BY_CHANCE)
    telling = [number for number, size in same.items() if log_choose(who.clients, size) > rare]
    if telling:
        return False, f"{rounds_in_words(telling)}: the cohort is the one of run.seed, in a run that is to be secure."
    return True, "no cohort is the one that run.seed gives: they came from elsewhere."
