"""Number of lanes of a run under balls-and-bins: given, derived from the bands, or searched.

A client's public lane is its id modulo the number of lanes; its turn in a public order (`cyclic`) is its id modulo the
period. Neither may depend on the other clients. Under add-remove, one client added to a list would move all later
clients to other lanes, and so to other rounds. So lanes and turns then follow from hashes of names, or from numbers
given by the caller (`dpfed.data.client_ids`). Secret lanes are drawn for each client separately, so that ids may be
positions in a list.
"""

from __future__ import annotations

from collections.abc import Iterator

from accounting.budget import BallsAndBins, BandedNoise, Plan
from accounting.budget.advice import search_lanes
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
"""Values of data.partition for populations in which a client's id does not depend on the other clients."""

_MAY_HAVE_IDS = (*OWN_IDS, "natural")
"""OWN_IDS, and the partitions whose populations have such ids if the data name the clients."""


def period_of(config: Config) -> int:
    """Return the rounds in an epoch: clients / cohort, rounded to an integer."""
    return max(round(config.federation.clients / config.federation.cohort), 1)


def bands_of(config: Config) -> int:
    """Return the number of noise bands under balls-and-bins: privacy.bands, or the lanes; 1 without [privacy]."""
    table = config.privacy
    if table is None or table.bands is None:
        return lanes_of(config) if isinstance(table, GaussianPrivacy) else 1
    return table.bands


def lanes_of(config: Config) -> int:
    """Return the number of lanes; 1 for other samplings. Raise ConfigError if lanes are still to be searched."""
    federation, bands = config.federation, config.privacy.bands if config.privacy is not None else None
    if not isinstance(federation, BinsFederation):
        return 1
    if federation.lanes == "search":
        raise ConfigError("federation.lanes='search': is searched when a run is built. Give a number here.")
    if federation.lanes is not None:
        return federation.lanes
    period = period_of(config)
    return next((one for one in divisors(period) if one >= (bands or 1)), period)


def has_secret_lanes(config: Config) -> bool:
    """Return True if lanes are drawn for the run and kept secret."""
    return isinstance(config.federation, BinsFederation) and config.federation.lane_secrecy == "secret"


def turns_are_public(config: Config) -> bool:
    """Return True if ids of clients decide their turns: in public lanes, or in the public order (cyclic)."""
    federation = config.federation
    if federation.sampling == "cyclic":
        return True
    return isinstance(federation, BinsFederation) and not has_secret_lanes(config) and _lanes_or_two(config) > 1


def ids_of_turns(config: Config, ids: ClientIds | None) -> ClientIds | None:
    """Return the ids that decide turns, or None if the numbers 0 .. clients - 1 decide them.

    ids: client ids named by the data. Raises ConfigError for add-remove neighbours if ids are positions in a list.
    """
    table = config.privacy
    if table is None or table.adjacency != "add-remove" or not turns_are_public(config):
        return None
    if config.data.partition in OWN_IDS:
        return None
    if ids is None:
        raise ConfigError(_list_positions_message(config))
    return ids


def turn_problems(config: Config) -> Iterator[str]:
    """Yield the message for turns by list positions under add-remove, if the configuration alone shows the fault."""
    table = config.privacy
    if table is None or table.adjacency != "add-remove" or config.data.partition in _MAY_HAVE_IDS:
        return
    if turns_are_public(config):
        yield _list_positions_message(config)


def _list_positions_message(config: Config) -> str:
    in_order = config.federation.sampling == "cyclic"
    what, moved = ("turns", "turn") if in_order else ("lanes", "lane")
    other = "" if in_order else ", or federation.lane_secrecy 'secret'"
    return (
        f"privacy.adjacency='add-remove' with {what} and data.partition={config.data.partition!r}: ids of clients are "
        f"positions in a list here, and a {moved} follows from an id. One client added would move all later clients "
        f"to other {what}. Use adjacency 'zero-out'{other}, or data.partition 'natural' with ids that are texts or "
        "whole numbers: data.client, or `ids=` of dpfed.data.from_clients."
    )


def resolve_lanes(config: Config) -> Config:
    """Return the configuration with lanes and bands as numbers, searched if required; else return it unchanged."""
    federation, table = config.federation, config.privacy
    if not isinstance(federation, BinsFederation) or not isinstance(table, GaussianPrivacy):
        return config
    if federation.lanes == "search":
        lanes = bands = _searched_lanes(config, table)
    else:
        lanes, bands = lanes_of(config), bands_of(config)
    if lanes == 1 and federation.lanes is None:
        return config
    return config.with_keys("federation", lanes=lanes).with_keys("privacy", bands=bands)


def _searched_lanes(config: Config, table: GaussianPrivacy) -> int:
    """Return the number of lanes with the least model error at privacy.epsilon. Raise ConfigError if none meets it."""
    server, federation = config.server, config.federation
    assert table.epsilon is not None  # `lane_problems` has refused it
    momentum = server.momentum if isinstance(server, StepServer) and server.rule == "step" else 0.0
    try:
        plan = Plan(
            clients=federation.clients,
            sampling=BallsAndBins(cohort=federation.cohort, secret_lanes=has_secret_lanes(config)),
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
    """Yield messages for lanes without an account of privacy, or without effect."""
    federation, table = config.federation, config.privacy
    if not isinstance(federation, BinsFederation):
        return
    given = f"federation.lanes={federation.lanes!r}"
    if has_secret_lanes(config) and (not isinstance(table, GaussianPrivacy) or _lanes_or_two(config) == 1):
        yield (
            "federation.lane_secrecy='secret' without lanes: there is no lane to draw. Give federation.lanes of 2 or "
            "more, or privacy.bands, with privacy.noise='gaussian'."
        )
        return
    if federation.lanes not in (None, 1) and not isinstance(table, GaussianPrivacy):
        yield (
            f"{given} without privacy.noise='gaussian': lanes are for noise that is correlated over rounds, which only "
            "Gaussian noise can be. Remove it."
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
            f"{given} with epochs of {period} rounds (federation.clients / federation.cohort): every lane must have "
            f"the same number of rounds in an epoch. Use one of {', '.join(map(str, divisors(period)))}."
        )
    if bands > min(lanes, period):
        yield (
            f"privacy.bands={bands} with {lanes} lanes in epochs of {period} rounds: a client takes part again after "
            f"{lanes} rounds at the earliest. Use at most {min(lanes, period)} bands, or more lanes."
        )


def _lanes_or_two(config: Config) -> int:
    """Return the number of lanes; 2 if lanes are to be searched, because searched secret lanes are at least 2."""
    federation = config.federation
    return 2 if isinstance(federation, BinsFederation) and federation.lanes == "search" else lanes_of(config)
