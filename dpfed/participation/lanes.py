"""Lanes of a run under balls-and-bins: their number, given, or derived from the bands, or searched.

A client's public lane is its id modulo the number of lanes; so is its turn in a public order (`cyclic`). Neither may
depend on which other clients there are: under add-remove, one client more in a list would move all later ones to other
lanes, and with them their rounds. So under add-remove lanes and turns follow from hashes of names, or of numbers that
the caller gives (`dpfed.data.client_ids`). Secret lanes are drawn for each client by itself, so that ids may be places
in a list.
"""

from __future__ import annotations

from collections.abc import Iterator

from accounting.budget import BallsAndBins, BandedNoise, Plan
from accounting.budget.lanes import search_lanes
from accounting.caveats import default_delta
from accounting.errors import AccountingError
from accounting.mechanisms.schedules import divisors
from dpfed.config.privacy_tables import GaussianPrivacy
from dpfed.config.samples_tables import BinsFederation
from dpfed.config.server_tables import StepServer
from dpfed.config.tables import Config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError

OWN_IDS = ("nodes", "resampled")
"""data.partition of populations whose ids do not depend on which other clients there are."""

_MAY_HAVE_IDS = (*OWN_IDS, "natural")
"""The same, with populations that have such ids if their data name them."""


def period_of(config: Config) -> int:
    """Return the rounds of an epoch: clients / cohort, rounded."""
    return max(round(config.federation.clients / config.federation.cohort), 1)


def bands_of(config: Config) -> int:
    """Return the bands of noise under balls-and-bins: privacy.bands, or the number of lanes; 1 without [privacy]."""
    table = config.privacy
    if table is None or table.bands is None:
        return lanes_of(config) if isinstance(table, GaussianPrivacy) else 1
    return table.bands


def lanes_of(config: Config) -> int:
    """Return the number of lanes; 1 for other samplings. ConfigError for "search" before it has been searched."""
    federation, bands = config.federation, config.privacy.bands if config.privacy is not None else None
    if not isinstance(federation, BinsFederation):
        return 1
    if federation.lanes == "search":
        raise ConfigError("federation.lanes='search': is searched when a run is built. Give a number here.")
    if federation.lanes is not None:
        return federation.lanes
    period = period_of(config)
    return next((one for one in divisors(period) if one >= (bands or 1)), period)


def secret_lanes(config: Config) -> bool:
    """Return True if lanes are drawn for the run, and secret."""
    return isinstance(config.federation, BinsFederation) and config.federation.lane_secrecy == "secret"


def turns_are_public(config: Config) -> bool:
    """Return True if clients take turns by their ids: in public lanes, or one by one (cyclic)."""
    federation = config.federation
    if federation.sampling == "cyclic":
        return True
    return isinstance(federation, BinsFederation) and not secret_lanes(config) and _lanes_or_two(config) > 1


def ids_of_turns(config: Config, ids: ClientIds | None) -> ClientIds | None:
    """Return the ids from which turns follow, or None if they follow from the numbers of clients.

    ids: those that the data name. ConfigError for add-remove neighbours if clients are places in a list.
    """
    table = config.privacy
    if table is None or table.adjacency != "add-remove" or not turns_are_public(config):
        return None
    if config.data.partition in OWN_IDS:
        return None
    if ids is None:
        raise ConfigError(_places_in_a_list(config))
    return ids


def turn_problems(config: Config) -> Iterator[str]:
    """Yield the message for turns by places in a list under add-remove, as far as no data are needed to see it."""
    table = config.privacy
    if table is None or table.adjacency != "add-remove" or config.data.partition in _MAY_HAVE_IDS:
        return
    if turns_are_public(config):
        yield _places_in_a_list(config)


def _places_in_a_list(config: Config) -> str:
    in_order = config.federation.sampling == "cyclic"
    what, moved = ("turns", "turn") if in_order else ("lanes", "lane")
    other = "" if in_order else ", or federation.lane_secrecy 'secret'"
    return (
        f"privacy.adjacency='add-remove' with {what} and data.partition={config.data.partition!r}: ids of clients are "
        f"places in a list here, and a {moved} follows from an id. One client more would move all later ones to other "
        f"{what}. Use adjacency 'zero-out'{other}, or data.partition 'natural' with ids that are texts or whole "
        "numbers: data.client, or `ids=` of dpfed.data.from_clients."
    )


def with_lanes(config: Config) -> Config:
    """Return the configuration with lanes and bands as numbers, searched if asked for; others as they are."""
    federation, table = config.federation, config.privacy
    if not isinstance(federation, BinsFederation) or not isinstance(table, GaussianPrivacy):
        return config
    if federation.lanes == "search":
        lanes = bands = _searched(config, table)
    else:
        lanes, bands = lanes_of(config), bands_of(config)
    if lanes == 1 and federation.lanes is None:
        return config
    return config.model_copy(
        update={
            "federation": federation.model_copy(update={"lanes": lanes}),
            "privacy": table.model_copy(update={"bands": bands}),
        }
    )


def _searched(config: Config, table: GaussianPrivacy) -> int:
    """Return the lanes of least error of the model at privacy.epsilon. ConfigError if none meets it."""
    server, federation = config.server, config.federation
    assert table.epsilon is not None  # `lane_problems` has been asked
    momentum = server.momentum if isinstance(server, StepServer) and server.rule == "step" else 0.0
    try:
        plan = Plan(
            clients=federation.clients,
            sampling=BallsAndBins(cohort=federation.cohort, secret_lanes=secret_lanes(config)),
            mechanism=BandedNoise(
                factorisation=table.factorisation,
                factorisation_power=table.factorisation_power,
                server_momentum=momentum,
            ),
            delta=table.delta or default_delta(federation.clients),
            adjacency=table.adjacency,
        )
        found = search_lanes(plan, epsilon=table.epsilon, rounds=federation.rounds, stated_by=table.accountant).plan
    except AccountingError as error:
        raise ConfigError(f"federation.lanes='search': {error}") from None
    assert isinstance(found.sampling, BallsAndBins)
    return found.sampling.lanes or 1


def lane_problems(config: Config) -> Iterator[str]:
    """Yield messages for lanes that have no account, or no use."""
    federation, table = config.federation, config.privacy
    if not isinstance(federation, BinsFederation):
        return
    given = f"federation.lanes={federation.lanes!r}"
    if secret_lanes(config) and (not isinstance(table, GaussianPrivacy) or _lanes_or_two(config) == 1):
        yield (
            "federation.lane_secrecy='secret' without lanes: there is no lane to draw. Give federation.lanes of 2 or "
            "more, or privacy.bands, with privacy.noise='gaussian'."
        )
        return
    if federation.lanes not in (None, 1) and not isinstance(table, GaussianPrivacy):
        yield (
            f"{given} without privacy.noise='gaussian': lanes are for noise that is taken back over rounds, which only "
            "Gaussian noise is. Remove it."
        )
        return
    if not isinstance(table, GaussianPrivacy):
        return
    if federation.lanes == "search":
        if table.epsilon is None or table.noise_multiplier is not None or table.bands is not None:
            yield (
                f"{given}: the lanes of least error, one for each band, are searched for privacy.epsilon. Give epsilon "
                "without noise_multiplier and bands, or a number of lanes."
            )
            return
        lanes = bands = 2
    else:
        lanes, bands = lanes_of(config), bands_of(config)
    period = period_of(config)
    if federation.lanes != "search" and period % lanes:
        yield (
            f"{given} with epochs of {period} rounds (federation.clients / federation.cohort): lanes must have equally "
            f"many rounds of an epoch. Use one of {', '.join(map(str, divisors(period)))}."
        )
    if bands > min(lanes, period):
        yield (
            f"privacy.bands={bands} with {lanes} lanes in epochs of {period} rounds: a client takes part again after "
            f"{lanes} rounds at the earliest. Use at most {min(lanes, period)} bands, or more lanes."
        )


def _lanes_or_two(config: Config) -> int:
    """Return the number of lanes; 2 if they are to be searched, which are 2 or more where they are secret."""
    federation = config.federation
    return 2 if isinstance(federation, BinsFederation) and federation.lanes == "search" else lanes_of(config)
