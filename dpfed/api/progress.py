"""Progress of a run on standard error: a bar on a terminal or in a notebook."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from accounting.rounding import downwards, upwards
from dpfed.records.reading import Unavailable, json_object, validated_record
from dpfed.records.round import RoundRecord
from dpfed.runs.public_code import OnRound

_COLUMNS = (
    TextColumn("round"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[said]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
_NOTABLE_RATIO = 10.0
_TAIL_BYTES = 1 << 16
_SHOWN_KEYS = ("test_accuracy", "test_loss", "epsilon")


def is_interactive(console: Console) -> bool:
    """Return True on a terminal or in a notebook, where a progress bar can be redrawn."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def progress_display(
    rounds: int,
    console: Console,
    *,
    otherwise: Callable[[str], None],
    budget: float | None = None,
    folder: Path | None = None,
) -> Iterator[OnRound]:
    """Yield a function that shows progress; call it with each line of metrics.jsonl.

    Without a terminal or a notebook, a line of text is passed to `otherwise` after every tenth of the rounds.
    `budget`: the epsilon that may be spent. `folder`: the run folder; if the clip norm is far from the norm of updates,
    the operator's terminal shows one hint."""
    watched, said = is_interactive(console), dict[str, float]()
    tenths, hinted = 0, False
    with Progress(*_COLUMNS, console=console, disable=not watched) as progress:
        task = progress.add_task("", total=rounds, said="")

        def on_round(record: Mapping[str, Any]) -> None:
            nonlocal tenths, hinted
            said.update({k: v for k, v in record.items() if k in _SHOWN_KEYS and v is not None})
            words = _progress_line(said, budget)
            progress.update(task, completed=record["round"], said=words)
            before, tenths = tenths, math.floor(10 * record["round"] / rounds)
            if not watched and tenths > before:
                otherwise(f"round {record['round']}/{rounds}  {words}")
            if watched and not hinted and folder is not None and (hint := clipping_hint(folder)) is not None:
                hinted = True
                console.print(f"operator: {hint}")

        yield on_round


@contextmanager
def chosen_progress(
    wish: bool | OnRound | None, rounds: int, *, budget: float | None = None, folder: Path | None = None
) -> Iterator[OnRound]:
    """Yield the function called with each line of metrics.jsonl, by the argument `progress` of `dpfed.run`.

    True draws a bar on standard error, False draws none. None draws a bar on a terminal or in a notebook only. A
    function draws none: it is a viewer of the run (`dpfed.api.track.viewers_of_run`).
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if wish is False or callable(wish) or (wish is None and not is_interactive(console)):
        yield lambda record: None
        return
    with progress_display(rounds, console, otherwise=console.print, budget=budget, folder=folder) as on_round:
        yield on_round


def _progress_line(said: Mapping[str, float], budget: float | None) -> str:
    words = []
    if "test_accuracy" in said:
        words.append(f"accuracy {said['test_accuracy']:.1%}")
    elif "test_loss" in said:
        words.append(f"test loss {said['test_loss']:.4g}")
    if "epsilon" in said:
        allowed = "" if budget is None else f" of {downwards(budget)}"
        words.append(f"epsilon so far {upwards(said['epsilon'])}{allowed}")
    return "  ".join(words)


def clipping_hint(folder: Path) -> str | None:
    """Return a hint if the median update norm of the last round is at least 10 clip norms or at most 0.1, else None.

    The hint is computed from diagnostics.jsonl, which no epsilon covers: print it on a terminal, never log or track it.
    """
    last = _last_record(folder / "diagnostics.jsonl")
    if last is None or last.typical_norm is None or not last.counted:
        return None
    typical, share = last.typical_norm, f"{last.clipped or 0} of {last.counted} updates are clipped"
    if typical >= _NOTABLE_RATIO:
        return f"{share}; a typical one is {typical:.3g} clip norms long (`dpfed diagnose {folder}`)"
    if typical <= 1 / _NOTABLE_RATIO:
        return f"{share}; a typical one is {typical:.2g} of the clip norm (`dpfed diagnose {folder}`)"
    return None


def _last_record(file: Path) -> RoundRecord | None:
    """Return the record in the last line, or None if it cannot be read: a missing hint must not stop the run."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            last = stream.read().rstrip(b"\n").rpartition(b"\n")[2].decode()
        return validated_record(RoundRecord, json_object(last, file.name), file.name)
    except (OSError, ValueError, Unavailable):
        return None
