"""Texts that a network of letters can read."""

from __future__ import annotations

from dpfed.data.dataset import Dataset
from dpfed.errors import DataError

_OF_LETTERS = "char-lstm"


def check_letters(model: str, dataset: Dataset) -> None:
    """DataError where inputs of the network of letters are no numbers of letters.

    Looked at before any round: a run that stopped at such a sample would tell that it was drawn.
    """
    if model != _OF_LETTERS:
        return
    for half in (dataset.train_inputs, dataset.test_inputs):
        if half.size and not (half.min() > -1 and half.max() < dataset.outputs):
            raise DataError(
                f"an input of {dataset.name!r} is not among the {dataset.outputs} declared letters, 0 to "
                f"{dataset.outputs - 1}, that model.name='{_OF_LETTERS}' reads. Number the letters, or declare more."
            )
