"""Does the choice of what is sent rest on public data only?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpfed.audit.round.one_round import OneRound
from dpfed.audit.verdict import Check
from dpfed.clients.training import LocalTraining
from dpfed.stages.public_signs import PublicSigns
from dpfed.stages.shared_mask import PublicTopMask


def public_map_check(one: OneRound) -> Check | None:
    """Two worlds that differ in all private data have the same map, and no client holds a public sample.

    None where the map comes from seeds alone. Exact.
    """
    choice, local = one.method.stages.project.choice, one.method.clients
    choice = choice.choice if isinstance(choice, PublicSigns) else choice
    if not isinstance(choice, PublicTopMask) or not isinstance(choice.trainer, LocalTraining):
        return None
    state, trainer = one.state, choice.trainer
    others = replace(trainer, inputs=torch.zeros_like(trainer.inputs), labels=torch.zeros_like(trainer.labels))
    maps = [
        each.for_round(state.broadcast, state.round, one.seeds) for each in (choice, replace(choice, trainer=others))
    ]
    unit = torch.ones(one.projection.sent)
    same = torch.equal(maps[0].adjoint(unit), maps[1].adjoint(unit))
    held = torch.from_numpy(np.concatenate([local.partition.of(client) for client in range(local.partition.clients)]))
    common = _common(choice.inputs, choice.labels, local.inputs[held], local.labels[held])
    return Check(
        name="public map",
        passed=same and common == 0,
        detail=("the map stays" if same else "the map changes") + " when all private data become zero; clients hold "
        f"{common} of the {len(choice.labels)} public samples",
    )


def _common(inputs: Tensor, labels: Tensor, held: Tensor, held_labels: Tensor) -> int:
    """How many of the samples are among those that are held."""
    private = {_bytes(sample, label) for sample, label in zip(held, held_labels, strict=True)}
    return sum(_bytes(sample, label) in private for sample, label in zip(inputs, labels, strict=True))


def _bytes(sample: Tensor, label: Tensor) -> bytes:
    return bytes(sample.cpu().contiguous().numpy().tobytes()) + bytes(label.cpu().numpy().tobytes())
