"""Custom functions with claims to audit: one claim is true, one is false.

dpfed audit clipped_sum --load own_upload.py; dpfed audit forgotten_layers --load own_upload.py"""

import torch
from torch import Tensor

import accounting
from dpfed import audit

CLAIM = accounting.Gaussian(noise_multiplier=1.0, adjacency=accounting.Adjacency.ADD_REMOVE)


def clipped(updates: Tensor) -> Tensor:
    return updates * (1 / updates.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)


@audit.claim(CLAIM, clip_norm=1.0)
def clipped_sum(updates: Tensor, seed: int) -> Tensor:
    """Correct: clip every client's whole update to norm 1, and add noise of standard deviation 1 to the sum."""
    noise = torch.randn(updates.shape[1], generator=torch.Generator().manual_seed(seed))
    return clipped(updates).sum(dim=0) + noise


@audit.claim(CLAIM, clip_norm=1.0)
def forgotten_layers(updates: Tensor, seed: int) -> list[Tensor]:
    """Wrong: clip each of two layers to norm 1, so that a client moves the sum by sqrt(2)."""
    noise = torch.Generator().manual_seed(seed)
    return [
        clipped(layer).sum(dim=0) + torch.randn(layer.shape[1], generator=noise) for layer in updates.chunk(2, dim=1)
    ]
