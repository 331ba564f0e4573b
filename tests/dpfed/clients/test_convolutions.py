"""Clients' convolutions by windows are torch's own, and a step calls as many operators for many clients as for few."""

import numpy as np
import pytest
import torch
from local_training import training_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.plan import StepCost, step_cost
from dpfed.clients.side_by_side import ClientCalls
from dpfed.models import build
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds

CONVOLUTIONS = {
    "plain": nn.Conv2d(2, 3, 3),
    "padded": nn.Conv2d(2, 3, (3, 5), padding=(1, 2), bias=False),
    "same": nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 2)),
    "valid": nn.Conv2d(2, 3, 3, padding="valid"),
    "strided": nn.Conv2d(2, 3, 3, stride=(2, 3), padding=1),
    "dilated": nn.Conv2d(2, 3, 3, dilation=(2, 1), stride=2),
    "reflected": nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "in groups": nn.Conv2d(2, 4, 3, groups=2),
}


def gradients(layer: nn.Module, *, windows: bool) -> list[torch.Tensor]:
    """Return the outputs of four clients with weights of their own, and the gradients of images and weights."""
    torch.manual_seed(0)
    given = {name: torch.randn(4, *one.shape, dtype=torch.float64) for name, one in layer.named_parameters()}
    images = torch.randn(4, 3, 2, 9, 11, dtype=torch.float64)
    leaves = [images, *given.values()]
    for one in leaves:
        one.requires_grad_()
    with ClientCalls(windows):
        made = torch.vmap(lambda state, x: torch.func.functional_call(layer, state, (x,)))(given, images)
    return [made, *torch.autograd.grad(made.sin().sum(), leaves)]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_windows_and_groups_give_the_same_numbers(name: str) -> None:
    """In float64 to 1e-12; torch's own grouped convolution is the independent computation."""
    layer = CONVOLUTIONS[name].double()
    for one, other in zip(gradients(layer, windows=True), gradients(layer, windows=False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class Calls(TorchDispatchMode):
    """Operators that reach the device, by name; views call none."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def golden_clients(model: FlatModel, clients: int, samples: int = 2) -> LocalTraining:
    return training_of(
        model, Sgd(size=model.size, learning_rate=0.1), [samples] * clients, (1, 28, 28), batch_size=samples,
        steps=1, strategy="vmap", chunk=clients,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fed-smp-cnn", "mlp"])
def test_operators_of_a_step_do_not_grow_with_the_clients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path of a GPU: local training of the golden plan's network, from the batches to the moves."""
    monkeypatch.setattr(StepCost, "takes_windows", lambda self, device: True)
    model = build(name, (1, 28, 28), 10)
    called = []
    for clients in (2, 5):
        training = golden_clients(model, clients)
        training.train(model.initial(0), np.arange(clients), number=0, seeds=Seeds(root=0))  # warms up
        with Calls() as calls:
            training.train(model.initial(0), np.arange(clients), number=0, seeds=Seeds(root=0))
        called.append(calls.names)
    assert called[0] == called[1]
    assert not any("convolution" in one for one in called[0])
    assert "aten.bmm.default" in called[0]


def test_windows_are_taken_where_the_cost_model_says_so() -> None:
    """Wide convolutions gain by windows; a layer with few outputs copies more than it multiplies; CPUs keep groups."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    wide = step_cost(build("fed-smp-cnn", (1, 28, 28), 10), torch.zeros(1, 1, 28, 28), 10)
    assert wide.windowed == 10 * (784 * 25 + 196 * 800)
    assert wide.takes_windows(gpu)
    assert not wide.takes_windows(cpu)
    assert wide.bytes(0, gpu) - wide.bytes(0, cpu) == 8 * wide.windowed
    narrow = step_cost(
        FlatModel(lambda: nn.Sequential(nn.Conv2d(3, 2, 7), nn.Flatten())), torch.zeros(1, 3, 64, 64), 64
    )
    assert not narrow.takes_windows(gpu)
