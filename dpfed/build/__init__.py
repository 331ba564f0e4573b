"""From a checked configuration to the objects of a run; the only place that names concrete classes."""

from dpfed.build.experiment import Experiment, build, check
from dpfed.build.goals import PrivacyGoal
from dpfed.build.records import RecordGoal

__all__ = ["Experiment", "PrivacyGoal", "RecordGoal", "build", "check"]
