"""A small experiment over the embedded digits, as a file to start from."""

import pytest

EXPERIMENT = """
title = "Two rows over digits"
published = "numbers.csv"
quantities = ["test_accuracy", "epsilon"]
x = "privacy.noise_multiplier"

[base]
data.name = "digits"
model = { name = "mlp", hidden = [8] }
federation = { clients = 60, cohort = 12, rounds = 2 }
local = { learning_rate = 0.3, epochs = 1, batch_size = 10 }
method.name = "fedavg"

[axes]
"run.seed" = [1, 2]

[[row]]
name = "FedAvg"

[[row]]
name = "DP-FedAvg"
set = { "method.name" = "dp-fedavg", "privacy.clip_norm" = 1.0 }
axes = { "privacy.noise_multiplier" = [1.0, 2.0] }

[profiles.smoke]
note = "one seed"
set = { "federation.rounds" = 1 }
axes = { "run.seed" = [1] }
"""
NUMBERS = """row,x,quantity,value,where
FedAvg,,test_accuracy,86.98,"Table I, p. 9"
DP-FedAvg,1,test_accuracy,72.72,"Table I, p. 9"
"""


@pytest.fixture
def experiment_file(tmp_path):
    """`experiment_file(replaced="by", ..., numbers=...)` -> path of the experiment with texts of it replaced."""

    def write(*replacements, more="", numbers=NUMBERS):
        text = EXPERIMENT + more
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "numbers.csv").write_text(numbers)
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write
