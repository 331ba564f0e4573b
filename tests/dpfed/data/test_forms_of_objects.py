"""Objects that users have: masked arrays, numbers of numpy and torch, loaders, named clients, random augmentation."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import dpfed
from accounting import Plan, budget, require
from accounting.errors import InvalidParameter
from dpfed.config.tables import plain_values
from dpfed.errors import ConfigError, DataError

LABELS = [0, 1, 2, 0]
INPUTS = np.arange(32.0).reshape(4, 8)
HIDDEN = np.ma.masked_greater(INPUTS, 30.5)
PAIR = (INPUTS, LABELS)


def clients(*held: Any, test: Any = PAIR, classes: Any = 3) -> Any:
    return dpfed.data.from_clients(list(held), test, classes=classes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: clients((HIDDEN, LABELS)),
        lambda: clients(PAIR, test=(HIDDEN, LABELS)),
        lambda: clients((list(HIDDEN), LABELS)),
        lambda: clients((INPUTS, np.ma.masked_equal(LABELS, 2))),
        lambda: clients([{"a": row, "b": row, "labels": 0} for row in HIDDEN]),
        lambda: clients({"a": HIDDEN, "labels": np.array(LABELS)}),
        lambda: dpfed.data.from_arrays((HIDDEN, LABELS), PAIR, classes=3),
        lambda: dpfed.data.from_samples([(row, 0) for row in HIDDEN], [(INPUTS[0], 1)], classes=3),
        lambda: dpfed.data.from_arrays(PAIR, PAIR, classes=3, clients=np.ma.masked_equal([1, 2, 3, 4], 2)),
    ],
)
def test_masked_values_are_refused(make: Callable[[], object]) -> None:
    refused(DataError, "masked values", make)


def test_an_array_without_a_masked_value_is_an_array() -> None:
    assert clients((np.ma.array(INPUTS), LABELS)).train_inputs.tolist() == INPUTS.tolist()


def test_numbers_of_other_libraries_are_numbers() -> None:
    whole = (3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3))
    assert [(require.plain(one), type(require.plain(one))) for one in whole] == [(3, int)] * 5
    halves = (0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), Decimal("0.5"), Fraction(1, 2))
    assert [(require.plain(one), type(require.plain(one))) for one in halves] == [(0.5, float)] * 6
    assert [require.plain(one) for one in (np.bool_(True), torch.tensor(False), True)] == [True, False, True]
    same = ("3", None, b"3", [3], np.ones(2))
    assert all(require.plain(one) is one for one in same)
    assert plain_values({"a": {"b": (np.int64(1), [np.float32(2)])}, "c": np.arange(2)}) == {
        "a": {"b": (1, [2.0])},
        "c": [0, 1],
    }


def loop(**changes: Any) -> Any:
    settings: dict[str, Any] = {"clients": 60, "cohort": 6, "clip_norm": 1.0, "noise_multiplier": 1.0, "rounds": 1}
    private = dpfed.ClientLevel(**settings | {"randomness": "simulated"} | changes)
    for step in private.rounds():
        step.release(torch.zeros(len(step.cohort), 2))
    return private.guarantee()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": np.float32(1)},
        {"clip_norm": torch.tensor(1.0)},
        {"noise_multiplier": Decimal(1)},
        {"clients": np.int64(60)},
        {"clients": torch.tensor(60)},
        {"cohort": np.int64(6), "rounds": np.uint8(1), "seed": np.int64(0)},
        {"delta": np.float64(1e-4)},
        {"dimension": np.int32(2)},
    ],
)
def test_a_loop_takes_them(change: dict[str, Any]) -> None:
    assert loop(**change) == loop()


def test_a_loop_takes_names_from_anything_that_yields_them() -> None:
    names = [f"c{place}" for place in range(60)]
    found = [loop(clients=given) for given in (names, iter(names), dict.fromkeys(names, 0), np.array(names))]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("given", [60.0, True, "sixty", None, np.float32(60)])
def test_a_loop_refuses_what_is_no_number_of_clients(given: Any) -> None:
    refused(ConfigError, "clients=", loop, clients=given)


def test_plans_and_data_take_them() -> None:
    found = [
        budget.epsilon(Plan(clients=clients, cohort=cohort), noise_multiplier=noise, rounds=rounds)
        for clients, cohort, noise, rounds in (
            (600, 60, 1.0, 5),
            (np.int64(600), torch.tensor(60), np.float32(1), np.int32(5)),
            (600, 60, Decimal(1), torch.tensor(5)),
        )
    ]
    assert found[1:] == [found[0]] * 2
    with pytest.raises(InvalidParameter, match="rounds"):
        budget.epsilon(Plan(clients=600, cohort=60), noise_multiplier=1.0, rounds=5.0)  # type: ignore[arg-type]
    assert type(clients(PAIR, classes=np.int64(3)).classes) is int


def own_collate(items: Any) -> Any:
    return default_collate(items)


own_collate.__name__ = "default_collate"
SAMPLES = TensorDataset(torch.ones(4, 8), torch.tensor(LABELS))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(SAMPLES, collate_fn=own_collate),
        DataLoader(SAMPLES, sampler=SubsetRandomSampler([1, 2])),
        DataLoader(SAMPLES, batch_sampler=[[0, 1]]),
        DataLoader(SAMPLES, batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(SAMPLES), 2, False)),
    ],
)
def test_loaders_that_may_change_samples_are_refused(loader: Any) -> None:
    refused(DataError, "sampler, batch_sampler or collate_fn", clients, loader)


def test_clients_may_be_named_or_generated() -> None:
    named = dpfed.data.from_clients({"north": PAIR, "south": PAIR}, PAIR, classes=3)
    listed = dpfed.data.from_clients([PAIR, PAIR], PAIR, classes=3, ids=["north", "south"])
    assert named.client_ids is not None and listed.client_ids is not None  # noqa: PT018
    assert named.client_ids.hashes.tolist() == listed.client_ids.hashes.tolist()
    generated = dpfed.data.from_clients((PAIR for _ in range(2)), PAIR, classes=3)
    assert (generated.natural_clients, generated.client_ids) == (2, None)
    refused(DataError, "client south", dpfed.data.from_clients, {"north": PAIR, "south": 3}, PAIR, classes=3)


class Augmented(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs + torch.rand(()), label


def test_random_augmentation_is_said_once_and_draws_nothing_more() -> None:
    torch.manual_seed(0)
    expected = torch.stack([torch.rand(()) for _ in range(4)])
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="drawn once.*augmentation in the network") as seen:
        data = clients(Augmented(*SAMPLES.tensors), Augmented(*SAMPLES.tensors))
    assert len(seen) == 1
    np.testing.assert_allclose(data.train_inputs[:4, 0], 1 + expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clients(SAMPLES, DataLoader(SAMPLES, shuffle=True))


def test_without_torch_the_error_names_what_to_install() -> None:
    """A process in which torch cannot be imported, as after an installation of the core alone."""
    code = (
        "import sys\nfor name in ('torch', 'safetensors'): sys.modules[name] = None\n"
        "import dpfed\nfor name in ('run', 'ClientLevel'):\n"
        "    try: getattr(dpfed, name)\n    except ModuleNotFoundError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.count("pip install 'dpfed[train]'") == 2, found
