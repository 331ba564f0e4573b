"""What `dpfed.run` returns: the numbers of a finished run, its model and its guarantee, from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from accounting import Guarantee, Ledger
from dpfed.errors import RunError
from dpfed.run.experiment import Experiment
from dpfed.run.loop import Outcome
from dpfed.run.summary import records_of


@dataclass(frozen=True, kw_only=True)
class Finished:
    """folder: what `dpfed run` leaves. summary, metrics: summary.json, and the lines of metrics.jsonl."""

    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    experiment: Experiment

    @classmethod
    def of(cls, outcome: Outcome, experiment: Experiment) -> Finished:
        return cls(folder=outcome.folder, summary=outcome.summary, metrics=outcome.metrics, experiment=experiment)

    @cached_property
    def model(self) -> nn.Module:
        """A new network with the final weights, those of model.safetensors, in evaluation mode on the CPU."""
        flat, saved = self.experiment.model, load_file(self.folder / "model.safetensors")
        weights = torch.cat([saved[block.name].reshape(-1) for block in flat.layout])
        return flat.bind(weights).eval()

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon from the ledger alone, with all that must be named beside it: an upper bound for what ran, of which
        summary["epsilon"] is the number. RunError where the run is not private."""
        goal = self.experiment.goal
        if goal is None:
            raise RunError(
                f"{self.folder}: the run is not private and has no guarantee. Add [privacy], or [local.record]."
            )
        ledger = Ledger.read(self.folder / "ledger.jsonl")
        return ledger.guarantee(goal.delta, accountant=goal.accountant, units=records_of(self.experiment))

    def __repr__(self) -> str:
        said = {key: self.summary[key] for key in ("method", "dataset", "rounds", "test_accuracy", "epsilon")}
        return f"Finished({str(self.folder)!r}, {', '.join(f'{key}={value!r}' for key, value in said.items())})"
