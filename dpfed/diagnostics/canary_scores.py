"""What the noisy sum of a round shows of its canaries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfed.participation.canaries import Canaries, CanaryScore
from dpfed.stages.chain import Stages, client_halves
from dpfed.stages.stage import Round, Tally


def canary_scores(canaries: Canaries, stages: Stages, now: Round, released: Tensor) -> tuple[CanaryScore, ...]:
    """How much of each canary's own bounded row is in the noisy sum [k] that was released."""
    present, absent = canaries.of_round(now.number)
    ids = np.concatenate([present, absent])
    apart = Round(task=now.task, projection=now.projection, reference=now.reference, tally=Tally())
    rows = client_halves(stages.up_to_the_clip, canaries.updates(ids, released.device), ids, apart).double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    scores = rows @ released.double() / norms.square()
    return tuple(
        CanaryScore(canary=int(one), present=index < len(present), score=float(score), norm=float(norm))
        for index, (one, score, norm) in enumerate(zip(ids, scores, norms, strict=True))
    )
