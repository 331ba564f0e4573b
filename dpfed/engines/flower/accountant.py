"""Privacy accountant with Flower's interface (`flwr.supercore.privacy_accounting`, since flwr 1.41).

Its epsilon is computed by `accounting`, and releases are recorded in a ledger.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accounting import Composed, FixedSizeSampling, Gaussian, PoissonSampling, guarantee, require, subsample
from accounting.compose.profiles import profile
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.ledger import Header, Release
from accounting.mechanisms import SingleRelease
from accounting.mechanisms.adjacency import Adjacency
from dpfed.errors import RunError
from dpfed.runs.client_level.book import LoopBook
from dpfed.version import __version__

_MODELS = {
    ("poisson", "add-or-remove-one"): ("poisson", "add-remove"),
    ("without-replacement", "replace-one"): ("fixed", "replace-one"),
    ("no-amplification", "add-or-remove-one"): ("all", "add-remove"),
}
"""Sampling and adjacency in dpfed's names, by Flower's names of both."""


@dataclass(frozen=True, kw_only=True)
class PrivacyModel:
    """Flower's PrivacyConfig in dpfed's terms. delta: the delta at which epsilon is stated; clients: population
    size."""

    delta: float
    clients: int
    sampling: str
    adjacency: str
    max_epsilon: float | None

    def require_population(self, one: NoisySum) -> None:
        """Raise InvalidParameter if the population size of a release differs from the configuration's."""
        if one.population_size != self.clients:
            raise InvalidParameter(
                f"population_size={one.population_size} of a release: the configuration's is {self.clients}."
            )


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """Flower's GaussianPrivacyEvent.

    It has the noise multiplier of the sum, the (expected) size of the cohort, and the size of the population.
    """

    noise_multiplier: float
    sample_size: int
    population_size: int


def privacy_model_of(config: Any) -> PrivacyModel:
    """Return the privacy model in Flower's PrivacyConfig, or in an object with its fields.

    Raises UnsupportedMechanism unless the pair of sampling and adjacency is one of the three that have an account.
    """
    words = tuple(str(getattr(one, "value", one)) for one in (config.sampling_method, config.neighboring_relation))
    if words not in _MODELS:
        allowed = "; ".join(f"{sampling} with {relation}" for sampling, relation in _MODELS)
        raise UnsupportedMechanism(
            f"sampling_method={words[0]!r} with neighboring_relation={words[1]!r}: has no account. There are {allowed}."
        )
    sampling, adjacency = _MODELS[words]
    limit = config.max_epsilon
    return PrivacyModel(
        delta=require.open_probability(target_delta=config.target_delta),
        clients=require.count(population_size=config.population_size),
        sampling=sampling,
        adjacency=adjacency,
        max_epsilon=None if limit is None else require.positive(max_epsilon=limit),
    )


def noisy_sum_of(event: Any) -> NoisySum:
    """Return the noisy sum in Flower's GaussianPrivacyEvent, in an object with its fields, or in a dictionary.

    Raises InvalidParameter for numbers out of range.
    """
    read = event.__getitem__ if isinstance(event, Mapping) else partial(getattr, event)
    given = {one.name: read(one.name) for one in fields(NoisySum)}
    found = NoisySum(
        noise_multiplier=require.positive(noise_multiplier=given["noise_multiplier"]),
        sample_size=require.count(sample_size=given["sample_size"]),
        population_size=require.count(population_size=given["population_size"]),
    )
    if found.sample_size > found.population_size:
        raise InvalidParameter(
            f"sample_size={found.sample_size}: must be at most population_size={found.population_size}."
        )
    return found


_BACKEND, _SCHEMA = "dpfed", 1


@dataclass(frozen=True, kw_only=True)
class SpentSoFar:
    """Fields of Flower's PrivacySpent, for versions of Flower without it. epsilon: an upper bound at delta."""

    epsilon: float
    delta: float
    num_releases: int
    accounting_method: str
    optimal_order: float | None = None


class FlowerAccountant:
    """Privacy accountant for Flower's strategies, to be used instead of Flower's RdpAccountant.

        accountant = FlowerAccountant(PrivacyConfig(...), ledger="ledger.jsonl")
        strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(...), 1.4, 1.0, 100, accountant=accountant)

    config: Flower's PrivacyConfig, or an object with its fields
    ledger: path of a ledger, in which a release is written before it is counted; an existing ledger is continued
    clip_norm: C, for the lines of the ledger only; epsilon does not depend on it
    randomness: source of the noise. It is "simulated" for Flower's strategies, which draw noise from numpy's global
        generator and not from the operating system

    Claim: `get_epsilon(delta)` is an upper bound for the composition of all releases, if their number was fixed before
    the first result. A release is a sum of rows of norm at most C, with normal noise of standard deviation
    noise_multiplier C. If results can end the run, it needs a limit that was fixed before, and must stop within it
    (`would_exceed`). Unit: one client. Direction of error: upwards.

    sampling_method      neighbouring_relation  one client moves the sum by  account
    poisson              add-or-remove-one      C                            Poisson, rate sample_size / population_size
    without-replacement  replace-one            2 C                          fixed size
    no-amplification     add-or-remove-one      C                            none: every release on all clients

    Under replace-one a client's row is replaced by another row, at distance at most 2 C. Flower's RdpAccountant assumes
    a distance of C, so that it states less than the true epsilon (docs/flower.md). The account is that of the sampler
    in `config`, and the caller must run this sampler. `ClientLevelStrategy` draws the cohorts itself. The fixed-size
    account holds only if a client's upload does not depend on the earlier rounds in which it was drawn. A node that
    keeps state from round to round (Flower's Context) is not covered.

    Raises ValueError (InvalidParameter) for a privacy model, event or state without an account. Raises RunError or
    LedgerError for a ledger that belongs to another plan, is invalid, or cannot be written.
    """

    def __init__(
        self,
        config: object,
        *,
        ledger: str | os.PathLike[str] | None = None,
        clip_norm: float = 1.0,
        randomness: Literal["simulated", "secure"] = "simulated",
    ) -> None:
        self._config, self._model = config, privacy_model_of(config)
        self._clip_norm = require.positive(clip_norm=clip_norm)
        self._composed: list[tuple[NoisySum, int]] = []
        self._book = None if ledger is None else self._open_ledger(Path(ledger), randomness)

    @property
    def config(self) -> Any:
        """Return the privacy configuration that the accountant was made with."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Return the number of releases that are charged."""
        return sum(count for _, count in self._composed)

    def compose(self, event: object, count: int = 1) -> None:
        """Charge `count` releases equal to this event; a ledger, if there is one, is written first."""
        charged, count = self._parse_event(event), require.count(count=count)
        if self._book is not None:
            for number in range(self.num_releases, self.num_releases + count):
                self._book.record(self._ledger_line(charged, number))
        self._composed = _append_release(self._composed, charged, count)

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon of all releases at this delta; 0 before the first release."""
        return _epsilon_at_delta(self._composed_mechanism(), delta)

    def get_delta(self, epsilon: float) -> float:
        """Return an upper bound on delta of all releases at this epsilon."""
        epsilon = require.nonnegative(epsilon=epsilon)
        mechanism = self._composed_mechanism()
        return 0.0 if mechanism is None else float(profile(mechanism)(epsilon))

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        """Return Flower's PrivacySpent, or `SpentSoFar` if Flower has none.

        Its accounting_method names the account with the smallest bound.
        """
        delta = self._model.delta if delta is None else delta
        mechanism = self._composed_mechanism()
        best = None if mechanism is None else guarantee(mechanism, delta=delta, with_lower_bound=False)
        return _spent_type()(
            epsilon=0.0 if best is None else best.epsilon,
            delta=delta,
            num_releases=self.num_releases,
            accounting_method="none" if best is None else best.method,
            optimal_order=None if best is None else best.order,
        )

    def would_exceed(self, event: object, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Return True if `count` more releases would exceed the limit at the configuration's delta. It charges
        nothing."""
        limit = self._model.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise InvalidParameter("max_epsilon is missing: give it in the PrivacyConfig or to would_exceed().")
        limit = require.positive(max_epsilon=limit)
        more = (self._parse_event(event), require.count(count=count))
        return _epsilon_at_delta(self._composed_mechanism(more), self._model.delta) > limit

    def state_dict(self) -> dict[str, object]:
        """Return the state of the accountant as a JSON object, for `load_state_dict`."""
        return {
            "schema_version": _SCHEMA,
            "backend": _BACKEND,
            "config": asdict(self._model),
            "compositions": [{"event": asdict(one), "count": count} for one, count in self._composed],
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a saved state of the same configuration.

        If there is a ledger, its releases count. A crash may have prevented the save after a line was written, so a
        state with fewer releases is accepted. A state with releases that the ledger lacks is refused.
        """
        if (state.get("schema_version"), state.get("backend")) != (_SCHEMA, _BACKEND):
            given = f"backend {state.get('backend')!r}, schema {state.get('schema_version')!r}"
            raise InvalidParameter(f"state of {given}: must be one that FlowerAccountant.state_dict() has given.")
        if state.get("config") != asdict(self._model):
            raise InvalidParameter("state of another PrivacyConfig: give the accountant the one it was saved with.")
        saved = _parse_compositions(state)
        for one, _ in saved:
            self._model.require_population(one)
        if self._book is None:
            self._composed = saved
            return
        there = [one for one, count in self._composed for _ in range(count)]
        said = [one for one, count in saved for _ in range(count)]
        if there[: len(said)] != said:
            raise RunError(
                f"{self._book.ledger.path}: does not hold the {len(said)} releases of the saved state. Restore the "
                "ledger that was written beside it; nothing was loaded."
            )

    def _parse_event(self, event: object) -> NoisySum:
        charged = noisy_sum_of(event)
        self._model.require_population(charged)
        return charged

    def _composed_mechanism(self, more: tuple[NoisySum, int] | None = None) -> Composed | None:
        whole = self._composed if more is None else _append_release(self._composed, *more)
        parts = [(self._mechanism_of_release(one), count) for one, count in whole]
        return Composed(parts=tuple(parts)) if parts else None

    def _mechanism_of_release(self, one: NoisySum) -> SingleRelease:
        """Return the mechanism of one release, as described by `accounting`."""
        noise = Gaussian(noise_multiplier=one.noise_multiplier, adjacency=Adjacency.of(self._model.adjacency))
        if self._model.sampling == "poisson":
            return subsample(noise, PoissonSampling(probability=one.sample_size / one.population_size))
        if self._model.sampling == "fixed":
            return subsample(noise, FixedSizeSampling(clients=one.population_size, cohort=one.sample_size))
        return noise

    def _ledger_line(self, one: NoisySum, number: int) -> Release:
        return Release(
            round=number,
            mechanism=self._mechanism_of_release(one),
            clip_norm=self._clip_norm,
            noise_std=one.noise_multiplier * self._clip_norm,
            noise_placement="server",
            detail=asdict(one),
        )

    def _open_ledger(self, path: Path, randomness: str) -> LoopBook:
        """Open the ledger, and return it with the releases that it already contains."""
        model = self._model
        plan = {
            "federation": {"clients": model.clients, "sampling": model.sampling},
            "privacy": {"delta": model.delta, "adjacency": model.adjacency, "clip_norm": self._clip_norm},
            "run": {"kept_by": "FlowerAccountant", "randomness": randomness},
        }
        about = {"package": f"dpfed {__version__}", "method": "flower", "delta": model.delta, "plan": plan}
        header = Header(unit="client", clients=model.clients, randomness=randomness, about=about)
        book = LoopBook.open(path, header)
        for entry in book.ledger.releases:
            assert isinstance(entry, Release)
            self._composed = _append_release(self._composed, noisy_sum_of(entry.detail), 1)
        return book


def _append_release(composed: list[tuple[NoisySum, int]], one: NoisySum, count: int) -> list[tuple[NoisySum, int]]:
    """Append a release to the list of (release, count); consecutive equal releases are stored once, with their
    count."""
    if composed and composed[-1][0] == one:
        return [*composed[:-1], (one, composed[-1][1] + count)]
    return [*composed, (one, count)]


def _epsilon_at_delta(mechanism: Composed | None, delta: float) -> float:
    require.open_probability(delta=delta)
    return 0.0 if mechanism is None else guarantee(mechanism, delta=delta, with_lower_bound=False).epsilon


def _parse_compositions(state: Mapping[str, Any]) -> list[tuple[NoisySum, int]]:
    try:
        return [(noisy_sum_of(one["event"]), require.count(count=one["count"])) for one in state["compositions"]]
    except (KeyError, TypeError):
        raise InvalidParameter(
            "state: compositions must be a list of {event, count}, as state_dict() gives it."
        ) from None


def _spent_type() -> Any:
    try:
        from flwr.supercore.privacy_accounting import PrivacySpent
    except ImportError:  # without flwr
        return SpentSoFar
    return PrivacySpent
