"""Checks of an audit and their joint verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.errors import AccountingError
from dpfed.errors import DpfedError

Verdict = Literal["pass", "fail", "inconclusive"]
Finding = tuple[bool | None, str]
"""Outcome of a check, None if it was impossible or too weak, and its description."""

FALSE_ALARM = 1e-6
"""Largest probability with which a check of an upload's audit fails on a correct round."""


def in_full(outcome: str, scope: str = "on these inputs") -> str:
    """Return the verdict for a reader: a pass names its scope, as it is no proof beyond that scope."""
    return f"{outcome} {scope}" if outcome == "pass" else outcome


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check for a reader. passed: None if it was impossible, or too weak to find a fault.

    decides: the verdict is inconclusive if this check is; if False, the verdict then rests on the other checks
    """

    name: str
    passed: bool | None
    detail: str
    decides: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the check."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail}


def check(name: str, finding: Callable[[], Finding]) -> Check:
    """Return the outcome of `finding`, or the reason why there is none."""
    try:
        passed, detail = finding()
    except (DpfedError, AccountingError) as reason:
        return Check(name=name, passed=None, detail=f"could not be made: {reason}")
    return Check(name=name, passed=passed, detail=detail)


def verdict(checks: Sequence[Check]) -> Verdict:
    """Return fail if a check failed, inconclusive if a deciding one was impossible (or there is none), else pass."""
    if any(one.passed is False for one in checks):
        return "fail"
    deciding = [one for one in checks if one.decides]
    return "pass" if deciding and all(one.passed for one in deciding) else "inconclusive"


def failed_first(checks: Sequence[Check]) -> list[Check]:
    """Return the checks in the order of a reader: those that failed, those without an outcome, those that passed."""
    return sorted(checks, key=lambda one: (one.passed is not False, one.passed is True))


def failed_in_words(checks: Sequence[Check]) -> str:
    """Return the names of the checks that failed, for a headline; empty if none did."""
    failed = [one.name for one in checks if one.passed is False]
    more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
    return f"{'; '.join(failed[:2])}{more}"


def rounds_text(rounds: Sequence[int], most: int = 5) -> str:
    """Return numbers of rounds as text: "round 3"; "rounds 3, 5 and 7 others"."""
    shown = ", ".join(str(one) for one in rounds[:most])
    more = f" and {len(rounds) - most} others" if len(rounds) > most else ""
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{more}"


def chance_text(alpha: float) -> str:
    """Return the false-alarm probability of a failed statistical check, for its detail."""
    return f"A correct run fails here with probability at most {alpha:.2%}."
