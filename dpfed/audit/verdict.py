"""Checks of an audit and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from accounting.errors import AccountingError
from dpfed.errors import DpfedError

Verdict = Literal["pass", "fail", "inconclusive"]
Finding = tuple[bool | None, str]
"""Outcome of a check, None where it could not be made or shows too little, and its description."""

FALSE_ALARM = 1e-6
"""The probability with which a check of an upload's audit fails on a correct round, at most."""


def in_full(outcome: str, scope: str = "on these inputs") -> str:
    """Return the verdict as a person reads it: a pass names its scope, as it is no proof beyond that scope."""
    return f"{outcome} {scope}" if outcome == "pass" else outcome


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check in words for a reader. `passed`: None where it could not be made, or could not have shown enough.

    decides: the verdict is inconclusive where this check is. Without it, the verdict then rests on the other checks
    """

    name: str
    passed: bool | None
    detail: str
    decides: bool = True

    def to_dict(self) -> dict[str, Any]:
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
    """Return fail if one failed, inconclusive if one that decides could not be made (or there is none), else pass."""
    if any(one.passed is False for one in checks):
        return "fail"
    deciding = [one for one in checks if one.decides]
    return "pass" if deciding and all(one.passed for one in deciding) else "inconclusive"


def rounds_in_words(rounds: Sequence[int], most: int = 5) -> str:
    """Return round 3; rounds 3, 5 and 7 others."""
    shown = ", ".join(str(one) for one in rounds[:most])
    more = f" and {len(rounds) - most} others" if len(rounds) > most else ""
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{more}"


def chance_in_words(alpha: float) -> str:
    """Return the false-alarm probability of a failed statistical check, for its detail."""
    return f"A correct run fails here with probability at most {alpha:.2%}."
