"""Plan of a run: population, sampling, mechanism and rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from accounting import require
from accounting.budget import coins, correlated, integers  # noqa: F401  # register their mechanisms
from accounting.budget.gaussians import PlannedMechanism, Setting
from accounting.caveats import default_delta
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Adjacency, Composed, SingleRelease
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES, PlannedSampling
from accounting.mechanisms.samplings.records import RecordBatches, ShuffledRecords
from accounting.options import Option, OptionFormat, as_keyword, object_from_options, option, options_of

_MECHANISM_CLASSES = PlannedMechanism.classes
MECHANISMS = tuple(dict.fromkeys(one.name for one in _MECHANISM_CLASSES))
"""Names of the mechanisms of a plan."""

SAMPLINGS = tuple(name for name, one in SAMPLING_CLASSES.items() if not one.is_schedule)
"""Names of the samplings that draw each round independently. The remaining samplings are schedules over many rounds."""

NOISES = tuple(dict.fromkeys(one.noise for one in _MECHANISM_CLASSES))
"""Names of the kinds of noise over rounds: independent, or a kind of correlated noise."""

_SELECTORS = {
    "unit": Option(
        hint=Literal["client", "record"],
        default="client",
        help="Unit of privacy: all data of a client, or one record of a client that adds noise to its local steps. "
        "record uses --records, --batch-size and --local-steps in place of --cohort and --sampling; --rounds is the "
        "number of rounds that a client takes part in.",
    ),
    "sampling": Option(
        hint=Literal[tuple(SAMPLING_CLASSES)],
        default="poisson",
        help="Sampling of a cohort: each client independently, a fixed number without replacement, all; or a schedule "
        "over rounds, in which each client takes part once in an epoch of clients / cohort rounds (balls-and-bins), in "
        "a fixed number of all rounds (allocation), at random with a rest afterwards (min-separation), in a public "
        "order (cyclic), or once in every shuffled epoch (shuffled, only for planning). docs/participation.md compares "
        "them.",
    ),
    "noise": Option(
        hint=Literal[NOISES],
        default="independent",
        help="Noise independent over rounds, or correlated so that it cancels in the model: over --bands, or from "
        "--buffers (blt). With --separation alone clients take part in a public order; under poisson (banded, only "
        "for planning) in one group per band.",
    ),
    "mechanism": Option(
        hint=Literal[MECHANISMS],
        default="gaussian",
        help="Gaussian noise added by the server, or in shares by the clients; integer noise for secure sums of "
        "rounded uploads (discrete-gaussian, skellam); or Bernoulli uploads (masks, signs): sums of exactly K, or "
        "uploads seen individually.",
    ),
}
"""Options that select a class of sampling or mechanism, by name."""


@dataclass(frozen=True, kw_only=True, init=False)
class Plan(Setting):
    """Everything about a federated run that its privacy guarantee depends on.

        Plan(clients=6000, sampling=Poisson(cohort=100), mechanism=GaussianNoise(noise_multiplier=1.4), rounds=180)
        Plan(clients=6000, cohort=100, noise_multiplier=1.4, rounds=180)  # equal

    The second form names the fields of sampling and mechanism in one flat list, like the options of `dpfed budget`.
    There `sampling`, `mechanism` and `noise` are strings, by default "poisson", "gaussian" and "independent". Leave out
    the number that is solved for (epsilon, noise_multiplier or rounds).

    delta: default: the smaller of clients^-1.1 and 1e-4
    adjacency: default: replace-one for fixed-size sampling; else add-remove, or zero-out if an added client would add
    an upload or a noise share, or may change the turns of others
    before: earlier releases on the same clients (unit "record": releases of that unit): every epsilon covers these
    releases and the plan. The plan's schedule is drawn independently of theirs, under another `stream` name

    Errors: InvalidParameter for a field outside its domain, or a field that the chosen classes do not have;
    UnsupportedMechanism for a combination of fields that has no account.

    >>> from accounting import Plan
    >>> plan = Plan(clients=6000, cohort=100, noise_multiplier=1.4, rounds=180)
    >>> str(plan.adjacency), round(plan.delta, 7)
    ('add-remove', 6.98e-05)
    """

    clients: int = option("Clients in the population, n. With a ledger, default: the number in the ledger.")
    sampling: PlannedSampling
    mechanism: PlannedMechanism
    rounds: int | None = option("Training rounds, T.", None)
    delta: float = option(
        "Default: the smaller of clients^-1.1 and 1e-4, or of records^-1.1 and 1e-5; or the ledger's.", None
    )
    adjacency: Adjacency = option(
        "Default: add-remove for poisson and all, replace-one for fixed, zero-out for cyclic and shuffled. Decides the "
        "sensitivity.",
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
        **options: object,
    ) -> None:
        options = {name: require.plain(value) for name, value in options.items()}
        sampling_object, chosen = sampling_and_mechanism({"sampling": sampling, "mechanism": mechanism, **options})
        sampling_object, chosen = chosen.with_lanes_and_bands(sampling_object, require.count(clients=clients))
        self._set_fields(clients=require.count(clients=clients), sampling=sampling_object, before=before)
        if self.cohort > self.clients:
            raise InvalidParameter(f"cohort={self.cohort} of clients={clients}: must be at most the number of clients.")
        delta = default_delta(self.units, unit=self.unit) if delta is None else delta
        rounds = require.or_none(require.count)(rounds=rounds)
        self._set_fields(rounds=rounds, delta=require.open_probability(delta=delta))
        if sampling_object.unit == "record":
            chosen = chosen.for_records()
        in_turns = sampling_object.in_turns(banded=chosen.noise == "banded")
        default = Adjacency.ZERO_OUT if in_turns else chosen.default_adjacency(sampling_object.name)
        self._set_fields(adjacency=Adjacency.of(adjacency or default))
        if self.unit == "record" and not in_turns and self.adjacency is not Adjacency.ADD_REMOVE:
            raise InvalidParameter(
                f"adjacency={str(self.adjacency)!r} with unit='record': batches are Poisson samples of records, which "
                "are accounted under 'add-remove'. Remove adjacency."
            )
        self._set_fields(mechanism=chosen)
        self._set_fields(mechanism=chosen.validated_for(self))
        if self.mechanism.noise == "independent":
            self.round(1.0 if self.has_noise_multiplier else None)  # raises an error for a plan without an account

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, written: OptionFormat = as_keyword) -> Plan:
        """Return the plan of a flat list of options. written: formats an option as the user wrote it, for messages."""
        plan_fields = {each.name for each in fields(cls)} - _SELECTORS.keys()
        selected = {name: options.get(name, word.default) for name, word in _SELECTORS.items()}
        others = {name: value for name, value in options.items() if name not in plan_fields}
        sampling, mechanism = sampling_and_mechanism({**selected, **others}, written=written)
        given = {name: options[name] for name in plan_fields & options.keys()}
        return cls(**given, sampling=sampling, mechanism=mechanism)

    def changed(self, **options: object) -> Plan:
        """Return the plan with changed values of some options (`options`)."""
        return Plan.from_options({**self.options, **options})

    def _set_fields(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def most_rounds(self) -> int | None:
        """Largest possible number of rounds; None if it is unbounded."""
        return self.mechanism.most_rounds or self.sampling.most_rounds(self.clients)

    @property
    def needs_lanes(self) -> bool:
        """True if the number of lanes, which equals the number of bands, must be searched (`budget.advice`)."""
        return self.mechanism.needs_lanes

    @property
    def has_noise_multiplier(self) -> bool:
        """True if the mechanism has a noise multiplier: False for Bernoulli uploads, whose samples are the noise."""
        return self.mechanism.has_noise_multiplier

    @property
    def noise_multiplier(self) -> float | None:
        """Noise multiplier of the mechanism; None if it is solved for, or the mechanism has none."""
        return getattr(self.mechanism, "noise_multiplier", None)

    @property
    def noise_schedule(self) -> tuple[float, ...] | None:
        """Factors of the noise multiplier in equal parts of the run; None if all rounds have equal noise."""
        return getattr(self.mechanism, "noise_schedule", None)

    def round(self, noise_multiplier: float | None = None, rounds: int | None = None) -> SingleRelease:
        """Return the mechanism of one round, as a ledger line states it.

        rounds: planned rounds, for which the matrix of correlated noise is optimised.
        Errors: InvalidParameter for a noise multiplier with Bernoulli uploads, and for a missing noise multiplier with
        other mechanisms.
        """
        return self.mechanism.round(
            self, self._given_or_planned_multiplier(noise_multiplier), self.rounds if rounds is None else rounds
        )

    def run(self, noise_multiplier: float | None = None, rounds: int | None = None) -> Composed:
        """Return the mechanism of all rounds and of earlier releases on the same clients.

        Errors: InvalidParameter for more rounds than the participations of a client allow.
        """
        count = require.count(rounds=self.rounds if rounds is None else rounds)
        most = self.sampling.most_rounds(self.clients)
        if most is not None and count > most:
            times = self.options["participations"]
            raise InvalidParameter(
                f"rounds={count} with participations={times} of cohort={self.cohort} of clients={self.clients}: these "
                f"allow {most} rounds. Change one of these numbers."
            )
        given = self._given_or_planned_multiplier(noise_multiplier)
        return self.mechanism.run(self, given, count * self.sampling.steps)

    def first_rounds(self, noise_multiplier: float | None, count: int, *, of: int) -> Composed:
        """Return the mechanism of the first `count` rounds of a run of `of` rounds with a noise schedule.

        Earlier releases on the same clients are included.
        Errors: InvalidParameter without a noise schedule.
        """
        return self.mechanism.first(self, self._given_or_planned_multiplier(noise_multiplier), count, of=of)

    def _given_or_planned_multiplier(self, given: float | None) -> float | None:
        return self.noise_multiplier if given is None else given

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return notes on the epsilon of the plan."""
        return self.mechanism.notes(self, self.run(noise_multiplier, rounds), noise_multiplier, rounds)

    @property
    def options(self) -> dict[str, Any]:
        """Flat list of the plan's options that differ from their defaults: `Plan(**plan.options)` equals the plan.

        A default scale is left out, because it depends on the cohort.
        """
        selected = {
            "unit": self.unit,
            "sampling": self.sampling.name,
            "mechanism": self.mechanism.name,
            "noise": self.mechanism.noise,
        }
        found: dict[str, Any] = {"clients": self.clients}
        parts: tuple[Any, ...] = (self.sampling, self, self.mechanism)
        given = ((each, getattr(part, each.name)) for part in parts for each in fields(part))
        found |= {each.name: value for each, value in given if value != each.default}
        del found["sampling"], found["mechanism"]
        if "scale" in found and found["scale"] == parts[-1].default_scale(self):
            del found["scale"]
        return found | {name: word for name, word in selected.items() if word != _SELECTORS[name].default}


def sampling_and_mechanism(
    options: Mapping[str, object], *, written: OptionFormat = as_keyword
) -> tuple[PlannedSampling, PlannedMechanism]:
    """Return sampling and mechanism from a flat list of options. `sampling` and `mechanism` may be names or objects.

    written: formats an option as the user wrote it, for messages.
    Errors: InvalidParameter for an unknown name, or a field that the chosen classes do not have.
    """
    remaining = _with_new_names(options, written)
    unit = remaining.pop("unit", None) or "client"
    sampling, mechanism, noise = remaining.pop("sampling"), remaining.pop("mechanism"), remaining.pop("noise", None)
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
        if sampling not in ("poisson", "shuffled"):
            raise InvalidParameter(
                f"{written('sampling', sampling)} with {written('unit', unit)}: batches of records are Poisson samples "
                "or shuffled. Remove it."
            )
        sampling = RecordBatches if sampling == "poisson" else ShuffledRecords
    if isinstance(sampling, str):
        sampling = SAMPLING_CLASSES[sampling]
    if isinstance(mechanism, str):
        mechanism = _mechanism_class(mechanism, noise or "independent", written)
    elif noise not in (None, mechanism.noise):
        raise InvalidParameter(
            f"{written('noise', noise)} with {mechanism}: the mechanism object determines the noise. Remove noise, or "
            "give another mechanism."
        )
    if sampling.name == "all":
        remaining.pop("cohort", None)
    elif unit == "record" and remaining.get("cohort") is not None:
        given, instead = f"{written('cohort', remaining['cohort'])} with {written('unit', unit)}", written("batch_size")
        raise InvalidParameter(
            f"{given}: records have no cohort. Give the rounds that a client takes part in, and {instead}."
        )
    is_correlated = mechanism.noise != "independent"
    word = written("noise", mechanism.noise) if is_correlated else written("mechanism", mechanism.name)
    drawn = written("unit", unit) if unit == "record" else written("sampling", sampling.name)
    parts = (
        object_from_options(sampling, drawn, remaining, written=written),
        object_from_options(mechanism, word, remaining, written=written),
    )
    for name, value in remaining.items():
        _refuse_foreign_option(name, value, *parts, written)
    return parts


def _with_new_names(options: Mapping[str, object], written: OptionFormat) -> dict[str, Any]:
    """Return the options with `slots` renamed to `cohort_cap`. Errors: InvalidParameter if the two values differ."""
    remaining = dict(options)
    slots, cap = remaining.pop("slots", None), remaining.get("cohort_cap")
    if slots is None:
        return remaining
    if cap is not None and cap != slots:
        given = f"{written('cohort_cap', cap)} with {written('slots', slots)}"
        raise InvalidParameter(f"{given}: {written('slots')} is the old name of the cap. Give one of them.")
    return remaining | {"cohort_cap": slots}


def _mechanism_class(mechanism: str, noise: str, written: OptionFormat) -> type[PlannedMechanism]:
    for one in _MECHANISM_CLASSES:
        if (one.name, one.noise) == (mechanism, noise):
            return one
    raise UnsupportedMechanism(f"{written('noise', noise)} with {written('mechanism', mechanism)}: use 'gaussian'.")


def _refuse_foreign_option(
    name: str, value: object, sampling: PlannedSampling, mechanism: PlannedMechanism, written: OptionFormat
) -> None:
    """Raise InvalidParameter for an option of a class that was not chosen, unless it is None or has its default."""
    classes: dict[str, Any] = {**SAMPLING_CLASSES, "unit 'record'": RecordBatches}
    samplings = {kind: each for kind, one in classes.items() for each in fields(one) if each.name == name}
    kinds = [(one, each) for one in _MECHANISM_CLASSES for each in fields(one) if each.name == name]
    defaults = [each.default for each in (*samplings.values(), *(each for _, each in kinds))]
    if not defaults:
        raise TypeError(f"Plan() got an unexpected keyword argument {name!r}")
    if value is None or any(default is not MISSING and default == value for default in defaults):
        return
    classes_with_option = list(dict.fromkeys(one.name for one, _ in kinds))
    selector, chosen = "mechanism", mechanism.name
    if samplings:
        selector, chosen, classes_with_option = "sampling", sampling.name, list(samplings)
    elif mechanism.name in classes_with_option:
        selector, chosen = "noise", mechanism.noise
        classes_with_option = [one.noise for one, _ in kinds if one.name == mechanism.name]
    raise InvalidParameter(
        f"{written(name, value)} with {written(selector, chosen)}: is for {', '.join(classes_with_option)}. Remove it."
    )


def command_options() -> dict[str, Option]:
    """Return the options of a plan on the command line by name: type, default and help text."""
    return {**options_of((Plan, *SAMPLING_CLASSES.values(), RecordBatches, *_MECHANISM_CLASSES)), **_SELECTORS}
