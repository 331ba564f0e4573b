"""What the server does with the sum: state in, state out."""

from dpfed.server.rules import register

__all__ = ["register"]
