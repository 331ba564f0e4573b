"""Private prediction of numbers: their mean, and their 90% quantile by a custom loss."""

import numpy as np
import torch

import dpfed

draw, halves = np.random.default_rng(0), []
for count in (6000, 1000):
    x = draw.normal(size=(count, 4))
    halves.append((x, x[:, 0] * x[:, 1] + draw.normal(size=count)))
data = dpfed.data.from_arrays(*halves, classes=None)


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def upper_tenth(outputs, targets):
    error = targets - outputs[:, 0]
    return torch.maximum(0.9 * error, -0.1 * error)


def below(outputs, targets):
    return targets < outputs[:, 0]


plan = {"federation.clients": 600, "federation.cohort": 100, "federation.rounds": 30, "privacy.clip_norm": 1.0}
plan |= {"local.learning_rate": 0.05, "local.epochs": 2}
for name, loss in (("mean", None), ("upper-tenth", upper_tenth)):
    folder = f"regression-{name}"
    done = dpfed.run(
        "dp-fedavg-digits", plan, data=data, model=network, loss=loss, metrics={"below": below}, out=folder
    )
    print(f"{name}: {done.summary['test_below']:.1%} of test targets are below it; {done.guarantee}")
