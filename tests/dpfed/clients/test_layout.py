"""Images lie with their channels innermost only where the model gives the same so."""

from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from torch import Tensor, nn

from dpfed.clients import Sgd
from dpfed.clients.plan import takes_channels_last
from dpfed.models import build
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds


class Views(nn.Module):
    """Flattens by .view, which cannot follow a turned image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.dense = nn.Conv2d(2, 3, 3), nn.Linear(108, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.convolution(inputs)
        return self.dense(hidden.view(len(inputs), -1))


class Strides(nn.Module):
    """Reads memory by its place: another answer for a turned image."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(128, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.dense(torch.as_strided(inputs, (len(inputs), 128), (128, 1)))


IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("factory", [Views, Strides])
def test_models_that_depend_on_the_layout_keep_it(factory: Any) -> None:
    model = FlatModel(factory)
    assert not takes_channels_last(model, IMAGES)
    course = Sgd(size=model.size, learning_rate=0.1)
    trainer = training_of(model, course, [3, 3], inputs=IMAGES, epochs=1, batch_size=3, strategy="loop")
    assert trainer.train(model.initial(0), np.arange(2), number=0, seeds=Seeds(root=0)).all(dim=1).any()


def test_convolutional_networks_take_it_and_texts_do_not() -> None:
    cnn = build("fed-smp-cnn", (2, 8, 8), 4)
    assert takes_channels_last(cnn, IMAGES)
    assert takes_channels_last(cnn, IMAGES[:, :1].expand(-1, 2, -1, -1))
    assert not takes_channels_last(cnn, IMAGES[:1])
    assert not takes_channels_last(build("mlp", (6,), 4), torch.randn(6, 6))


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    takes_channels_last(build("fed-smp-cnn", (2, 8, 8), 4), IMAGES)
    assert torch.equal(state, torch.get_rng_state())
