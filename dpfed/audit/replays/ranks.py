"""Runs with several processes (ranks) in a replay audit: each rank is a fork of the run and compares its clients."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from dpfed import replayed
from dpfed.aggregation.ranks import Ranks, ranks_from_environment
from dpfed.audit.replays.replay_run import ReplayRun
from dpfed.forks import Fork, ended

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
        sent: Any = world.recording, world.seen, world.met_keys
        there.send(sent)
        there.close()
