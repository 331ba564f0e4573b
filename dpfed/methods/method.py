"""A method: its specification in plain values, and the functions that make its stages, local training and server
rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.methods.specification import MethodSpecification

if TYPE_CHECKING:
    from dpfed.clients.task import Course
    from dpfed.config.tables import Config
    from dpfed.methods.parts import ServerParts, TrainingParts
    from dpfed.methods.settings import Settings
    from dpfed.server.rules import ServerRule
    from dpfed.stages.chain import Stages


def train_model(parts: TrainingParts) -> Course:
    """Return local training by the optimizer of [local] on the weights of the model."""
    return parts.optimizer()


def step_model(parts: ServerParts) -> ServerRule:
    """Return the rule of [server] for the weights of the model."""
    return parts.step()


def refuse_nothing(config: Config) -> Iterator[str]:
    """Yield no messages, for a method all of whose settings can be combined."""
    yield from ()


@dataclass(frozen=True, kw_only=True)
class FederatedMethod:
    """Specification and functions of a method; no other code depends on the method's name.

    stages:   makes the chain of stages of an upload
    course:   makes the local training of clients
    server:   makes the server's rule
    refusals: yields messages for settings that this method cannot combine
    """

    specification: MethodSpecification
    stages: Callable[[Settings], Stages]
    course: Callable[[TrainingParts], Course] = train_model
    server: Callable[[ServerParts], ServerRule] = step_model
    refusals: Callable[[Config], Iterator[str]] = refuse_nothing
