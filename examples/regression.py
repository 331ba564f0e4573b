"""Numbers to predict from a file of one's own, privately: their mean, and their upper tenth by a loss of one's own."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from accounting.rounding import upwards
from dpfed.config.tables import parse
from dpfed.run import experiment, loop

draw, arrays = np.random.default_rng(0), {}
for half, count in (("train", 6000), ("test", 1000)):
    x = draw.normal(size=(count, 4)).astype("float32")
    arrays |= {f"{half}_inputs": x, f"{half}_targets": x[:, 0] * x[:, 1] + draw.normal(size=count).astype("float32")}
save_file(arrays, "numbers.safetensors")

tables = {"data": {"name": "numbers.safetensors"}, "model": {"name": "mlp", "hidden": [16]}}
tables |= {"federation": {"clients": 600, "cohort": 100, "rounds": 30}, "method": {"name": "dp-fedavg"}}
tables |= {"local": {"learning_rate": 0.05, "epochs": 2, "batch_size": 10}}
tables |= {"privacy": {"clip_norm": 1.0, "epsilon": 3.0}}


def upper_tenth(outputs, targets):
    error = targets - outputs[:, 0]
    return torch.maximum(0.9 * error, -0.1 * error)


def below(outputs, targets):
    return targets < outputs[:, 0]


for name, loss in (("mean", None), ("upper-tenth", upper_tenth)):
    made = experiment.build(parse(tables, source=name), loss=loss, metrics={"below": below})
    done = loop.run(made, Path(f"regression-{name}")).summary
    print(f"{name}: epsilon {upwards(done['epsilon'])}, {done['test_below']:.1%} of test targets are below it")
