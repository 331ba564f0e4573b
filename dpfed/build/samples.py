"""Which samples are trained on, and which are public."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpfed import data
from dpfed.config import Config
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    inputs: torch.Tensor
    labels: torch.Tensor
    note: str


def public_samples(config: Config, whole: Dataset, seeds: Seeds, device: torch.device) -> tuple[Dataset, Public | None]:
    count = config.data.public
    if count == 0:
        return whole, None
    if config.data.public_from is None:
        rest, inputs, labels = whole.carve_public(count, seeds.generator("public.carve"))
        note = (
            f"{count} samples carved out of the training set of {whole.name} serve as public data: "
            "they are not protected by the stated epsilon"
        )
    else:
        other = data.load(config.data.public_from, config.data.root)
        if other.input_shape != whole.input_shape or other.classes > whole.classes:
            raise ConfigError(
                f"data.public_from={other.name!r}: its samples are {other.input_shape} in {other.classes} classes, "
                f"{whole.name} has {whole.input_shape} in {whole.classes}. Use a data set of the same form."
            )
        _, inputs, labels = other.carve_public(count, seeds.generator("public.carve"))
        rest, note = whole, f"{count} samples of {other.name} serve as public data: they are not protected"
    return rest, Public(
        inputs=torch.from_numpy(inputs).to(device), labels=torch.from_numpy(labels).to(device), note=note
    )
