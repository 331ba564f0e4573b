"""A chain of stages: the steps of a method in their order, and what the chain knows of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins, PrivateCoins
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.stages.clip import Clip
from dpfed.stages.clip_moves import ClipMoves
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Private, Resizing, Round, Stage, Whole, Wire
from dpfed.stages.words import Words

Kind = TypeVar("Kind")


class Stages:
    """Stages in the order in which a client's update goes through them; the halves at the sum run backwards.

    A chain begins with `Project`, has one `Wire` and at most one stage that makes private (`Private`). ConfigError for
    a chain whose private stage rests on a bound that no stage before it keeps.
    """

    def __init__(self, *stages: Stage) -> None:
        self._stages = stages
        self._check()

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    def __reversed__(self) -> Iterator[Stage]:
        return reversed(self._stages)

    def __repr__(self) -> str:
        return " > ".join(type(stage).__name__ for stage in self)

    def find(self, kind: type[Kind]) -> Kind | None:
        """The stage of this kind, if there is one."""
        return next((stage for stage in self if isinstance(stage, kind)), None)

    @property
    def project(self) -> Project:
        first = self._stages[0]
        assert isinstance(first, Project)
        return first

    @cached_property
    def private(self) -> Private | None:
        """What makes a round private, and is charged."""
        return next((stage for stage in self if isinstance(stage, Private)), None)

    @cached_property
    def wire(self) -> Wire:
        return next(stage for stage in self if isinstance(stage, Wire))

    @property
    def before_wire(self) -> tuple[Stage, ...]:
        """Stages whose client halves run on a node, ahead of its bytes."""
        return self._stages[: self._wire_at]

    @property
    def after_wire(self) -> tuple[Stage, ...]:
        """Stages whose client halves run where uploads are read."""
        return self._stages[self._wire_at + 1 :]

    @cached_property
    def _wire_at(self) -> int:
        return next(place for place, stage in enumerate(self) if isinstance(stage, Wire))

    @property
    def up_to_the_clip(self) -> tuple[Stage, ...]:
        """The map, the bound, and what of one's own is between them: what a client may add to a released sum."""
        last = max(place for place, stage in enumerate(self) if isinstance(stage, Project | Clip | ClipMoves))
        return tuple(stage for stage in self._stages[: last + 1] if not isinstance(stage, Wire))

    def before(self, place: int) -> tuple[Stage, ...]:
        return self._stages[:place]

    @property
    def own(self) -> tuple[Stage, ...]:
        """Stages that do not come with dpfed."""
        return tuple(stage for stage in self if not type(stage).__module__.startswith("dpfed."))

    @property
    def decodes_before_the_clip(self) -> bool:
        """Whether the bound is put on what a trusted server decoded, since one before the code would not bound it."""
        return any(isinstance(stage, Clip) for stage in self.after_wire)

    @property
    def noise_in_rows(self) -> bool:
        return self.private is not None and self.private.in_rows

    @property
    def every_upload_is_a_release(self) -> bool:
        return self.private is not None and self.private.in_every_upload

    @property
    def lossless(self) -> bool:
        """Whether rows arrive as they were before the wire, as floats."""
        wire = self.wire
        return isinstance(wire, Encode) and wire.lossless

    @cached_property
    def summed_as(self) -> torch.dtype:
        """What rows are made of when they are summed."""
        kinds = [stage.summed_as for stage in self if isinstance(stage, Whole)]
        return kinds[-1] if kinds else torch.float32

    @cached_property
    def width(self) -> int:
        """How many numbers an upload has."""
        size = self.project.sent
        for stage in self:
            size = stage.width(size) if isinstance(stage, Resizing) else size
        return size

    @property
    def fixed_bits(self) -> int | None:
        """Bits that an upload is counted with; None where the content decides."""
        return self.wire.fixed_bits(self.project.sent)

    @property
    def bits(self) -> int | None:
        """Of the ring that sums live in; None without one."""
        coins = self.find(Coins) or self.find(PrivateCoins)
        if coins is not None:
            return coins.bits
        words = self.find(Words)
        return None if words is None else words.bits

    def without(self, *kinds: type) -> Stages:
        """The chain with the stages of these kinds left out."""
        return Stages(*(stage for stage in self if not isinstance(stage, kinds)))

    def replaced(self, kind: type[Kind], made: Callable[[Kind], Any]) -> Stages:
        """The chain with what `made` makes of the stage of this kind in its place."""
        if self.find(kind) is None:
            raise ConfigError(f"{self!r}: has no {kind.__name__} that could be replaced.")
        return Stages(*(made(stage) if isinstance(stage, kind) else stage for stage in self))

    def with_before(self, kind: type, stage: Stage) -> Stages:
        """The chain with one stage more, before that of this kind."""
        return Stages(*(each for one in self for each in ((stage, one) if isinstance(one, kind) else (one,))))

    def with_after(self, kind: type, stage: Stage) -> Stages:
        """The chain with one stage more, after that of this kind."""
        return Stages(*(each for one in self for each in ((one, stage) if isinstance(one, kind) else (one,))))

    def _check(self) -> None:
        """Integers keep to the norm that is charged; moves of coins are clipped as charged."""
        integers, noise = self.find(Integers), self.find(IntegerNoise)
        if integers is not None and noise is not None:
            squared, charged = integers.fixed_point.largest_squared_norm(integers.clip_norm), noise.noise.l2_bound
            if squared > charged**2 * (1 + 1e-12):
                raise ConfigError(
                    f"integers of squared norm up to {squared} with noise that is charged for {charged}: must be at "
                    "most its square. Give both the same steps and clip norm."
                )
        coins, clip = self.find(PrivateCoins), self.find(ClipMoves)
        if coins is not None and clip is not None:
            kept, wanted = (clip.linf, clip.metric), (coins.coins.linf_clip, coins.coins.clip_metric)
            if kept != wanted or (clip.metric == "fisher" and clip.edge != coins.edge):
                raise ConfigError(
                    f"moves clipped to {clip.linf} in each coordinate (metric {clip.metric!r}, edge {clip.edge}) with "
                    f"coins that are charged for {wanted[0]} (metric {wanted[1]!r}, edge {coins.edge}): must be the "
                    "same."
                )


def client_halves(stages: Iterable[Stage], rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
    """Rows [c, k] through the client halves of these stages."""
    for stage in stages:
        if now.observer is not None:
            now.observer.entering(stage, rows, ids)
        rows = stage.client(rows, ids, now)
        if now.observer is not None:
            now.observer.left(stage, rows, ids)
    return rows


def server_halves(stages: Stages, total: Tensor, now: Round) -> Tensor:
    """A sum back through the server halves of all stages."""
    for stage in reversed(stages):
        if now.observer is not None:
            now.observer.summed(stage, total)
        total = stage.server(total, now)
    return total
