"""Records of a round for its operator: a line of diagnostics.jsonl, and lines of canaries.jsonl.

No epsilon covers these numbers: they must not be published. Fields with a default are keys that versions 0.1 and 0.2
did not write, or not in every round.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

from pydantic import Field

from dpfed.records.reading import Count, Exact, Flag, Real, Size, Text

INTERRUPTED = "interrupted after its charge; nothing of it was used"
"""Reason of a scheduled round without a result: a crash ended it after it was charged."""


@dataclass(frozen=True, kw_only=True)
class SumNoise:
    """Noise in the sum of a round, in the units of its addition (`dpfed.diagnostics.noise_record`).

    mean_square:  over `entries`, of `draws` draws added up
    largest:      magnitude
    correlation:  the largest magnitude of a correlation between entries
    digest:       SHA-256 of the noise vector, equal for equal noise
    probe:        product with the direction of `dpfed.diagnostics.probes`
    """

    mean_square: Size
    largest: Size | None = None
    correlation: Size | None = None
    entries: Count
    draws: Count
    digest: Text
    probe: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Products of a round's vectors with one direction (`dpfed.diagnostics.probes`).

    added:    the rows where they enter the sum; None if only the clients have seen them
    summed:   the sum, equal to `added` modulo 2^bits if there are bits
    filled:   shares of noise that the server adds for clients that dropped out
    released: the release of the round, in the units of updates
    moved:    the same release as a move of the model
    before, before_norm: the model that the clients started from; after: the next one
    """

    added: Exact | None = None
    summed: Exact
    bits: Count | None = None
    filled: Real = 0.0
    released: Real
    moved: Real
    before: Real
    before_norm: Size
    after: Real


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Coordinates that public samples chose (`dpfed.stages.shared_mask`)."""

    samples: Text
    kept: Count
    shown: Text


@dataclass(frozen=True, kw_only=True)
class CanaryLine:
    """Score of one canary: <z, noisy sum> / |z|^2 with z its bounded row: about 1 if it took part, about 0 if not."""

    round: Count
    canary: Count
    present: Flag
    score: Real
    norm: Size

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a line of canaries.jsonl."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """Line of diagnostics.jsonl.

    round:         counted from 1
    cohort, members: clients that were drawn, canaries not counted, and their ids (`dpfed.participation.members`)
    participants, arrived: uploads that were requested and uploads in the sum, with those that only fill up
    counted, clipped: rows of the cohort, and clipped ones; None if only the clients have seen them
    failed:        clients (records, where these are private) whose training raised
    largest_norm:  of a bounded row, over the clip norm; None if only the clients have seen rows
    typical_norm:  median of the rows before they are clipped, over the clip norm
    aborted:       reason of a round without a result; the public reason is in metrics.jsonl
    mask_entropy:  bits of the uploads by FedPM's measure; only where each is a mask
    divisor:       denominator of the mean
    noise_known:   False if only the clients have seen their noise
    near_the_ends: entries of a sum of integers that have probably wrapped around
    rounding:      in a sum of integers without noise: bound of the root mean square error that rounding adds to a row,
                   over the median norm of rounded rows
    longest_added: L2 norm of the longest row where it enters the sum
    seconds:       duration of the round, which depends on the number of participants
    canaries:      scores, written to canaries.jsonl
    """

    round: Count
    cohort: Count
    members: Text | None = None
    participants: Count
    counted: Count | None = None
    clipped: Count | None = None
    not_finite: Count = 0
    failed: Count = 0
    uplink_bytes: Count | None = None
    mask_entropy: Count | None = None
    arrived: Count = 0
    largest_norm: Size | None = None
    typical_norm: Size | None = None
    aborted: Text | None = None
    divisor: Real | None = None
    noise: SumNoise | None = None
    noise_known: Flag = True
    near_the_ends: Count | None = None
    rounding: Size | None = None
    longest_added: Size | None = None
    probes: Probes | None = None
    map: Chosen | None = None
    seconds: Size = 0.0
    canaries: Annotated[tuple[CanaryLine, ...], Field(fail_fast=True)] = ()

    @property
    def has_result(self) -> bool:
        return self.aborted is None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a line of diagnostics.jsonl."""
        left_out = ["canaries", *(key for key in ("mask_entropy", "rounding") if getattr(self, key) is None)]
        return {key: value for key, value in asdict(self).items() if key not in left_out}


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """Lines of the last round in the other files of a run, saved with its checkpoint.

    uplink:       bytes of all rounds
    mask_entropy: bits of all rounds by FedPM's measure; None where uploads are not masks, or were not measured
    """

    uplink: Count
    mask_entropy: Count | None = None
    diagnostics: RoundRecord
    canaries: Annotated[tuple[CanaryLine, ...], Field(fail_fast=True)] = ()

    @property
    def record(self) -> RoundRecord:
        """Return the record of the round with its canaries."""
        return replace(self.diagnostics, canaries=self.canaries)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object in the checkpoint."""
        canaries = [one.to_dict() for one in self.canaries]
        masks = {} if self.mask_entropy is None else {"mask_entropy": self.mask_entropy}
        return {"uplink": self.uplink, **masks, "diagnostics": self.diagnostics.to_dict(), "canaries": canaries}
