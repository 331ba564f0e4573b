"""Cohort of a round, its canaries, and its record.

Canaries of a run: simulated clients of an audit with random directions, to be detected in a round's release.

Every canary has one round and one fair Bernoulli sample: on 1 the canary takes part in its round like a client; on 0 it
is absent, and its score is due to chance. Scores are products with the round's noisy sum, which any observer who knows
the canary can compute. `dpfed.audit` tests the claim of one round, given participation, with these scores.

Members of a cohort as one string for diagnostics.jsonl, which only the operator may read.

The string holds the gaps between sorted ids, all with the bytes of the widest gap: 10,000 of 10^6 clients are 27 kB.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from dpfed.seeds import Seeds

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


ALL_CLIENTS = "all"
"""String for a cohort of every client exactly once."""

_MOST_AT_ONCE = 1 << 24

_WIDTHS: dict[str, np.dtype[Any]] = {
    "1": np.dtype("<u1"),
    "2": np.dtype("<u2"),
    "4": np.dtype("<u4"),
    "8": np.dtype("<u8"),
}


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
