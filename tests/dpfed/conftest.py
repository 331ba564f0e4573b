"""A tiny private run on the embedded digits."""

import pytest
import torch
from reference.own_schemes import fresh_names

from ..rounds import DIGITS, configured

torch.set_num_threads(1)  # pytest already keeps every core busy; OpenMP's spinning would only get in the way


@pytest.fixture(autouse=True)
def own_names_end_with_the_test():
    """What a test registers is not known to the next one."""
    with fresh_names():
        yield


def config_with(*settings, without=()):
    return configured(*settings, start=DIGITS, **dict.fromkeys(without))


@pytest.fixture
def tiny_config():
    """`tiny_config("table.key=value", ..., without=["privacy"])` -> Config."""
    return config_with
