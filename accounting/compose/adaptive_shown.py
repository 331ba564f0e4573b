"""What no account of fixed-size sampling can go below: an adversary who chooses between attained configurations."""

import math
from dataclasses import replace

import numpy as np

from accounting.compose.adaptive_game import Game
from accounting.compose.adaptive_grid import BELOW, grid_of, nodes_of
from accounting.compose.adaptive_kernels import attained
from accounting.compose.adaptive_program import StateGrid, Values
from accounting.mechanisms import Mechanism

_JUST_BELOW = 1 - 1e-6


def shown_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An epsilon that no account of the mechanism's rounds of fixed size can go below: what an adversary shows who
    chooses between a few attained configurations by the loss so far. 0 where the program is not run.

    The answer is a state of the grid, so the program is run again on a grid that has a state where the first suggests.
    Direction of error: lower bound, to the grid. Other releases of the mechanism only add to it.
    """
    game = Game.of(mechanism)
    if game is None:
        return 0.0
    game = replace(game, whole=game.fixed, others=None)
    grid = grid_of(game, delta, BELOW)
    if grid is None or grid.reach == 0:
        return 0.0
    try:
        found = _shown(game, grid)
        near = max(found.crossing(delta), found.exchanged().crossing(delta)) * _JUST_BELOW
        steps = math.ceil(near / grid.spacing)
        again = _shown(game, replace(grid, spacing=near / steps)) if steps else found
    except ValueError:
        return 0.0
    return max(found.worse_epsilon(delta), again.worse_epsilon(delta))


def _shown(game: Game, grid: StateGrid) -> Values:
    rounds = {}
    for kind in game.kinds:
        nodes = np.arange(grid.reach + 1) if game.symmetric else nodes_of(kind, grid, BELOW)
        rounds[kind] = attained(kind, game.symmetric, nodes, grid, below=True)
    found = Values.before(grid, upper=False)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.after(*rounds[kind])
    return found
