"""Loss laws of participation schedules: their blocks (`participation.blocks`) on a grid of losses, composed."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from accounting.compose import loss_grid
from accounting.compose.loss_law import LossLaw, composed
from accounting.participation import ratio_law
from accounting.participation.blocks import Blocks, OnceInBlock

_TAIL_MASS = 1e-19


def laws(blocks: Blocks, shift: float, interval: float) -> tuple[LossLaw, LossLaw]:
    """The loss laws of composed blocks in both orders of the worlds, on a grid of `interval`.

    Claim: with s = shift they dominate the rounds that the blocks stand for. Adjacency: zero-out, add-remove.
    Direction of error: upper bound; `blocks.beyond` is part of the infinite loss.
    """
    of_blocks = [(_block_laws(block, shift, interval), count) for block, count in blocks.repeated]
    return (
        _charged(composed([(orders[0], count) for orders, count in of_blocks]), blocks.beyond),
        _charged(composed([(orders[1], count) for orders, count in of_blocks]), blocks.beyond),
    )


def _charged(law: LossLaw, beyond: float) -> LossLaw:
    return replace(law, infinite=min(law.infinite + beyond, 1.0))


@lru_cache(maxsize=256)
def _block_laws(block: OnceInBlock, shift: float, interval: float) -> tuple[LossLaw, LossLaw]:
    steps = math.ceil(ratio_law.largest_loss(block, shift, _TAIL_MASS) / interval) + 1
    forth, back = ratio_law.divergences(block, shift, interval * np.arange(steps + 1, dtype=float))
    return loss_grid.connect_dots(interval, forth, back), loss_grid.connect_dots(interval, back, forth)
