"""Uploads of coins: one client's channel here; sums, exact laws and the correction of bias in the modules beside it."""

from accounting.bernoulli.channel import (
    Bound,
    channel_bound,
    channel_rdp,
    divergence,
    fedpm_bound,
    floor_of,
    worst_divergence,
)

__all__ = ["Bound", "channel_bound", "channel_rdp", "divergence", "fedpm_bound", "floor_of", "worst_divergence"]
