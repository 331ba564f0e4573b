"""Our loss laws in dp-accounting's classes: the same losses, composed and read off by somebody else's code."""

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


def in_library(law):
    """A law as a pessimistic DensePLDPmf."""
    return DensePLDPmf(law.spacing, law.lowest, np.array(law.masses), law.infinite, True)


def distribution(laws):
    """Both orders as a PrivacyLossDistribution."""
    return PrivacyLossDistribution(*map(in_library, laws.orders))
