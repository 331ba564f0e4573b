"""Networks and losses that carry one client's data to others: each moves a sum by at most 2C, or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from custom_networks import (
    ClassCounts,
    FittedOnFirstBatch,
    FixedParameterWritten,
    HiddenState,
    NumpyNoise,
    Plain,
    RunningMeanInHook,
)
from torch import nn

import dpfed
from dpfed.errors import ConfigError
from dpfed.runs.experiment import build
from dpfed.runs.training import CustomObjects

GENERATOR = torch.Generator().manual_seed(3)


def points(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 6, generator=GENERATOR)
    return inputs, inputs[:, :3].argmax(1)


PAIRS, TEST = [points(10) for _ in range(20)], points(30)
FAR = torch.full((10, 6), -30.0), PAIRS[0][1]
LONGER = torch.randn(60, 6, generator=GENERATOR), torch.zeros(60, dtype=torch.long)
LOOP = {"local.strategy": "loop"}
TABLES: dict[str, Any] = {
    "federation.rounds": 1,
    "federation.cohort": 20,
    "federation.sampling": "all",
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1e-4,
    "privacy.clip_norm": 0.1,
}


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


def weights(
    network: Callable[[], nn.Module], first: Any, settings: dict[str, Any], out: Path, loss: Callable[[], Any] | None
) -> torch.Tensor:
    """The released weights where the first of twenty clients holds these samples."""
    torch.manual_seed(0)
    data = dpfed.data.from_clients([first, *PAIRS[1:]], test=TEST, classes=3)
    own: dict[str, Any] = {} if loss is None else {"loss": loss()}
    done = dpfed.run("dp-fedavg-digits", TABLES | settings, data=data, model=network(), out=out, **own)
    return torch.cat([one.detach().flatten() for one in done.model.parameters()])


@pytest.mark.parametrize(
    ("network", "other", "settings", "loss"),
    [
        pytest.param(Plain, FAR, {}, None, id="plain: 0.143", marks=pytest.mark.slow),
        pytest.param(HiddenState, FAR, {}, None, id="hidden state kept: 0.665 before"),
        pytest.param(
            FittedOnFirstBatch, FAR, LOOP, None, id="fitted on the first batch: 2.279 before", marks=pytest.mark.slow
        ),
        pytest.param(
            RunningMeanInHook, FAR, LOOP, None, id="running mean in a hook: 0.567 before", marks=pytest.mark.slow
        ),
        pytest.param(
            FixedParameterWritten, FAR, LOOP, None, id="fixed parameter written: 0.206 before", marks=pytest.mark.slow
        ),
        pytest.param(
            Plain,
            LONGER,
            LOOP | {"local.batch_size": 2},
            ClassCounts,
            id="class counts in the loss: 0.547 before",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_client_moves_the_sum_by_twice_the_clip_norm_at_most(
    network: Callable[[], nn.Module], other: Any, settings: dict[str, Any], loss: Any, tmp_path: Path
) -> None:
    """Everybody takes part and noise is negligible, so 2C = 0.2 bounds the difference of two sums of 20 clients."""
    found = weights(network, PAIRS[0], settings, tmp_path / "a", loss)
    moved = 20 * (found - weights(network, other, settings, tmp_path / "b", loss)).norm().item()
    assert 0 < moved <= 0.2002


def test_noise_of_numpy_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """It moved the sum by 0.286 where 0.2 is charged: a longer client moves the noise of all that follow."""
    with pytest.raises(ConfigError, match="draws from numpy's global generator"):
        weights(NumpyNoise, LONGER, LOOP, tmp_path / "a", None)
    assert not list(tmp_path.iterdir())


def test_without_privacy_nothing_is_put_back(tmp_path: Path) -> None:
    tables = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "method": {"name": "fedavg"}}
    config = dpfed.config.tables.parse(
        tables
        | {
            "federation": {"clients": 20, "cohort": 5, "rounds": 1},
            "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 5},
        },
        source="test",
    )
    data = dpfed.data.from_clients(PAIRS, test=TEST, classes=3)
    assert (
        build(config, own=CustomObjects(model=lambda shape, classes: HiddenState(), data=data)).method.clients.start
        is None
    )
