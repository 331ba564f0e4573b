"""Local training of a few clients on random samples, and the batches of one client for torch's own loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.clients import LocalTraining
from dpfed.clients.schedule import draw_schedule
from dpfed.clients.task import Course
from dpfed.data import Partition
from dpfed.models import FlatModel
from dpfed.seeds import Seeds


def training_of(
    model: FlatModel, course: Course, sizes: list[int], shape: Sequence[int] = (6,), mixed: bool = False, **more: Any
) -> LocalTraining:
    """Return the training of clients of these sizes in batches of 5: normal inputs, four classes, 2 epochs.

    mixed: clients hold rows from everywhere.
    """
    generator, count = torch.Generator().manual_seed(0), sum(sizes)
    given: dict[str, Any] = {
        "inputs": torch.randn(count, *shape, generator=generator),
        "labels": torch.randint(4, (count,), generator=generator),
        "partition": partition_of(sizes, mixed=mixed),
        "batch_size": 5,
    }
    if "steps" not in more:
        given["epochs"] = 2
    return LocalTraining(model=model, course=course, **given | more)


def partition_of(sizes: list[int], *, mixed: bool = False) -> Partition:
    rows = np.random.default_rng(0).permutation(sum(sizes)) if mixed else np.arange(sum(sizes))
    return Partition(indices=rows, offsets=np.cumsum([0, *sizes]))


def batches(training: LocalTraining, client: int, *, number: int, seeds: Seeds) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of the batches that a client draws in a round."""
    schedule = draw_schedule(
        training.partition, np.array([client]), batch_size=training.batch_size, epochs=training.epochs,
        steps=training.steps, number=number, seeds=seeds, purpose="local.shuffle",
    )  # fmt: skip
    for step in range(schedule.steps[0]):
        rows = torch.from_numpy(schedule.samples[0, step][schedule.real[0, step]])
        yield training.inputs[rows], training.labels[rows]


def descend(
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    given: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[..., Tensor] = cross_entropy,
) -> None:
    """Take a step of torch's optimiser for every batch."""
    for inputs, labels in given:
        optimiser.zero_grad()
        loss(module(inputs), labels).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
