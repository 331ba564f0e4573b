"""Public ids of clients, as named in the data; they decide lanes and public orders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientIds:
    """Hashes of the clients' ids: the first 64 bits of SHA-256 of the id's text (7 and "7" are one id).

    Claim: a client's hash depends on its id alone, not on other clients. A hash is not secret: an observer can test
    guesses of an id. Errors: DataError if an id occurs twice. `names`: the ids as texts, for reports of the operator;
    None if they were read from a file of hashes.

    >>> ClientIds.of(["anna", "bert"]).lanes(4).tolist() == [*ClientIds.of(["anna"]).lanes(4), 2]
    True
    """

    hashes: NDArray[np.uint64]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(np.unique(self.hashes)) < len(self.hashes):
            raise DataError("ids of clients: one occurs twice. Give every client an id that no other client has.")

    @classmethod
    def of(cls, names: Iterable[object]) -> ClientIds | None:
        """Return the hashes of ids; None if one is neither a text nor a whole number."""
        found = list(names)
        if not all(isinstance(one, str | int | np.integer) and not isinstance(one, bool) for one in found):
            return None
        texts = tuple(str(one) for one in found)
        digests = b"".join(hashlib.sha256(text.encode()).digest()[:8] for text in texts)
        return cls(hashes=np.frombuffer(digests, dtype="<u8").astype(np.uint64), names=texts)

    def __len__(self) -> int:
        return len(self.hashes)

    def lanes(self, count: int) -> NDArray[np.int64]:
        """Return the lane of each client: its hash modulo the number of lanes."""
        return (self.hashes % np.uint64(count)).astype(np.int64)

    def ids_at(self, places: NDArray[np.int64]) -> ClientIds:
        """Return the ids of the clients at these positions."""
        names = None if self.names is None else tuple(self.names[place] for place in places.tolist())
        return ClientIds(hashes=self.hashes[places], names=names)

    def to_json(self) -> bytes:
        """Return the content of a file for the operator and audits."""
        return json.dumps({"sha256": [f"{one:016x}" for one in self.hashes.tolist()]}).encode() + b"\n"

    @classmethod
    def from_json(cls, content: str) -> ClientIds:
        """Return the ids of `to_json`. Raise DataError for other content."""
        try:
            hashes = [int(one, 16) for one in json.loads(content)["sha256"]]
            return cls(hashes=np.array(hashes, dtype=np.uint64))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise DataError("is not a file of clients' ids that dpfed has written.") from None
