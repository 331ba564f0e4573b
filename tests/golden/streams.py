"""Record of every random stream that a run draws from: its name, and the state in which its generator was left.

That state is a counter and a key, whole numbers that are the same on every processor, and it changes with every number
that is drawn. What is made of the numbers (logarithms, cosines) is not looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpfed.seeds import HostStream, Seeds


@dataclass
class Streams:
    """Streams in the order of their first use; nothing is recorded while `paused`."""

    uses: list[tuple[str, Any]] = field(default_factory=list)
    paused: bool = False

    def use(self, kind: str, purpose: str, path: tuple[int, ...], drawn: Any) -> None:
        if not self.paused:
            self.uses.append((f"{kind} {purpose} {' '.join(map(str, map(int, path)))}", drawn))

    def summary(self) -> dict[str, str]:
        """Return "count digest" for each kind and purpose; the order in which streams are used does not matter."""
        by_purpose: dict[str, list[bytes]] = {}
        for name, drawn in self.uses:
            kind, purpose, path = name.split(" ", 2)
            if isinstance(drawn, np.random.Generator):
                drawn = _state(drawn)
            by_purpose.setdefault(f"{kind} {purpose}", []).append(f"{path}: {drawn}".encode())
        return {
            name: f"{len(uses)} {hashlib.sha256(b'|'.join(sorted(uses))).hexdigest()[:12]}"
            for name, uses in sorted(by_purpose.items())
        }


def _state(generator: np.random.Generator) -> str:
    state = generator.bit_generator.state
    words = [int(word) for name in ("counter", "key") for word in state["state"][name]]
    return f"{state['bit_generator']} {words} {state['buffer_pos']} {state['has_uint32']}"


@contextmanager
def recorded_streams() -> Iterator[Streams]:
    """Record the streams of all `Seeds` while the context is open."""
    made = Streams()
    before = {name: getattr(Seeds, name) for name in ("generator", "tensors", "keys", "integer")}

    def generator(self: Seeds, purpose: str, *path: int) -> np.random.Generator:
        drawn = before["generator"](self, purpose, *path)
        made.use("generator", purpose, path, drawn)
        return drawn

    def tensors(self: Seeds, purpose: str, *path: int, device: str = "cpu") -> Any:
        stream = before["tensors"](self, purpose, *path, device=device)
        assert isinstance(stream, HostStream)
        made.use("tensors", purpose, path, stream._generator)
        return stream

    def keys(self: Seeds, purpose: str, number: int, ids: Any, shape: tuple[int, ...]) -> Any:
        found = before["keys"](self, purpose, number, ids, shape)
        for client, row in zip(np.atleast_1d(ids), found.reshape(len(np.atleast_1d(ids)), -1), strict=True):
            digest = hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()[:12]
            made.use("keys", purpose, (number, client), f"{list(shape)} {digest}")
        return found

    def integer(self: Seeds, purpose: str, *path: int) -> int:
        drawn = before["integer"](self, purpose, *path)
        made.use("integer", purpose, path, drawn)
        return drawn

    replaced = {"generator": generator, "tensors": tensors, "keys": keys, "integer": integer}
    try:
        for name, function in replaced.items():
            setattr(Seeds, name, function)
        yield made
    finally:
        for name, function in before.items():
            setattr(Seeds, name, function)
