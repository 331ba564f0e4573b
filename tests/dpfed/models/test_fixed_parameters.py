"""Adapters on a frozen network: only what has requires_grad is trained, sent, clipped, noised and counted."""

from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, descend, training_of
from refusals import refused
from safetensors.torch import load_file
from torch import Tensor, nn

from dpfed.audit.run import audit_run
from dpfed.clients import LocalTraining, Sgd, gradients
from dpfed.errors import ConfigError
from dpfed.models import register
from dpfed.models.flat import FlatModel
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

SEEDS = Seeds(root=5)
SIZES = [12, 0, 7, 5, 23]
CLIENTS, COUNT = np.arange(len(SIZES)), sum(SIZES)


class Adapted(nn.Module):
    """A frozen layer with BatchNorm, a low-rank adapter beside it, a frozen layer, a head with a trained bias."""

    def __init__(self, entering: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(entering, 8), nn.BatchNorm1d(8)
        self.down, self.up = nn.Linear(entering, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, classes)
        for part in (self.body, self.norm, self.middle, self.head):
            part.requires_grad_(False)
        self.head.bias.requires_grad_(True)
        self.norm.running_mean.fill_(0.3)
        self.norm.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1)
        outputs: Tensor = self.head(self.middle((self.norm(self.body(inputs)) + self.up(self.down(inputs))).relu()))
        return outputs


TRAINED = ("head.bias", "down.weight", "up.weight")


def trainer(**changes: Any) -> LocalTraining:
    model = FlatModel(Adapted, seed=3)
    return training_of(model, Sgd(size=model.size, learning_rate=0.1, momentum=0.5), SIZES, **changes)


def made(seed: int) -> Adapted:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Adapted()


def by_torch(training: LocalTraining, client: int) -> Tensor:
    """The update of what is trained, by torch.optim on an ordinary module whose norm stays in eval()."""
    module = made(3)
    before = [parameter.detach().clone() for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=0.1, momentum=0.5)
    descend(module, optimiser, batches(training, client, number=1, seeds=SEEDS))
    after = [parameter.detach() for parameter in module.parameters() if parameter.requires_grad]
    return torch.cat([(new - old).reshape(-1) for new, old in zip(after, before, strict=True)])


def test_the_layout_has_what_is_trained_and_nothing_else() -> None:
    model = FlatModel(Adapted, seed=3)
    assert sorted(block.name for block in model.layout) == sorted(TRAINED)
    assert model.size == model.parameters_size == 4 + 12 + 16
    assert {block.name: block.kind for block in model.layout}["head.bias"] == "bias"
    assert not model.has_statistics
    state = dict(made(3).state_dict())
    assert model.fixed.keys() == state.keys() - set(TRAINED) - {"norm.num_batches_tracked"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.fixed.items())
    whole = torch.cat([parameter.detach().reshape(-1) for parameter in made(3).parameters() if parameter.requires_grad])
    assert torch.equal(model.initial(3), whole)


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_training_is_that_of_a_torch_loop(strategy: str, factored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if factored:
        monkeypatch.setattr(gradients, "_DENSE_FROM", 0)
    training = trainer(strategy=strategy)
    moves = training.train(training.model.initial(3), CLIENTS, number=1, seeds=SEEDS)
    for client, move in enumerate(moves):
        torch.testing.assert_close(move, by_torch(training, client), rtol=1e-4, atol=1e-6)
    inputs, module = training.inputs, made(3).eval()
    torch.testing.assert_close(training.model.forward(training.model.initial(3), inputs), module(inputs))


def test_batch_norm_is_fixed_where_its_parameters_are_and_trained_where_they_are_not() -> None:
    def normed(affine: bool, trained: bool) -> FlatModel:
        def layers() -> nn.Module:
            norm = nn.BatchNorm1d(3, affine=affine)
            return nn.Sequential(nn.Linear(3, 3), norm.requires_grad_(trained))

        return FlatModel(layers)

    assert normed(True, True).has_statistics
    assert normed(False, True).has_statistics  # as torch: nothing of it is frozen
    fixed = normed(True, False)
    assert not fixed.has_statistics
    assert fixed.size == 12
    assert {"1.running_mean", "1.running_var", "1.weight", "1.bias"} == fixed.fixed.keys()


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("method", ["dp-fedavg", "fedpm-private"])
def test_a_run_sends_notes_and_saves_just_that(tiny_config: Any, tmp_path: Any, method: str) -> None:
    register("adapters-in-a-test", lambda input_shape, classes: Adapted(64, classes))
    private: dict[str, Any] = {"without": ["model", "privacy"] if method != "dp-fedavg" else ["model"]}
    own = ["method.name=fedpm", "privacy.clip_norm=1.0", "privacy.release=sum"] if method != "dp-fedavg" else []
    config = tiny_config("model.name=adapters-in-a-test", "federation.rounds=2", *own, **private)
    experiment = build(config)
    done = federation.run(experiment, tmp_path / "run")
    trained, fixed = 10 + 128 + 16, 64 * 8 + 8 + 4 * 8 + 72 + 80
    assert done.summary["parameters"] == experiment.model.size == trained
    assert done.summary["fixed_parameters"] == fixed
    bits = {"dp-fedavg": 32, "fedpm-private": 1}[method]
    assert done.summary["uplink_bytes_per_client_round"] < (bits + 4) * trained / 8 + 100
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert saved.keys() >= {*TRAINED, *experiment.model.fixed}
    assert all(torch.equal(saved[name], tensor) for name, tensor in experiment.model.fixed.items())
    module = Adapted(64, 10)
    module.load_state_dict(saved, strict=False)
    test = torch.from_numpy(experiment.dataset.test_inputs)
    right = (module.eval()(test).argmax(dim=1) == torch.from_numpy(experiment.dataset.test_labels)).double().mean()
    assert done.summary["test_accuracy"] == pytest.approx(float(right))
    assert audit_run(tmp_path / "run").verdict != "fail"


def test_another_frozen_network_is_another_run(tiny_config: Any, tmp_path: Any) -> None:
    """Resuming on another backbone is refused: the checkpoint is bound to what rounds start from."""
    scale = 1.0

    def maker(input_shape: Any, classes: int) -> nn.Module:
        module = Adapted(64, classes)
        module.body.weight.data.mul_(scale)
        return module

    register("scaled-in-a-test", maker)
    config = tiny_config("model.name=scaled-in-a-test", "privacy.accountant=rdp", without=["model"])
    with pytest.raises(Exception, match="interrupted"):
        federation.run(build(config), tmp_path / "run", stop=iter([False, True]).__next__)
    scale = 2.0
    refused(Exception, "the model that it starts from", federation.run, build(config), tmp_path / "run", resume=True)


def test_a_network_without_anything_to_train_is_refused() -> None:
    refused(ConfigError, "no parameters with requires_grad", FlatModel, lambda: nn.Linear(2, 2).requires_grad_(False))
