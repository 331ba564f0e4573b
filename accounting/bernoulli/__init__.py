"""Bernoulli uploads: the channel of one client; sums, exact distributions and bias correction in the other modules."""

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
