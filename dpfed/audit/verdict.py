"""Checks of an audit and their joint verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.errors import AccountingError
from dpfed.errors import DpfedError

Verdict = Literal["pass", "fail", "inconclusive"]
Finding = tuple[bool | None, str]
"""(passed, description) of a check; passed is None if the check was impossible or too weak to find a fault."""

FALSE_ALARM = 1e-6
"""Largest probability that one check of an upload audit fails on a correct round."""


def verdict_with_scope(outcome: str, scope: str = "on these inputs") -> str:
    """Return the verdict for a reader: a pass is followed by its scope, since it proves nothing beyond that scope."""
    return f"{outcome} {scope}" if outcome == "pass" else outcome


@dataclass(frozen=True, kw_only=True)
class Check:
    """Outcome of one check. passed: None if the check was impossible, or too weak to find a fault.

    decides: if True, the verdict is inconclusive whenever `passed` is None; if False, the other checks decide then
    """

    name: str
    passed: bool | None
    detail: str
    decides: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the check."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail}


def check(name: str, finding: Callable[[], Finding]) -> Check:
    """Return the check whose outcome `finding` computes; if `finding` raises, its detail is the reason."""
    try:
        passed, detail = finding()
    except (DpfedError, AccountingError) as reason:
        return Check(name=name, passed=None, detail=f"could not be made: {reason}")
    return Check(name=name, passed=passed, detail=detail)


def verdict(checks: Sequence[Check]) -> Verdict:
    """Return "fail" if a check failed, "pass" if there are deciding checks and all passed, else "inconclusive"."""
    if any(one.passed is False for one in checks):
        return "fail"
    deciding = [one for one in checks if one.decides]
    return "pass" if deciding and all(one.passed for one in deciding) else "inconclusive"


def failed_checks_first(checks: Sequence[Check]) -> list[Check]:
    """Return the checks sorted for a reader: first failed checks, then checks without an outcome, then
    passed checks.
    """
    return sorted(checks, key=lambda one: (one.passed is not False, one.passed is True))


def names_of_failed_checks(checks: Sequence[Check]) -> str:
    """Return the names of failed checks for a headline: at most two and the number of others; empty if none failed."""
    failed = [one.name for one in checks if one.passed is False]
    more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
    return f"{'; '.join(failed[:2])}{more}"


def rounds_text(rounds: Sequence[int], most: int = 5) -> str:
    """Return numbers of rounds as text, such as "round 3" or "rounds 1, 2, 3, 4, 5 and 7 others"."""
    shown = ", ".join(str(one) for one in rounds[:most])
    more = f" and {len(rounds) - most} others" if len(rounds) > most else ""
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{more}"


def false_alarm_text(alpha: float) -> str:
    """Return a sentence with the false-alarm probability of a statistical check, for the detail of a failed one."""
    return f"A correct run fails here with probability at most {alpha:.2%}."
