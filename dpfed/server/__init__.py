"""What the server does with the sum: state in, state out."""

from dpfed.server.registry import register

__all__ = ["register"]
