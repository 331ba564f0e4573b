"""Noise of a round in which all four clients are clipped, over the noise for the norm they were clipped to."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from flower_strategies import CASES

run = next(case for case in CASES if case.name == "server-adaptive").make()  # clip_norm_lr=1, target 0.5, norm 1
updates = np.full((4, 64), 10.0, dtype=np.float32)
seen = np.array([np.concatenate(run(updates, seed)) for seed in range(60)])
noise = seen[:, :-1] - 1 / 8  # the mean of four rows of norm 1
claimed = (1 - (2 * 2.0) ** -2) ** -0.5 / 4
ratio = noise.std() / claimed
print(f"ratio {ratio:.3f}; norms that the next round hears of {seen[:, -1].mean():.3f}")
