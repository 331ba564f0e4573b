"""A custom training loop with client-level privacy: sampler, clip, noise, charge and ledger are one object."""

from dpfed.runs.client_level.private_loop import ClientLevel
from dpfed.runs.client_level.step import Step

__all__ = ["ClientLevel", "Step"]
