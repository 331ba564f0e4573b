"""Who takes part in a run's rounds, from its configuration."""

from __future__ import annotations

from dpfed.config.samples_tables import SeparatedFederation
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.participation.sampling import Sampler, sampler
from dpfed.participation.schedules import (
    AllocationCohorts,
    BallsAndBinsCohorts,
    CyclicCohorts,
    MinSeparationCohorts,
)


def sampler_of(config: Config) -> Sampler:
    """The sampler of every round, or the schedule of all. ConfigError for numbers that do not fit each other.

    The stream of a schedule is named by the seed that it is drawn from, so that a ledger tells two runs apart.
    """
    federation = config.federation
    clients, cohort, stream = federation.clients, federation.cohort, stream_of(config)
    name = federation.sampling
    if name in ("poisson", "fixed", "all"):
        return sampler(name, clients=clients, cohort=cohort)
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")
    period = max(round(clients / cohort), 1)
    if name == "balls-and-bins":
        return BallsAndBinsCohorts(clients=clients, bins=period, stream=stream)
    if name == "cyclic":
        return CyclicCohorts(clients=clients, period=period, stream=stream)
    if name == "allocation":
        times = allocated(clients, cohort, federation.rounds)
        return AllocationCohorts(clients=clients, participations=times, rounds=federation.rounds, stream=stream)
    assert isinstance(federation, SeparatedFederation)
    separation = federation.separation
    if separation * cohort > clients:
        raise ConfigError(
            f"federation.separation={separation} with federation.sampling='min-separation': must be from 1 to clients "
            f"/ cohort = {clients / cohort:g}, the rounds from one participation to the next on average."
        )
    return MinSeparationCohorts(clients=clients, cohort=cohort, separation=separation, stream=stream)


def stream_of(config: Config) -> str:
    """The name of what a run's schedule, or its correlated noise, is drawn from."""
    return f"seed {config.run.seed}"


def allocated(clients: int, cohort: int, rounds: int) -> int:
    """In how many rounds each client takes part under 'allocation'. ConfigError where rounds are not whole ones."""
    times = max(round(rounds * cohort / clients), 1)
    due = round(times * clients / cohort)
    if due != rounds:
        raise ConfigError(
            f"federation.rounds={rounds} with federation.sampling='allocation': each client takes part in a whole "
            f"number of rounds. With cohorts of {cohort} of {clients} {times} of them are {due} rounds."
        )
    return times
