"""Records of a finished run: summary.json, the statement of its settings, privacy and resources, and its lines."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from accounting.budget.gaussians import checked_factors
from accounting.compose.readings import Readings
from accounting.errors import InvalidParameter
from accounting.ledger import Ledger
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_DOCUMENT
from dpfed.errors import RunError
from dpfed.records.reading import (
    Count,
    Exact,
    Flag,
    InvalidRecord,
    Real,
    Size,
    Text,
    Texts,
    Unavailable,
    Word,
    json_object,
    read_lines,
    scores_of,
    text_of_file,
    validated_record,
)
from dpfed.records.round import MetricsLine, RoundRecord

_OF_MASKS = ("mask_sha256", "model_bits_per_parameter", "mask_entropy_bits_per_parameter")
"""Keys of summaries of runs whose model is a mask; other summaries do not contain them."""
_IF_ANY = (*_OF_MASKS, "certificate", "gpu", "project_delta", "public_samples", "public_samples_alone")
"""Keys that summary.json does not contain if their value is None."""
PROJECT = ("project_ledger", "project_epsilon", "project_delta", "project_condition", "project_head")
"""Keys without a value in a run that is charged to no project."""
_OF_PRIVATE_RUNS = ("delta", "adjacency", "accountant")


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Plan of the clients' training (`dpfed.clients.plan.TrainingPlan`), and its precision.

    chunk: number of clients in one vectorised pass; None if clients train one after another
    why: reason for the strategy
    """

    strategy: Word = ""
    chunk: Count | None = None
    why: Text = ""
    precision: Word = ""

    @property
    def plan_text(self) -> str:
        """Description of the plan, for reports."""
        how = "one after another, one client per core"
        if self.chunk is not None:
            how = f"side by side, {self.chunk:,} at a time"
        return f"{how}, in {self.precision}"


@dataclass(frozen=True, kw_only=True)
class GaussianSummary:
    """Summary of the privacy profile by Gaussian DP: the smallest mu that covers it where delta is at least delta_min.

    The profile of mu lies above that of the run for such delta only, so mu is not a guarantee.

    mu: None if no mu covers the profile down to delta_min
    """

    mu: Size | None = None
    delta_min: Size | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Content of summary.json, on whose keys scripts rely. Files of older versions may lack fields with a default.

    scores:  score of the last round by its key, as in `MetricsLine`, and best_test_accuracy, the best of all rounds
    epsilon: upper bound computed from the ledger alone; None in a run without privacy, or if the upper bound is below a
        lower bound (`no_statement` has the reason)
    public_samples: number of public samples, which no epsilon protects; None without them
    public_samples_alone: test accuracy (without classes: test loss) of a network trained on the public samples alone,
        without any client; None without public samples
    others:  values of keys that this version does not define
    """

    method: Word
    dataset: Word
    model: Word | None = None
    parameters: Count | None = None
    fixed_parameters: Count | None = None
    local_training: LocalTraining | None = None
    clients: Count
    cohort: Count
    sampling: Word
    rounds: Count
    loss: Word | None = None
    scores: Mapping[str, Real | None] = field(default_factory=dict)
    public_samples: Count | None = None
    public_samples_alone: Real | None = None
    epsilon: Size | None = None
    no_statement: Text | None = None
    lower_bound: Real | None = None
    certificate: Mapping[str, object] | None = None
    advantage: Size | None = None
    tpr_at_fpr: Mapping[str, Size] | None = None
    gaussian_dp: GaussianSummary | None = None
    delta: Size | None = None
    delta_charged_for_failures: Size | None = None
    unit: Word = "none"
    adjacency: Word | None = None
    accountant: Word | None = None
    noise_multiplier: Size | None = None
    noise_schedule: Annotated[tuple[Real, ...], Field(fail_fast=True)] | None = None
    noise_schedule_rounds: Count | None = None
    clip_norm: Size | None = None
    noise_placement: Word | None = None
    noise: Word | None = None
    server_epsilon: Size | None = None
    server_epsilon_rounds: Count | None = None
    hostile_clients_epsilon: Size | None = None
    hostile_clients_epsilon_rounds: Count | None = None
    aggregation: Word = "plain"
    randomness: Word | None = None
    for_release: Flag | None = None
    interrupted_charges: Count | None = None
    not_protected: Texts = ()
    notes: Texts = ()
    aborted_rounds: Count | None = None
    uplink_bits_per_parameter: Size | None = None
    mask_entropy_bits_per_parameter: Size | None = None
    uplink_bytes_per_client_round: Exact | None = None
    uplink_megabytes_total: Size | None = None
    secure_sum_bytes_per_client_round: Exact | None = None
    downlink_bytes_per_client_round: Exact | None = None
    seconds: Size
    device: Word | None = None
    gpu: Text | None = None
    processes: Count | None = None
    seed: Count
    population: Text | None = None
    ledger_head: Text | None = None
    ledger_entries: Count | None = None
    stopped_by: Word | None = None
    project_ledger: Text | None = None
    project_epsilon: Size | None = None
    project_delta: Size | None = None
    project_condition: Text | None = None
    project_head: Text | None = None
    model_sha256: Text | None = None
    mask_sha256: Text | None = None
    model_bits_per_parameter: Size | None = None
    others: Mapping[str, object] = field(default_factory=dict)

    @property
    def test_accuracy(self) -> float | None:
        return self.scores.get("test_accuracy")

    @property
    def best_test_accuracy(self) -> float | None:
        return self.scores.get("best_test_accuracy")

    @property
    def test_loss(self) -> float | None:
        return self.scores.get("test_loss")

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Return the summary of a run's folder. Raises Unavailable if summary.json is missing or invalid."""
        return cls.read(json_object(text_of_file(folder / "summary.json", at_most=LARGEST_DOCUMENT), "summary.json"))

    @classmethod
    def read(cls, values: Mapping[str, object], where: str = "summary.json") -> Self:
        """Return the summary with these values. Raises Unavailable for values that no summary.json has."""
        known = {one.name for one in fields(cls)} | scores_of(values).keys()
        others = {key: value for key, value in values.items() if key not in known}
        found = validated_record(cls, {**values, "others": others}, where)
        lacking = [key for key in _OF_PRIVATE_RUNS if found.epsilon is not None and getattr(found, key) is None]
        if lacking:
            raise InvalidRecord(f"{where}: has an epsilon and no {lacking[0]!r}.")
        try:
            checked_factors((1.0,) if found.noise_schedule is None else found.noise_schedule)
        except InvalidParameter as error:
            raise InvalidRecord(f"{where}: {error}") from None
        if not all(_is_rate(rate) for rate in found.tpr_at_fpr or ()):
            raise InvalidRecord(f"{where}: tpr_at_fpr has a key that is not a rate in (0, 1).")
        return found

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of summary.json."""
        found: dict[str, object] = {}
        for key, value in asdict(self).items():
            if key in ("scores", "others"):
                found |= value
            elif value is not None or key not in _IF_ANY:
                found[key] = list(value) if isinstance(value, tuple) else value
        return found

    @property
    def readings(self) -> Readings | None:
        """Readings of epsilon as bounds on membership tests and as Gaussian DP; None in files of older versions."""
        if self.advantage is None or self.tpr_at_fpr is None or self.gaussian_dp is None:
            return None
        mu, delta_min = self.gaussian_dp.mu, self.gaussian_dp.delta_min
        if delta_min is None:
            return None
        return Readings(
            advantage=self.advantage,
            true_positive_rates={float(rate): most for rate, most in self.tpr_at_fpr.items()},
            mu=math.inf if mu is None else mu,
            delta_min=delta_min,
        )

    def number(self, key: str) -> float | None:
        """Return the number with this key in summary.json; None if the key is missing or has no number."""
        value = self.scores.get(key) if key in self.scores else getattr(self, key, None)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """Records of a run folder. config: tables of config.toml; row, at: row and axis labels in an experiment."""

    folder: Path
    row: str = ""
    at: Mapping[str, str] = field(default_factory=dict)
    summary: Summary
    metrics: list[MetricsLine]
    config: dict[str, object]

    @property
    def package(self) -> str:
        """Package and version that began the run, by its ledger; "dpfed" for a run without one."""
        ledger = self.folder / "ledger.jsonl"
        return str(Ledger.header_of(ledger).about.get("package", "dpfed")) if ledger.exists() else "dpfed"


def read_finished(folder: Path) -> FinishedRun:
    """Return the run in this folder. Raise RunError if it is not finished, or a file is invalid."""
    try:
        summary, metrics = Summary.of_folder(folder), read_lines(folder / "metrics.jsonl", MetricsLine)
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        rounds = folder / "diagnostics.jsonl"
        seen = read_lines(rounds, RoundRecord, running=True) if rounds.exists() else []
    except (ValueError, RecursionError, Unavailable) as error:
        raise RunError(
            f"{folder}: is no folder of a finished run ({error}). Name a folder that `dpfed run` wrote."
        ) from None
    # The seconds in the summary of a resumed run count from the round of the resumption.
    summary = replace(summary, seconds=max(summary.seconds, sum(line.seconds for line in seen)))
    return FinishedRun(folder=folder, summary=summary, metrics=metrics, config=config)


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
