"""FedProx's proximal term and rates by layer, against torch's optimisers, with the account unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dpfed
from dpfed.clients import Sgd
from dpfed.clients.optimisers import Adam
from dpfed.errors import ConfigError
from dpfed.methods.parts import layer_rates
from dpfed.models import FlatModel
from dpfed.seeds import Seeds

SEEDS, RATE, STEPS = Seeds(root=4), 0.1, 5
GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(8, 6, generator=GENERATOR), torch.arange(8) % 3
RATES = ["1.*=0.5", "*.bias=0", "0.w*=2"]
FACTORS = {"0.weight": 2.0, "0.bias": 0.0, "1.weight": 0.5, "1.bias": 0.5}


def model() -> FlatModel:
    return FlatModel(lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)))


def optimiser(kind: str, parameters: Any) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.2)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=RATE)
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.5 if kind == "momentum" else 0.0)


def by_torch(flat: FlatModel, weights: Tensor, kind: str, proximal: float, rated: bool) -> Tensor:
    now = weights.clone()
    module = flat.bind(now)
    groups = [
        {"params": [one], "lr": RATE * (FACTORS[name] if rated else 1.0)} for name, one in module.named_parameters()
    ]
    start, stepper = [one.detach().clone() for one in module.parameters()], optimiser(kind, groups)
    for _ in range(STEPS):
        stepper.zero_grad()
        distance = sum((one - first).square().sum() for one, first in zip(module.parameters(), start, strict=True))
        (cross_entropy(module(INPUTS), LABELS) + proximal / 2 * distance).backward()  # type: ignore[no-untyped-call]
        stepper.step()
    return now - weights


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("rated", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_steps_are_those_of_torch_with_the_term_and_the_rates(kind: str, rated: bool, strategy: Any) -> None:
    flat, proximal = model(), 3.0
    given: dict[str, Any] = {"size": flat.size, "learning_rate": RATE, "decayed": flat.parameters_size}
    given |= {"proximal": proximal, "rates": layer_rates(RATES, flat) if rated else None}
    course: Sgd | Adam = Sgd(**given, momentum=0.5 if kind == "momentum" else 0.0)
    if kind.startswith("adam"):
        course = Adam(**given, weight_decay=0.2 if kind == "adamw" else 0.0, decoupled=kind == "adamw")
    full = {"inputs": INPUTS, "labels": LABELS, "steps": STEPS, "batch_size": 8, "strategy": strategy}
    training = training_of(flat, course, [8], **full)
    weights = flat.initial(0)
    found = training.train(weights, np.zeros(1, dtype=np.int64), number=0, seeds=SEEDS)[0]
    torch.testing.assert_close(found, by_torch(flat, weights, kind, proximal, rated), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(found, by_torch(flat, weights, kind, 0.0, rated), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("rates", "words"),
    [(["head.*=2"], "'head.*' decides the rate of no trained parameter.*0.weight"), (["*=-1"], "from 0"),
     (["*=1", "0.*=2"], "'0.*' decides"), (["*=1e999"], "finite")],
)  # fmt: skip
def test_rates_that_say_nothing_are_refused(rates: list[str], words: str) -> None:
    refused(ConfigError, words, lambda: layer_rates(rates, model()))


def run(folder: Path, preset: str = "dp-fedavg-digits", **settings: Any) -> Any:
    data = dpfed.data.from_clients([(INPUTS, LABELS)] * 8, (INPUTS, LABELS), classes=3)
    tables = {"federation.rounds": 1, "federation.cohort": 4, "privacy.epsilon": None, "privacy.noise_multiplier": 1.0,
              "privacy.accountant": "rdp", "local.epochs": 1}  # fmt: skip
    chosen = tables | {name.replace("__", "."): value for name, value in settings.items()}
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    return dpfed.run(preset, chosen, data=data, model=network, out=folder / "run", progress=False)


def test_a_run_has_the_same_epsilon_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    plain = run(tmp_path / "a")
    given = run(tmp_path / "b", local__proximal=1.0, local__rates={"0.*": 0.5, "1": {"weight": 2}})
    assert plain.summary["epsilon"] == given.summary["epsilon"]
    assert given.experiment.config.local.rates == ("0.*=0.5", "1.weight=2")
    refused(ConfigError, "proximal", run, tmp_path / "c", local__proximal=-1.0)


def test_masks_refuse_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.proximal or local\.rates with .*fedpm"):
        run(tmp_path, "fedpm-digits", local__proximal=1.0, privacy__noise_multiplier=None, privacy__epsilon=3.0)
