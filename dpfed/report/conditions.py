"""Conditions of a stated epsilon in few characters, and the sentence for rows whose conditions differ."""

from __future__ import annotations

from collections.abc import Sequence

from accounting.rounding import upwards
from dpfed.records.summary import Summary

NO_GUARANTEE = "no guarantee"


def conditions_of(summary: Summary) -> dict[str, str]:
    """Return the conditions of the run's epsilon by their names; empty for a run without a guarantee."""
    if summary.epsilon is None or summary.delta is None:
        return {}
    return {
        "unit": summary.unit,
        "neighbours": summary.adjacency or "–",
        "delta": upwards(summary.delta),
        "sampler": "all uploads visible" if summary.noise_placement == "uploads" else summary.sampling,
        "public samples": f"{summary.public_samples:,}" if summary.public_samples else "none",
    }


def conditions_text(summary: Summary) -> str:
    """Return the conditions as one text, such as "client, add-remove, delta 1e-4, poisson, 137 public"."""
    found = conditions_of(summary)
    if not found:
        return NO_GUARANTEE
    words = [found["unit"], found["neighbours"], f"delta {found['delta']}", found["sampler"]]
    return ", ".join(words + ([f"{found['public samples']} public"] if summary.public_samples else []))


def differing_conditions(rows: Sequence[tuple[str, Summary]]) -> str | None:
    """Return a sentence that names the conditions in which private rows differ, with the rows; None if none differ."""
    private = [(row, conditions_of(summary)) for row, summary in rows if summary.epsilon is not None]
    parts = []
    for name in private[0][1] if private else ():
        by_value: dict[str, dict[str, None]] = {}
        for row, found in private:
            by_value.setdefault(found[name], {})[row] = None
        if len(by_value) > 1:
            shown = (f"{value} ({', '.join(map(_quoted, some))})" for value, some in by_value.items())
            parts.append(f"{name}: {', '.join(shown)}")
    if not parts:
        return None
    return f"Epsilons of these rows are different guarantees. They differ in {'; '.join(parts)}."


def _quoted(row: str) -> str:
    return f'"{row}"'
