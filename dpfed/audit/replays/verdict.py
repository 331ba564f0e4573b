"""Verdict of a replay audit and the results of its pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfed.audit.replays.findings import MAY_DIFFER, Difference, RunFindings
from dpfed.audit.replays.pairs import NOT_FINITE, REMOVED, REPORTING, SAME, SIZES, Pair
from dpfed.audit.verdict import Check, PairRow, Verdict
from dpfed.audit.verdict import Outcome as VerdictWord
from dpfed.records.round import configuration_fingerprint

Outcome = Literal["pass", "fail", "nothing tested", "refused", "could not tell", "not finite"]

SCOPE = "on these pairs and what they exercised"
NOT_SEEN = (
    "the amount and distribution of noise and cohorts (`dpfed audit METHOD` and mechanism(std=) test those of sums; no "
    "audit tests the noise and batches of [local.record]), the charge, code that these rounds and pairs do not reach, "
    "processes that your code starts, time, memory, and whether the release was computed by this code"
)
_BY_PLACE = (
    "the numbers of random draws differ between the two runs, so that the difference may come from them. Draw "
    "participants with data.coins(clients, rate)"
)
_NOT_FINITE = (
    "NaN or huge values of one client or record reach the noisy output, which shows that they exist. Set rows that are "
    "not finite to zero before the sum"
)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Limits of the pairs of an audit, known from its first run.

    no_removal: reason why no client or record was removed, other than the chosen pairs; "" if there is none
    single_records: True if the entries of the data have no samples whose number could be changed
    limited: True if the caller has chosen the pairs
    number_is_public: True if the caller has declared the number of clients or records public
    claims_removal: True if the audited ledger is about neighbours with one client or record added or removed
    """

    no_removal: str = ""
    single_records: bool = False
    limited: bool = False
    number_is_public: bool = False
    claims_removal: bool = False

    @classmethod
    def of(cls, first: RunFindings, *, number_is_public: bool, limited: bool) -> Scope:
        """Return the scope of an audit by its first run."""
        unit = "records" if first.units_are_records or first.of_records else "clients"
        reason = first.fixed_size
        if first.declared_replacement:
            reason = "the declared sensitivity is for a replaced client"
        if number_is_public:
            reason = f"the number of {unit} is declared public"
        in_rounds = bool(first.present) or bool(first.of_records)
        return cls(
            no_removal=reason,
            single_records=not (first.has_sizes or first.of_dataset) or bool(first.of_records),
            limited=limited,
            number_is_public=number_is_public,
            claims_removal=in_rounds and first.removal_is_neighbour,
        )

    def not_varied(self, pairs: Sequence[PairResult]) -> str:
        """Return sentences about removal and sizes that no pair has tested; "" if both were tested."""
        return "".join(
            f"{what}: {self._reason([one for one in pairs if one.pair.change in changes], reason)}. "
            for what, changes, reason in (
                ("removal not tested", (REMOVED,), self.no_removal),
                ("sizes not varied", tuple(SIZES), "the entries are single records" if self.single_records else ""),
            )
            if not any(one.pair.change in changes and one.outcome in _TESTED for one in pairs)
        )

    def _reason(self, tried: Sequence[PairResult], reason: str) -> str:
        if tried:
            return f"{tried[0].outcome} ({tried[0].words.rstrip('.')})"
        return reason or ("not among the given pairs" if self.limited else "no pair could be made")


_TESTED = ("pass", "fail", "could not tell")


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Result of one pair.

    outcome: "nothing tested" if no row of the pair's clients was compared; "refused" if the code refused the changed
             data; "could not tell" if a difference may come from random draws; "not finite" if NaN or huge values
             reach a noisy output of code that is not dpfed's
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
        if self.outcome == "refused":
            return self.findings.error
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
            "by": None if first is None else first.size,
            "allowed": None if first is None else first.allowed,
            "values": self.findings.values,
            "rows": self.findings.rows,
            "mechanisms": self.findings.mechanisms,
            "sensitivity_used": self.findings.largest_used_part,
            "draws": "by place" if self.findings.uncoupled else "coupled",
            "seconds": self.findings.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class ReplayFindings:
    """Results of the pairs of a replay audit: a test, deterministic for given seeds, and no proof.

    verdict: "fail" if any pair fails; "inconclusive" if no pair was tested, if a difference may come from random draws,
             or if the number of clients was declared public and the ledger's neighbours differ in it; else "pass" on
             these pairs
    reproduce: configuration and pair by which the audit can be repeated
    skipped_files: files that were not compared: the operator's files in run folders of dpfed
    """

    pairs: tuple[PairResult, ...]
    seed: int
    name: str = ""
    reproduce: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    scope: Scope = field(default_factory=Scope)
    skipped_files: tuple[str, ...] = ()
    first_megabytes: int = 0
    """Peak memory of the first run in MiB."""

    @property
    def verdict(self) -> VerdictWord:
        outcomes = {one.outcome for one in self.pairs}
        if "fail" in outcomes:
            return "fail"
        tested = [one for one in self.pairs if one.outcome == "pass" and one.pair.change not in (SAME, REPORTING)]
        unclear = "could not tell" in outcomes or (self.scope.number_is_public and self.scope.claims_removal)
        return "pass" if tested and not unclear else "inconclusive"

    @property
    def verdict_in_full(self) -> str:
        """Verdict with its scope: the pairs, or the neighbours that were tested if a number is public."""
        if self.verdict != "pass":
            return self.verdict
        return f"pass for {self._neighbours}" if self.scope.number_is_public else f"pass {SCOPE}"

    @property
    def _neighbours(self) -> str:
        """Neighbours that the pairs have tested, if the number of clients is public."""
        if any(one.findings.declared_replacement for one in self.pairs):
            return "replace-one"
        zeroed = [one for one in self.pairs if one.pair.change == "zeroed" and one.outcome == "pass"]
        if zeroed and all(one.findings.largest_moved_bounds <= 1 for one in zeroed):
            return "zero-out"
        return "replaced clients that move the sum by twice the declared sensitivity"

    @property
    def failed(self) -> PairResult | None:
        """First pair that failed; None if none failed."""
        return next((one for one in self.pairs if one.outcome == "fail"), None)

    def as_text(self) -> str:
        """Return the verdict: what was not varied, then the first difference, or the counts of the comparison."""
        failed = self.failed
        if failed is not None:
            return self._failure(failed)
        before = self.scope.not_varied(self.pairs)
        if self.scope.number_is_public:
            before = f"{self.verdict_in_full}. {before}"
            if self.scope.claims_removal:
                before += "The ledger is about one client or record added or removed, which was not tested. "
        counts = Counter(one.outcome for one in self.pairs)
        for one in self.pairs:
            if one.outcome == "could not tell":
                before += f"could not tell: {one.pair.words}: {one.words}; {_BY_PLACE}. "
        if self.verdict == "inconclusive" and not {"pass", "could not tell"} & set(counts):
            counted = _outcome_counts(counts)
            return f"{before}Nothing was tested: {counted}. Give pairs whose clients take part, or more rounds."
        rows, marks = (sum(getattr(one.findings, name) for one in self.pairs) for name in ("rows", "mechanisms"))
        values = sum(one.findings.values for one in self.pairs)
        used = max(one.findings.largest_used_part for one in self.pairs)
        skipped = f" Not compared: {', '.join(self.skipped_files)}." if self.skipped_files else ""
        not_finite = [one for one in self.pairs if one.outcome == "not finite"]
        last = f" {not_finite[0].pair.words}: {not_finite[0].words}: {_NOT_FINITE}." if not_finite else ""
        return (
            f"{before}{_outcome_counts(counts)}: {values:,} values compared, {rows:,} rows of changed clients or "
            f"records, {marks:,} outputs of mechanisms; inputs of mechanisms moved by at most {used:.0%} of the "
            f"allowed sensitivity.{skipped} Not tested: {NOT_SEEN}.{last}"
        )

    def _failure(self, failed: PairResult) -> str:
        first = failed.first_difference
        step = f" {first.next_step}" if first is not None and first.next_step else ""
        if failed.pair.change != SAME:
            return f"{failed.pair.words}. {failed.words}.{step}"
        if first is not None and not first.needs_two_runs:
            return f"{failed.words}.{step}"
        return f"Two runs on equal data differ: {failed.words}. Until this is repaired, no pair can be compared.{step}"

    def as_verdict(self) -> Verdict:
        """Return the verdict, with these findings as its evidence."""
        replayed = Check(
            name="replay",
            passed={"pass": True, "fail": False}.get(self.verdict),
            detail=f"{len(self.pairs)} pairs of neighbours",
            would_find="a bit outside the mechanisms that depends on a client, or a row beyond its bound",
        )
        details = {
            "audit": "replay",
            "name": self.name,
            "pairs_tested": sum(one.outcome == "pass" and bool(one.pair.clients) for one in self.pairs),
            "configuration": configuration_fingerprint(self.reproduce.get("config", {})),
            "may_differ": MAY_DIFFER,
            "not_seen": NOT_SEEN,
            "seed": self.seed,
            "seconds": self.seconds,
            "reproduce": self.reproduce,
        }
        return Verdict(
            audited=self.name or "call",
            verdict=self.verdict,
            text=self.as_text(),
            scope=self.verdict_in_full.removeprefix("pass "),
            checks=(replayed,),
            pairs=tuple(PairRow(cells=one.cells, fields=one.to_dict(), found=one) for one in self.pairs),
            differences=tuple(one.first_difference.to_dict() for one in self.pairs if one.first_difference),
            skipped_files=self.skipped_files,
            not_tested=(NOT_SEEN,),
            details=details,
            evidence=self,
        )


def _outcome_counts(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{count} pairs {outcome}" for outcome, count in sorted(counts.items()))


def result_of(pair: Pair, seen: RunFindings) -> PairResult:
    """Return the result of a pair from the differences and counts of its second run."""
    outcome: Outcome = "pass"
    custom = not seen.of_dataset and not seen.rounds
    if seen.differences and custom and pair.change in NOT_FINITE and not seen.differences[0].is_finite:
        outcome = "not finite"
    elif seen.differences and not seen.certain:
        outcome = "could not tell"
    elif seen.differences and custom and pair.change == "zeroed" and not seen.differences[0].is_finite:
        outcome, seen.error = "refused", f"a client without samples gives {seen.differences[0].as_text}"
    elif seen.differences:
        outcome = "fail"
    elif seen.refused:
        outcome = "refused"
    elif pair.change not in (SAME, REPORTING) and not (seen.rows if seen.of_dataset else seen.altered_values):
        outcome = "nothing tested"
    return PairResult(pair=pair, outcome=outcome, findings=seen)
