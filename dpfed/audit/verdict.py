"""Verdict of an audit, of any kind, and the checks and pairs of neighbours that it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.errors import DpfedError

Outcome = Literal["pass", "fail", "inconclusive", "nothing tested"]
"""Vocabulary of verdicts, of every audit."""
Finding = tuple[bool | None, str]
"""(passed, description) of a check; passed is None if the check was impossible or too weak to find a fault."""

FALSE_ALARM = 1e-6
"""Largest probability that one check of a round fails on a correct round."""

_WORST_FIRST: tuple[Outcome, ...] = ("fail", "inconclusive", "nothing tested", "pass")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Outcome of one check. passed: None if the check was impossible, or too weak to find a fault.

    would_find: smallest fault that the check would have found; None for a check that cannot fail
    decides: if True, the verdict is inconclusive whenever `passed` is None; if False, the other checks decide then
    """

    name: str
    passed: bool | None
    detail: str
    would_find: str | None = None
    decides: bool = True

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the check."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail, "would_find": self.would_find}


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """One pair of neighbouring inputs. cells: texts for a table, by heading. fields: the JSON object of the pair.

    found: the pair's own result; its attributes are those of the row, as in 0.3
    """

    cells: Mapping[str, str]
    fields: Mapping[str, object]
    found: object = field(default=None, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(vars(self).get("found"), name)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict of an audit: the one record from which tables, pages and JSON documents are made.

    audited:       name of the audited method, function, run folder or configuration
    text:          reasons of the verdict in one to three sentences
    scope:         inputs that a pass is limited to
    lower_bound:   largest lower bound of epsilon that the audit proves
    pairs:         pairs of neighbouring inputs that were compared
    differences:   values outside the mechanisms that differ between neighbours, with the place where they arise
    skipped_files: files that were not compared
    not_tested:    faults that this audit does not test for
    details:       further keys of the JSON document
    evidence:      findings from which figures are drawn; no part of the JSON document
    """

    audited: str
    verdict: Outcome
    text: str
    scope: str = "on these inputs"
    claimed_epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    unit: str | None = None
    lower_bound: float | None = None
    checks: tuple[Check, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    differences: tuple[Mapping[str, object], ...] = ()
    skipped_files: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    evidence: Any = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the audited subject without its folder; of the current folder its own name, not a dot."""
        return Path(self.audited).name or Path(self.audited).resolve().name or self.audited

    @property
    def verdict_in_full(self) -> str:
        """Verdict for a reader: a pass is followed by its scope, since it proves nothing beyond that scope."""
        return verdict_with_scope(self.verdict, self.scope)

    def __str__(self) -> str:
        return f"{self.verdict_in_full}: {self.text}"

    def as_text(self) -> str:
        """Return the reasons of the verdict."""
        return self.text

    in_words = as_text  # its name up to version 0.3
    __repr__ = __str__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return a value of the details or the evidence, as an attribute of the results of 0.3, until 0.5."""
            found = vars(self)
            if hasattr(found.get("evidence"), name):
                return getattr(found["evidence"], name)
            if name not in found.get("details", ()):
                raise AttributeError(f"Verdict has no attribute {name!r}.")
            return found["details"][name]

    def require_pass(self) -> None:
        """Raise AssertionError with the reasons, unless the verdict is "pass"."""
        if self.verdict != "pass":
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, object]:
        """Return the JSON document of `dpfed audit X --json`; a number that is not finite is null."""
        document = {
            "audited": self.audited,
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "words": self.text,
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "lower_bound": self.lower_bound,
            "checks": [one.to_dict() for one in self.checks],
            "pairs": [one.fields for one in self.pairs],
            "differences": self.differences,
            "skipped_files": self.skipped_files,
            "not_tested": self.not_tested,
            **self.details,
        }
        return {key: _json_value(value) for key, value in document.items()}


def _json_value(value: object) -> object:
    """Return a value of a JSON document, with null in place of a number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def worst_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of several audits together: "fail" before "inconclusive", "nothing tested" and "pass"."""
    return min(outcomes, key=_WORST_FIRST.index, default="nothing tested")


def verdict_with_scope(outcome: str, scope: str = "on these inputs") -> str:
    """Return the verdict for a reader: a pass is followed by its scope, since it proves nothing beyond that scope."""
    return f"{outcome} {scope}" if outcome == "pass" else outcome


def check(name: str, finding: Callable[[], Finding]) -> Check:
    """Return the check whose outcome `finding` computes; if `finding` raises, its detail is the reason."""
    try:
        passed, detail = finding()
    except (DpfedError, AccountingError) as reason:
        return Check(name=name, passed=None, detail=f"could not be made: {reason}")
    return Check(name=name, passed=passed, detail=detail)


def verdict(checks: Sequence[Check]) -> Outcome:
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
    return f"A correct run fails here with probability at most {upwards(alpha, digits=2)}."
