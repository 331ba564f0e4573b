"""Local training of clients."""

from dpfed.clients.optimisers import Sgd
from dpfed.clients.plan import Precision, Strategy, TrainingPlan
from dpfed.clients.task import Course
from dpfed.clients.training import LocalTraining

__all__ = ["Course", "LocalTraining", "Precision", "Sgd", "Strategy", "TrainingPlan"]
