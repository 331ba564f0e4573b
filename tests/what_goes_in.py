"""Loaders of data that `dpfed.data.from_clients` is tried with.

`python tests/what_goes_in.py` tries all of them and writes the table "What goes in" of docs/data.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

import dpfed
from dpfed.errors import DpfedError

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
BEGIN, END = "<!-- what goes in: begin -->", "<!-- what goes in: end -->"


class Own(Dataset[Any]):
    def __init__(self, *, random: bool = False) -> None:
        self.random = random

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + (torch.rand(3) if self.random else 0.0), index % 3


def own_collate(items: Any) -> Any:
    return default_collate(items)


def loaders() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield (name, "taken" or the text of the refusal or warning, function that makes the data set)."""
    inputs, labels = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 0])
    pair, tensors = (inputs, labels), TensorDataset(torch.tensor(inputs).float(), torch.tensor(labels))
    columns = {"a": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 2, 0], "who": ["n", "n", "s", "s"]}

    named = {"x": inputs, "z": inputs, "labels": labels}

    def listed(one: Any, *, test: Any = pair) -> Callable[[], Any]:
        return lambda: dpfed.data.from_clients([one, one], test, classes=3)

    def frame(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: dpfed.data.from_clients(make(), make(), classes=3, client="who", inputs=["a"], label="y")

    def of_pandas() -> Any:
        import pandas

        return pandas.DataFrame(columns)

    def of_arrow() -> Any:
        import pyarrow

        return pyarrow.table(columns)

    yield "pairs of arrays or tensors", "taken", listed(pair)
    yield "`TensorDataset`", "taken", listed(tensors)
    yield "`Subset`", "taken", listed(Subset(tensors, [0, 2]))
    yield "`ConcatDataset`", "taken", listed(ConcatDataset([tensors, tensors]))
    yield "your own `Dataset`", "taken", listed(Own())
    yield "`DataLoader`, shuffled or not", "taken", listed(DataLoader(tensors, shuffle=True))
    yield (
        "`DataLoader` with your sampler, batch_sampler or collate_fn",
        "may leave samples out",
        listed(DataLoader(tensors, collate_fn=own_collate)),
    )
    yield "data set with random augmentation", "drawn once", listed(Own(random=True))
    yield "dictionary of arrays by name", "taken", listed(named, test=named)
    yield "dictionary of clients by name", "taken", lambda: dpfed.data.from_clients({"n": pair}, pair, classes=3)
    yield "generator of clients", "taken", lambda: dpfed.data.from_clients((pair for _ in range(2)), pair, classes=3)
    yield "masked arrays with gaps", "masked values", listed((np.ma.masked_equal(inputs, 3.0), labels))
    yield "pandas frame", "taken", frame(of_pandas)
    yield "Arrow table", "taken", frame(of_arrow)


def found_of_loader(make: Callable[[], Any]) -> str:
    """Return "taken", or the text of the warning or of the refusal."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            make()
        except DpfedError as error:
            return "refused: " + " ".join(str(error).split())
    return f"taken, with a warning: {seen[0].message}" if seen else "taken"


def _short(said: str) -> str:
    """Return the first sentence of an outcome for a cell of the table."""
    text = said.replace("|", "&#124;").partition(". ")[0]
    return text if len(text) < 160 else text[:157] + "..."


def table() -> str:
    """Return the table as markdown."""
    rows = [f"| {name} | {_short(found_of_loader(make))} |" for name, _, make in loaders()]
    return "\n".join(["| data of a client | |", "|---|---|", *rows])


if __name__ == "__main__":
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:begin]}\n{table()}\n{text[end:]}")
