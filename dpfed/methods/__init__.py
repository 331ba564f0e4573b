"""Methods of federated learning: their stages, their properties, and the settings that each refuses."""

from dpfed.methods.registry import register

__all__ = ["register"]
