"""Replay audit of a configuration: a preset, a TOML file, a run folder, or the JSON file that a failed audit wrote.

Runs with several processes (ranks) in a replay audit: each rank is a fork of the run and compares its clients.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed import replayed
from dpfed.aggregation.ranks import Ranks, ranks_from_environment
from dpfed.api.run import Engine, run, run_and_report
from dpfed.audit.replays.audit import Neighbour, replay
from dpfed.audit.replays.pairs import Pair
from dpfed.audit.replays.replay_run import ReplayRun
from dpfed.audit.replays.verdict import ReplayFindings
from dpfed.audit.verdict import Verdict
from dpfed.config.own_code import load_files
from dpfed.config.tables import override, parse, read_toml
from dpfed.errors import ConfigError, DpfedError
from dpfed.forks import Fork, ended
from dpfed.methods import catalogue
from dpfed.runs.experiment import build
from dpfed.runs.loop import train_share_of_rounds

_OF_AUDIT_FILE: Mapping[str, Callable[[Any], object]] = {"config": dict, "load": list, "rounds": int, "seed": int}
"""Keys without which an audit cannot be made again, and their types."""

RankFunction = Callable[[Ranks], None]
"""Function that one rank runs: rank 0 leads the run, all other ranks follow."""


def run_ranks(count: int, part: RankFunction) -> None:
    """Run `part` as rank 0 in this process and as all other ranks in forks of it, and gather their comparisons.

    The rank that trains a client records and compares its values; it may be a different rank in the second run.
    """
    world = replayed.current_replay()
    assert isinstance(world, ReplayRun)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    world.ranks = count
    others = []
    for rank in range(1, count):
        here, there = Pipe(duplex=False)
        process = Fork(functools.partial(_run_following_rank, world, rank, address, part, there))
        there.close()
        others.append((process, here))
    try:
        _run_as_rank(0, address, part)
    finally:
        for process, here in others:
            try:
                world.gather_seen(*here.recv())
            except EOFError:  # rank 0 raises a more informative error
                world.ranks_lost += 1
            ended(process, seconds=30)


def _run_as_rank(rank: int, address: dict[str, str], part: RankFunction) -> None:
    kept = dict(os.environ)
    os.environ.update(address | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    try:
        with ranks_from_environment() as among:
            part(among)
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _run_following_rank(
    world: ReplayRun, rank: int, address: dict[str, str], part: RankFunction, there: Connection
) -> None:
    """Run one rank other than 0 in this process, and send its recording and its comparisons to rank 0."""
    world.rank = rank
    try:
        _run_as_rank(rank, address, part)
    finally:
        sent: object = world.recording, world.seen, world.met_keys
        there.send(sent)
        there.close()


@dataclass(frozen=True)
class ConfiguredRun:
    """Callable that runs `dpfed.run` with checked tables. `load`: files of custom code, loaded again by a new process.

    processes: number of ranks, as torchrun would start them. engine: as in `dpfed.run`.
    """

    tables: Mapping[str, Any]
    load: tuple[str, ...] = ()
    processes: int = 1
    engine: Engine = "in-process"

    def __call__(self, data: Neighbour, out: Path) -> None:
        tables = override(self.tables, ["run.evaluate_every=1"] if data.reporting else [])
        if self.processes == 1:
            run(tables, engine=self.engine, out=out, progress=False)
            return

        def run_rank(among: Ranks) -> None:
            experiment = build(parse(tables, source="the audit's configuration"), among)
            if among.index:
                train_share_of_rounds(experiment)
            else:
                run_and_report(experiment, out, engine=self.engine, resume=False, on_round=lambda record: None)

        run_ranks(self.processes, run_rank)

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        load_files([Path(one) for one in self.load])

    def shortened(self, rounds: int) -> ConfiguredRun:
        """Return this run with at most `rounds` rounds."""
        planned = int(dict(self.tables.get("federation", {})).get("rounds", rounds))
        short = override(self.tables, [f"federation.rounds={min(rounds, planned)}"])
        return replace(self, tables=short)


def replay_config(
    config: str,
    settings: Sequence[str] = (),
    *,
    load: Sequence[Path] = (),
    rounds: int = 3,
    last: int | None = None,
    pairs: int | None = None,
    seed: int = 0,
    processes: int = 1,
    engine: Engine = "in-process",
    progress: Callable[[str], None] = lambda words: None,
) -> Verdict:
    """Run the replay audit of a configuration, in its first `rounds` rounds, or in its `last` rounds.

    last:   number of rounds at the end, after rounds with empty cohorts; None for the first `rounds` rounds
    config: a preset's name, a TOML file, a run folder (with config.toml), or the JSON file that a failed audit wrote
    processes: number of ranks, as torchrun would start them
    engine: "in-process", or "flower" for Flower's apps and messages, with all nodes in this process
    Raises ConfigError if the configuration cannot run, DpfedError if the first run fails.
    """
    path = Path(config)
    wanted: list[Pair] | int | None = pairs
    if path.suffix == ".json" and path.exists():
        kept = _read_audit_file(path)
        wanted, load = [Pair.read(path)], [*map(Path, kept["load"]), *load]
        tables, rounds, seed = kept["config"], kept["rounds"], kept["seed"]
        last = kept.get("last", last)
        processes, engine = kept.get("processes", processes), kept.get("engine", engine)
    elif (path / "config.toml").exists():
        tables = read_toml(path / "config.toml")
    elif path.suffix == ".toml":
        tables = read_toml(path)
    else:
        tables = catalogue.preset_tables(config)
    load_files(list(load))
    call = ConfiguredRun(override(tables, settings), tuple(map(str, load)), processes, engine)
    options: dict[str, Any] = {"seed": seed, "name": config, "progress": progress}
    try:
        if last is not None:
            raise DpfedError("the last rounds need the whole plan")
        short = call.shortened(rounds)
        found = replay(short, wanted, **options)
    except DpfedError:  # a schedule may need all its rounds: plan them all, and replay the first ones
        found = replay(call, wanted, rounds=rounds if last is None else None, last=last, **options)
    findings: ReplayFindings = found.evidence
    failed = findings.failed
    again = {} if failed is None else failed.pair.to_dict()
    reproduce = {"config": call.tables, "load": list(call.load), "rounds": rounds, "seed": seed, "pair": again}
    reproduce |= {"processes": processes, "engine": engine, "last": last}
    return replace(findings, reproduce=json.loads(json.dumps(reproduce, default=str))).as_verdict()


def _read_audit_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, at_most=LARGEST_DOCUMENT))
        kept: dict[str, Any] = dict(found if "pair" in found else found["reproduce"])
        return kept | {key: kind(kept[key]) for key, kind in _OF_AUDIT_FILE.items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is no file of a replay audit ({error}). Name the JSON file that `dpfed audit` wrote."
        ) from None
