"""Runs whose clients send given updates: the first two layers of the golden net, exact on every processor.

The updates and the start lie on a grid of 2^-10, with norms that are powers of two, so that sums are exact in any
order. Most clients are within every clip norm; every fifth is outside, on eight coordinates where no other client has
an entry, so that its scaled entries are added to nothing but zeros.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from golden.answers import item
from golden.settings import ALL_INSIDE, LOOPS, SETTINGS, SMALL
from golden.streams import Streams, recorded_streams

import dpfed
from dpfed.audit.run import audit_run
from dpfed.config.tables import Config, parse, set_key
from dpfed.errors import RunInterrupted
from dpfed.methods.catalogue import preset_tables
from dpfed.runs import loop
from dpfed.runs.experiment import Experiment, build
from dpfed.stages.stage import Tally, Wire

CLIENTS = 60
GRID = 2.0**-10
OUTSIDE = 5
"""Every fifth client is outside of any clip norm."""
ENTRIES = np.array(
    [
        *(2, 4, 5, 7, 8, 9, 11, 13, 19, 20, 22, 23, 27, 29, 31, 33, 34, 35, 36, 37, 38, 39, 42, 43, 47, 48, 49, 50),
        *(51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 63),
    ]
)
"""Magnitudes of a client inside, in units of the grid: distinct, with norm 2^8 and a sum that is divisible by 5."""
LARGE_ENTRIES = np.array([4, 5, 10, 11, 22, 25, 31, 42])
"""Magnitudes of a client outside, in units of 1/8: distinct, with norm 2^6 and a sum that is divisible by 5."""
DELTA, DELTA_OF_RECORDS = 60**-1.1, 480**-1.1


def configuration(name: str, more: dict[str, Any] | None = None) -> Config:
    """Return the configuration of a setting."""
    preset, settings = SETTINGS[name]
    plain = preset_tables(preset)
    for key, value in (SMALL | settings | (more or {})).items():
        set_key(plain, key, value, given=key, form="table.key=value")
    if "privacy" in plain:
        plain["privacy"].setdefault("delta", DELTA)
    if "record" in plain["local"]:
        plain["local"]["record"].setdefault("delta", DELTA_OF_RECORDS)
    return parse(plain, source=name)


def update(client: int, number: int, size: int, *, outside: bool = True) -> np.ndarray:
    """Return the update of a client in a round, float32 [size]. outside: False if every client is inside."""
    drawn = np.random.Generator(np.random.Philox(key=[client, number]))
    signs = 1.0 - 2.0 * drawn.integers(0, 2, len(ENTRIES))
    width = len(LARGE_ENTRIES)
    reserved = width * (CLIENTS // OUTSIDE)
    row = np.zeros(size, dtype=np.float32)
    if outside and client % OUTSIDE == 0:
        first = width * (client // OUTSIDE)
        row[first : first + width] = signs[:width] * LARGE_ENTRIES / 8
    else:
        places = reserved + drawn.choice(size - reserved, len(ENTRIES), replace=False)
        row[places] = signs * ENTRIES * GRID
    return row


class GivenUpdates:
    """Local training that is replaced by given updates; all else is the experiment's."""

    def __init__(self, clients: Any, outside: bool) -> None:
        self._clients, self._outside = clients, outside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def train(self, broadcast: torch.Tensor, clients: Any, *, number: int, **more: Any) -> torch.Tensor:
        size, outside = len(broadcast), self._outside
        return torch.from_numpy(np.stack([update(int(one), number, size, outside=outside) for one in clients]))


def with_given_updates(experiment: Experiment, outside: bool = True) -> Experiment:
    """Return the experiment with given updates, from a start on the grid.

    Coordinates that are chosen by training on public samples are recomputed by audits: such runs keep their start.
    """
    chosen = experiment.specification.name == "fed-smp-topk"
    start = experiment.start.broadcast if chosen else (experiment.start.broadcast / GRID).round() * GRID
    return replace(
        experiment,
        method=replace(experiment.method, clients=GivenUpdates(experiment.method.clients, outside)),
        start=replace(experiment.start, broadcast=start),
    )


class Rounds:
    """Rows, bytes and sums of all rounds, as an observer of stages; rows are kept by client, in no order."""

    def __init__(self, streams: Streams) -> None:
        self.rows: dict[str, dict[tuple[int, ...], Any]] = {}
        self._streams = streams
        self._now: Any = None
        self._results: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe every round of a run."""
        before = loop.run_round

        def run_round(state: Any, method: Any, source: Any, **more: Any) -> Any:
            done = before(state, method, _Seen(source, self), **more, observer=self)
            self._results.append(done)
            return done

        with patch.object(loop, "run_round", run_round):
            yield

    def begin(self, now: Any) -> None:
        self._now = now

    def entering(self, stage: Any, rows: Any, ids: Any) -> None:
        if not isinstance(stage, Wire):
            return
        now = self._now
        copied = replace(now, memory={k: v.clone() for k, v in now.memory.items()}, tally=Tally(), votes=[])
        self._streams.paused = True
        messages = stage.messages(rows.clone(), ids, copied)
        read = stage.read(messages, ids, replace(copied, tally=Tally(), votes=[]))
        self._streams.paused = False
        self._keep("bytes", messages, ids)
        self._keep("read", read, ids)

    def left(self, stage: Any, rows: Any, ids: Any) -> None:
        self._keep(f"client {type(stage).__name__}", rows, ids)

    def summed(self, stage: Any, total: Any) -> None:
        self._keep(f"sum before {type(stage).__name__}", [total], [-1])

    def norms_before_clip(self, norms: Any) -> None:
        pass

    def added(self, rows: Any, ids: Any) -> None:
        pass

    def noise(self, noise: Any, draws: int = 1) -> None:
        self._keep("noise", [noise], [-1])

    def _keep(self, what: str, rows: Any, ids: Any) -> None:
        kept = self.rows.setdefault(what, {})
        for row, client in zip(rows, ids, strict=True):
            kept[(self._now.number, int(client))] = row if isinstance(row, bytes) else row.detach().clone()

    def items(self) -> dict[str, Any]:
        """Return items by their name, without those that are equal to an earlier one (stages that pass rows on)."""
        found = {what: item(kept[place] for place in sorted(kept)) for what, kept in self.rows.items()}
        means = [done.mean for done in self._results if done.mean is not None]
        if means:
            found["mean"] = item(means)
        states = [done.state for done in self._results]
        found["model"] = item(state.broadcast for state in states)
        found["memory"] = item(
            kept[name] for state in states for kept in (state.memory, state.stages) for name in sorted(kept)
        )
        first: dict[str, str] = {}
        for what, one in found.items():
            first.setdefault(one["bits"], what)
        return {what: one for what, one in found.items() if first[one["bits"]] == what}


class _Seen:
    def __init__(self, source: Any, rounds: Rounds) -> None:
        self._source, self._rounds = source, rounds

    def take_part(self, opened: Any) -> None:
        self._rounds.begin(opened.now)
        self._source.take_part(opened)


def run_with_given_updates(name: str, folder: Path, *, audited: bool = True) -> dict[str, Any]:
    """Return the answer of a setting's run."""
    config = configuration(name)
    with recorded_streams() as streams:
        rounds = Rounds(streams)
        experiment = with_given_updates(build(config), name not in ALL_INSIDE)
        with rounds.watching():
            if "resumed" in name:
                done: list[int] = []
                with suppress(RunInterrupted):
                    loop.run(experiment, folder, on_round=lambda _: done.append(1), stop=lambda: len(done) == 1)
                experiment = with_given_updates(build(config), name not in ALL_INSIDE)
            summary = loop.run(experiment, folder, resume="resumed" in name).summary
    answer = {
        "chain": repr(experiment.method.stages),
        "epsilon": summary["epsilon"],
        "rounds": summary["rounds"],
        "stopped_by": summary["stopped_by"],
        "uplink": summary["uplink_megabytes_total"],
        "summary": sorted(summary),
        "ledger": ledger_lines(folder / "ledger.jsonl"),
        "aborts": [line.get("aborted") for line in lines(folder / "metrics.jsonl")],
    }
    if config.run.randomness != "secure":
        answer["streams"] = streams.summary()
        answer["records"] = [_whole_numbers(line) for line in lines(folder / "diagnostics.jsonl")]
        answer["rounds of given updates"] = rounds.items()
    return answer | (audit_of(folder) if answer["ledger"] and audited else {})


def loop_with_given_updates(name: str, folder: Path, *, audited: bool = True) -> dict[str, Any]:
    """Return the answer of a ClientLevel loop."""
    folder.mkdir()
    path, plan = folder / "ledger.jsonl", LOOPS[name]
    private = dpfed.ClientLevel(
        clients=CLIENTS, cohort=12, clip_norm=1.0, rounds=3, ledger=path, **({"delta": DELTA} | plan)
    )
    released = []
    with recorded_streams() as streams:
        for step in private.rounds():
            rows = np.stack([update(int(one), step.round, 200) for one in range(CLIENTS)])[:, -20:]
            rows[:, :12] = 0  # for the clients outside, one coordinate each
            rows[::OUTSIDE] = 4.0 * np.eye(12, 20)
            released.append(step.release(torch.from_numpy(rows)[step.cohort]))
    answer = {"epsilon": private.guarantee().epsilon, "ledger": ledger_lines(path)} | (
        audit_of(path) if audited else {}
    )
    if plan.get("randomness") == "simulated":
        answer |= {"streams": streams.summary(), "rounds of given updates": {"released": item(released)}}
    return answer


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ledger_lines(path: Path) -> list[dict[str, Any]]:
    """Return the first and the last line after the header in full, and kinds, rounds and keys of the others."""
    bare = [{key: value for key, value in line.items() if key not in ("chain", "nonce")} for line in lines(path)[1:]]
    return [
        line if place in (0, len(bare) - 1) else {"kind": line.get("kind"), "round": line.get("round"), "keys": [*line]}
        for place, line in enumerate(bare)
    ]


def audit_of(path: Path) -> dict[str, Any]:
    """Return the verdict of an audit that fails a sound run with secure noise at most once in a million."""
    audit = audit_run(path, confidence=1 - 1e-6)
    failed = [check.name for check in audit.checks if check.passed is False]
    return {"audit": {"verdict": str(audit.verdict), "checks": len(audit.checks), "failed": failed}}


def _whole_numbers(line: Any) -> Any:
    """Return the whole numbers, words and flags of a record, without floats and without digests of floats."""
    if isinstance(line, dict):
        kept = {key: _whole_numbers(value) for key, value in line.items() if key not in ("seconds", "digest", "shown")}
        return {key: value for key, value in kept.items() if value is not None}
    return None if isinstance(line, float) else line
