"""What whole rounds leave behind: a state that follows from the released sum, lines of the ledger that tell nothing."""

from __future__ import annotations

from collections.abc import Sequence

from dpfed.audit.round.two_worlds import Trials
from dpfed.audit.verdict import Check


def state_check(trials: Sequence[Trials]) -> Check:
    """Every new state is what the server's rule makes of the released mean and the next clip norm: post-processing."""
    whole = all(one.replays for one in trials)
    return Check(
        name="state",
        passed=whole,
        detail="every new state follows from the released sum"
        if whole
        else "a new state is not what the server's rule makes of the released sum: something else went into it",
    )


def ledger_check(trials: Sequence[Trials]) -> Check:
    """The same lines in every round, whichever world it was in, one release among them: what is charged and written
    does not depend on data."""
    lines: set[tuple[str, ...]] = set().union(*(one.entries for one in trials))
    return Check(
        name="ledger",
        passed=len(lines) == 1 and all(len(one) == 1 for one in lines),
        detail="every round wrote the same one release"
        if len(lines) == 1
        else f"{len(lines)} different things were written by rounds that differ in what clients sent",
    )
