"""Evaluation on held-out images: whatever rows go together and however they lie in memory."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfed.models import build
from dpfed.runs.evaluate import evaluate


@pytest.mark.parametrize("name", ["fed-smp-cnn", "cnn-4-bn"])
def test_images_give_what_one_forward_pass_of_the_module_gives(name):
    draws = torch.Generator().manual_seed(1)
    images, labels = torch.rand(230, 3, 32, 32, generator=draws), torch.randint(10, (230,), generator=draws)
    if name == "fed-smp-cnn":
        images = images[:, :1, :28, :28]
    model = build(name, tuple(images.shape[1:]), 10)
    weights = model.initial(3)
    with torch.no_grad():
        logits = model.bind(weights.clone()).eval()(images.contiguous())
    found = evaluate(model, weights, images, labels)
    assert found.loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-5)
    assert found.accuracy == pytest.approx(float((logits.argmax(dim=1) == labels).float().mean()), abs=1e-6)
