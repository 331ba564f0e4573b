"""Gaussian noise on sums: the closed form here; sampled rounds, Renyi curves and attacks in the modules beside it."""

from accounting.gaussian.closed_form import epsilon_from_below, noise_std, privacy_profile, smallest_epsilon

__all__ = ["epsilon_from_below", "noise_std", "privacy_profile", "smallest_epsilon"]
