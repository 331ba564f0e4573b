"""Runs of several processes (ranks) in a replay audit: each rank is a fork of the run, and compares its own clients."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from dpfed import replayed
from dpfed.aggregation.ranks import Ranks, ranks_from_environment
from dpfed.audit.replays.world import World

Part = Callable[[Ranks], None]
"""Part of one rank in a run: rank 0 leads, the others follow."""


def run_ranks(count: int, part: Part) -> None:
    """Run `part` as rank 0 in this process, as the other ranks in forks of it, and gather what those have compared.

    A client's values are recorded and compared by the rank that trains it, which may be another one in the second run.
    """
    world = replayed.current_replay()
    assert isinstance(world, World)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    fork = multiprocessing.get_context("fork")
    world.ranks = count
    others = []
    for rank in range(1, count):
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=_follow, args=(world, rank, address, part, there))
        process.start()
        there.close()
        others.append((process, here))
    try:
        _as_rank(0, address, part)
    finally:
        for process, here in others:
            try:
                world.gather_seen(*here.recv())
            except EOFError:  # the error of rank 0 says more
                world.ranks_lost += 1
            process.join(timeout=30)
            if process.is_alive():
                process.kill()


def _as_rank(rank: int, address: dict[str, str], part: Part) -> None:
    kept = dict(os.environ)
    os.environ.update(address | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    try:
        with ranks_from_environment() as among:
            part(among)
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _follow(world: World, rank: int, address: dict[str, str], part: Part, there: Connection) -> None:
    """Run one of the other ranks in its own process, and send what it has seen."""
    world.rank = rank
    try:
        _as_rank(rank, address, part)
    finally:
        sent: Any = world.recording, world.seen, world.met
        there.send(sent)
        there.close()
