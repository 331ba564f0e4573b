"""Records of a run's files: lines of rounds, and the record of a replay audit.

Record of a round that may be published with the model: a line of metrics.jsonl.

Record of the replay audit of a run's configuration: audit-replay.json in the folder of the run.

Records of a round for the operator of the run: a line of diagnostics.jsonl, and lines of canaries.jsonl.

No epsilon covers these numbers, so they must not be published. Fields with a default are keys that versions 0.1 and 0.2
did not write, or did not write in every round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.records.reading import (
    Count,
    Exact,
    Flag,
    InvalidRecord,
    Real,
    Size,
    Text,
    Unavailable,
    Word,
    json_object,
    validated_record,
)


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """Line of metrics.jsonl.

    scores:    score by its key: test_accuracy, test_loss, test_NAME, last_test_NAME, validation_NAME; a score is None
    in
               rounds without evaluation
    epsilon:   upper bound for all rounds so far; None in a run without privacy
    clip_norm: clip norm of the next round
    majority_accuracy: test accuracy of always predicting the most frequent label of the test half; None in rounds
               without evaluation
    uplink_megabytes: megabytes that all clients have sent so far
    aborted:   public reason why the round has no result; None if it has one
    """

    round: Count
    scores: Mapping[str, Real | None] = field(default_factory=dict)
    epsilon: Size | None = None
    clip_norm: Size | None = None
    majority_accuracy: Size | None = None
    uplink_megabytes: Size = 0.0
    aborted: Text | None = None

    @property
    def test_accuracy(self) -> float | None:
        return self.scores.get("test_accuracy")

    @property
    def test_loss(self) -> float | None:
        return self.scores.get("test_loss")

    @property
    def has_result(self) -> bool:
        return self.aborted is None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a line of metrics.jsonl."""
        rest = {"epsilon": self.epsilon, "clip_norm": self.clip_norm, "uplink_megabytes": self.uplink_megabytes}
        if self.majority_accuracy is not None:
            rest = {"majority_accuracy": self.majority_accuracy, **rest}
        aborted = {} if self.aborted is None else {"aborted": self.aborted}
        return {"round": self.round, **self.scores, **rest, **aborted}


REPLAY_RECORD = "audit-replay.json"


def configuration_hash(tables: Mapping[str, Any]) -> str:
    """Return the hash of config.toml without federation.rounds.

    The number of rounds is left out because a run can be prolonged (`dpfed.runs.resuming`); the ledger records it.
    """
    federation = {key: value for key, value in tables.get("federation", {}).items() if key != "rounds"}
    return configuration_fingerprint({**tables, "federation": federation})


def configuration_fingerprint(tables: Mapping[str, object]) -> str:
    """Return the SHA-256 of a configuration's tables; it does not depend on the order of their keys."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ReplayRecord:
    """Verdict of a replay audit, and the fingerprint of the audited configuration.

    words:         explanation of the verdict
    configuration: `configuration_fingerprint` of the tables of the audited configuration
    pairs_tested:  number of pairs of neighbouring datasets with the outcome "pass"
    """

    verdict: Word
    words: Text
    configuration: Word
    pairs_tested: Count = 0

    @classmethod
    def read(cls, folder: Path, tables: Mapping[str, object]) -> Self | None:
        """Return the record in a run's folder; None if it is missing, or is about other tables than `tables`.

        The operator could have written the file: it proves nothing to others.
        Errors: InvalidRecord or Unavailable for a file that this package does not write.
        """
        path = folder / REPLAY_RECORD
        if not path.exists():
            return None
        try:
            values = json_object(read_text(path, at_most=LARGEST_DOCUMENT), str(path))
        except (OSError, ValueError) as error:
            raise Unavailable(f"{path}: cannot be read ({error}). Repeat the audit: `dpfed audit {folder}`.") from None
        found = validated_record(cls, values, str(path))
        if found.verdict not in ("pass", "fail", "inconclusive"):
            raise InvalidRecord(f"{path}: verdict {found.verdict!r}: must be pass, fail or inconclusive.")
        return found if found.configuration == configuration_fingerprint(tables) else None


def replay_text(folder: Path, tables: Mapping[str, object]) -> str:
    """Return the verdict of the replay audit in a run's folder as text; if there is none, name the command for it."""
    try:
        found = ReplayRecord.read(folder, tables)
    except (InvalidRecord, Unavailable) as reason:
        return str(reason)
    if found is None:
        return "no replay audit of this configuration is recorded: `dpfed audit` makes one of this folder"
    if found.verdict == "pass":
        return f"replay audit of this configuration: pass on {found.pairs_tested} pairs and what they exercised"
    return f"replay audit of this configuration: {found.verdict}. {found.words}"


INTERRUPTED = "interrupted after its charge; nothing of it was used"
"""Reason why a round of a participation schedule has no result: a crash ended the round after its charge."""


@dataclass(frozen=True, kw_only=True)
class SumNoise:
    """Noise in the sum of a round, in the units in which it is added (`dpfed.diagnostics.watch`).

    mean_square:  mean square of the noise vector's entries; the noise is the sum of `draws` independent draws
    largest:      largest magnitude of an entry
    correlation:  largest magnitude of a correlation between entries
    entries:      number of entries of the noise vector; draws: number of draws that were added
    digest:       SHA-256 of the noise vector, equal for equal noise
    probe:        inner product of the noise and the direction of `dpfed.diagnostics.watch`
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
    """Inner products of a round's vectors and one fixed direction (`dpfed.diagnostics.watch`).

    added:    product of the rows as they enter the sum; None if only the clients have seen these rows
    summed:   product of the sum, equal to `added`, modulo 2^bits if `bits` is given
    filled:   product of the noise shares that the server adds for clients that dropped out
    released: product of the round's release, in the units of updates
    moved:    product of the change of the model that the release causes
    before:   product of the model that the clients started from; before_norm: norm of that model
    after:    product of the next model
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
class ChosenCoordinates:
    """Coordinates chosen by training on public samples (`dpfed.stages.project`)."""

    samples: Text
    kept: Count
    shown: Text


@dataclass(frozen=True, kw_only=True)
class CanaryLine:
    """Score of one canary: <z, noisy sum> / |z|^2, where z is its clipped row.

    The score is about 1 if the canary took part in the round (`present`), and about 0 if not. norm: |z|.
    """

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

    round:         number of the round, counted from 1
    cohort:        number of drawn clients, without canaries; members: their ids (`dpfed.participation.sampling`)
    participants:  number of requested uploads, including those of clients that only fill up the sum
    arrived:       number of uploads in the sum, including those of clients that only fill it up
    counted:       number of the cohort's rows; None if only the clients have seen their rows
    clipped:       number of rows that clipping changed; None if only the clients have seen their rows
    not_finite:    number of rows with NaN or infinity, which count as zero
    failed:        number of clients (of records, if the unit is a record) whose training raised an exception;
                   failing: ids of these clients, as members; None if there are none
    largest_norm:  largest norm of a clipped row, divided by the clip norm; None if only the clients have seen rows
    typical_norm:  median norm of the rows before clipping, divided by the clip norm
    aborted:       operator's reason why the round has no result; metrics.jsonl has the public reason
    mask_entropy:  bits of all uploads by FedPM's measure; given only if uploads are masks
    divisor:       denominator of the mean
    noise_known:   False if only the clients have seen their noise
    near_the_ends: number of entries of an integer sum that have probably wrapped around
    rounding:      bound on the root mean square rounding error of a row, divided by the median norm of rounded rows;
                   given for integer sums without noise
    longest_added: largest L2 norm of a row as it enters the sum
    map:           coordinates chosen by training on public samples, if the method does so
    seconds:       duration of the round, which depends on the number of participants
    canaries:      scores of canaries, written to canaries.jsonl
    """

    round: Count
    cohort: Count
    members: Text | None = None
    participants: Count
    counted: Count | None = None
    clipped: Count | None = None
    not_finite: Count = 0
    failed: Count = 0
    failing: Text | None = None
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
    map: ChosenCoordinates | None = None
    seconds: Size = 0.0
    canaries: Annotated[tuple[CanaryLine, ...], Field(fail_fast=True)] = ()

    @property
    def has_result(self) -> bool:
        return self.aborted is None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a line of diagnostics.jsonl."""
        left_out = ["canaries", *(key for key in ("mask_entropy", "rounding", "failing") if getattr(self, key) is None)]
        return {key: value for key, value in asdict(self).items() if key not in left_out}


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    """Lines that the last round adds to the other files of a run, saved in its checkpoint.

    uplink:       bytes of the uploads of all rounds
    mask_entropy: bits of the uploads of all rounds by FedPM's measure; None if uploads are not masks, or if a round was
        not measured
    """

    uplink: Count
    mask_entropy: Count | None = None
    diagnostics: RoundRecord
    canaries: Annotated[tuple[CanaryLine, ...], Field(fail_fast=True)] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object that is stored in the checkpoint."""
        canaries = [one.to_dict() for one in self.canaries]
        masks = {} if self.mask_entropy is None else {"mask_entropy": self.mask_entropy}
        return {"uplink": self.uplink, **masks, "diagnostics": self.diagnostics.to_dict(), "canaries": canaries}
