"""Cohort of a round, its canaries, lanes, turns, and its record.

Canaries of a run: simulated clients of an audit with random directions, to be detected in a round's release.

Every canary has one round and one fair Bernoulli sample: on 1 the canary takes part in its round like a client; on 0 it
is absent, and its score is due to chance. Scores are products with the round's noisy sum, which any observer who knows
the canary can compute. `dpfed.audit` tests the claim of one round, given participation, with these scores.

Members of a cohort as one string for diagnostics.jsonl, which only the operator may read.

The string holds the gaps between sorted ids, all with the bytes of the widest gap: 10,000 of 10^6 clients are 27 kB.

Number of lanes of a run under balls-and-bins: given, derived from the bands, or searched.

A client's public lane is its id modulo the number of lanes; its turn in a public order (`cyclic`) is its id modulo the
period. Neither may depend on the other clients. Under add-remove, one client added to a list would move all later
clients to other lanes, and so to other rounds. So lanes and turns then follow from hashes of names, or from numbers
given by the caller (`dpfed.data.client_ids`). Secret lanes are drawn for each client separately, so that ids may be
positions in a list.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.budget import BallsAndBins, BandedNoise, Plan
from accounting.budget.advice import search_lanes
from accounting.cohorts import smallest_of_others, uniforms_of_ids
from accounting.errors import AccountingError, InvalidParameter
from accounting.mechanisms.samplings.allocation import divisors
from accounting.mechanisms.samplings.planned import Sampler, sampling_of_keys
from dpfed import replayed
from dpfed.config.privacy_tables import GaussianPrivacy
from dpfed.config.samples_tables import CustomFederation, SeparatedFederation
from dpfed.config.tables import Config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError
from dpfed.participation.custom import custom_sampler
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds

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
    if federation.sampling != "balls-and-bins":
        return 1
    if federation.lanes == "search":
        raise ConfigError("federation.lanes='search': is searched when a run is built. Give a number here.")
    if federation.lanes is not None:
        return federation.lanes
    period = period_of(config)
    return next((one for one in divisors(period) if one >= (bands or 1)), period)


def has_secret_lanes(config: Config) -> bool:
    """Return True if lanes are drawn for the run and kept secret."""
    return config.federation.lane_secrecy == "secret"


def turns_are_public(config: Config) -> bool:
    """Return True if ids of clients decide their turns: in public lanes, or in the public order (cyclic)."""
    in_lanes = not has_secret_lanes(config) and _lanes_or_two(config) > 1
    return config.federation.sampling == "cyclic" or in_lanes


def _turns_need_ids(config: Config) -> bool:
    """Return True if one client added to a list could move other clients to other public turns."""
    table = config.privacy
    return table is not None and table.adjacency == "add-remove" and turns_are_public(config)


def ids_of_turns(config: Config, ids: ClientIds | None) -> ClientIds | None:
    """Return the ids that decide turns, or None if the numbers 0 .. clients - 1 decide them.

    ids: client ids named by the data. Raises ConfigError for add-remove neighbours if ids are positions in a list.
    """
    if not _turns_need_ids(config) or config.data.partition in OWN_IDS:
        return None
    if ids is None:
        raise ConfigError(_list_positions_message(config))
    return ids


def turn_problems(config: Config) -> Iterator[str]:
    """Yield the message for turns by list positions under add-remove, if the configuration alone shows the fault."""
    if config.data.partition not in _MAY_HAVE_IDS and _turns_need_ids(config):
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
    if federation.sampling != "balls-and-bins" or not isinstance(table, GaussianPrivacy):
        return config
    if federation.lanes == "search":
        lanes = bands = _searched_lanes(config, table)
    else:
        lanes, bands = lanes_of(config), bands_of(config)
    if lanes == 1 and federation.lanes in (None, 1):
        return config
    return config.with_keys("federation", lanes=lanes).with_keys("privacy", bands=bands)


def _searched_lanes(config: Config, table: GaussianPrivacy) -> int:
    """Return the number of lanes with the least model error at privacy.epsilon. Raise ConfigError if none meets it."""
    federation = config.federation
    assert table.epsilon is not None  # `lane_problems` has refused it
    try:
        plan = Plan(
            clients=federation.clients,
            sampling=BallsAndBins(cohort=federation.cohort, secret_lanes=has_secret_lanes(config)),
            mechanism=BandedNoise(
                factorisation=table.factorisation,
                factorisation_power=table.factorisation_power,
                server_momentum=config.server_momentum,
            ),
            delta=config.delta,
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
    if federation.sampling != "balls-and-bins":
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
    return 2 if config.federation.lanes == "search" else lanes_of(config)


LOUD = 1e3
"""Norm of a canary's update: far above any clip norm, so that the clip is tested."""


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """`count` canaries with the ids first, first + 1, ... after the clients' ids, each in a uniformly random round."""

    count: int
    first_id: int
    rounds: int
    size: int
    seeds: Seeds

    def canaries_of_round(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the canaries that take part in this round, and those assigned to this round that are absent."""
        # Only canaries are drawn by position: no draw here depends on clients, so none can reveal who is a client.
        generator = self.seeds.generator("canaries")
        rounds = generator.permutation(np.arange(self.count) % self.rounds)
        heads = generator.random(self.count) < 0.5
        ids = self.first_id + np.arange(self.count)
        return ids[(rounds == number) & heads], ids[(rounds == number) & ~heads]

    def present_count(self, number: int) -> int:
        """Return how many canaries take part in this round."""
        return len(self.canaries_of_round(number)[0])

    def updates(self, ids: NDArray[np.int64], device: torch.device) -> Tensor:
        """Return uniformly random directions [c, size] of norm LOUD."""
        rows = [self.seeds.tensors("canaries.direction", int(one)).normal(self.size) for one in ids]
        if not rows:
            return torch.zeros(0, self.size, device=device)
        stacked = torch.stack(rows)
        return stacked.mul_(LOUD / torch.linalg.vector_norm(stacked, dim=1, keepdim=True)).to(device)


def canaries_of(config: Config, size: int = 1) -> Canaries:
    """Return the schedule of a run's canaries and their coin flips, which follow from its seed.

    size: length of an update; only their directions depend on it
    """
    return Canaries(
        count=config.audit.canaries,
        first_id=config.federation.clients,
        rounds=config.federation.rounds,
        size=size,
        seeds=Seeds(root=config.run.seed),
    )


ALL_CLIENTS = "all"
"""String for a cohort of every client exactly once."""

_MOST_AT_ONCE = 1 << 24

_WIDTHS: dict[str, np.dtype[Any]] = {width: np.dtype(f"<u{width}") for width in "1248"}


def members_text(ids: NDArray[np.int64], clients: int) -> str:
    """Return the string of a cohort's ids, repeats included, for clients 0 .. clients - 1."""
    ordered = np.sort(ids)
    if len(ordered) == clients and np.array_equal(ordered, np.arange(clients)):
        return ALL_CLIENTS
    gaps = np.diff(ordered, prepend=0)
    widest = int(gaps.max(initial=0))
    width = next(width for width, kind in _WIDTHS.items() if widest <= np.iinfo(kind).max)
    return f"{width}:{base64.b64encode(gaps.astype(_WIDTHS[width]).tobytes()).decode()}"


def parse_members(text: str, clients: int) -> NDArray[np.int64]:
    """Return the sorted ids from a string of `members_text`; raise ValueError for others. Memory: in proportion to the
    text."""
    if text == ALL_CLIENTS:
        if clients > _MOST_AT_ONCE:
            raise ValueError(f"members: 'all' of {clients} clients: at most {_MOST_AT_ONCE} can be read at a time.")
        return np.arange(clients)
    width, _, content = text.partition(":")
    if width not in _WIDTHS:
        raise ValueError("members: must begin with the width of a gap, 1, 2, 4 or 8, or be 'all'.")
    try:
        gaps = np.frombuffer(base64.b64decode(content, validate=True), dtype=_WIDTHS[width])
    except (binascii.Error, ValueError):
        raise ValueError("members: the gaps must be base64 of integers of the stated width.") from None
    if (len(gaps) and int(gaps.max()) > clients) or float(gaps.sum(dtype=np.float64)) > clients:
        raise ValueError(f"members: name clients beyond the {clients} of the run.")
    return np.cumsum(gaps.astype(np.int64))


def draw_cohort(who: Sampler, randomness: Randomness, number: int) -> NDArray[np.int64]:
    """Return the clients of a round: the sampler's cohort or, under a cap, at most `cap` of its clients."""
    cohort, replay, cap = who.sample(randomness, number), replayed.current_replay(), who.law.cohort_cap
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
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")
    if isinstance(federation, CustomFederation):
        return custom_sampler(federation.sampler).cohorts(clients, cohort)
    given = {
        "cohort": cohort,
        "cohort_cap": config.cohort_cap,
        "lanes": lanes_of(config),
        "secret_lanes": has_secret_lanes(config),
        "separation": federation.separation if isinstance(federation, SeparatedFederation) else None,
    }
    if federation.sampling == "allocation":
        given["participations"] = rounds_per_client(clients, cohort, federation.rounds)
    try:
        return sampling_of_keys(federation.sampling, given).cohorts(clients, stream_of(config), ids)
    except InvalidParameter as error:
        raise ConfigError(f"federation.sampling={federation.sampling!r}: {error}") from None


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
