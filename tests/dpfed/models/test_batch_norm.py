"""BatchNorm with padding is torch's BatchNorm on the samples that are no padding."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from dpfed.models.flat import PaddedBatchNorm, with_padding

REAL = 5


def run(norm: nn.Module, inputs: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    state = {name: buffer.clone() for name, buffer in norm.named_buffers() if name != "num_batches_tracked"}
    output = functional_call(PaddedBatchNorm(norm), state | {"shares": shares}, (inputs,))
    return output, state


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(3), (3,)),
        (nn.BatchNorm1d(3, affine=False, momentum=0.4), (3, 4)),
        (nn.BatchNorm2d(3, eps=0.1), (3, 4, 2)),
        (nn.BatchNorm3d(3, momentum=1.0), (3, 2, 2, 2)),
    ],
    ids=str,
)
def test_padding_bears_on_nothing(norm: Any, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(REAL + 2, *shape, generator=generator) * 3 + 1
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(3, generator=generator))
    inputs.requires_grad_()
    shares = torch.tensor([1 / REAL] * REAL + [0.0] * 2)
    output, state = run(norm, inputs, shares)
    slopes = torch.randn(REAL, *shape, generator=generator)
    expected = norm(inputs[:REAL])
    gradient, expected_gradient = (
        torch.autograd.grad((normal * slopes).sum(), inputs)[0] for normal in (output[:REAL], expected)
    )
    torch.testing.assert_close(output[:REAL], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["running_mean"], norm.running_mean)
    torch.testing.assert_close(state["running_var"], norm.running_var)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)
    assert not gradient[REAL:].any()


def test_padding_that_counts_is_seen() -> None:
    """The planted fault: equal shares for padding, too."""
    inputs = torch.randn(REAL + 2, 3, generator=torch.Generator().manual_seed(0))
    norm = nn.BatchNorm1d(3)
    output, state = run(norm, inputs, torch.full((REAL + 2,), 1 / (REAL + 2)))
    assert (output[:REAL] - norm(inputs[:REAL])).abs().max() > 0.01
    assert (state["running_var"] - norm.running_var).abs().max() > 0.001


def test_a_layer_used_twice_stays_one_layer() -> None:
    norm = nn.BatchNorm1d(3)
    module = with_padding(nn.Sequential(norm, nn.ReLU(), nn.Sequential(norm)))
    assert isinstance(module[0], PaddedBatchNorm)
    assert module[2][0] is module[0]  # type: ignore[index]
    assert isinstance(with_padding(nn.BatchNorm2d(1)), PaddedBatchNorm)
