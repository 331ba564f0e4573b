"""Calls of a function under audit in two worlds, in an order that is drawn, and their outputs as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.audit.functions.outputs import Output, coded_table
from dpfed.audit.functions.worlds import Worlds
from dpfed.audit.trials import Ids, Progress, in_drawn_order
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]


class Calls(Protocol):
    """Where a function is called."""

    def outputs(self, inputs: Sequence[Any], which: list[int], seeds: list[int]) -> list[Output]:
        """What is seen of inputs[which[i]] with seeds[i], in this order; the function is not told which it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallTrials:
    """Calls of both worlds in an order that is drawn, so that nothing that changes from call to call tells them apart.

    raised: what exceptions said, of calls that ended so; called: how many calls there were, a list of their chunks'
    """

    calls: Calls
    seeds: np.random.Generator
    say: Progress
    raised: list[str] = field(default_factory=list)
    called: list[int] = field(default_factory=list)

    def chunks(
        self, pair: Worlds, seeds: tuple[list[int], list[int]], words: str
    ) -> Iterator[tuple[Ids, list[Output]]]:
        """Some outputs at a time, and which they are: first those of world 0 from its seeds, then those of world 1."""
        both = [*seeds[0], *seeds[1]]

        def call(numbers: list[int]) -> list[Output]:
            rows = self.calls.outputs(pair.both, [int(k >= len(seeds[0])) for k in numbers], [both[k] for k in numbers])
            self.raised.extend(row.raised for row in rows if row.raised)
            self.called.append(len(rows))
            return rows

        done = 0
        for chunk, rows in in_drawn_order(call, len(both), self.seeds):
            done += len(rows)
            self.say(f"{words}: {done:,} of {len(both):,} calls")
            yield chunk, rows

    def tables(self, pair: Worlds, seeds: tuple[list[int], list[int]], words: str) -> tuple[Floats, Floats]:
        """The outputs of the worlds 0 and 1, each from its seeds."""
        rows: dict[int, Output] = {}
        for chunk, seen in self.chunks(pair, seeds, words):
            rows |= zip(chunk.tolist(), seen, strict=True)
        if all(row.raised for row in rows.values()):
            raise ConfigError(f"the function under audit fails in every call ({pair.name}): {rows[0].raised}")
        table = coded_table([rows[k] for k in range(len(rows))])
        return table[: len(seeds[0])], table[len(seeds[0]) :]

    def drawn(self, count: int) -> list[int]:
        return [int(one) for one in self.seeds.integers(0, 2**31, count)]
