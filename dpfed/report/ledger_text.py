"""Summary of a run's ledger in a few lines: releases, their number, noise and sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger import Aborted, LocalRelease, Purchase, Release
from accounting.mechanisms import noise_of, unsampled
from accounting.rounding import downwards, upwards
from dpfed.report.privacy_text import sampler_name, significant_text

_MOST_LINES = 6


@dataclass(frozen=True, kw_only=True)
class LedgerText:
    """Text of a ledger's content.

    lines: one for each kind of release. head: the hash of the last entry. error: reason if the ledger cannot be read.
    """

    lines: tuple[str, ...] = ()
    entries: int = 0
    head: str = ""
    error: str = ""


def ledger_text(file: Path) -> LedgerText | None:
    """Return the text of the ledger in this file, or None without a file, as for a run that is not private."""
    if not file.exists():
        return None
    try:
        ledger = Ledger.read(file)
    except AccountingError as error:
        return LedgerText(error=str(error))
    lines = tuple(_round_lines([entry for entry in ledger.entries if not isinstance(entry, Purchase)]))
    if len(lines) > _MOST_LINES:
        lines = (*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more kinds of releases")
    return LedgerText(lines=lines, entries=len(ledger.entries), head=ledger.head)


def _round_lines(entries: Sequence[Release | LocalRelease | Aborted]) -> Iterator[str]:
    for words, some in groupby(entries, key=_entry_text):
        rounds = [entry.round + 1 for entry in some]
        where = f"Round {rounds[0]:,}" if len(rounds) == 1 else f"Rounds {rounds[0]:,} to {rounds[-1]:,}"
        if len(rounds) != rounds[-1] - rounds[0] + 1:
            where = f"{len(rounds):,} entries in {where.lower()}"
        yield f"{where}: {words}."


def _entry_text(entry: Release | LocalRelease | Aborted) -> str:
    match entry:
        case Aborted():
            return f"nothing was released ({entry.reason})"
        case LocalRelease():
            return (
                f"local steps of every client, noise of standard deviation {significant_text(entry.noise_std, 4)} on "
                f"the sum over a batch, clip norm {downwards(entry.clip_norm)}"
            )
    noise, record = unsampled(entry.mechanism), entry.mechanism.to_dict()
    drawn = noise_of(noise)
    multiplier = "" if drawn is None else f", multiplier {upwards(drawn.noise_multiplier)}"
    parts = [noise.words + multiplier, f"clip norm {downwards(entry.clip_norm)}"]
    if entry.noise_std:
        parts.append(f"standard deviation {significant_text(entry.noise_std, 4)} on the sum")
    if "dimension" in entry.detail:
        parts.append(f"{entry.detail['dimension']:,} coordinates")
    return ", ".join([*parts, f"neighbours {entry.mechanism.adjacency}", *_sampling_texts(record)])


def _sampling_texts(record: Mapping[str, object]) -> list[str]:
    sampling = record.get("sampling")
    if not isinstance(sampling, Mapping):
        return []
    name = sampler_name(sampling.get("name"))
    others = {key: value for key, value in sampling.items() if key != "name"}
    if set(others) == {"probability"}:
        return [f"{name} sampling with probability {upwards(others['probability'])}"]
    if set(others) == {"cohort", "clients"}:
        return [f"{name} sampling of {others['cohort']:,} out of {others['clients']:,} clients"]
    return [f"{name} sampling" + (f" ({json.dumps(others)})" if others else "")]
