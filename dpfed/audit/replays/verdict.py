"""Verdict of a replay audit and the results of its pairs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.audit.replays.files import MAY_DIFFER
from dpfed.audit.replays.pairs import REPORTING, SAME, Pair
from dpfed.audit.replays.replay_run import Difference, RunFindings
from dpfed.audit.verdict import Check, PairRow, Verdict
from dpfed.audit.verdict import Outcome as VerdictWord
from dpfed.records.replays import configuration_fingerprint

Outcome = Literal["pass", "fail", "nothing tested", "refused"]

SCOPE = "on these pairs and what they exercised"
NOT_SEEN = (
    "the amount and the distribution of noise (tested by `dpfed audit upload`), the distribution of cohorts, the "
    "charge (tested by `dpfed audit run`), code that these rounds and pairs do not reach, processes that your "
    "code starts, time, memory, and whether the release was computed by this code"
)


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Result of one pair.

    outcome: "nothing tested" if no row of the pair's clients was compared; "refused" if the code refused the changed
             data
    findings: differences and counts of the second run
    """

    pair: Pair
    outcome: Outcome
    findings: RunFindings

    @property
    def first_difference(self) -> Difference | None:
        """First difference of the second run from the first run; None if there is none."""
        return self.findings.differences[0] if self.findings.differences else None

    @property
    def words(self) -> str:
        """Description of the result for a reader."""
        if self.first_difference is not None:
            return self.first_difference.as_text
        if self.outcome == "nothing tested":
            return "none of these clients took part in the replayed rounds"
        return self.findings.error

    @property
    def cells(self) -> dict[str, str]:
        """Row of the pair in a table."""
        seen = self.findings
        return {
            "pair": self.pair.words,
            "outcome": self.outcome,
            "values": f"{seen.values:,}",
            "rows": f"{seen.rows:,}",
            "used": "–" if not seen.largest_used_part else f"{seen.largest_used_part:.0%}",
            "seconds": f"{seen.seconds:.1f}",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the pair."""
        first = self.first_difference
        return {
            **self.pair.to_dict(),
            "outcome": self.outcome,
            "words": self.words,
            "value": None if first is None else first.value,
            "round": None if first is None else first.round,
            "made_by": None if first is None else first.made_by,
            "by": None if first is None else _finite_or_none(first.size),
            "allowed": None if first is None else _finite_or_none(first.allowed),
            "values": self.findings.values,
            "rows": self.findings.rows,
            "mechanisms": self.findings.mechanisms,
            "sensitivity_used": self.findings.largest_used_part,
            "seconds": self.findings.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class ReplayAudit:
    """Result of a replay audit: a test, deterministic for given seeds, and no proof.

    verdict: "fail" if any pair fails, "inconclusive" if no pair was tested, else "pass" on these pairs
    reproduce: configuration and pair by which the audit can be repeated
    """

    pairs: tuple[PairResult, ...]
    seed: int
    name: str = ""
    reproduce: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    first_megabytes: int = 0
    """Peak memory of the first run in MiB."""

    @property
    def verdict(self) -> VerdictWord:
        outcomes = {one.outcome for one in self.pairs}
        if "fail" in outcomes:
            return "fail"
        tested = [one for one in self.pairs if one.outcome == "pass" and one.pair.change not in (SAME, REPORTING)]
        return "pass" if tested else "inconclusive"

    @property
    def failed(self) -> PairResult | None:
        """First pair that failed; None if none failed."""
        return next((one for one in self.pairs if one.outcome == "fail"), None)

    def as_text(self) -> str:
        """Return the verdict in one to three sentences: the first difference, or the counts of the comparison."""
        failed = self.failed
        if failed is not None:
            if failed.pair.change == SAME:
                return (
                    f"Two runs on equal data differ: {failed.words}. Until this is repaired, no pair can be compared."
                )
            return f"{failed.pair.words}. {failed.words}."
        counts = Counter(one.outcome for one in self.pairs)
        if self.verdict == "inconclusive":
            return f"Nothing was tested: {_outcome_counts(counts)}. Give pairs whose clients take part, or more rounds."
        rows, marks = (sum(getattr(one.findings, name) for one in self.pairs) for name in ("rows", "mechanisms"))
        values = sum(one.findings.values for one in self.pairs)
        used = max(one.findings.largest_used_part for one in self.pairs)
        return (
            f"{_outcome_counts(counts)}: {values:,} values compared, {rows:,} rows of changed clients or records, "
            f"{marks:,} outputs of mechanisms; inputs of mechanisms moved by at most {used:.0%} of the allowed "
            f"sensitivity. Not tested: {NOT_SEEN}."
        )

    in_words = as_text  # its name up to version 0.3

    def as_verdict(self) -> Verdict:
        """Return the record of this audit."""
        document = self.to_dict()
        replayed = Check(
            name="replay",
            passed={"pass": True, "fail": False}.get(self.verdict),
            detail=f"{len(self.pairs)} pairs of neighbours",
            would_find="a bit outside the mechanisms that depends on a client, or a row beyond its bound",
        )
        return Verdict(
            audited=self.name or "call",
            verdict=self.verdict,
            text=self.as_text(),
            scope=SCOPE,
            checks=(replayed,),
            pairs=tuple(PairRow(cells=one.cells, fields=one.to_dict()) for one in self.pairs),
            skipped_files=tuple(MAY_DIFFER),
            not_tested=(NOT_SEEN,),
            details=document,
        )

    def require_pass(self) -> None:
        """Raise AssertionError with the first difference, unless the verdict is "pass"."""
        if self.verdict != "pass":
            raise AssertionError(self.as_text())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of `dpfed audit replay --json`."""
        return {
            "audit": "replay",
            "name": self.name,
            "verdict": self.verdict,
            "verdict_in_full": f"pass {SCOPE}" if self.verdict == "pass" else self.verdict,
            "words": self.as_text(),
            "pairs_tested": sum(one.outcome == "pass" and bool(one.pair.clients) for one in self.pairs),
            "pairs": [one.to_dict() for one in self.pairs],
            "configuration": configuration_fingerprint(self.reproduce.get("config", {})),
            "may_differ": list(MAY_DIFFER),
            "not_seen": NOT_SEEN,
            "seed": self.seed,
            "seconds": self.seconds,
            "reproduce": self.reproduce,
        }


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _outcome_counts(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{count} pairs {outcome}" for outcome, count in sorted(counts.items()))


def result_of(pair: Pair, seen: RunFindings) -> PairResult:
    """Return the result of a pair from the differences and counts of its second run."""
    outcome: Outcome = "pass"
    if seen.differences:
        outcome = "fail"
    elif seen.refused:
        outcome = "refused"
    elif pair.change not in (SAME, REPORTING) and not (seen.rows if seen.of_dataset else seen.altered_values):
        outcome = "nothing tested"
    return PairResult(pair=pair, outcome=outcome, findings=seen)
