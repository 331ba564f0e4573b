"""Loss laws of participation schedules: their blocks (`participation.blocks`) on a grid of losses."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from accounting.compose import loss_grid
from accounting.compose.convex import convex_below
from accounting.compose.loss_law import LossLaw, certain
from accounting.gaussian.half_lines import Floats
from accounting.participation import ratio_law
from accounting.participation.blocks import Blocks, OnceInBlock

_TAIL_MASS = 1e-19
_COARSE_FROM = 1.5
"""Shift from which the grid of a block's law may be too coarse to be better than `ratio_law.of_public_round`."""
_LARGEST_LOG_GAMMA = 690.0
"""Of a gamma that doubles hold. Beyond, the round in which a client takes part counts as public."""


def laws(blocks: Blocks, shift: float, interval: float) -> list[tuple[tuple[LossLaw, ...], int]]:
    """The loss laws of blocks in both orders of the worlds, on a grid of `interval`, and how often each block comes.

    Claim: with s = shift their composition dominates the rounds that the blocks stand for. Adjacency: zero-out,
    add-remove. Direction of error: upper bound; `blocks.beyond` is an infinite loss. They are not composed yet, so that
    whoever composes can tilt them before.
    """
    of_blocks: list[tuple[tuple[LossLaw, ...], int]] = [
        (_block_laws(block, shift, interval), count) for block, count in blocks.repeated
    ]
    if blocks.beyond:
        of_blocks.append(((replace(certain(0, spacing=interval), infinite=min(blocks.beyond, 1.0)),), 1))
    return of_blocks


@lru_cache(maxsize=256)
def _block_laws(block: OnceInBlock, shift: float, interval: float) -> tuple[LossLaw, LossLaw]:
    steps = math.ceil(ratio_law.largest_loss(block, shift, _TAIL_MASS) / interval) + 1
    losses = interval * np.arange(steps + 1, dtype=float)
    if losses[-1] > _LARGEST_LOG_GAMMA:
        forth, back = ratio_law.of_public_round(block, shift, losses)
        return loss_grid.connect_dots(interval, forth, back), loss_grid.connect_dots(interval, back, forth)
    forth, back = ratio_law.divergences(block, shift, losses)
    if shift > _COARSE_FROM:
        public = ratio_law.of_public_round(block, shift, losses)
        forth, back = (_smaller(losses, one, two) for one, two in zip((forth, back), public, strict=True))
    return loss_grid.connect_dots(interval, forth, back), loss_grid.connect_dots(interval, back, forth)


def _smaller(losses: Floats, one: Floats, two: Floats) -> Floats:
    """The largest curve below both that is convex in gamma, as the truth is, which is below both."""
    lower = np.minimum(one, two)
    return lower if np.all(lower == one) or np.all(lower == two) else convex_below(np.exp(losses), lower)
