"""Private records: a network in which records of a batch bear on each other is refused before round 1, by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from custom_networks import Scale
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import dpfed
from dpfed.clients.losses import CROSS_ENTROPY, Loss, custom_loss
from dpfed.clients.records_apart import require_records_apart
from dpfed.errors import ConfigError
from dpfed.models import FlatModel
from dpfed.seeds import Seeds


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 6), nn.Linear(6, 3)

    def before(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(torch.relu(self.inner(self.before(x))))
        return made


def before(function: Callable[[Any, Tensor], Tensor], **parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A maker of `Plain` networks with `function` before them, and parts that it may use."""

    class Changed(Plain):
        def before(self, x: Tensor) -> Tensor:
            return function(self, x)

    def make() -> nn.Module:
        made = Changed()
        for name, part in parts.items():
            setattr(made, name, part())
        return made

    return make


class BatchAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.T / 3, dim=1) @ x


class Hidden(nn.Module):
    seen: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        before, self.seen = self.seen, x.mean(0).detach()
        return x + before


class ClosedGate(nn.Module):
    """Opens in training."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * x.mean(0)


class GradientsAlone(Plain):
    """Outputs are apart, gradients are not."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        mean = made.mean(0, keepdim=True)
        return made + mean - mean.detach()


class AsleepBatchNorm(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6).eval())  # type: ignore[assignment]


def own_noise(module: Any, x: Tensor) -> Tensor:
    return x + torch.randn(1, generator=GENERATOR)


GENERATOR = torch.Generator().manual_seed(4)

MIXING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "minus the mean": (before(lambda m, x: x - x.mean(0)), "the network .Changed. .*mixes the records"),
    "plus the sum": (before(lambda m, x: x + x.sum(0) / 10), "mixes the records"),
    "weakly": (before(lambda m, x: x + 1e-6 * x.sum(0)), "mixes the records"),
    "attention": (before(lambda m, x: m.mix(x), mix=BatchAttention), "layer 'mix' .BatchAttention."),
    "by the batch's size": (before(lambda m, x: x / len(x) ** 0.5), "mixes the records"),
    "in large batches": (before(lambda m, x: x * (1.0 if len(x) < 12 else 1.1)), "mixes the records"),
    "far records alone": (before(lambda m, x: x + torch.relu(x.mean(0).abs() - 5e4)), "mixes the records"),
    "large records alone": (before(lambda m, x: torch.where(x.abs() > 20, x + x.mean(0), x)), "mixes the records"),
    "a gate that opens": (before(lambda m, x: m.mix(x), mix=ClosedGate), "layer 'mix' .ClosedGate."),
    "shuffled": (before(lambda m, x: 0.9 * x + 0.1 * x[torch.rand(len(x)).argsort()]), "mixes the records"),
    "gradients": (GradientsAlone, "another gradient"),
    "a state": (before(lambda m, x: m.mix(x), mix=Hidden), "layer 'mix' .Hidden. .*keeps a state"),
    "noise of its own": (before(own_noise), "draws random numbers"),
    "attention over the batch": (
        before(lambda m, x: x + m.mix(x[:, None], x[:, None], x[:, None])[0][:, 0],
               mix=lambda: nn.MultiheadAttention(8, 2)), "layer 'mix' .MultiheadAttention."),
}  # fmt: skip

APART: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain,
    "group and layer norm": before(lambda m, x: m.b(m.a(x)), a=lambda: nn.GroupNorm(2, 8), b=lambda: nn.LayerNorm(8)),
    "dropout": before(lambda m, x: m.drop(x), drop=lambda: nn.Dropout(0.5)),
    "noise from torch": before(lambda m, x: x + 0.01 * torch.randn_like(x)),
    "a parameter of its own": before(lambda m, x: m.scale(x), scale=Scale),
    "BatchNorm made in eval()": AsleepBatchNorm,
    "a weight used elsewhere, too": before(lambda m, x: x + linear(x @ m.inner.weight.T, m.inner.weight.T)),
    "a weight used elsewhere only": before(lambda m, x: linear(x, m.mix.weight), mix=lambda: nn.Linear(8, 8)),
    "weights clamped": before(lambda m, x: (m.inner.weight.data.clamp_(-0.1, 0.1), x)[1]),
}


def tried(maker: Callable[[], nn.Module], loss: Loss = CROSS_ENTROPY) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 8, generator=generator), torch.randint(3, (30,), generator=generator)
    require_records_apart(FlatModel(maker), loss, x, y, batch_size=20, seeds=Seeds(root=0))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("name", MIXING)
def test_a_network_that_mixes_records_is_refused_by_name(name: str) -> None:
    maker, words = MIXING[name]
    refused(ConfigError, rf"^\[local\.record\]: (?s:.*){words}", tried, maker)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("name", APART)
def test_a_network_that_keeps_records_apart_passes(name: str) -> None:
    tried(APART[name])


def test_a_loss_that_keeps_a_state_is_refused() -> None:
    seen: list[float] = []

    def rising(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(1.0)
        return cross_entropy(outputs, targets, reduction="none") * len(seen)

    refused(ConfigError, "another gradient when it is computed again", lambda: tried(Plain, custom_loss(rising)))


def largest_move(maker: Callable[[], nn.Module], folder: Any) -> float:
    """40 times the distance of two models after one step on 40 records, of which one was moved to 300."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 8, generator=generator)
    y, other, models = x[:, :3].argmax(1), x.clone(), []
    other[0] = 300.0
    for name, held in (("one", x), ("other", other)):
        torch.manual_seed(0)
        settings = {
            "federation.rounds": 1, "federation.cohort": 1, "federation.sampling": "all", "local.batch_size": 40,
            "local.epochs": None, "local.steps": 1, "local.learning_rate": 1.0, "local.record.clip_norm": 1.0,
            "local.record.noise_multiplier": 1e-6,
        }  # fmt: skip
        data = dpfed.data.from_clients([(held, y)], test=(held, y), classes=3)
        done = dpfed.run("fedavg-digits", settings, data=data, model=maker(), out=folder / name)
        models.append(torch.cat([part.detach().flatten() for part in done.model.parameters()]))
    return 40 * float((models[0] - models[1]).norm())


@pytest.mark.parametrize("name", ["minus the mean", pytest.param("plus the sum", marks=pytest.mark.slow)])
def test_one_record_moves_the_sum_by_two_clip_norms_or_the_run_is_refused(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the trial these two networks move by 18.3 and 22.0 where 2 is charged."""
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    assert largest_move(lambda: nn.Linear(8, 3), tmp_path / "plain") <= 2.002
    refused(ConfigError, "mixes the records", largest_move, MIXING[name][0], tmp_path / name)
