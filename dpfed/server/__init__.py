"""Server rules, which make the next state from a state and a sum."""

from dpfed.server.rules import register

__all__ = ["register"]
