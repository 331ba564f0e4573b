"""The largest numbers that a configuration may name.

Memory and time of a run, or of an audit of its files, follow from these numbers: a number in a file from a stranger
must not exhaust a machine. The limits are far beyond every experiment that one machine can simulate.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP

MOST_CLIENTS = 10**7
"""Most clients of a run, of a cohort, and of a padded sum."""

MOST_ROUNDS = 10**6
MOST_STEPS = 10**5
"""Most local steps, or epochs, of one client in one round: its batches are laid out before it trains."""

MOST_SAMPLES = 10**6
"""Most samples of a batch, and of a client whose samples are drawn from the data set."""

MOST_CANARIES = 10**5
MOST_UNITS = 2**16
MOST_FACTORS = 10_000
"""Largest number of factors of a learning rate that is listed round by round."""
MOST_LAYERS = 64
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 1e30
"""Largest number in float32, in which training computes."""

Count = Annotated[int, Field(ge=1, le=10**15)]
"""Number of things to use, no more than exist."""

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
