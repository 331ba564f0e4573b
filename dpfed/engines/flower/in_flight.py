"""Questions to many nodes, of which only so many are on their way at a time.

Flower's `send_and_receive` holds all messages of a round, then all replies, and looks for them every three seconds: at
100,000 clients of 2.3 MB that is 230 GB twice. Here a reply is handed on when it comes, and the next message is made
when there is room for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

BYTES = 2**30
"""Of messages on their way, about."""
LEAST = 64

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_ROOM_AFTER = 0.1
"""Part of the time limit after which a message no longer takes the place of another: its node may be gone."""


def most_at_once(numbers: int) -> int:
    """Messages on their way, each of a model of so many float32."""
    return max(LEAST, BYTES // (4 * max(numbers, 1)))


class InFlight:
    """A grid whose `send_and_receive` has at most `at_once` messages on their way, and gives replies as they come.

    What it is asked for is made when it is sent, so `messages` may be a generator. A node that is silent takes a place
    for a tenth of `timeout`, and may answer until the whole of it is over. All else is the grid's.
    """

    def __init__(self, grid: Grid, *, at_once: int) -> None:
        self._grid, self._at_once = grid, at_once

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Replies, in the order in which they come, until all are there or `timeout` seconds are over."""
        waiting, sent, pause = iter(messages), dict[str, float](), _FIRST_PAUSE
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        patience = float("inf") if timeout is None else timeout * _ROOM_AFTER
        while True:
            now = time.monotonic()
            room = self._at_once - sum(now - began < patience for began in sent.values())
            if batch := list(itertools.islice(waiting, max(room, 0))):
                sent |= dict.fromkeys(self._grid.push_messages(batch), now)
                del batch
            elif not sent:
                return
            replies = list(self._grid.pull_messages(list(sent))) if sent else []
            for reply in replies:
                sent.pop(reply.metadata.reply_to_message_id, None)
            yield from replies
            pause = _FIRST_PAUSE if replies else min(1.5 * pause, _LONGEST_PAUSE)
            if time.monotonic() >= end:
                return
            if not replies:
                time.sleep(pause)
