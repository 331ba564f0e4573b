"""How a client trains."""

from dpfed.local.sgd import LocalSgd, Strategy

__all__ = ["LocalSgd", "Strategy"]
