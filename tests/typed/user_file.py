"""A user's file with all that can be custom, for mypy --strict and pyright (test_typed.py). It never runs there."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import accounting
import dpfed
from accounting import Guarantee, Plan, budget
from dpfed import compress, methods, stages
from dpfed.compress import Batch, Floats, SymbolField, counter
from dpfed.methods.settings import Settings
from dpfed.stages.chain import Stages


@compress.register("typed-levels")
class TypedLevels:
    levels: int = 1
    unbiased = True

    def bits(self, dimension: int) -> dict[str, Floats | SymbolField]:
        return {"scale": Floats(count=1), "levels": SymbolField(alphabet=3, count=dimension)}

    def encode(self, x: Tensor, seeds: Tensor) -> dict[str, Tensor]:
        scale = x.abs().amax(dim=1, keepdim=True)
        kept = counter.coins(x.abs() / scale.clamp_min(1e-38), seeds, "typed-levels")
        return {"scale": scale, "levels": 1 + kept * x.sign().long()}

    def decode(self, sent: Batch) -> Tensor:
        return sent["scale"] * (sent["levels"] - 1.0)


@methods.register("typed-method", scheme="typed-levels", sparse="yes", preset={"method": {"keep": 0.4}})
def typed_method(s: Settings) -> Stages:
    return s.updates(stages.RandomSharedMask(size=s.size, kept=s.kept))


class Network(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


def network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Network()


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def top_two(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.topk(2, dim=1).indices == targets[:, None]).any(dim=1)


dpfed.models.register("typed-network", network)


def trained() -> Guarantee:
    clients = [(torch.randn(20, 64), torch.randint(10, (20,))) for _ in range(60)]
    data = dpfed.data.from_clients(clients, test=(torch.randn(100, 64), torch.randint(10, (100,))), classes=10)
    settings: Mapping[str, object] = {"federation.rounds": 3, "privacy.epsilon": 3.0}
    done = dpfed.run(
        "dp-fedavg-digits",
        settings,
        data=data,
        model=Network(),
        loss=smoothed,
        metrics={"top_two": top_two},
        out="here",
    )
    weights = done.model.state_dict()
    accuracy = done.summary["test_accuracy"]
    folder: Path = done.folder
    print(sorted(weights), accuracy, folder, [line["round"] for line in done.metrics])
    return done.guarantee


def looped() -> Guarantee:
    private = dpfed.ClientLevel(clients=600, cohort=100, clip_norm=1.0, epsilon=3.0, rounds=60, ledger="loop.jsonl")
    weights = torch.zeros(100)
    for step in private.rounds():
        weights += step.release(torch.zeros(len(step.cohort), 100))
        named = step.release({"w": torch.zeros(100)} for _ in step.cohort.tolist())
        print(step.round, step.names, named["w"])
    return private.guarantee()


def planned() -> tuple[float, float, int]:
    plan = Plan(clients=6000, cohort=100)
    epsilon = budget.epsilon(plan, noise_multiplier=1.4, rounds=180)
    noise = budget.noise_multiplier(plan, rounds=180, tpr=0.02, fpr=0.01)
    row = budget.solve(plan, noise_multiplier=noise, rounds=180)
    if row.readings is not None:
        print(row.readings.mu, row.readings.true_positive_rates[0.01])
    return epsilon, noise, budget.rounds(plan, epsilon=1.01, noise_multiplier=1.4)


def read(file: Path) -> float:
    stated = accounting.Ledger.read(file).guarantee(1e-5)
    rates = stated.true_positive_rate(np.array([0.01, 0.1]))
    return float(rates[0]) + stated.readings().advantage
