"""Calls of a function under audit: pairs of neighbouring inputs, their order, and outputs as tables of numbers."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats, Ints
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.trials import LOUD_NORM, Progress, fixed_signs, layerwise_direction, uneven_directions
from dpfed.errors import ConfigError

_BARELY = 0.01  # relative change of an entry: it changes which entries are the largest, and hardly changes the norm
_PARTS = 4
_CHUNK = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class Worlds:
    """Two neighbouring inputs of any kind that the function accepts.

    one: input with the client, or record, under test (world 1). other: its neighbour (world 0).
    screened: True if the pair gets trials only if a short pilot separates its worlds better than all other pairs.

    >>> import numpy as np, dpfed.audit
    >>> pair = dpfed.audit.Worlds(name="one record", one=np.ones((3, 2)), other=np.ones((2, 2)))
    >>> [len(world) for world in pair.both]
    [2, 3]
    """

    name: str
    one: object
    other: object
    screened: bool = False

    @cached_property
    def both(self) -> tuple[object, object]:
        """Inputs of worlds 0 and 1, always as the same tuple object, which is sent to the worker process once."""
        return self.other, self.one


def pairs_of_updates(
    adjacency: Adjacency, *, clients: int, dimension: int, clip_norm: float, layout: Sequence[int] | None = None
) -> list[Worlds]:
    """Return pairs of updates [clients, dimension] of two worlds that differ in one client.

    The row of that client is the last in the first pair, the first in the next pair, and a middle one in others. In
    world 0 its row is missing [clients - 1, dimension] (add-remove), zero (zero-out) or the opposite (replace-one).
    layout: sizes of a model's layers, by default four equal parts. Pairs of uneven entries are last and are screened.
    """
    sizes = _layer_sizes(layout, dimension)
    even_signs = fixed_signs(dimension) / dimension**0.5
    loud = LOUD_NORM * clip_norm
    dense = loud * even_signs
    entry = np.zeros(dimension)
    entry[dimension // 2] = loud
    even = np.arange(dimension) % 2 == 0
    values = [clip_norm / dimension**0.5 * (1 + _BARELY * flag) for flag in (even, ~even)]

    places = itertools.cycle(dict.fromkeys((clients - 1, 0, clients // 2, clients // 4)))  # of the client under test

    def pair(
        name: str, one: ArrayLike, rest: ArrayLike, other: ArrayLike | None = None, *, screened: bool = False
    ) -> Worlds:
        at = next(places)
        others = np.broadcast_to(np.asarray(rest, dtype=np.float32), (clients - 1, dimension))
        own = np.asarray(one, dtype=np.float32)[None]
        if other is None:
            other = -own if adjacency is Adjacency.REPLACE_ONE else np.zeros_like(own)
        missing = adjacency is Adjacency.ADD_REMOVE and not np.any(other)
        instead = others[:0] if missing else np.asarray(other, dtype=np.float32).reshape(1, -1)
        rows = [np.concatenate([others[:at], of_it, others[at:]]) for of_it in (own, instead)]
        return Worlds(name=name, one=rows[0], other=rows[1], screened=screened)

    nothing = np.zeros(dimension)
    found = [
        pair("far beyond the clip norm", dense, nothing),
        pair("far beyond the clip norm, opposite direction", -dense, nothing),
        pair("one coordinate", entry, nothing),
        pair("equal norm in every layer", loud * layerwise_direction(sizes), nothing),
        pair("all others opposite", dense, -dense),
        pair("others opposite, at the clip norm", dense, -clip_norm * even_signs),
        pair("just inside the clip norm", 0.9999 * clip_norm * even_signs, nothing),
    ]
    if adjacency is Adjacency.REPLACE_ONE:
        found.append(pair("other entries on top", values[0], values[0], values[1]))
    else:
        found.append(pair("other entries on top", values[0], values[1] / (2 * (clients - 1))))
    found += [pair(name, loud * row, nothing, screened=True) for name, row in uneven_directions(sizes).items()]
    norms = np.where(np.arange(clients - 1) % 3 == 2, 1.0, 0.1)[:, None]
    beside, zeros = norms * clip_norm * even_signs, None if adjacency is not Adjacency.REPLACE_ONE else nothing
    for name, own in (("at the clip norm", clip_norm * even_signs), ("far beyond it, opposite", -dense)):
        found.append(pair(f"others of uneven norms, {name}", own, beside, zeros, screened=True))
    return found


def pair_with_nan(worlds: Worlds) -> Worlds:
    """Return the pair in which the last client of world 1 sends NaN."""
    one = np.array(worlds.one)
    one[-1] = np.nan
    return Worlds(name="not a number", one=one, other=worlds.other)


def _layer_sizes(layout: Sequence[int] | None, dimension: int) -> list[int]:
    if layout is None:
        return [len(part) for part in np.array_split(np.arange(dimension), min(_PARTS, dimension))]
    if sum(layout) != dimension or min(layout) < 1:
        raise ConfigError(f"layout={list(layout)}: must be sizes above 0 that sum to dimension={dimension}.")
    return list(layout)


_BITS = 52  # a float64 holds whole numbers of 52 bits exactly

COLUMNS_BEFORE = 2
"""Number of columns of a table before the columns of the output's entries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """Output of one call.

    numbers: all numbers of the output [k]. kind: code of its keys, types, dtypes and shapes, or of an exception's type.
    raised: message of the exception; empty if none was raised.
    """

    numbers: Floats
    kind: int
    raised: str = ""


def output_of(seen: object) -> Output:
    """Return the output of a call from what the function returned. Errors: ConfigError for an unsupported type."""
    return Output(numbers=numbers_of(seen), kind=_hash_code("\n".join(_structure_texts(seen)).encode()))


def exception_output(error: BaseException, words: str) -> Output:
    """Return the output of a call that raised an exception, whose type is visible to a reader of outputs."""
    return Output(numbers=np.zeros(0), kind=_hash_code(f"raised {type(error).__qualname__}".encode()), raised=words)


def numbers_of(seen: object) -> Floats:
    """Return all numbers of an output, in order [k]. Errors: ConfigError for an unsupported type.

    Supported: arrays and tensors of any library and shape, numbers, text, bytes, and lists and dictionaries (in the
    order of sorted keys) of these.
    """
    parts = _flat_arrays(seen)
    return np.concatenate(parts) if parts else np.zeros(0)


def _flat_arrays(seen: object) -> list[Floats]:
    match seen:
        case None:
            return []
        case str():
            return _flat_arrays(seen.encode())
        case bytes() | bytearray() | memoryview():
            return [np.frombuffer(bytes(seen), dtype=np.uint8).astype(np.float64)]
        case Mapping():
            return [part for key in sorted(seen, key=str) for part in _flat_arrays(seen[key])]
        case list() | tuple() | set() | frozenset():
            return [part for one in seen for part in _flat_arrays(one)]
    if hasattr(seen, "detach"):
        seen = _dense_tensor(seen.detach().cpu())
    try:
        found = np.asarray(seen)
        if np.iscomplexobj(found):
            found = np.stack([found.real, found.imag])
        return [found.astype(np.float64).ravel()]
    except (TypeError, ValueError):
        raise ConfigError(
            f"the function returned {type(seen).__name__}: must be arrays, tensors, numbers, text, bytes, or lists and "
            "dictionaries of these."
        ) from None


def _dense_tensor(tensor: Any) -> Any:
    """Return a dense tensor, in float64 if floating-point, which numpy can read (unlike sparse or bfloat16 tensors)."""
    dense = tensor.to_dense()
    return dense.double() if dense.is_floating_point() else dense


def _structure_texts(seen: object) -> list[str]:
    """Return text on everything in an output but its numbers: keys in their order, types, dtypes and shapes."""
    name = type(seen).__qualname__
    match seen:
        case Mapping():
            return [f"{name} {list(seen)!r}", *(part for one in seen.values() for part in _structure_texts(one))]
        case list() | tuple() | set() | frozenset():
            return [f"{name} {len(seen)}", *(part for one in seen for part in _structure_texts(one))]
    known = [f"{getattr(seen, what, '')}" for what in ("dtype", "layout")]
    return [" ".join([name, *known, str(tuple(getattr(seen, "shape", ())))])]


def _hash_code(words: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest()) >> (64 - _BITS)


def output_table(rows: list[Output]) -> Floats:
    """Return a table with one row for each trial [n, 2 + width + 2].

    Columns: the numbers of entries that are +infinity and -infinity; the entries, zero if missing or not finite; the
    number of entries, and the number of entries that are not finite.
    """
    width = max((row.numbers.size for row in rows), default=0)
    table = np.zeros((len(rows), COLUMNS_BEFORE + width + 2))
    for line, row in zip(table, rows, strict=True):
        numbers, finite = row.numbers, np.isfinite(row.numbers)
        line[:COLUMNS_BEFORE] = (numbers == np.inf).sum(), (numbers == -np.inf).sum()
        line[COLUMNS_BEFORE : COLUMNS_BEFORE + numbers.size] = np.where(finite, numbers, 0.0)
        line[-2:] = numbers.size, (~finite).sum()
    return table


def output_table_with_codes(rows: list[Output]) -> Floats:
    """Return the table of the outputs with two columns of codes in front: of the output's kind and of the whole output.

    Two outputs have equal second codes if and only if they are equal (up to collisions of a 52-bit hash).
    """
    kinds = [row.kind for row in rows]
    values = [_hash_code(row.kind.to_bytes(8) + row.numbers.tobytes()) for row in rows]
    return np.column_stack([np.array([kinds, values], dtype=np.float64).T, output_table(rows)])


def with_width(table: Floats, width: int) -> Floats:
    """Return the table with exactly `width` columns before the last two, truncated or filled up with zeros."""
    kept = table[:, :-2][:, :width]
    filled = np.pad(kept, ((0, 0), (0, width - kept.shape[1])))
    return np.concatenate([filled, table[:, -2:]], axis=1)


class FunctionCaller(Protocol):
    """Process or object that calls the function under audit."""

    def outputs(self, inputs: Sequence[object], which: list[int], seeds: list[int]) -> list[Output]:
        """Return the outputs for inputs[which[i]] and seeds[i], in the order of i; the function does not
        get `which`.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class CallTrials:
    """Calls in both worlds in a random order, so that changes from call to call do not separate the worlds.

    seeds: generator of orders and seeds.
    raised: messages of exceptions so far. calls_per_chunk: number of calls of each chunk."""

    calls: FunctionCaller
    seeds: np.random.Generator
    say: Progress
    raised: list[str] = field(default_factory=list)
    calls_per_chunk: list[int] = field(default_factory=list)

    def chunks(
        self, pair: Worlds, seeds: tuple[list[int], list[int]], words: str
    ) -> Iterator[tuple[Ints, list[Output]]]:
        """Make the calls of a pair; yield (numbers, outputs) of at most 500 calls at a time, in a random order.

        Call k has world 0 and seeds[0][k] if k < len(seeds[0]); later numbers have world 1 and seeds[1]. In a random
        order, a state, a cache or the time, which change from call to call, do not separate the worlds.
        words: label of progress messages.
        """
        both = [*seeds[0], *seeds[1]]
        order = self.seeds.permutation(len(both))
        for start in range(0, len(both), _CHUNK):
            numbers = order[start : start + _CHUNK]
            worlds = (numbers >= len(seeds[0])).astype(int).tolist()
            rows = self.calls.outputs(pair.both, worlds, [both[k] for k in numbers])
            self.raised.extend(row.raised for row in rows if row.raised)
            self.calls_per_chunk.append(len(rows))
            self.say(f"{words}: {start + len(rows):,} of {len(both):,} calls")
            yield numbers, rows

    def tables(self, pair: Worlds, seeds: tuple[list[int], list[int]], words: str) -> tuple[Floats, Floats]:
        """Return coded tables of the outputs of worlds 0 and 1 for seeds[0] and seeds[1], rows in the
        order of seeds.
        """
        rows: dict[int, Output] = {}
        for chunk, seen in self.chunks(pair, seeds, words):
            rows |= zip(chunk.tolist(), seen, strict=True)
        if all(row.raised for row in rows.values()):
            raise ConfigError(f"the function under audit fails in every call ({pair.name}): {rows[0].raised}")
        table = output_table_with_codes([rows[k] for k in range(len(rows))])
        return table[: len(seeds[0])], table[len(seeds[0]) :]

    def draw_seeds(self, count: int) -> list[int]:
        return [int(one) for one in self.seeds.integers(0, 2**31, count)]
