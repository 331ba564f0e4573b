"""Cohort of a round: drawn by a sampler of `accounting.cohorts`, then capped or filled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accounting.budget import SAMPLINGS
from accounting.budget.samplings import sampling_of_keys
from accounting.cohorts import Sampler, smallest_of_others, uniforms_of_ids
from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings import cap_of
from dpfed import replayed
from dpfed.config.samples_tables import CustomFederation
from dpfed.config.tables import Config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError
from dpfed.participation.custom import CustomCohorts, custom_sampler
from dpfed.participation.lanes import has_secret_lanes, lanes_of
from dpfed.randomness import Randomness


def sampler(name: str, *, clients: int, cohort: int, cap: int | None = None) -> Sampler:
    """Return the sampler `poisson` (with or without a cap), `fixed` or `all`; ConfigError for another name or an
    impossible cohort."""
    _check_cohort(cohort, clients)
    if name not in SAMPLINGS:
        raise ConfigError(f"federation.sampling={name!r}: must be poisson, fixed or all.")
    given = {"cohort": cohort, "cohort_cap": cap}
    return sampling_of_keys(name, given).cohorts(clients, "")


def draw_cohort(who: Sampler, randomness: Randomness, number: int) -> NDArray[np.int64]:
    """Return the clients of a round: the sampler's cohort or, under a cap, at most `cap` of its clients."""
    cohort, replay, cap = who.sample(randomness, number), replayed.current_replay(), cap_of(who.law)
    if replay is not None:
        cohort = replay.drawn(cohort, number)
    return cohort if cap is None else cap_cohort(cohort, cap, who.clients, randomness, number)


def cap_cohort(
    cohort: NDArray[np.int64], cap: int, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """Return at most `cap` of the drawn clients: those with the smallest secret values.

    Claim: given the drawn clients, every subset of `cap` of them is equally likely. Removing one client of an overfull
    cohort admits one other client and changes nothing else.
    """
    if len(cohort) <= cap:
        return cohort
    values = uniforms_of_ids(cohort, clients, randomness, "cohort.slots", number)
    return np.sort(cohort[np.argsort(values, kind="stable")[:cap]])


def fill_cohort(
    cohort: NDArray[np.int64], fill: int, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """Return the cohort and, up to `fill` clients in total, the other clients with the smallest secret values.

    Claim: given the cohort, every subset of the others of that size is equally likely. Removing one client of the
    cohort adds one other client and changes nothing else. Ids of canaries, from `clients` on, are kept and not counted.
    """
    missing = fill - int((cohort < clients).sum())
    if missing <= 0:
        return cohort
    others = smallest_of_others(missing, cohort, clients, randomness, "cohort.fill", number)
    return np.sort(np.concatenate([cohort, others]))


def sampler_of(config: Config, ids: ClientIds | None = None) -> Sampler:
    """Return the sampler of every round, or the schedule of all rounds. Raise ConfigError for contradicting numbers.

    ids: client ids that decide turns (`lanes.ids_of_turns`); None if client numbers do. The stream of a schedule is
    named by its seed, so that a ledger distinguishes two runs.
    """
    federation = config.federation
    clients, cohort = federation.clients, federation.cohort
    _check_cohort(cohort, clients)
    if isinstance(federation, CustomFederation):
        return CustomCohorts(sampler=custom_sampler(federation.sampler), clients=clients, cohort=cohort)
    separation = getattr(federation, "separation", None)
    if separation is not None and separation * cohort > clients:
        raise ConfigError(
            f"federation.separation={separation} with federation.sampling='min-separation': must be from 1 to clients "
            f"/ cohort = {clients / cohort:g}, the mean number of rounds from one participation to the next."
        )
    given = {
        "cohort": cohort,
        "cohort_cap": config.cohort_cap,
        "lanes": lanes_of(config),
        "secret_lanes": has_secret_lanes(config),
        "separation": separation,
    }
    if federation.sampling == "allocation":
        given["participations"] = rounds_per_client(clients, cohort, federation.rounds)
    try:
        return sampling_of_keys(federation.sampling, given).cohorts(clients, stream_of(config), ids)
    except InvalidParameter as error:
        raise ConfigError(f"federation.sampling={federation.sampling!r}: {error}") from None


def _check_cohort(cohort: int, clients: int) -> None:
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")


def stream_of(config: Config) -> str:
    """Return the name of the random stream for a run's schedule or its correlated noise."""
    return f"seed {config.run.seed}"


def rounds_per_client(clients: int, cohort: int, rounds: int) -> int:
    """Return the number of rounds of each client under 'allocation'. Raise ConfigError if it is not an integer."""
    times = max(round(rounds * cohort / clients), 1)
    due = round(times * clients / cohort)
    if due != rounds:
        raise ConfigError(
            f"federation.rounds={rounds} with federation.sampling='allocation': each client takes part in a whole "
            f"number of rounds. With cohorts of {cohort} of {clients} {times} of them are {due} rounds."
        )
    return times
