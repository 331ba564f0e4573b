"""Client-level privacy for custom training loops: one object samples, clips, adds noise, charges and keeps a ledger."""

from dpfed.runs.client_level.private_loop import ClientLevel
from dpfed.runs.client_level.step import Step

__all__ = ["ClientLevel", "Step"]
