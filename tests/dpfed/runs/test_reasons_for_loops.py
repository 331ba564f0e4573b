"""Training that "auto" runs in a loop: each reason of the table in docs/limitations.md, and no method by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.clients.plan import LOOPS, TrainingPlan
from dpfed.config.tables import override, parse
from dpfed.methods.catalogue import METHODS, preset_tables
from dpfed.runs.experiment import build
from dpfed.runs.training import CustomObjects, Maker, model_maker


class Net(nn.Module):
    def __init__(self, *, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(64, 8), nn.Linear(8, 10)
        self.norm = nn.BatchNorm1d(8) if kind == "statistics" else nn.Identity()
        self.lstm = nn.LSTM(8, 8, batch_first=True) if kind == "recurrent" else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.lstm is not None:
            return self.last(self.lstm(inputs.view(-1, 8, 8))[0][:, -1])
        hidden = self.norm(self.first(inputs.flatten(1)))
        if self.kind == "trial" and hidden.sum() > 0:
            hidden = 2 * hidden
        return self.last(hidden)


def plan(preset: str, *settings: str, model: Maker | None = None) -> TrainingPlan:
    config = parse(override(preset_tables(preset), list(settings)), source=preset)
    return build(config, own=CustomObjects(model=model)).method.clients.plan


RECORDS = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0")
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "secure": ("dp-fedavg-digits", ("run.randomness=secure", "privacy.noise=discrete-gaussian")),
    "records": ("fedavg-digits", RECORDS),
    "statistics": ("fedavg-digits", ("local.precision=bf16",)),
    "recurrent": ("fedavg-digits", ()),
    "trial": ("fedavg-digits", ()),
}


def test_every_reason_has_a_run_here() -> None:
    assert SETTINGS.keys() == LOOPS.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_in_a_loop_for_each_reason_of_the_table(name: str) -> None:
    preset, settings = SETTINGS[name]
    own = model_maker(lambda: Net(kind=name)) if name in ("statistics", "recurrent", "trial") else None
    found = plan(preset, *settings, model=own)
    assert found.strategy == "loop"
    assert found.why.startswith(LOOPS[name].why)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_and_no_compressor_requires_a_loop(method: str) -> None:
    assert plan(f"{method}-digits").why.startswith("expected of a client and step")
    assert plan(f"{method}-digits", "local.strategy=vmap").strategy == "vmap"
