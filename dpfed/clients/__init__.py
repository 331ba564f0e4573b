"""How a client trains."""

from dpfed.clients.plan import Plan, Strategy
from dpfed.clients.precision import Precision
from dpfed.clients.sgd import Sgd
from dpfed.clients.task import Course
from dpfed.clients.training import LocalTraining

__all__ = ["Course", "LocalTraining", "Plan", "Precision", "Sgd", "Strategy"]
