"""Methods of federated learning: their stages, their properties, and the settings that each refuses."""

from dpfed.methods.catalogue import register

__all__ = ["register"]
