"""Trial of a custom network before round 1: batches of one, half and full size, buffers, number types, draws."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dpfed
from dpfed.clients.losses import OfSamples
from dpfed.clients.network_randomness import ClientRandomness, draws_random_numbers
from dpfed.errors import ConfigError
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds

GENERATOR = torch.Generator().manual_seed(11)


def points(count: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *(shape or (8,)), generator=GENERATOR), torch.arange(count) % 3


def clients(*sizes: int, shape: tuple[int, ...] = (8,)) -> Any:
    return dpfed.data.from_clients([points(one, *shape) for one in sizes], points(30, *shape), classes=3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


def run(folder: Path, data: Any, model: Any, loss: OfSamples | None = None, **settings: Any) -> Any:
    noise = {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0, "privacy.accountant": "rdp"}
    private = {} if settings.pop("public", False) else noise
    tables: dict[str, Any] = {"federation.rounds": 1, "federation.cohort": 4, "local.batch_size": 4, "local.epochs": 1}
    preset = "dp-fedavg-digits" if private else "fedavg-digits"
    chosen = tables | private | {name.replace("__", "."): value for name, value in settings.items()}
    return dpfed.run(preset, chosen, data=data, model=model, loss=loss, out=folder / "run", progress=False)


class Wrapped(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], *, before: bool = False) -> None:
        super().__init__()
        self.layer, self.function, self.before = nn.Linear(8, 3), function, before

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.function(inputs)) if self.before else self.function(self.layer(inputs))


def fixed_batch(inputs: Tensor) -> Tensor:
    return inputs.view(-1, 4, 8).reshape(-1, 8)


def squeezed(outputs: Tensor) -> Tensor:
    return outputs.squeeze()


def standardised(outputs: Tensor) -> Tensor:
    centred = outputs - outputs.mean(dim=0)
    return centred / (centred.square().sum(dim=0) / (len(outputs) - 1)).sqrt()


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Wrapped(squeezed), "fails .* on a batch of 1 sample"),
        (lambda: Wrapped(standardised), "not finite on a batch of 1 sample"),
        (lambda: Wrapped(fixed_batch, before=True), "fails on 2 test samples"),
    ],
)
def test_a_network_that_cannot_train_on_small_batches_is_refused(
    model: Callable[[], nn.Module], words: str, release: bool, tmp_path: Path
) -> None:
    """The refusal is the same for every client: all clients here have full batches, and others may not."""
    refused(ConfigError, words, lambda: run(tmp_path, clients(*[8] * 6), model(), run__release=release))
    assert not (tmp_path / "run").exists()


def test_a_network_that_cannot_train_on_small_batches_is_refused_without_privacy(tmp_path: Path) -> None:
    refused(ConfigError, "on a batch of 1 sample", run, tmp_path, clients(*[8] * 6), Wrapped(squeezed), public=True)


def test_a_loss_that_cannot_take_one_sample_is_refused(tmp_path: Path) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 1:
            raise ValueError("too few")
        return cross_entropy(outputs, targets, reduction="none")

    refused(ConfigError, "too few", lambda: run(tmp_path, clients(*[8] * 6), nn.Linear(8, 3), loss))


class FailsForLarge(Wrapped):
    """Gives infinity for a sample beyond the range of others, as an overflow does."""

    def __init__(self) -> None:
        super().__init__(lambda inputs: inputs.exp(), before=True)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("release", [False, True])
def test_the_clients_that_fail_are_those_with_failing_samples(release: bool, tmp_path: Path) -> None:
    """Clients of one sample, beside larger ones, with padding or without, fail only by their own samples."""
    sizes = [1, 5, 1, 8, 4, 9]
    pairs = [points(one) for one in sizes]
    for failing in (0, 3):
        pairs[failing][0][-1] = 1000.0
    data = dpfed.data.from_clients(pairs, points(30), classes=3)
    everyone = {"federation__sampling": "all", "federation__cohort": len(sizes)}
    run(tmp_path, data, FailsForLarge(), run__release=release, **everyone)
    lines = [json.loads(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert [(line["not_finite"], line["participants"]) for line in lines] == [(2, 6)]


class NoZeros(nn.Module):
    """Refuses an input without a number, as networks of packed sequences do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch._C._functorch.is_functorch_wrapped_tensor(inputs) and bool((inputs == 0).all(-1).any()):
            raise ValueError("empty")
        return self.layer(inputs)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("public", [False, True])
def test_no_network_is_tried_on_samples_of_zeros(public: bool, tmp_path: Path) -> None:
    run(tmp_path, clients(*[6] * 6), NoZeros(), public=public)


class FrozenNorm(nn.Module):
    def __init__(self, *, counts: bool = False) -> None:
        super().__init__()
        self.layer, self.counts = nn.Linear(8, 3), counts
        self.register_buffer("mean", torch.full((8,), 0.3))
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.counts and self.training:
            self.mean = self.mean + inputs.detach().mean()
        return self.layer(inputs[:, self.order] - self.mean)


@pytest.mark.parametrize("public", [False, True])
def test_saved_buffers_are_constants_unless_training_changes_them(public: bool, tmp_path: Path) -> None:
    done = run(tmp_path, clients(*[6] * 6), FrozenNorm(), public=public)
    assert done.model.mean.tolist() == pytest.approx([0.3] * 8)
    assert done.model.order.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert done.experiment.model.fixed.keys() == {"mean", "order"}
    with pytest.raises(ConfigError, match="training changes the buffers mean"):
        run(tmp_path / "other", clients(*[6] * 6), FrozenNorm(counts=True), public=public)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Linear(8, 3).double(), "parameter 'weight' is float64"),
        (nn.Linear(8, 3).to(torch.bfloat16), "parameter 'weight' is bfloat16"),
        (nn.Sequential(nn.Linear(8, 3, dtype=torch.complex64)), "parameter '0.weight' is complex64"),
        (nn.LazyLinear(3), "parameter 'weight' has no shape"),
    ],
)
def test_trained_parameters_are_float32(layer: nn.Module, words: str) -> None:
    refused(ConfigError, words, FlatModel, lambda: layer)


def test_fixed_parameters_may_have_any_type(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below = nn.Linear(8, 8).to(torch.bfloat16).requires_grad_(False)
            self.layer = nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(self.below(inputs.to(torch.bfloat16)).float())

    run(tmp_path, clients(*[6] * 6), Half())


def test_random_slopes_are_drawn_in_training_only() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Linear(8, 4), nn.RReLU(), nn.Linear(4, 3)))
    inputs = points(4)[0]
    assert draws_random_numbers(model, inputs, training=True)
    assert not draws_random_numbers(model, inputs, training=False)


def test_random_slopes_have_their_distribution_and_gradient() -> None:
    """Slopes of negative inputs are uniform on [1/8, 1/3]; the means' standard error is 0.0006 (7 of them here)."""
    inputs = torch.full((10_000,), -2.0, requires_grad=True)
    with ClientRandomness(Seeds(root=1), "test", number=0, clients=[0], step=0):
        outputs = nn.RReLU()(inputs)
    outputs.sum().backward()  # type: ignore[no-untyped-call]
    slopes = outputs.detach() / -2
    assert 1 / 8 <= float(slopes.min()) < 0.126
    assert 0.332 < float(slopes.max()) <= 1 / 3
    assert float(slopes.mean()) == pytest.approx((1 / 8 + 1 / 3) / 2, abs=0.0042)
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, slopes)
    positive = torch.ones(5)
    with ClientRandomness(Seeds(root=1), "test", number=0, clients=[0], step=0):
        assert torch.equal(nn.RReLU()(positive), positive)


def conditional(outputs: Tensor, targets: Tensor) -> Tensor:
    assert not torch.isnan(outputs).any()
    return cross_entropy(outputs, targets, reduction="none") * (1.0 + 0.0 * outputs[0, 0].item())


def plain(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def test_a_loss_with_conditions_trains_in_a_loop(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, network = clients(*[6] * 6), nn.Linear(8, 3)
    seen = [run(tmp_path / loss.__name__, data, network, loss, local__strategy="auto") for loss in (conditional, plain)]
    one, other = ([parameter.detach() for parameter in done.model.parameters()] for done in seen)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    refused(ConfigError, r"torch\.where", run, tmp_path / "vmap", data, network, conditional, local__strategy="vmap")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda: nn.Sequential(nn.DataParallel(nn.Linear(8, 3))),
        pytest.param(lambda: nn.DataParallel(nn.Sequential(nn.Linear(8, 3))), marks=pytest.mark.slow),
        pytest.param(lambda: torch.compile(nn.Sequential(nn.Linear(8, 3))), marks=pytest.mark.slow),
    ],
)
def test_wrappers_for_devices_and_compilers_are_taken_off(wrap: Callable[[], nn.Module], tmp_path: Path) -> None:
    done = run(tmp_path, clients(*[6] * 6), wrap())
    assert [one for one, _ in done.model.named_parameters()] == ["0.weight", "0.bias"]


def test_scripted_networks_are_refused_by_name(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Linear(8, 3))
    for model in (scripted, nn.Sequential(scripted)):
        refused(ConfigError, r"torch\.jit.*Give the module", run, tmp_path, clients(*[6] * 6), model)
