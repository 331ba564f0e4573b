"""What a ClientLevelStrategy asks of a node in a round, and the node's update in bytes: project, clip, encode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed import compress
from dpfed.aggregation.ranks import Task
from dpfed.errors import ConfigError, WireError
from dpfed.seeds import Seeds
from dpfed.server.state import ServerState
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode
from dpfed.stages.maps import MapChoice
from dpfed.stages.send_all import SendAll
from dpfed.stages.shared_mask import RandomSharedMask
from dpfed.stages.stage import Round

RECORD = "dpfed"
"""The name of this package's ConfigRecord in messages and replies."""

_OF_MODELS = ("fedpm", "fedmask", "fedmrn", "fedmrns", "fedsparsify")


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """One client's part of a round; all of it is public but that it is asked at all.

    round, client: their numbers, from 0
    dimension:     d, floating-point numbers in the model
    kept:          coordinates that are sent (Fed-SMP's shared mask, drawn by `seed` for the round); d: all
    scheme:        of `dpfed.compress`, with its options as JSON
    arrays:        the name of the model's ArrayRecord
    """

    round: int
    client: int
    clip_norm: float
    dimension: int
    kept: int
    seed: int
    scheme: str
    options: str
    arrays: str

    @property
    def plain(self) -> bool:
        """Whether a node's arrays, as they are, will do."""
        return self.scheme == "dense" and self.kept == self.dimension

    @property
    def choice(self) -> MapChoice:
        """Which coordinates are sent."""
        if self.kept == self.dimension:
            return SendAll(size=self.dimension)
        return RandomSharedMask(size=self.dimension, kept=self.kept)

    def to_record(self) -> ConfigRecord:
        return ConfigRecord(asdict(self))

    def encode(self, update: Tensor) -> bytes:
        """On the node: an update [d] through the round's map, clipped to clip_norm, in the scheme's bytes. One byte in
        place of zeros or of a row that is not finite, as `dpfed run` sends."""
        now, ids = self._round()
        rows = Clip().client(now.projection.forward(update[None].clone(), ids), ids, now)
        (message,) = self._encode().messages(rows, ids, now)
        return message

    def decode(self, message: bytes) -> Tensor:
        """At the server: the update [d] whose image under the map is what was sent. WireError for other bytes."""
        now, ids = self._round()
        (row,) = self._encode().read([message], ids, now)
        if self.kept == self.dimension:
            return row
        return now.projection.adjoint(row) * (self.kept / self.dimension)

    def _encode(self) -> Encode:
        scheme = compress.get(self.scheme, **json.loads(self.options))
        return Encode(scheme=scheme, seeds=Seeds(root=self.seed), sizes_secret=True)

    def _round(self) -> tuple[Round, Any]:
        ids = np.array([self.client], dtype=np.int64)
        nowhere = torch.zeros(self.dimension)
        state = ServerState(round=self.round, broadcast=nowhere, clip_norm=self.clip_norm)
        projection = self.choice.for_round(nowhere, self.round, Seeds(root=self.seed))
        task = Task(state=state, cohort=ids, participants=ids)
        return Round(task=task, projection=projection, reference=torch.zeros(self.kept)), ids


def options_of(scheme: str, options: Mapping[str, Any] | None) -> str:
    """The options of a scheme as they travel. ConfigError for a scheme that is unknown, or not of updates."""
    if scheme in _OF_MODELS:
        raise ConfigError(
            f"compress={scheme!r}: its clients train masks or pruned models, not updates. Use one of "
            f"{', '.join(name for name in compress.names() if name not in _OF_MODELS)}."
        )
    compress.get(scheme, **(options or {}))
    return json.dumps(dict(options or {}))


def read_terms(content: RecordDict) -> RoundTerms:
    """On the node, of a message. ConfigError where the server is not a ClientLevelStrategy, WireError for terms that no
    such server sends."""
    if RECORD not in content.config_records:
        raise ConfigError(
            f"a message without the record {RECORD!r}: client_mod needs dpfed's ClientLevelStrategy on the server. "
            "Wrap its strategy, or take the mod out of ClientApp(mods=[...])."
        )
    given = dict(content.config_records[RECORD])
    kinds = {"clip_norm": float, "scheme": str, "options": str, "arrays": str}
    kinds |= dict.fromkeys(("round", "client", "dimension", "kept", "seed"), int)
    if set(given) != set(kinds) or any(type(given[name]) is not kind for name, kind in kinds.items()):
        raise WireError(f"terms {sorted(given)}: must be {sorted(kinds)}, of one version of dpfed on server and nodes.")
    terms = RoundTerms(**given)
    if not SMALLEST_CLIP <= terms.clip_norm <= LARGEST_CLIP:
        raise WireError(f"clip_norm={terms.clip_norm!r}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}.")
    if min(terms.round, terms.client, terms.seed) < 0 or not 1 <= terms.kept <= terms.dimension:
        raise WireError(f"round {terms.round}, client {terms.client}, {terms.kept} of {terms.dimension} coordinates.")
    return terms
