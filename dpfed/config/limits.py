"""The largest numbers that a configuration may name.

What a run, or an audit of its files, takes of memory and time follows from them: a number that somebody else has put
into a file must not be able to take all there is. They lie far beyond every experiment that one machine can simulate.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP

MOST_CLIENTS = 10**7
"""Clients of a run, and of a cohort or a padded sum of it."""

MOST_ROUNDS = 10**6
MOST_STEPS = 10**5
"""Local steps, or epochs, of one client in one round: its batches are laid out before it trains."""

MOST_SAMPLES = 10**6
"""Samples of a batch, and of a client that draws its own."""

MOST_CANARIES = 10**5
MOST_UNITS = 2**16
MOST_FACTORS = 10_000
"""Largest number of factors of a learning rate that is listed round by round."""
MOST_LAYERS = 64
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 1e30
"""Training has float32, which ends at 3.4e38."""

Count = Annotated[int, Field(ge=1, le=10**15)]
"""Number of things that exist anyway; no more of them is taken than exists."""

Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Canaries = Annotated[int, Field(ge=0, le=MOST_CANARIES)]
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_FLOAT, allow_inf_nan=False)]


def _held_by_float32(value: float) -> float:
    if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
        raise ValueError(f"must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, which float32 holds with noise and sums")
    return value


ClipNorm = Annotated[
    float,
    AfterValidator(_held_by_float32),
    WithJsonSchema({"type": "number", "minimum": SMALLEST_CLIP, "maximum": LARGEST_CLIP}),
]
