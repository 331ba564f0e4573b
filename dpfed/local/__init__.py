"""How a client trains."""

from dpfed.local.plan import Plan, Strategy
from dpfed.local.precision import Precision
from dpfed.local.sgd import Sgd
from dpfed.local.task import Course
from dpfed.local.training import LocalTraining

__all__ = ["Course", "LocalTraining", "Plan", "Precision", "Sgd", "Strategy"]
