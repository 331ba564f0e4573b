"""Errors of a custom loop and of data name the cause."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused

import dpfed
from dpfed.errors import ConfigError, DataError

ONE = {"a": torch.ones(2), "b": torch.zeros(2)}
OTHER = {"b": torch.zeros(2), "a": torch.ones(2)}


def loop() -> Any:
    everyone: dict[str, Any] = {"clients": 6, "cohort": 6, "sampling": "all", "rounds": 1}
    return dpfed.ClientLevel(**everyone, clip_norm=1.0, noise_multiplier=1.0, randomness="simulated")


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([ONE, OTHER] * 3, "tensor 0 is 'b', after one where it is 'a'"),
        ([[np.ones((2, 2)), np.zeros(3)]] * 6, "a list of arrays.*dictionary of arrays by name"),
        ([ONE, {"a": torch.ones(2)}] * 3, "dictionaries of 1 tensors"),
    ],
)
def test_updates_of_another_form(updates: Any, words: str) -> None:
    step = next(iter(loop().rounds()))
    refused(ConfigError, words, step.release, updates)
    assert step.release([ONE] * 6).keys() == ONE.keys()


def test_a_release_without_a_step_names_the_step() -> None:
    refused(ConfigError, r"step\.release\(updates\)", lambda: loop().release([]))


def two(count: int) -> Any:
    return torch.randn(count, 4), torch.randint(0, 7, (count, 2)), torch.zeros(count, dtype=torch.long)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (two(4), "2 arrays of inputs without names. Give a dictionary"),
        ((two(4)[:2], two(4)[2]), "2 arrays of inputs without names. Give a dictionary"),
        ((torch.randn(4, 8), torch.zeros(4)), r"\.long\(\).*classes=None"),
        ((torch.randn(4), torch.zeros(4).long()), r"\[N, 1\] by \.reshape"),
    ],
)
def test_data_of_another_form(pair: Any, words: str) -> None:
    refused(DataError, words, dpfed.data.from_clients, [pair] * 3, pair, classes=3)
