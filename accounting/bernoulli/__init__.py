"""Accounts of Bernoulli uploads. The package exports the channel of one client; its modules have sums, exact
distributions and bias correction.
"""

from accounting.bernoulli.channel import Bound, channel_bound, channel_rdp, fedpm_bound
from accounting.bernoulli.divergence import divergence, floor_of, worst_divergence

__all__ = ["Bound", "channel_bound", "channel_rdp", "divergence", "fedpm_bound", "floor_of", "worst_divergence"]
