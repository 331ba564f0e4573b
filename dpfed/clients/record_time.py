"""Estimated processor time of training on records one by one, from public numbers alone."""

from __future__ import annotations

import time

import numpy as np
import torch

from dpfed.clients.records import WholeGradients
from dpfed.clients.training import LocalTraining
from dpfed.stages.clip import clip_rows

_TRIALS = 10


def seconds_of_records(clients: LocalTraining, *, rounds: int, share: float) -> tuple[float, int] | None:
    """Return (seconds of processor time, expected gradients of a round) of private records with integer noise.

    share: expected share of clients in a round. Gradients of a sample of zeros at initial weights are timed. None for
    records that are trained together, and for a custom network, which is called only where its state is restored.
    """
    record = clients.record
    if record is None or record.integers is None or clients.start is not None:
        return None
    gradients = WholeGradients(clients.model.bind(clients.model.initial(0)), loss=clients.loss, by="single")
    inputs, labels = torch.zeros_like(clients.inputs[:1]), torch.zeros_like(clients.labels[:1])
    row, name = torch.zeros(1, clients.course.size), np.zeros(1, dtype=np.int64)
    began = 0.0
    for trial in range(_TRIALS + 1):
        if trial == 1:  # the first call prepares caches
            began = time.process_time()
        gradients(inputs, labels)
        record.integers.encode_rows(clip_rows(row, record.clip_norm).rows, name, (0, 0, 0))
    each = (time.process_time() - began) / _TRIALS
    batches = clients.poisson_batches
    sizes, number = np.unique(clients.partition.sizes, return_counts=True)
    held = zip(sizes.tolist(), number.tolist(), strict=True)
    steps = sum(clients_of * batches.expected(size) * batches.count(size) for size, clients_of in held)
    a_round = round(share * steps)
    return each * a_round * rounds, a_round
