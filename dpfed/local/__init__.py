"""How a client trains."""

from dpfed.local.sgd import Sgd
from dpfed.local.task import Course
from dpfed.local.training import LocalTraining, Strategy

__all__ = ["Course", "LocalTraining", "Sgd", "Strategy"]
