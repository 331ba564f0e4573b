"""Kinds of content of a payload: each field writes its values to bytes and reads them within bounds.

A field computes its number of values from public things (options and d), so no message decides how much memory is
allocated. Bytes to read may come from an attacker: `read` returns values that `write` accepts, or raises WireError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.compress.symbols import (
    SymbolGroups,
    Values,
    decode_symbols,
    digits_of,
    encode_symbols,
    entropy_bits,
    group_weights,
    pack_bits,
    packed_bytes,
    symbol_counts,
    unpack_bits,
)
from dpfed.errors import ConfigError, WireError

LARGEST = 1e31
"""Largest magnitude in a message: its product with d/k, and the sum of a round's payloads, are finite in float32."""

_PACKED, _CODED = 0, 1
_SLACK = 16  # bytes of an entropy coder beyond the entropy: 64 bits, and rounding to whole integers


@dataclass(frozen=True, kw_only=True)
class FieldBytes:
    """Bytes of one field; `coded` is True if an entropy coder made them."""

    content: bytes
    coded: bool


@dataclass(kw_only=True)
class Reader:
    """Reader of bytes from front to back; raises WireError if too few are left."""

    content: bytes
    at: int = 0

    def take_bytes(self, count: int, what: str) -> bytes:
        left = len(self.content) - self.at
        if count > left:
            raise WireError(f"{what}: needs {count} bytes, but {left} are left; the message is truncated or forged.")
        self.at += count
        return self.content[self.at - count : self.at]

    take = take_bytes  # its name up to version 0.3

    def integer(self, width: int, what: str) -> int:
        return int.from_bytes(self.take_bytes(width, what), "little")


class Field(Protocol):
    """One kind of content with a fixed number of values and their numpy dtype."""

    @property
    def count(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def most_bytes(self) -> int:
        """Largest number of bytes that `write` can give."""

    def write(self, values: Values) -> FieldBytes:
        """Return the bytes of the values [count]."""

    def read(self, reader: Reader) -> Values:
        """Return the values [count] of `write`; raise WireError for anything else."""


@dataclass(frozen=True, kw_only=True)
class Floats:
    """`count` floats of 32 bits or, with `half`, 16, of magnitude at most LARGEST; nonnegative unless `signed`."""

    count: int
    half: bool = False
    signed: bool = True

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<f2" if self.half else "<f4")

    @property
    def most_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    def write(self, values: Values) -> FieldBytes:
        return FieldBytes(content=values.astype(self.dtype).tobytes(), coded=False)

    def read(self, reader: Reader) -> Values:
        content = reader.take_bytes(self.count * self.dtype.itemsize, f"{self.count} floats")
        values = np.frombuffer(content, dtype=self.dtype)
        limit = float(np.finfo(np.float16).max) if self.half else LARGEST
        if len(values) and not (-limit <= values.min() and values.max() <= limit):
            raise WireError(
                f"{self.count} floats: NaN or a value beyond ±{limit:g} among them; drop this client's message."
            )
        if not self.signed and (values < 0).any():
            raise WireError(f"{self.count} floats: one is negative, but only scales >= 0 may be sent.")
        return values


@dataclass(frozen=True, kw_only=True)
class SymbolField:
    """`count` integers from 0 to alphabet - 1, alphabet from 2 to 65,536.

    The symbols are packed, as many to a byte as fit (8 bits, 5 trits, 4 symbols of 2 bits, ...), or in
    ceil(log2 alphabet) bits each. Or they are entropy-coded with their counts as the model, several at once
    (`SymbolGroups`). The smaller form is used, and the first byte marks it.
    """

    alphabet: int
    count: int

    def __post_init__(self) -> None:
        if not 2 <= self.alphabet <= 1 << 16:
            raise ConfigError(f"{self.alphabet} symbols of a field: must be from 2 to {1 << 16}.")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.alphabet <= 256 else np.uint16)

    @property
    def most_bytes(self) -> int:
        return 1 + self._packed_bytes

    def bytes_with(self, others: int) -> int:
        """Return the largest number of bytes for values of which at most `others` differ from the most frequent value.

        The coder needs at most `_SLACK` bytes beyond the entropy; 30 if 1.7 million values take all symbols equally.
        """
        if others == 0 or 2 * others >= self.count:
            return self.most_bytes
        counts = np.array([self.count - others, others])
        bits = entropy_bits(counts) + others * math.log2(self.alphabet - 1)
        return min(self.most_bytes, 1 + self._counts_bytes + 4 + math.ceil(bits / 8) + _SLACK)

    def write(self, values: Values) -> FieldBytes:
        values = values.astype(self.dtype, copy=False)
        counts = symbol_counts(values, self.alphabet)
        coded_bound = self._counts_bytes + 4 + math.ceil(entropy_bits(counts) / 8)
        if coded_bound < self._packed_bytes:
            coded = self._encode(values, counts)
            if len(coded) < self._packed_bytes:
                return FieldBytes(content=bytes([_CODED]) + coded, coded=True)
        return FieldBytes(content=bytes([_PACKED]) + self._pack(values), coded=False)

    def read(self, reader: Reader) -> Values:
        what = f"{self.count} symbols of {self.alphabet}"
        flag = reader.integer(1, what)
        if flag == _PACKED:
            values = self._unpack(reader.take_bytes(self._packed_bytes, what))
        elif flag == _CODED:
            values = self._decode(reader, what)
        else:
            raise WireError(f"{what}: marked {flag}, which is neither packed ({_PACKED}) nor coded ({_CODED}).")
        if len(values) and int(values.max()) >= self.alphabet:
            raise WireError(f"{what}: one is {int(values.max())}, above {self.alphabet - 1}.")
        return values

    @property
    def _group_size(self) -> int:
        """Number of symbols in a byte."""
        group = 1
        while self.alphabet ** (group + 1) <= 256:
            group += 1
        return group

    @property
    def _bits(self) -> int:
        return (self.alphabet - 1).bit_length()

    @property
    def _whole_bytes(self) -> bool:
        return self.alphabet <= 256 and self._bits * self._group_size >= 8

    @property
    def _packed_bytes(self) -> int:
        if self._whole_bytes:
            return -(-self.count // self._group_size)
        return packed_bytes(self.count, self._bits)

    @property
    def _count_width(self) -> int:
        return max(1, (self.count.bit_length() + 7) // 8)

    @property
    def _counts_bytes(self) -> int:
        return (self.alphabet - 1) * self._count_width

    def _pack(self, values: Values) -> bytes:
        """Return symbols [count] as bytes of `_group_size` symbols each, the first the lowest digit, padded with 0; or
        as bits, if these are fewer."""
        group = self._group_size
        if not self._whole_bytes:
            return pack_bits(values, self._bits)
        if group == 1:
            return values.tobytes()
        missing = -self.count % group
        full = np.concatenate([values, np.zeros(missing, dtype=np.uint8)]) if missing else values
        if self.alphabet == 2:
            return np.packbits(full, bitorder="little").tobytes()
        digits = full.reshape(-1, group)
        grouped = digits[:, group - 1].copy()
        for place in range(group - 2, -1, -1):
            grouped *= np.uint8(self.alphabet)
            grouped += digits[:, place]
        return grouped.tobytes()

    def _unpack(self, content: bytes) -> Values:
        """Return the symbols of packed bytes; raise WireError unless padding is 0 and every byte encodes a group."""
        if not self._whole_bytes:
            return unpack_bits(content, self._bits, self.count).astype(self.dtype)
        group, grouped = self._group_size, np.frombuffer(content, dtype=np.uint8)
        if group == 1:
            return grouped
        if self.alphabet == 2:
            full = np.unpackbits(grouped, bitorder="little")
        else:
            if len(grouped) and int(grouped.max()) >= self.alphabet**group:
                raise WireError(f"a byte {int(grouped.max())} does not encode {group} symbols of {self.alphabet}.")
            full = np.take(digits_of(0, self.alphabet, group).astype(np.uint8), grouped, axis=0).reshape(-1)
        if full[self.count :].any():
            raise WireError(f"{self.count} symbols of {self.alphabet}: the padding bits of the last byte are not zero.")
        return full[: self.count]

    def _encode(self, values: Values, counts: NDArray[np.int64]) -> bytes:
        groups = SymbolGroups.of(counts)
        joined = groups.join_symbols(values, fill=int(counts.argmax()))
        words = encode_symbols(joined, group_weights(counts[groups.symbol_range], groups.per_number))
        table = b"".join(int(count).to_bytes(self._count_width, "little") for count in counts[:-1])
        return table + len(words).to_bytes(4, "little") + words.astype("<u4").tobytes()

    def _decode(self, reader: Reader, what: str) -> Values:
        width = self._count_width
        table = reader.take_bytes(self._counts_bytes, f"the counts of {what}")
        counts = [int.from_bytes(table[at : at + width], "little") for at in range(0, len(table), width)]
        counts.append(self.count - sum(counts))
        if counts[-1] < 0 or not self.count:
            raise WireError(f"{what}: their counts add up to {self.count - counts[-1]}.")
        model = np.array(counts, dtype=np.int64)
        length = reader.integer(4, f"the length of {what}")
        words = np.frombuffer(reader.take_bytes(4 * length, what), dtype="<u4").astype(np.uint32)
        groups = SymbolGroups.of(model)
        weights = group_weights(model[groups.symbol_range], groups.per_number)
        joined = decode_symbols(words, weights, -(-self.count // groups.per_number))
        values = groups.split_numbers(joined, self.count, fill=int(model.argmax())).astype(self.dtype)
        if not np.array_equal(symbol_counts(values, self.alphabet), model):
            raise WireError(f"{what}: the symbols do not occur as often as their counts state; the message is forged.")
        return values


@dataclass(frozen=True, kw_only=True)
class Indices:
    """`count` distinct coordinates out of `size`, sorted.

    The coordinates are packed at ceil(log2 size) bits each, or sent as an entropy-coded bitmap (about log2 of the
    number of subsets). The smaller form is used, and the first byte marks it.
    """

    size: int
    count: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    @property
    def most_bytes(self) -> int:
        return 1 + packed_bytes(self.count, self._bits)

    def write(self, values: Values) -> FieldBytes:
        packed = packed_bytes(self.count, self._bits)
        if entropy_bits(np.array([self.size - self.count, self.count])) < 8 * packed:
            bits = np.zeros(self.size, dtype=np.uint8)
            bits[values] = 1
            bitmap = self._bitmap.write(bits)
            if len(bitmap.content) < packed:
                return FieldBytes(content=bytes([_CODED]) + bitmap.content, coded=bitmap.coded)
        return FieldBytes(content=bytes([_PACKED]) + pack_bits(values, self._bits), coded=False)

    def read(self, reader: Reader) -> Values:
        what = f"{self.count} coordinates of {self.size}"
        flag = reader.integer(1, what)
        if flag == _PACKED:
            values = unpack_bits(reader.take_bytes(packed_bytes(self.count, self._bits), what), self._bits, self.count)
        elif flag == _CODED:
            values = np.flatnonzero(self._bitmap.read(reader))
        else:
            raise WireError(f"{what}: marked {flag}, which is neither packed ({_PACKED}) nor a bitmap ({_CODED}).")
        if len(values) != self.count:
            raise WireError(f"{what}: the bitmap has {len(values)} coordinates.")
        if (values[1:] <= values[:-1]).any() or (len(values) and int(values[-1]) >= self.size):
            raise WireError(f"{what}: they must be distinct, sorted and below {self.size}.")
        return values.astype(np.int64)

    @property
    def _bits(self) -> int:
        return (self.size - 1).bit_length()

    @property
    def _bitmap(self) -> SymbolField:
        return SymbolField(alphabet=2, count=self.size)
