"""Largest numbers that a configuration may contain, and the base class of all configuration tables.

An unknown key or a value of a wrong type is an error.

Memory and time of a run, or of an audit of its files, grow with these numbers. The limits keep a configuration from a
stranger from exhausting a machine, and are far beyond every experiment that one machine can simulate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, WithJsonSchema

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP

MOST_CLIENTS = 10**7
"""Largest number of clients of a run, clients of a cohort, and uploads of a padded sum."""

MOST_ROUNDS = 10**6
MOST_STEPS = 10**5
"""Largest number of local steps, or epochs, of one client in one round, because all its batches are drawn before it
trains."""

MOST_SAMPLES = 10**6
"""Largest number of samples of a batch, and of a client whose samples are drawn with replacement."""

MOST_CANARIES = 10**5
MOST_UNITS = 2**16
MOST_FACTORS = 10_000
"""Largest number of learning rate factors in a list with one factor for each round."""
MOST_LAYERS = 64
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 1e30
"""Largest floating-point setting; training computes in float32, whose range ends near 3.4e38."""

Count = Annotated[int, Field(ge=1, le=10**15)]
"""Positive number of samples, labels, steps, megabytes or rounds."""

Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Canaries = Annotated[int, Field(ge=0, le=MOST_CANARIES)]
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_FLOAT, allow_inf_nan=False)]


def _require_float32_range(value: float) -> float:
    if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
        raise ValueError(
            f"must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, so that float32 can represent noise and sums"
        )
    return value


ClipNorm = Annotated[
    float,
    AfterValidator(_require_float32_range),
    WithJsonSchema({"type": "number", "minimum": SMALLEST_CLIP, "maximum": LARGEST_CLIP}),
]


class Table(BaseModel):
    """A table of the configuration; the docstring of a key is its description in the configuration reference."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)
    _solved: Mapping[str, object] = PrivateAttr(default_factory=dict)

    @property
    def solved(self) -> Mapping[str, Any]:
        """Numbers that an earlier process has calibrated for this table and written into the ledger's header; no keys.

        They are used instead of a new calibration, whose last digits differ between processors.
        """
        return self._solved

    def with_solved(self, values: Mapping[str, object]) -> Self:
        """Return this table with calibrated numbers of an earlier process."""
        found = self.model_copy()
        found._solved = dict(values)
        return found


def value_of_key(table: object, key: str) -> object:
    """Return the value of the key in a table, before or after validation; None if the table does not have it."""
    return table.get(key) if isinstance(table, Mapping) else getattr(table, key, None)
