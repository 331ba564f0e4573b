"""Terms of a round that a server sends to a client, and the client's update in bytes: projected, clipped, encoded.

Apps of other frameworks (Flower, NVFlare) use these terms when they become private.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed import compress
from dpfed.aggregation.ranks import Task
from dpfed.errors import WireError
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerState
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode
from dpfed.stages.project import MapChoice, RandomSharedMask, SendAll
from dpfed.stages.stage import Round


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """Terms of one client in a round. All terms are public; that this client takes part is not.

    round, client: number of the round, and id of the client, both from 0
    dimension:     d, the number of floating-point numbers in the model
    kept:          number k of coordinates that are sent: d for all, else Fed-SMP's shared mask of the round from `seed`
    scheme:        name of the compressor in `dpfed.compress`; options: its options as JSON
    arrays:        name of the model's ArrayRecord on Flower, else empty
    plan:          `ServerPlan` of the run as JSON, by which a node with a ledger of its own charges and refuses
    """

    round: int
    client: int
    clip_norm: float
    dimension: int
    kept: int
    seed: int
    scheme: str
    options: str
    arrays: str = ""
    plan: str = ""

    @property
    def sends_all(self) -> bool:
        """True if the update is sent uncompressed, with all its coordinates as floats."""
        return self.scheme == "dense" and self.kept == self.dimension

    def encode(self, update: Tensor) -> bytes:
        """Return the update [d], projected by the round's map and clipped to clip_norm, as bytes of the scheme (client
        side).

        An update of zeros, or one that is not finite, is sent as one byte, as in `dpfed run`.
        """
        now, ids = self._local_round()
        rows = Clip().client(now.projection.forward(update[None].clone(), ids), ids, now)
        (message,) = self._encode_stage().messages(rows, ids, now)
        return message

    def decode(self, message: bytes) -> Tensor:
        """Return the update [d] whose projection was sent (server side); raises WireError if the scheme cannot decode
        the bytes."""
        now, ids = self._local_round()
        (row,) = self._encode_stage().read([message], ids, now)
        update: Tensor = row if self.kept == self.dimension else now.projection.adjoint(row)
        return update * (self.kept / self.dimension)

    def _encode_stage(self) -> Encode:
        scheme = compress.get(self.scheme, **json.loads(self.options))
        return Encode(scheme=scheme, seeds=Seeds(root=self.seed), sizes_secret=True)

    def _local_round(self) -> tuple[Round, NDArray[np.int64]]:
        ids = np.array([self.client], dtype=np.int64)
        nowhere, size, kept = torch.zeros(self.dimension), self.dimension, self.kept
        state = ServerState(round=self.round, broadcast=nowhere, clip_norm=self.clip_norm)
        choice: MapChoice = SendAll(size=size) if kept == size else RandomSharedMask(size=size, kept=kept)
        projection = choice.for_round(nowhere, self.round, Seeds(root=self.seed))
        task = Task(state=state, cohort=ids, participants=ids)
        return Round(task=task, projection=projection, reference=torch.zeros(self.kept)), ids


Arrays = dict[str, NDArray[Any]]


def add_to_named_arrays(start: Arrays, move: Tensor) -> Arrays:
    """Return the arrays `start` after adding a float32 vector [d] to the floating-point arrays; others are
    unchanged."""
    values, place, ends = move.numpy(), 0, {}
    for name, array in start.items():
        ends[name] = array
        if array.dtype.kind == "f":
            part = values[place : place + array.size].reshape(array.shape)
            place += array.size
            ends[name] = (array + part).astype(array.dtype)
    return ends


def checked_terms(given: Mapping[str, Any]) -> RoundTerms:
    """Return the validated terms that a client has received; raises WireError for terms that no server of this version
    sends."""
    kinds = get_type_hints(RoundTerms)
    if set(given) != set(kinds) or any(type(given[name]) is not kind for name, kind in kinds.items()):
        raise WireError(
            f"terms {sorted(given)}: must be {sorted(kinds)}. Use one version of dpfed at server and client."
        )
    terms = RoundTerms(**given)
    if not SMALLEST_CLIP <= terms.clip_norm <= LARGEST_CLIP:
        raise WireError(f"clip_norm={terms.clip_norm!r}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}.")
    if min(terms.round, terms.client, terms.seed) < 0 or not 1 <= terms.kept <= terms.dimension:
        raise WireError(
            f"round {terms.round}, client {terms.client}, {terms.kept} of {terms.dimension} coordinates: out of range."
        )
    return terms
