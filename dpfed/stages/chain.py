"""Chain of stages: the steps of a method in order, and the properties of the whole chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed import replayed
from dpfed.compress.rotation import one_thread
from dpfed.errors import ConfigError
from dpfed.server.rules import ServerState
from dpfed.stages.clip import AdaptiveClip, Clip, ClipMoves
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Private, Round, Stage, Wire, is_private, stage_attribute

Kind = TypeVar("Kind")


class Stages:
    """Stages in the order in which a client's update passes them; the halves at the sum run in reverse order.

    A chain begins with `Project`, has one `Wire` and at most one private stage (`Private`). Raises ConfigError for a
    chain whose private stage needs a bound that no stage before it ensures.
    """

    def __init__(self, *stages: Stage) -> None:
        self._stages = stages
        if self.private is not None:
            stage_attribute(self.private, "require_bound")(stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __reversed__(self) -> Iterator[Stage]:
        return reversed(self._stages)

    def __repr__(self) -> str:
        return " > ".join(type(stage).__name__ for stage in self)

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the stage of this kind, or None."""
        return next((stage for stage in self if isinstance(stage, kind)), None)

    @property
    def project(self) -> Project:
        first = self._stages[0]
        assert isinstance(first, Project)
        return first

    @property
    def adaptive_clip(self) -> AdaptiveClip | None:
        """Rule by which the clip norm changes from round to round; None if it is fixed."""
        clip = self.find(Clip)
        return None if clip is None else clip.adaptive

    @cached_property
    def private(self) -> Private | None:
        """Stage that makes a round private and is charged; None if nothing is private."""
        return next((stage for stage in self if is_private(stage)), None)

    @cached_property
    def wire(self) -> Wire:
        return next(stage for stage in self if isinstance(stage, Wire))

    @property
    def before_wire(self) -> tuple[Stage, ...]:
        """Stages whose client halves run on a node, before its bytes are sent."""
        return self._stages[: self._wire_at]

    @property
    def after_wire(self) -> tuple[Stage, ...]:
        """Stages whose client halves run at the server, after uploads are read."""
        return self._stages[self._wire_at + 1 :]

    @cached_property
    def _wire_at(self) -> int:
        return next(place for place, stage in enumerate(self) if isinstance(stage, Wire))

    @property
    def up_to_the_clip(self) -> tuple[Stage, ...]:
        """Map, clip and the custom stages between them: their output is what a client may add to a released sum."""
        last = max(place for place, stage in enumerate(self) if isinstance(stage, Project | Clip | ClipMoves))
        return tuple(stage for stage in self._stages[: last + 1] if not isinstance(stage, Wire))

    @property
    def own(self) -> tuple[Stage, ...]:
        """Custom stages, which are not part of dpfed."""
        return tuple(stage for stage in self if not type(stage).__module__.startswith("dpfed."))

    @property
    def has_error_feedback(self) -> bool:
        """True if a private chain remembers only each client's compression error, and its charge covers that
        (docs/theory-participation.md, Theorem 4). Custom stages could put other clients into that memory."""
        wire = self.wire
        return type(wire) is Encode and wire.remembers_clients and self.covers_own_memory

    @property
    def covers_own_memory(self) -> bool:
        """True if the charge covers a memory in which a client's earlier rounds affect the uploads of that client only.

        All stages and the training of dpfed that remember clients are such.
        """
        return not self.own and bool(getattr(self.private, "covers_feedback", False))

    @property
    def decodes_before_the_clip(self) -> bool:
        """True if a trusted server clips decoded rows, because a clip before a lossy scheme would not bound them."""
        return any(isinstance(stage, Clip) for stage in self.after_wire)

    @property
    def noise_in_rows(self) -> bool:
        return self.private is not None and self.private.in_rows

    @property
    def every_upload_is_a_release(self) -> bool:
        return self.private is not None and self.private.in_every_upload

    @property
    def lossless(self) -> bool:
        """True if rows arrive unchanged, as floats."""
        wire = self.wire
        return isinstance(wire, Encode) and wire.lossless

    @cached_property
    def summed_as(self) -> torch.dtype:
        """Type of rows in the sum."""
        kinds = [kind for stage in self if (kind := stage_attribute(stage, "summed_as")) is not None]
        return kinds[-1] if kinds else torch.float32

    @cached_property
    def width(self) -> int:
        """Number of values in an upload."""
        size = self.project.sent
        for stage in self:
            size = stage_attribute(stage, "width")(size)
        return size

    @property
    def fixed_bits(self) -> int | None:
        """Number of bits that an upload is counted with; None if they depend on its content."""
        return self.wire.fixed_bits(self.project.sent)

    @property
    def bits(self) -> int | None:
        """Bits of the ring of sums; None without a ring."""
        return next((bits for stage in self if (bits := stage_attribute(stage, "ring_bits")) is not None), None)

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        """Return the state that the next round starts from, given the state after the server's step."""
        for stage in self:
            state = stage_attribute(stage, "next_state")(state, now)
        return replace(state, stages=now.memory)

    def memory(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the memory of a round's stages; it refuses entries in a private chain whose charge covers none."""
        if self.private is None or stage_attribute(self.private, "covers_memory") or self.has_error_feedback:
            return dict(kept)
        return dict(kept) if self.project.remembers_clients and self.covers_own_memory else NoMemory(kept)

    def without(self, *kinds: type) -> Stages:
        """Return the chain without the stages of these kinds."""
        return Stages(*(stage for stage in self if not isinstance(stage, kinds)))

    def replace_stage(self, kind: type[Kind], made: Callable[[Kind], Any]) -> Stages:
        """Return the chain with `made(stage)` in place of the stage of this kind."""
        if self.find(kind) is None:
            raise ConfigError(f"{self!r}: has no {kind.__name__} that could be replaced.")
        return Stages(*(made(stage) if isinstance(stage, kind) else stage for stage in self))


class NoMemory(dict[str, Tensor]):
    """`Round.memory` of a private round whose account covers no memory: any assignment raises ConfigError."""

    def _refuse(self, *given: object, **more: object) -> NoReturn:
        raise ConfigError(
            f"memory of round to round with [privacy] ({', '.join(map(str, given[:1]))}): no account of single rounds "
            "covers data of clients that a stage remembers. Set remembers_clients = True in the stage and run it "
            "without [privacy], or remove its memory."
        )

    __setitem__ = setdefault = update = __ior__ = _refuse


def client_halves(stages: Iterable[Stage], rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
    """Pass rows [c, k] through the client halves of these stages."""
    for stage in stages:
        if now.observer is not None:
            now.observer.entering(stage, rows, ids)
        rows = stage.client(rows, ids, now)
        if now.observer is not None:
            now.observer.left(stage, rows, ids)
        if (replay := replayed.current_replay()) is not None:
            rows = replay.rounds.private_rows(stage, rows, ids)
    return rows


@one_thread()
def server_halves(stages: Stages, total: Tensor, now: Round) -> Tensor:
    """Pass a sum back through the server halves of all stages."""
    for stage in reversed(stages):
        if now.observer is not None:
            now.observer.summed(stage, total)
        if stage is stages.private and (replay := replayed.current_replay()) is not None:
            kept = total.clone()
            total = replay.rounds.compare_noise(stage, kept, stage.server(total, now), now)
        else:
            total = stage.server(total, now)
    return total
