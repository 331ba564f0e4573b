"""A tiny private run on the embedded digits."""

import random

import numpy as np
import pytest
import torch
from markupsafe import Markup
from reference.own_schemes import fresh_names

from dpfed.clients import trial
from dpfed.report.figures import figure
from dpfed.runs.durable_files import put

from ..rounds import DIGITS, configured

torch.set_num_threads(1)  # pytest already keeps every core busy; OpenMP's spinning would only get in the way
trial.SECONDS = 0.05  # of looking for state in a user's network; the trial's own tests give it more


@pytest.fixture(autouse=True)
def own_names_end_with_the_test():
    """What a test registers is not known to the next one."""
    with fresh_names():
        yield


@pytest.fixture(autouse=True)
def the_same_draws_in_any_order():
    """A test that draws from the generators of the process draws the same, whichever ran before it."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (users draw from it, too)
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def figures_are_blank(request, monkeypatch):
    """Drawing is nine tenths of a run that takes half a second; tests that look at figures are marked `drawn`."""
    if not request.node.get_closest_marker("drawn"):
        monkeypatch.setattr(figure, "_write_figure", lambda drawing, path, **how: put(path, b"blank"))
        for name in ("_svg_markup", "_legend_sample"):
            monkeypatch.setattr(figure, name, lambda *drawing, **how: Markup("<svg></svg>"))


def config_with(*settings, without=()):
    return configured(*settings, start=DIGITS, **dict.fromkeys(without))


@pytest.fixture
def tiny_config():
    """`tiny_config("table.key=value", ..., without=["privacy"])` -> Config."""
    return config_with
