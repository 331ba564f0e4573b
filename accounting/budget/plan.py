"""The plan of a run: population, sampling and mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, get_args

from accounting import require
from accounting.budget.coins import BernoulliSums, BernoulliUploads
from accounting.budget.correlated import BandedNoise, BufferedNoise, CorrelatedNoise
from accounting.budget.gaussians import DistributedGaussianNoise, GaussianNoise
from accounting.budget.integers import DiscreteGaussianNoise, SkellamNoise
from accounting.budget.options import Option, Written, as_keyword, option, options_of, part_of
from accounting.budget.samplings import (
    SAMPLING_CLASSES,
    BallsAndBins,
    Cyclic,
    Everyone,
    PlannedSampling,
    Poisson,
    RecordBatches,
)
from accounting.caveats import default_delta
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers import fixed_point
from accounting.mechanisms import Composed, Sampling, SingleRelease, schedule_of
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.cohort_caps import default_cap, rarely_exceeded

PlannedMechanism = (
    GaussianNoise
    | BandedNoise
    | BufferedNoise
    | DistributedGaussianNoise
    | DiscreteGaussianNoise
    | SkellamNoise
    | BernoulliUploads
    | BernoulliSums
)
_MECHANISM_CLASSES: tuple[type[PlannedMechanism], ...] = get_args(PlannedMechanism)
MECHANISMS = tuple(dict.fromkeys(one.name for one in _MECHANISM_CLASSES))
"""Names of the mechanisms of a plan."""

SAMPLINGS = tuple(name for name, one in SAMPLING_CLASSES.items() if not one.is_schedule)
"""Names of the samplings that draw each round independently; the others are schedules over many rounds."""

NOISES = tuple(dict.fromkeys(one.noise for one in _MECHANISM_CLASSES))
"""Names of independent noise over rounds and of the kinds of correlated noise."""

_SELECTORS = {
    "unit": Option(
        hint=Literal["client", "record"],
        default="client",
        help="Unit of privacy: all data of a client, or one record of a client that adds noise to its own steps. "
        "record takes --records, --batch-size and --local-steps in place of --cohort and --sampling; --rounds are "
        "those that a client takes part in.",
    ),
    "sampling": Option(
        hint=Literal[tuple(SAMPLING_CLASSES)],
        default="poisson",
        help="Sampling of a cohort: each client independently, a fixed number without replacement, all; or a schedule "
        "over rounds, in which each client takes part once in an epoch of clients / cohort rounds (balls-and-bins), in "
        "a fixed number of all rounds (allocation), at random with a rest afterwards (min-separation), or in a public "
        "order (cyclic). docs/participation.md compares them.",
    ),
    "noise": Option(
        hint=Literal[NOISES],
        default="independent",
        help="Independent over rounds, or correlated so that it cancels in the model: over --bands, or from --buffers "
        "(blt). With --separation alone clients take part in a public order; under poisson (banded, to plan with) in "
        "one group per band.",
    ),
    "mechanism": Option(
        hint=Literal[MECHANISMS],
        default="gaussian",
        help="Gaussian noise added by the server, or in shares by the clients; integer noise for secure sums of "
        "rounded uploads (discrete-gaussian, skellam); or Bernoulli uploads (masks, signs): sums of exactly K, or "
        "uploads seen individually.",
    ),
}
"""Options that choose a kind, by their names."""


@dataclass(frozen=True, kw_only=True, init=False)
class Plan:
    """Rounds of a federated run as the accountant sees them.

        Plan(clients=6000, sampling=Poisson(cohort=100), mechanism=GaussianNoise(noise_multiplier=1.4), rounds=180)
        Plan(clients=6000, cohort=100, noise_multiplier=1.4, rounds=180)  # equal

    The second form names the fields of sampling and mechanism in one list, like the options of `dpfed budget`:
    `sampling`, `mechanism` and `noise` are names there, by default "poisson", "gaussian" and "independent". Leave out
    what is solved for (epsilon, noise_multiplier or rounds).

    delta:     default: the smaller of clients^-1.1 and 1e-4
    adjacency: default: replace-one for fixed-size sampling; else add-remove, or zero-out if one client added would add
               an upload or a share of noise, or may move the turns of others
    before:    releases on the same clients so far: every epsilon is of them and the plan together. The plan's schedule
               is drawn anew, under a `stream` of its own

    Errors: InvalidParameter for a field outside its domain, or one that the kind does not have; UnsupportedMechanism
    for a combination of fields that has no account.

    >>> from accounting import Plan
    >>> plan = Plan(clients=6000, cohort=100, noise_multiplier=1.4, rounds=180)
    >>> str(plan.adjacency), round(plan.delta, 7)
    ('add-remove', 6.98e-05)
    """

    clients: int = option("Clients in the population, n. From the ledger, where there is one.")
    sampling: PlannedSampling
    mechanism: PlannedMechanism
    rounds: int | None = option("Training rounds, T.", None)
    delta: float = option("Default: the smaller of clients^-1.1 and 1e-4, or the ledger's.", None)
    adjacency: Adjacency = option(
        "Default: add-remove for poisson and all, replace-one for fixed, zero-out for cyclic. Decides the sensitivity.",
        None,
    )
    before: Composed | None = None

    def __init__(
        self,
        *,
        clients: int,
        sampling: PlannedSampling | str = "poisson",
        mechanism: PlannedMechanism | str = "gaussian",
        rounds: int | None = None,
        delta: float | None = None,
        adjacency: Adjacency | str | None = None,
        before: Composed | None = None,
        **options: Any,
    ) -> None:
        chosen_sampling, chosen = parts_from({"sampling": sampling, "mechanism": mechanism, **options})
        if isinstance(chosen, BandedNoise) and isinstance(chosen_sampling, BallsAndBins):
            chosen_sampling, chosen = chosen.in_lanes(chosen_sampling, require.count(clients=clients))
        self._set_fields(clients=require.count(clients=clients), sampling=chosen_sampling, before=before)
        if self.cohort > self.clients:
            raise InvalidParameter(f"cohort={self.cohort} of clients={clients}: must be at most the number of clients.")
        self._set_fields(rounds=None if rounds is None else require.count(rounds=rounds))
        self._set_fields(delta=require.open_probability(delta=self._default_delta if delta is None else delta))
        if isinstance(chosen_sampling, RecordBatches):
            chosen = _noise_of_records(chosen)
        in_lanes = False
        if isinstance(chosen_sampling, BallsAndBins):
            in_lanes = isinstance(chosen, BandedNoise) or (chosen_sampling.lanes or 1) > 1
            if chosen_sampling.secret_lanes and not in_lanes:
                raise InvalidParameter(
                    "secret_lanes without lanes: there is no lane to draw. Give lanes, or noise='banded'."
                )
            in_lanes &= not chosen_sampling.secret_lanes  # drawn lanes do not depend on who else there is
        in_turns = in_lanes or isinstance(chosen_sampling, Cyclic)
        default = Adjacency.ZERO_OUT if in_turns else chosen.default_adjacency(chosen_sampling.name)
        self._set_fields(adjacency=Adjacency.of(adjacency or default))
        if self.unit == "record" and self.adjacency is not Adjacency.ADD_REMOVE:
            raise InvalidParameter(
                f"adjacency={str(self.adjacency)!r} with unit='record': batches are drawn record by record, which is "
                "accounted under 'add-remove'. Remove it."
            )
        self._set_fields(mechanism=chosen)
        self._set_fields(mechanism=chosen.fitted(self))
        if not isinstance(self.mechanism, CorrelatedNoise):
            self.round(1.0 if self.has_noise_multiplier else None)  # refuses what has no account

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, written: Written = as_keyword) -> Plan:
        """Return the plan of a flat list of options; messages name them as the user has `written` them."""
        own = {each.name for each in fields(cls)} - _SELECTORS.keys()
        words = {name: options.get(name, word.default) for name, word in _SELECTORS.items()}
        others = {name: value for name, value in options.items() if name not in own}
        sampling, mechanism = parts_from({**words, **others}, written=written)
        return cls(**{name: options[name] for name in own & options.keys()}, sampling=sampling, mechanism=mechanism)

    def changed(self, **options: Any) -> Plan:
        """Return the plan with other values of its flat list of options (`options`)."""
        return Plan.from_options({**self.options, **options})

    def _set_fields(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def unit(self) -> Literal["client", "record"]:
        """Unit of privacy."""
        return "record" if isinstance(self.sampling, RecordBatches) else "client"

    @property
    def units(self) -> int:
        """Number of all clients, or of all records."""
        return self.clients * (self.sampling.records if isinstance(self.sampling, RecordBatches) else 1)

    @property
    def _default_delta(self) -> float:
        return default_delta(self.units, unit=self.unit)

    @property
    def cohort(self) -> int:
        """Clients of a round: the expected number under Poisson sampling, else the exact one."""
        return self.clients if isinstance(self.sampling, Everyone | RecordBatches) else self.sampling.cohort

    @property
    def period(self) -> int:
        """Rounds from one participation of a client to the next, on average: clients / cohort, rounded."""
        return self.sampling.period(self.clients)

    @property
    def most_rounds(self) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return self.mechanism.most_rounds or self.sampling.most_rounds(self.clients)

    @property
    def needs_lanes(self) -> bool:
        """True if the number of lanes, equal to that of bands, is to be searched (`budget.lanes`)."""
        return isinstance(self.mechanism, BandedNoise) and self.mechanism.bands is None

    @property
    def has_noise_multiplier(self) -> bool:
        """True if there is a noise multiplier to solve for: not for Bernoulli uploads, which are the noise."""
        return self.mechanism.has_noise_multiplier

    @property
    def noise_multiplier(self) -> float | None:
        """Noise multiplier of the mechanism; None if it is solved for, or the mechanism has none."""
        return None if isinstance(self.mechanism, BernoulliUploads) else self.mechanism.noise_multiplier

    @property
    def noise_schedule(self) -> tuple[float, ...] | None:
        """Factors of the noise multiplier in equal parts of the run; None if all rounds have equal noise."""
        return self.mechanism.noise_schedule if isinstance(self.mechanism, GaussianNoise) else None

    @property
    def stream(self) -> str:
        """Name of the plan's schedule: one that no schedule of `before` has, since the plan draws anew."""
        parts = () if self.before is None else self.before.parts
        taken = {schedule.stream for part, _ in parts if (schedule := schedule_of(part)) is not None}
        return next(name for name in ("", *(f"plan {k}" for k in range(len(taken)))) if name not in taken)

    @property
    def cohort_cap(self) -> int | None:
        """The most clients of a round under Poisson sampling, as given or by default; None without a cap.

        The default applies if sums hold a fixed number of uploads.
        """
        if not isinstance(self.sampling, Poisson):
            return None
        if self.sampling.cohort_cap is None and self.mechanism.has_fixed_uploads(self.sampling.name):
            of_coins = isinstance(self.mechanism, BernoulliSums)  # each upload adds the noise of its Bernoulli samples
            chosen = rarely_exceeded if of_coins else default_cap
            return chosen(self.cohort, self.clients, delta=self.delta)
        return self.sampling.cohort_cap

    @property
    def sampler(self) -> Sampling:
        """Sampling of the cohorts as a ledger line states it."""
        sampling = self.sampling
        if isinstance(sampling, Poisson):
            sampling = replace(sampling, cohort_cap=self.cohort_cap)
        return sampling.sampler(self.clients, self.stream)

    def round(self, noise_multiplier: float | None = None, rounds: int | None = None) -> SingleRelease:
        """Return the mechanism of one round: the content of its ledger line.

        rounds: planned rounds, for which the matrix of correlated noise is made. Errors: InvalidParameter for a noise
        multiplier with Bernoulli uploads, and for a missing one with noise.
        """
        return self.mechanism.round(self, self._multiplier(noise_multiplier), self.rounds if rounds is None else rounds)

    def run(self, noise_multiplier: float | None = None, rounds: int | None = None) -> Composed:
        """Return the mechanism of all rounds, and of the releases before.

        Errors: InvalidParameter for more rounds than the participations of a client allow.
        """
        count = require.count(rounds=self.rounds if rounds is None else rounds)
        most = self.sampling.most_rounds(self.clients)
        if most is not None and count > most:
            times = self.options["participations"]
            raise InvalidParameter(
                f"rounds={count} with participations={times} of cohort={self.cohort} of clients={self.clients}: that "
                f"is {most} rounds. Change one of them."
            )
        steps = self.sampling.steps if isinstance(self.sampling, RecordBatches) else 1
        return self.mechanism.run(self, self._multiplier(noise_multiplier), count * steps)

    def first(self, noise_multiplier: float | None, count: int, *, of: int) -> Composed:
        """Return the mechanism of the first `count` rounds of a run of `of` rounds with a noise schedule.

        Releases before the run are part of it. Errors: InvalidParameter without a noise schedule.
        """
        if not isinstance(self.mechanism, GaussianNoise):
            raise InvalidParameter("noise_schedule is missing: first() is for noise that differs. Use run().")
        return self.mechanism.first(self, self._multiplier(noise_multiplier), count, of=of)

    def _multiplier(self, given: float | None) -> float | None:
        return self.noise_multiplier if given is None else given

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return remarks for a reader of the epsilon."""
        return self.mechanism.notes(self, self.run(noise_multiplier, rounds), noise_multiplier, rounds)

    @property
    def options(self) -> dict[str, Any]:
        """The plan as one flat list of options, without those at their defaults: `Plan(**plan.options)` is equal."""
        words = {
            "unit": self.unit,
            "sampling": self.sampling.name,
            "mechanism": self.mechanism.name,
            "noise": self.mechanism.noise,
        }
        found: dict[str, Any] = {"clients": self.clients}
        for part in (self.sampling, self, self.mechanism):
            given = {each.name: getattr(part, each.name) for each in fields(part)}
            found |= {each.name: given[each.name] for each in fields(part) if given[each.name] != each.default}
        del found["sampling"], found["mechanism"]
        return found | {name: word for name, word in words.items() if word != _SELECTORS[name].default}


def parts_from(
    options: Mapping[str, Any], *, written: Written = as_keyword
) -> tuple[PlannedSampling, PlannedMechanism]:
    """Return sampling and mechanism from a flat list of their fields; `sampling` and `mechanism` may be objects.

    Errors: InvalidParameter for a word or field that the chosen kinds do not have, as a user has `written` them.
    """
    left = _renamed(options, written)
    unit = left.pop("unit", None) or "client"
    sampling, mechanism, noise = left.pop("sampling"), left.pop("mechanism"), left.pop("noise", None)
    kinds: tuple[tuple[str, Any, Any, tuple[str, ...]], ...] = (
        ("sampling", sampling, PlannedSampling, tuple(SAMPLING_CLASSES)),
        ("mechanism", mechanism, PlannedMechanism, MECHANISMS),
        ("noise", noise or "independent", (), NOISES),
        ("unit", unit, (), ("client", "record")),
    )
    for name, word, kind, allowed in kinds:
        if not (word in allowed if isinstance(word, str) else isinstance(word, kind)):
            raise InvalidParameter(f"{written(name, word)}: must be one of {', '.join(allowed)}.")
    if unit == "record" and isinstance(sampling, str):
        if sampling != "poisson":
            raise InvalidParameter(
                f"{written('sampling', sampling)} with {written('unit', unit)}: is for clients. Remove it."
            )
        sampling = RecordBatches
    if isinstance(sampling, str):
        sampling = SAMPLING_CLASSES[sampling]
    if isinstance(mechanism, str):
        mechanism = _mechanism_class(mechanism, noise or "independent", written)
    elif noise not in (None, mechanism.noise):
        raise InvalidParameter(f"{written('noise', noise)} with {mechanism}: give another mechanism instead.")
    if sampling.name == "all":
        left.pop("cohort", None)
    elif unit == "record" and left.get("cohort") is not None:
        given = f"{written('cohort', left['cohort'])} with {written('unit', unit)}"
        raise InvalidParameter(f"{given}: give the rounds that a client takes part in, and {written('batch_size')}.")
    by_noise = mechanism.noise != "independent"
    word = written("noise", mechanism.noise) if by_noise else written("mechanism", mechanism.name)
    parts = (
        part_of(sampling, written("sampling", sampling.name), left, written=written),
        part_of(mechanism, word, left, written=written),
    )
    for name, value in left.items():
        _refuse_foreign(name, value, *parts, written)
    return parts


def _renamed(options: Mapping[str, Any], written: Written) -> dict[str, Any]:
    """Return the options with `slots` under its new name. InvalidParameter for two different values."""
    left = dict(options)
    slots, cap = left.pop("slots", None), left.get("cohort_cap")
    if slots is None:
        return left
    if cap is not None and cap != slots:
        given = f"{written('cohort_cap', cap)} with {written('slots', slots)}"
        raise InvalidParameter(f"{given}: {written('slots')} is the old name of the cap. Give one of them.")
    return left | {"cohort_cap": slots}


def _mechanism_class(mechanism: str, noise: str, written: Written) -> type[PlannedMechanism]:
    for one in _MECHANISM_CLASSES:
        if (one.name, one.noise) == (mechanism, noise):
            return one
    raise UnsupportedMechanism(f"{written('noise', noise)} with {written('mechanism', mechanism)}: use 'gaussian'.")


def _refuse_foreign(
    name: str, value: Any, sampling: PlannedSampling, mechanism: PlannedMechanism, written: Written
) -> None:
    """Raise InvalidParameter for an option of other kinds, unless it is None or at its default there."""
    classes = {**SAMPLING_CLASSES, "unit 'record'": RecordBatches}
    samplings = {kind: each for kind, one in classes.items() for each in fields(one) if each.name == name}
    kinds = [(one, each) for one in _MECHANISM_CLASSES for each in fields(one) if each.name == name]
    defaults = [each.default for each in (*samplings.values(), *(each for _, each in kinds))]
    if not defaults:
        raise TypeError(f"Plan() got an unexpected keyword argument {name!r}")
    if value is None or any(default is not MISSING and default == value for default in defaults):
        return
    takers = list(dict.fromkeys(one.name for one, _ in kinds))
    selector, chosen = "mechanism", mechanism.name
    if samplings:
        selector, chosen, takers = "sampling", sampling.name, list(samplings)
    elif mechanism.name in takers:
        selector, chosen = "noise", mechanism.noise
        takers = [one.noise for one, _ in kinds if one.name == mechanism.name]
    raise InvalidParameter(
        f"{written(name, value)} with {written(selector, chosen)}: is for {', '.join(takers)}. Remove it."
    )


def _noise_of_records(chosen: PlannedMechanism) -> PlannedMechanism:
    """Return the noise that a client adds to the sum of its own batch: all of it, to numbers that are not rotated."""
    if isinstance(chosen, GaussianNoise) and type(chosen) is GaussianNoise and chosen.noise_schedule is None:
        return chosen
    if isinstance(chosen, DiscreteGaussianNoise):
        scale = fixed_point.least_scale(chosen.dimension) if chosen.scale is None else chosen.scale
        return replace(chosen, placement="server", rotate=False, scale=scale)
    raise InvalidParameter(
        f"mechanism={chosen.name!r}, noise={chosen.noise!r} with unit='record': local steps have mechanism 'gaussian' "
        "or 'discrete-gaussian', the same in all rounds. Use one of them."
    )


def command_options() -> dict[str, Option]:
    """Return the options of a plan on the command line by name: type, default and help text."""
    return {**options_of((Plan, *SAMPLING_CLASSES.values(), RecordBatches, *_MECHANISM_CLASSES)), **_SELECTORS}
