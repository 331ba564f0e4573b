"""How a client trains."""

from dpfed.clients.plan import Plan, Strategy
from dpfed.clients.sgd import Sgd
from dpfed.clients.task import Course, Precision
from dpfed.clients.training import LocalTraining

__all__ = ["Course", "LocalTraining", "Plan", "Precision", "Sgd", "Strategy"]
