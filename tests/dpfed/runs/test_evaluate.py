"""Evaluation on held-out images: whatever rows go together and however they lie in memory."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfed.models import build
from dpfed.records.reading import validated_record
from dpfed.records.round import MetricsLine
from dpfed.runs.evaluate import Objective, TestResult, evaluate, metric_value


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


@pytest.mark.parametrize("value", [1e200, -1e200, float("inf"), float("nan")])
def test_a_score_that_no_record_may_have_is_none(value):
    """A finite one beyond 1e100 was written, and the run could not be read, reported or resumed."""
    scores = TestResult(accuracy=0.5, loss=1.0, others={"own": value}).to_record("test")
    assert scores == {"test_accuracy": 0.5, "test_loss": 1.0, "test_own": None}
    line = MetricsLine(round=1, scores=scores)
    assert validated_record(MetricsLine, line.to_dict(), "line 1") == line


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (lambda outputs, targets: 0.1, 0.1),
        (lambda outputs, targets: 2**24 + 1, 2**24 + 1),
        (lambda outputs, targets: [0.1, 0.3], 0.2),
        (lambda outputs, targets: torch.tensor([0.5, 0.25]), 0.375),
        (lambda outputs, targets: torch.tensor(0.25), 0.25),
    ],
)
def test_a_custom_metric_is_not_rounded(metric, expected):
    """A number of Python was rounded to float32."""
    assert metric_value("own", metric, torch.zeros(2, 3), torch.zeros(2)) == expected


def test_a_test_half_of_ignored_labels_has_no_majority():
    """It ended a run after its first round."""
    objective = Objective(ignored=-100)
    assert objective.majority_accuracy(np.full(5, -100)) is None
    assert objective.majority_accuracy(np.array([-100, 1, 1, 2])) == 2 / 3
