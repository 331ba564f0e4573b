"""A tiny private run on the embedded digits."""

import pytest
import torch
from reference.own_schemes import fresh_names

from dpfed.config.tables import override, parse

torch.set_num_threads(1)  # pytest already keeps every core busy; OpenMP's spinning would only get in the way

TABLES = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "federation": {"clients": 60, "cohort": 12, "rounds": 3},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "dp-fedavg"},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 1.0},
}


@pytest.fixture(autouse=True)
def own_names_end_with_the_test():
    """What a test registers is not known to the next one."""
    with fresh_names():
        yield


def config_with(*settings, without=()):
    tables = {key: value for key, value in TABLES.items() if key not in without}
    return parse(override(tables, settings), source="test")


@pytest.fixture
def tiny_config():
    """`tiny_config("table.key=value", ..., without=["privacy"])` -> Config."""
    return config_with
