"""Accounts of Gaussian noise on sums. The package exports the closed form; its modules have sampled rounds, Renyi
curves and attacks.
"""

from accounting.gaussian.closed_form import epsilon_from_below, noise_std, privacy_profile, smallest_epsilon

__all__ = ["epsilon_from_below", "noise_std", "privacy_profile", "smallest_epsilon"]
