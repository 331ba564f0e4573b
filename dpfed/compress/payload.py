"""Payloads, the frame around their content, and the protocol of schemes.

Frame around a payload's content: header with scheme, options, d and seed, and a checksum.

    magic "DPfC" (4), version (1), length of the name (1), name, length of the options (1), options,
    d (4), seed (8), the fields' bytes, CRC-32 of all before (4)        integers little-endian

23 bytes, the scheme's name, and the options that differ from defaults as JSON: about 32 bytes. The checksum detects
accidents, not forgeries; authenticity must be ensured by the transport.

A scheme, the protocol of encoders, is a frozen keyword-only dataclass whose fields are its options:

    @dataclass(frozen=True, kw_only=True)
    class Ternary(Scheme):
        name: ClassVar[str] = "ternary"                     # name in messages and in `get`; ASCII, short
        linear: ClassVar[bool] = False                      # True if a sum of payloads' fields decodes to the sum

        clip: float | None = None                           # options: bool, int, float, str, None; check their ranges
                                                            # in __post_init__ (ConfigError); `get` checks the types
        @property
        def unbiased(self) -> bool: ...                     # or a ClassVar

        def layout(self, dimension: int) -> Layout:      # fields of a message, computed from public things only
            return {"scale": Floats(count=1, signed=False), "trits": SymbolField(alphabet=3, count=dimension)}

        def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
            x = checked_updates(x)                          # float32 [c, d], finite, or ConfigError naming the row
            seeds = client_seeds(seed, len(x)).to(x.device) # int64 [c]
            ...
            return Payloads.of(self, d, scale=scale, trits=trits)            # tensors [c, ...], as in the layout
            return Payloads.of(self, d, seeds=seeds, ...)   # only if decoding needs the seeds: they are published

        def decode(self, payloads: Sequence[Payload]) -> Tensor:
            sent = batch(payloads, self)                    # Payloads; WireError unless scheme, options, d agree
            return sent["scale"] * (sent["trits"].float() - 1)               # float32 [c, d]

        # mean of decoded updates, a few clients at a time, is inherited; override it if there is a faster way

and one line in the registry in `dpfed.compress`. Options that are not sent (a tensor) are dataclass fields with
`metadata={"wire": False}, compare=False`. Two schemes are the same if they are equal as dataclasses.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fields import LARGEST, Field, FieldBytes, Reader
from dpfed.errors import ConfigError, WireError

Option = bool | int | float | str | None

MAGIC = b"DPfC"
VERSION = 2
LARGEST_DIMENSION = 1 << 24
"""Largest d that is accepted if the receiver does not state the expected d."""

_CHECKSUM = 4


@dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """Header of a payload: scheme, options other than the defaults, d, and the seed that decoding needs (else 0)."""

    name: str
    options: Mapping[str, Option]
    dimension: int
    seed: int


def write_frame(header: FrameHeader, content: bytes) -> bytes:
    """Return header, content and checksum as bytes."""
    name = header.name.encode("ascii")
    options = _options_to_bytes(header.options)
    if not 1 <= header.dimension < 1 << 32:
        raise ConfigError(f"d={header.dimension}: a payload holds from 1 to 2^32 - 1 coordinates.")
    if len(options) > 255:
        raise ConfigError(f"the options of {header.name} take {len(options)} bytes on the wire: at most 255 fit.")
    frame = b"".join(
        (
            MAGIC,
            bytes([VERSION, len(name)]),
            name,
            bytes([len(options)]),
            options,
            header.dimension.to_bytes(4, "little"),
            header.seed.to_bytes(8, "little"),
            content,
        )
    )
    return frame + zlib.crc32(frame).to_bytes(_CHECKSUM, "little")


def read_frame(message: bytes, *, dimension: int | None) -> tuple[FrameHeader, Reader]:
    """Return the header, and a reader at the content. Raise WireError unless `write_frame` could have written the
    message.

    d must equal `dimension` if that is given, else be at most LARGEST_DIMENSION, so that a forged d takes no memory.
    """
    if not isinstance(message, bytes | bytearray | memoryview):
        raise WireError(f"a message must be bytes, not {type(message).__name__}.")
    message = bytes(message)
    if len(message) < _CHECKSUM or message[: len(MAGIC)] != MAGIC:
        raise WireError(f"a message of {len(message)} bytes that does not start with {MAGIC!r}: not one of dpfed.")
    frame = message[:-_CHECKSUM]
    if zlib.crc32(frame) != int.from_bytes(message[-_CHECKSUM:], "little"):
        raise WireError(f"a message of {len(message)} bytes: its checksum is wrong; it was damaged or cut short.")
    reader = Reader(content=frame, at=len(MAGIC))
    version = reader.integer(1, "the version")
    if version != VERSION:
        raise WireError(f"a message of version {version}: this program reads version {VERSION}.")
    name = reader.take_bytes(reader.integer(1, "the name's length"), "the name")
    options = reader.take_bytes(reader.integer(1, "the options' length"), "the options")
    header = FrameHeader(
        name=name.decode("ascii", "backslashreplace"),
        options=_options_from_bytes(options),
        dimension=reader.integer(4, "d"),
        seed=reader.integer(8, "the seed"),
    )
    if dimension is not None and header.dimension != dimension:
        raise WireError(f"a message for d={header.dimension}: expected d={dimension}.")
    if not 1 <= header.dimension <= (dimension or LARGEST_DIMENSION):
        raise WireError(
            f"a message for d={header.dimension}: must be from 1 to {LARGEST_DIMENSION} unless the expected d is given "
            "(`from_bytes(..., dimension=d)`)."
        )
    return header, reader


def _options_to_bytes(options: Mapping[str, Option]) -> bytes:
    return json.dumps(options, sort_keys=True, separators=(",", ":")).encode("ascii") if options else b""


def _options_from_bytes(content: bytes) -> Mapping[str, Option]:
    if not content:
        return {}
    try:
        options = json.loads(content.decode("ascii"))
    except (ValueError, RecursionError):
        raise WireError(f"the options {content[:40]!r}: not JSON.") from None
    scalars = isinstance(options, dict) and all(
        isinstance(one, bool | int | float | str | None) for one in options.values()
    )
    if not scalars or _options_to_bytes(options) != content:
        raise WireError(f"the options {content[:40]!r}: must be one JSON object of numbers and names, in short form.")
    checked: Mapping[str, Option] = options
    return checked


LARGEST_ENTRY = 1e20
"""Largest entry of an update that a scheme without `largest_entry` must encode: sums over a model's entries stay
within every field's bound. A run counts larger updates as zero, so that no client can end a round."""

Layout = Mapping[str, Field]
Seed = int | Sequence[int]

_CLIENTS_AT_ONCE = 16


class Scheme(Protocol):
    """A compressor. `linear`: the sum of payloads, field by field, decodes to the sum of the decoded updates."""

    name: ClassVar[str]

    @property
    def linear(self) -> bool: ...

    @property
    def unbiased(self) -> bool: ...

    def layout(self, dimension: int) -> Layout: ...

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads: ...

    def decode(self, payloads: Sequence[Payload]) -> Tensor: ...

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        """Return the mean [d] of the decoded updates, computed a few clients at a time."""
        starts = range(0, max(len(payloads), 1), _CLIENTS_AT_ONCE)
        sums = (self.decode(payloads[first : first + _CLIENTS_AT_ONCE]).sum(dim=0) for first in starts)
        return reduce(Tensor.add_, sums) / len(payloads)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a payload: 8 header_bytes + raw_bits + coded_bits is 8 times the length of its bytes."""

    header_bytes: int
    raw_bits: int
    coded_bits: int

    @property
    def bits(self) -> int:
        return 8 * self.header_bytes + self.raw_bits + self.coded_bits


@dataclass(frozen=True, kw_only=True, eq=False)
class Payload:
    """Upload of one client: scheme with options, d, the seed if decoding needs it (else 0), and the content."""

    scheme: Scheme
    dimension: int
    seed: int
    fields: Mapping[str, NDArray[Any]]

    def to_bytes(self) -> bytes:
        """Return the bytes that the client sends; `dpfed.compress.from_bytes` is the inverse."""
        content = b"".join(block.content for block in self._blocks())
        return write_frame(frame_header(self.scheme, self.dimension, self.seed), content)

    def byte_count(self) -> int:
        """Return the length of `to_bytes`."""
        return header_bytes(self.scheme, self.dimension) + sum(len(block.content) for block in self._blocks())

    def size(self) -> Size:
        """Return the length of `to_bytes`, split into header, raw content and entropy-coded content."""
        blocks = self._blocks()
        coded = 8 * sum(len(block.content) for block in blocks if block.coded)
        raw = 8 * sum(len(block.content) for block in blocks) - coded
        return Size(header_bytes=header_bytes(self.scheme, self.dimension), raw_bits=raw, coded_bits=coded)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Payload)
            and (self.scheme, self.dimension, self.seed) == (other.scheme, other.dimension, other.seed)
            and all(np.array_equal(content, other.fields[name]) for name, content in self.fields.items())
        )

    # Arrays have no hash; this states it for Python, and mypy requires a method.
    __hash__ = None  # type: ignore[assignment]

    def _blocks(self) -> list[FieldBytes]:
        layout = self.scheme.layout(self.dimension)
        return [part.write(self.fields[name]) for name, part in layout.items()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Payloads(Sequence[Payload]):
    """Uploads of c clients, as tensors [c, ...] in `fields`; a sequence whose elements are Payloads made on access.

    `seeds` is int64 [c], with the 64 bits of the unsigned `Payload.seed`.
    """

    scheme: Scheme
    dimension: int
    seeds: Tensor
    fields: Mapping[str, Tensor]

    @classmethod
    def of(cls, scheme: Scheme, dimension: int, *, seeds: Tensor | None = None, **fields: Tensor) -> Payloads:
        """Return payloads of tensors [c, count], or [c] if the count is one. Give seeds only if decoding needs them.

        Raises ConfigError naming the client if a number is beyond LARGEST or the range of its float type.
        """
        layout = scheme.layout(dimension)
        shaped = {name: fields[name].reshape(len(fields[name]), part.count) for name, part in layout.items()}
        for name, content in shaped.items():
            if content.is_floating_point():
                too_large = ~(content.abs().amax(dim=1).double() <= LARGEST)
                refuse_rows(too_large, f"{scheme.name}: its {name} are beyond what is sent (±{LARGEST:g})", "scale it")
        content = next(iter(shaped.values()))
        if seeds is None:
            seeds = torch.zeros(len(content), dtype=torch.int64, device=content.device)
        return cls(scheme=scheme, dimension=dimension, seeds=seeds, fields=shaped)

    def __len__(self) -> int:
        return len(self.seeds)

    @overload
    def __getitem__(self, index: int) -> Payload: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> Payloads: ...
    def __getitem__(self, index: int | slice | Tensor) -> Payload | Payloads:
        if isinstance(index, slice | Tensor):  # a range of clients, or a mask [c]
            fields = {name: content[index] for name, content in self.fields.items()}
            return dataclasses.replace(self, seeds=self.seeds[index], fields=fields)
        layout = self.scheme.layout(self.dimension)
        return Payload(
            scheme=self.scheme,
            dimension=self.dimension,
            seed=int(self.seeds[index]) % (1 << 64),
            fields={
                name: content[index].cpu().numpy().astype(layout[name].dtype, copy=False)
                for name, content in self.fields.items()
            },
        )

    def __iter__(self) -> Iterator[Payload]:
        return (self[index] for index in range(len(self)))


def frame_header(scheme: Scheme, dimension: int, seed: int) -> FrameHeader:
    """Return the header of a scheme's payload."""
    return FrameHeader(name=scheme.name, options=wire_options(scheme), dimension=dimension, seed=seed)


def header_bytes(scheme: Scheme, dimension: int) -> int:
    """Return the length of a message around its content, equal for all clients."""
    return len(write_frame(frame_header(scheme, dimension, 0), b""))


def most_bytes(scheme: Scheme, dimension: int) -> int:
    """Return an upper bound on `len(payload.to_bytes())` for any content: its length without entropy coding."""
    return header_bytes(scheme, dimension) + sum(part.most_bytes for part in scheme.layout(dimension).values())


def largest_entry(scheme: Scheme) -> float:
    """Return the largest magnitude of an update's entries that the scheme encodes."""
    return float(getattr(scheme, "largest_entry", LARGEST_ENTRY))


def batch(payloads: Sequence[Payload], scheme: Scheme) -> Batch:
    """Return payloads as one batch. Raise WireError unless there is at least one, all of this scheme and equal d."""
    if not len(payloads):
        raise WireError(f"{scheme.name}: no payload to decode; at least one client must have sent a payload.")
    if isinstance(payloads, Payloads):
        _require_same(payloads, scheme, payloads.dimension, "the payloads")
        return Batch(payloads.dimension, payloads.seeds, payloads.fields)
    dimension = payloads[0].dimension
    for index, payload in enumerate(payloads):
        _require_same(payload, scheme, dimension, f"payload {index}")
    seeds = np.array([payload.seed for payload in payloads], dtype=np.uint64).astype(np.int64)
    fields = {
        name: torch.from_numpy(np.stack([payload.fields[name] for payload in payloads])) for name in payloads[0].fields
    }
    return Batch(dimension, torch.from_numpy(seeds), fields)


batched = batch  # its name up to version 0.3


@dataclass(frozen=True)
class Batch:
    """Checked payloads: d, seeds int64 [c], and the fields by name, `batch["scale"]`, each [c, count]."""

    dimension: int
    seeds: Tensor
    fields: Mapping[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return len(self.seeds)


def _require_same(one: Payload | Payloads, scheme: Scheme, dimension: int, what: str) -> None:
    if one.scheme != scheme:
        raise WireError(f"{what} is of {one.scheme}: this decoder is {scheme}; drop the client's message.")
    if one.dimension != dimension:
        raise WireError(f"{what} is for d={one.dimension}: the others are for d={dimension}.")


def parse(
    message: bytes, make: Callable[[str, Mapping[str, Option]], Scheme], *, dimension: int | None = None
) -> Payload:
    """Parse the payload of `to_bytes`; `make(name, options)` gives the scheme. Raise WireError for any other message.

    Memory is bounded by the length of the message and by d, which is `dimension` or at most 2^24.
    """
    header, reader = read_frame(message, dimension=dimension)
    try:
        scheme = make(header.name, header.options)
        layout = scheme.layout(header.dimension)
    except (ValueError, OverflowError) as error:
        raise WireError(f"a message for an invalid scheme: {error}") from None
    if dict(wire_options(scheme)) != dict(header.options):
        raise WireError(f"the options {dict(header.options)} of {header.name}: must leave out defaults.")
    fields = {name: part.read(reader) for name, part in layout.items()}
    if left := len(reader.content) - reader.at:
        raise WireError(f"{left} bytes are left over after the content; the message is forged.")
    return Payload(scheme=scheme, dimension=header.dimension, seed=header.seed, fields=fields)


def wire_options(scheme: Scheme) -> Mapping[str, Option]:
    """Return the options that differ from their defaults, which are sent."""
    return {
        one.name: getattr(scheme, one.name)
        # mypy does not know that schemes are dataclasses, since a Protocol cannot state it.
        for one in dataclasses.fields(scheme)  # type: ignore[arg-type]
        if one.metadata.get("wire", True) and getattr(scheme, one.name) != one.default
    }


def checked_updates(x: Tensor) -> Tensor:
    """Return updates as float32 [clients, d]. Raise ConfigError unless they are finite, floating and [clients >= 1, d
    >= 1]."""
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point() or not x.numel():
        raise ConfigError(
            f"x is {type_and_shape(x)}: must be a floating tensor [clients, d] with at least one client and d >= 1."
        )
    x = x.detach().to(torch.float32).contiguous()
    refuse_rows(~torch.isfinite(x.abs().amax(dim=1)), "NaN or infinity in its update", "replace it by zeros")
    return x


def type_and_shape(values: object) -> str:
    """Return type and shape of a value, for messages."""
    return f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__


def refuse_rows(wrong: Tensor, why: str, instead: str) -> None:
    """Raise ConfigError naming the first client whose entry of `wrong` [c] is true."""
    if bool(wrong.any()):
        raise ConfigError(f"client {int(wrong.int().argmax())} (row of x): {why}; {instead} before it is compressed.")


def encode_with_feedback(scheme: Scheme, x: Tensor, error: Tensor, *, seed: Seed) -> tuple[Payloads, Tensor]:
    """Return payloads of x + error, and the next error [clients, d], a new tensor, for error feedback.

    The part of an update that a biased scheme does not send is added to the next update. Seide et al. (Interspeech
    2014); Karimireddy et al., arXiv:1901.09847. With the error e of the client's last round:

        send encode(x + e), keep e' = x + e - decode(the payload)

    so that over the rounds every update is sent: Σ decoded = Σ x - e. The error is each client's state, [clients, d],
    zero at first; the caller keeps it between rounds. It carries private data of past rounds into this one. So a bound
    on x does not bound the sent vector, and no privacy guarantee of a single round holds.
    """
    x = checked_updates(x)
    if error.shape != x.shape:
        raise ConfigError(f"error is {list(error.shape)}: must be {list(x.shape)} like x, zeros in the first round.")
    wanted = x + error.to(x)
    payloads = scheme.encode(wanted, seed=seed)
    return payloads, wanted.sub_(scheme.decode(payloads))
