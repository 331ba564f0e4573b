"""Readers of other libraries' settings: Flower, FLIP and NVFlare's filters, Opacus, and DP-FedAvg as TFF, pfl and
jax_privacy name it.

A reader takes a flat dictionary of lower-case names. What the settings do not say is an opening, whose first reading is
the worst.
"""

from __future__ import annotations

import importlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_input
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.explain.account import ASSUMED_DELTA, Explanation, Opening, Reading, Unit, explained

Settings = Mapping[str, object]
Readings = tuple[tuple[str, dict[str, object]], ...]

_POPULATION = ("num_clients", "total_clients", "population", "num_supernodes", "clients", "num_nodes")
_ROUNDS = ("num_server_rounds", "num_rounds", "total_rounds", "rounds", "central_num_iterations", "iterations")
_CLIP = ("clipping_norm", "max_grad_norm", "clip", "clip_norm", "clipping_bound", "l2_clip_norm", "l2_norm_clip")
_NOISE = ("noise_multiplier", "sigma", "noise_scale", "central_noise_scale")
_DEVIATION = ("sigma", "noise_std", "noise_stddev", "stddev")
"""Names that may be a standard deviation in units of the updates, not over the clip norm."""
_OTHER_MECHANISMS = {
    "laplac": "Laplace noise on L2-clipped updates has no bound",
    "ftrl": "noise is correlated over rounds (a tree), and this reader has no account of it",
    "blt": "noise is correlated over rounds, and this reader has no account of it",
    "bandmf": "noise is correlated over rounds, and this reader has no account of it",
    "banded": "noise is correlated over rounds, and this reader has no account of it",
    "toeplitz": "noise is correlated over rounds, and this reader has no account of it",
    "linf": "each coordinate is clipped, so the norm of an update grows with their number",
    "per_layer": "each layer is clipped alone, so the norm of an update grows with their number",
    "per_param": "each parameter is clipped alone, so the norm of an update grows with their number",
    "adaptive": "the clip norm moves by the updates of clients, and this reader has no account of that",
    "adaclip": "the clip norm moves by the updates of clients, and this reader has no account of that",
    "weighted_random": "a record may be drawn many times into one batch",
}
"""Parts of names or values of settings for which nothing here bounds epsilon."""
_RECORDS = ("num_samples", "dataset_size", "num_examples", "sample_size", "n")
_DELTA = ("delta", "target_delta", "central_delta")

NEIGHBOURS = Opening(
    name="neighbours: not stated",
    changes=(
        ("replace-one: the data of one unit are replaced by any other data", {"adjacency": Adjacency.REPLACE_ONE}),
        ("zero-out: one unit's contribution is replaced by nothing", {"adjacency": Adjacency.ZERO_OUT}),
    ),
)


def explain(given: str) -> Explanation:
    """Return the explanation of a TOML or JSON file of settings, or of an object (module:object).

    Errors: ConfigError if the file or object cannot be read, or no reader knows its names.
    """
    settings = _flat(_object_settings(given) if _names_object(given) else _file_settings(Path(given)))
    for knows, read in _READERS:
        if knows(settings):
            return read(settings)
    raise ConfigError(
        f"{given}: its names ({', '.join(sorted(settings)) or 'none'}) are not those of a library that is known. Use "
        "those of Flower (clipping_norm, num_sampled_clients), of filters of FLIP or NVFlare (sensitivity, epsilon; "
        "percentile), of Opacus (max_grad_norm), or noise_multiplier with clients_per_round or cohort_size."
    )


def _names_object(given: str) -> bool:
    module, colon, name = given.partition(":")
    return bool(colon) and not Path(given).exists() and all(part.isidentifier() for part in (*module.split("."), name))


def _file_settings(path: Path) -> Mapping[str, object]:
    try:
        text = read_input(path, at_most=LARGEST_DOCUMENT).decode("utf-8-sig")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML or JSON settings ({error}).") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: must be a table of settings, not {type(found).__name__}.")
    return found


def _object_settings(given: str) -> Mapping[str, object]:
    module, _, name = given.partition(":")
    try:
        one = getattr(importlib.import_module(module), name)
        one = one() if isinstance(one, type) else one
    except Exception as error:  # importing and making a user's object may raise anything
        raise ConfigError(f"{given}: cannot be loaded ({type(error).__name__}: {error}).") from error
    found = {key: value for key, value in vars(one).items() if isinstance(value, int | float | str | bool)}
    inner = getattr(one, "strategy", None)
    beside = (
        {key: value for key, value in vars(inner).items() if isinstance(value, int | float | str | bool)}
        if inner
        else {}
    )
    return {**beside, **found, "class": type(one).__name__}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of all tables in one dictionary; names in lower case with underscores."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        name = key.lower().replace("-", "_").replace(" ", "_")
        for inner, one in (_flat(value) if isinstance(value, Mapping) else {name: value}).items():
            if inner in found and found[inner] != one:
                raise ConfigError(
                    f"{inner}: has two values, {found[inner]!r} and {one!r}, in different tables. Explain one table at "
                    "a time."
                )
            found[inner] = one
    return found


def _number(settings: Settings, *names: str) -> float | None:
    """Return the first number with one of these names; None without one. Raises ConfigError for something else."""
    for name in names:
        if (value := settings.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise ConfigError(f"{name}={value!r}: must be a number.")
            return float(value)
    return None


def _count(settings: Settings, *names: str) -> int | None:
    value = _number(settings, *names)
    if value is None:
        return None
    if value < 1 or value != int(value):
        raise ConfigError(f"{names[0]}={value:g}: must be a positive whole number.")
    return int(value)


class _Read:
    """Values that all readers need, with the openings and missing names that follow from them."""

    def __init__(self, settings: Settings, unit: Unit) -> None:
        self.settings, self.unit = settings, unit
        self.missing: list[str] = []
        self.contradictions: list[str] = []
        self.unbounded: list[str] = []
        self.openings: list[Opening] = []
        self.clip = self._clip_norm()
        self.noise = self._noise_multiplier()
        self.delta = _number(settings, *_DELTA)
        if self.noise is None:
            self.missing.append("noise_multiplier")
        if not self.noise:
            self.unbounded.append("no noise is added")
        if self.clip is None:
            self.missing.append("clip norm")
            self.unbounded.append("updates are not clipped, so one of them may be of any size")
        elif math.isinf(self.clip):
            self.unbounded.append("the clip norm is infinite")
        if self.delta == 0:
            self.unbounded.append("delta is 0, at which Gaussian noise has no epsilon")
        self._find_other_mechanisms()
        if self.delta is None:
            self.missing.append(f"delta ({upwards(ASSUMED_DELTA)} is used)")

    def _clip_norm(self) -> float | None:
        """Return the clip norm; of a list, one for each layer, the norm of all, with the opening of its noise."""
        given = next((self.settings[name] for name in _CLIP if self.settings.get(name) is not None), None)
        if not isinstance(given, list) or not given:
            return _number(self.settings, *_CLIP)
        layers = [_number({"clip": one}, "clip") or 0.0 for one in given]
        self.openings.append(
            Opening(
                name="clip norms of layers: noise over each one, or over the norm of all",
                changes=(
                    ("each layer has noise over its own clip norm", {"noise_multiplier": len(layers) ** -0.5}),
                    ("all layers have noise over the norm of all clip norms", {}),
                ),
            )
        )
        return math.hypot(*layers)

    def _noise_multiplier(self) -> float | None:
        """Return the smallest multiplier that the names of noise state; None without one."""
        given = {name: value for name in _NOISE if (value := _number(self.settings, name)) is not None}
        if len(set(given.values())) > 1:
            names = ", ".join(f"{name}={value:g}" for name, value in given.items())
            self.contradictions.append(f"{names}: several sizes of noise; their product, or the smallest, is used")
            return min(math.prod(given.values()), *given.values())
        for name in _DEVIATION:
            value = _number(self.settings, name)
            if value is not None and self.clip and math.isfinite(self.clip) and "noise_multiplier" not in given:
                readings: Readings = (
                    (f"{name} is a standard deviation in units of the updates", {"noise_multiplier": 1 / self.clip}),
                    (f"{name} is over the clip norm", {"noise_multiplier": 1.0}),
                )
                order = readings if self.clip >= 1 else readings[::-1]
                if self.clip != 1:
                    self.openings.append(Opening(name=f"{name}: over the clip norm or not", changes=order))
                return value
        return next(iter(given.values()), None)

    def _find_other_mechanisms(self) -> None:
        """Add what the settings name and this reader has no account of, and clipping of whole batches."""
        texts = [str(one).lower() for pair in self.settings.items() for one in pair if isinstance(one, str)]
        texts = [text.replace("-", "_").replace(" ", "_") for text in texts if "://" not in text]
        for word, why in _OTHER_MECHANISMS.items():
            if word == "per_layer" and isinstance(self.settings.get("max_grad_norm"), list):
                continue  # its norms are read
            if any(word in text for text in texts):
                self.unbounded.append(why)
        for name in ("per_sample", "per_sample_clip", "per_example", "per_sample_gradients"):
            if self.settings.get(name) is False:
                self.unbounded.append("gradients of whole batches are clipped, not those of records")
        if self.settings.get("replacement") is True:
            self.unbounded.append("units are drawn with replacement, so one may be many times in a batch")

    def fewer_replies(self, cohort: int | None) -> None:
        """Add the opening of fewer replies than the cohort, where the settings name dropouts or a smaller minimum."""
        least = _count(
            self.settings, "min_available_clients", "min_available_nodes", "min_fit_clients", "min_train_nodes",
            "report_goal", "min_reports", "min_clients",
        )  # fmt: skip
        dropout = _number(self.settings, "dropout", "dropout_rate", "dropout_probability")
        if cohort is None or cohort <= 1 or (not dropout and (least is None or least >= cohort)):
            return
        few = 1 if dropout or least is None else least
        self.openings.append(
            Opening(
                name="number of replies: fewer than the cohort may arrive",
                changes=(
                    (
                        f"a mean of {few} replies has noise that is meant for {cohort}",
                        {"noise_multiplier": few / cohort},
                    ),
                    ("the sum is divided by the planned cohort, or all reply", {}),
                ),
            )
        )

    def weights(self, cohort: int | None) -> None:
        """Add the opening of weights by numbers of examples."""
        if cohort is None:
            self.unbounded.append("weights by numbers of examples, in a cohort of unknown size")
        elif cohort > 1:
            change: dict[str, object] = {"noise_multiplier": 1 / cohort, "left_out_moves_twice": True}
            self.openings.append(
                Opening(
                    name="weights: by numbers of examples",
                    changes=(
                        ("one client has nearly all examples of the cohort", change),
                        ("all clients have equally many examples", {}),
                    ),
                )
            )

    def population(self, *names: str) -> int | None:
        """Return the number of units, None if it is missing."""
        return _count(self.settings, *names)

    def sampler(self, cohort: int | None, population: int | None, *kinds: tuple[str, str]) -> None:
        """Add the opening of the sampler: everyone in every round, then the given pairs of text and kind."""
        changes: list[tuple[str, dict[str, object]]] = [
            ("all units take part in every round", {"sampling": "all"}),
        ]
        if cohort is not None and population is not None and cohort < population:
            changes += [(words, {"sampling": kind}) for words, kind in kinds]
        if len(changes) > 1:
            self.openings.append(Opening(name="sampler: who takes part is not stated", changes=tuple(changes)))

    def explanation(
        self,
        library: str,
        *,
        sampling: str,
        population: int | None,
        cohort: int | None,
        rounds: int | None,
        dpfed: str,
    ) -> Explanation:
        if rounds is None:
            self.missing.append("rounds (epsilon is that of one round)")
        units = population or max(cohort or 2, 2)
        reading = Reading(
            unit=self.unit,
            noise_multiplier=self.noise or 0.0,
            sampling=sampling,  # type: ignore[arg-type]
            population=units,
            cohort=min(cohort or units, units),
            rounds=rounds or 1,
            adjacency=Adjacency.REPLACE_ONE,
            delta=self.delta or ASSUMED_DELTA,
        )
        return explained(
            library,
            reading,
            (*self.openings, NEIGHBOURS),
            stated=dict(self.settings),
            missing=tuple(self.missing),
            contradictions=tuple(self.contradictions),
            unbounded=tuple(dict.fromkeys(self.unbounded)),
            population_known=population is not None and cohort is not None,
            dpfed=dpfed,
        )


def _is_flower(settings: Settings) -> bool:
    return "clipping_norm" in settings or "num_sampled_clients" in settings or "fraction_train" in settings


def _flower(settings: Settings) -> Explanation:
    """Read a differentially private strategy of Flower.

    Flower draws a fixed number of the connected nodes, averages with weights by numbers of examples, and adds noise of
    standard deviation noise_multiplier * clipping_norm / num_sampled_clients to the mean.
    """
    read = _Read(settings, "client")
    population = read.population(*_POPULATION)
    cohort = _count(settings, "num_sampled_clients", "clients_per_round")
    fraction = _number(settings, "fraction_train", "fraction_fit")
    if population and fraction is not None:
        drawn = max(1, int(population * fraction))
        if cohort is None:
            cohort = drawn
        elif drawn != cohort:
            read.contradictions.append(
                f"num_sampled_clients={cohort} sets the noise, and fraction {fraction:g} of {population} nodes draws "
                f"{drawn}"
            )
            if drawn < cohort:
                less = drawn / cohort
                read.openings.append(
                    Opening(
                        name="number of replies: fewer than num_sampled_clients",
                        changes=(
                            (f"{drawn} replies share noise that is meant for {cohort}", {"noise_multiplier": less}),
                        ),
                    )
                )
    if cohort is None:
        read.missing.append("num_sampled_clients")
    if population is None:
        read.missing.append("number of nodes (all of them may take part in every round)")
    if cohort is None:
        read.unbounded.append("the noise of the mean is divided by a number of clients that is not stated")
    read.fewer_replies(cohort)
    if "clipped_count_stddev" in settings or "target_clipped_quantile" in settings:
        read.contradictions.append("adaptive clipping scales the noise to another clip norm than that of the rows")
        read.unbounded.append("the clip norm moves between the clip and its noise, by updates of clients")
    read.weights(cohort)
    sampled = cohort is not None and population is not None and cohort < population
    if sampled:
        read.sampler(cohort, population, ("the nodes of a round are drawn at random and stay secret", "fixed"))
    line = "dpfed run dp-fedavg-digits --engine flower --set federation.sampling=fixed"
    if cohort:
        line += f" --set federation.cohort={cohort}"
    if population:
        line += f" --set federation.clients={population}"
    return read.explanation(
        "Flower",
        sampling="all",
        population=population,
        cohort=cohort,
        rounds=_count(settings, *_ROUNDS),
        dpfed=f"{line} --set privacy.noise_multiplier={upwards(read.noise or 1)} --set privacy.epsilon=",
    )


def _is_filter(settings: Settings) -> bool:
    sized = "sensitivity" in settings and "epsilon" in settings
    return sized or "percentile" in settings or ("fraction" in settings and not any(one in settings for one in _NOISE))


def _filter(settings: Settings) -> Explanation:
    """Read a filter of uploads, as in FLIP and NVFlare: the classical Gaussian of a stated sensitivity and epsilon."""
    stated, target = _number(settings, "sensitivity"), _number(settings, "epsilon")
    delta = _number(settings, *_DELTA) or ASSUMED_DELTA
    noise: float | None = None
    clip = _number(settings, *_CLIP)
    if stated and target:
        deviation = stated * math.sqrt(2 * math.log(1.25 / delta)) / target
        noise = deviation / clip if clip else deviation
    read = _Read({**settings, "noise_multiplier": noise} if noise is not None else settings, "client")
    if stated and clip and stated < clip:
        read.contradictions.append(
            f"sensitivity={stated:g} sizes the noise, and the clip lets an update be {clip:g} long: one client moves "
            "more"
        )
    if target:
        read.contradictions.append(
            f"epsilon={target:g} is that of one upload at the stated sensitivity, not of the run"
        )
    if stated and target and _number(settings, *_DELTA) is None:
        smaller = math.sqrt(math.log(1.25) / math.log(1.25 / ASSUMED_DELTA))
        read.openings.append(
            Opening(
                name="delta that sizes the noise: not stated",
                changes=(
                    ("it is near 1", {"noise_multiplier": smaller}),
                    (f"it is {upwards(ASSUMED_DELTA)}", {}),
                ),
            )
        )
    if noise is None:
        read.unbounded.append("percentiles and thresholds of an update are computed from it, without noise on them")
    return read.explanation(
        "FLIP, NVFlare filters",
        sampling="all",
        population=_count(settings, *_POPULATION),
        cohort=None,
        rounds=_count(settings, *_ROUNDS),
        dpfed="dpfed run dp-fedavg-digits --set privacy.release=uploads --set federation.sampling=all",
    )


def _is_opacus(settings: Settings) -> bool:
    return "max_grad_norm" in settings or "l2_norm_clip" in settings


def _opacus(settings: Settings) -> Explanation:
    """Read Opacus' (or TensorFlow Privacy's) arguments: noise and clip of records; the loader decides the rest."""
    read = _Read(settings, "record")
    records, batch = _count(settings, *_RECORDS), _count(settings, "batch_size", "expected_batch_size")
    rate, epochs = _number(settings, "sample_rate"), _count(settings, "epochs", "num_epochs", "local_epochs")
    if rate is not None and records and batch is None:
        batch = min(max(1, math.ceil(rate * records)), records)
    elif rate is not None and records and batch and not math.isclose(rate, batch / records, rel_tol=0.05):
        read.contradictions.append(f"sample_rate={rate:g} is not batch_size/records = {batch / records:g}")
        batch = min(max(batch, math.ceil(rate * records)), records)
    steps = _count(settings, "steps", "num_steps", "num_updates", "local_steps")
    rounds = _count(settings, "rounds", "num_rounds", "num_server_rounds", "total_rounds")
    steps, epochs = (None if one is None else one * (rounds or 1) for one in (steps, epochs))
    if rounds and steps is None and epochs is None:
        read.unbounded.append("a round has an unknown number of steps (epochs or steps are not stated)")
    accumulated = _count(settings, "gradient_accumulation_steps", "accumulation_steps", "accumulate_grad_batches")
    dropped = steps  # number of batches if the last, smaller one of an epoch is dropped
    if steps is None and epochs and records and batch:
        dropped = epochs * max(records // batch, 1)
        steps = dropped if settings.get("drop_last") is True else epochs * -(-records // batch)
    for name, value in (("records", records), ("batch_size", batch), ("epochs or steps", steps)):
        if value is None:
            read.missing.append(name)
    if accumulated and accumulated > 1 and steps:
        read.contradictions.append(f"{accumulated} accumulated batches a step: each may be clipped and noised alone")
        steps, dropped = steps * accumulated, (dropped or steps) * accumulated
    poisson = settings.get("poisson_sampling")
    sampling = "all"
    if poisson is False and settings.get("shuffle") is True and dropped and records and batch:
        sampling, steps = "shuffled", dropped
    elif poisson is False and settings.get("shuffle") is True and steps is None:
        steps = epochs  # a record takes part once in an epoch
    elif poisson is True and records and batch:
        sampling = "poisson"
    elif records and batch and steps:
        loader: tuple[tuple[str, dict[str, object]], ...] = (
            ("the same batches hold a record in every step", {"sampling": "all"}),
            (
                "batches of a shuffled pass: each record once in an epoch",
                {"sampling": "shuffled", "rounds": dropped},
            ),
        )
        if poisson is None:
            loader += (("Poisson batches (Opacus' own loader)", {"sampling": "poisson"}),)
        if steps != dropped and poisson is None:
            loader += (
                (
                    "Poisson batches, in the number of those with the last one dropped",
                    {**loader[-1][1], "rounds": dropped},
                ),
            )
        read.openings.append(
            Opening(
                name="loader: the arguments do not say which one ran",
                changes=loader,
            )
        )
    bins = ""
    if records and batch and epochs:
        bins = f"dpfed budget --unit record --sampling balls-and-bins --clients {records} --cohort {batch}"
    neighbours = "the nearest schedule with amplification"
    return read.explanation(
        "Opacus",
        sampling=sampling,
        population=records,
        cohort=batch,
        rounds=steps,
        dpfed=f"[local.record] clip_norm = {read.clip or 1:g}, noise_multiplier = {upwards(read.noise or 1)}"
        + (f"; {neighbours}: {bins}" if sampling != "poisson" and bins else ""),
    )


def _is_dp_fedavg(settings: Settings) -> bool:
    return any(name in settings for name in _NOISE)


def _dp_fedavg(settings: Settings) -> Explanation:
    """Read DP-FedAvg (or DP-SGD) by the usual names of TFF, pfl and jax_privacy."""
    records = any(name in settings for name in ("batch_size", "num_examples", "num_updates"))
    read = _Read(settings, "record" if records else "client")
    population = read.population(*_POPULATION, *_RECORDS)
    cohort = _count(settings, "clients_per_round", "cohort_size", "cohort", "batch_size")
    meant = _count(settings, "noise_cohort_size")
    if meant and cohort is None:
        read.missing.append("cohort_size (1 is used for the noise of noise_cohort_size)")
        read.openings.append(
            Opening(
                name="noise of another cohort size", changes=((f"noise for {meant}", {"noise_multiplier": 1 / meant}),)
            )
        )
    if meant and cohort and meant != cohort:
        read.contradictions.append(
            f"noise_cohort_size={meant} sizes the noise of cohorts of {meant}, and {cohort} take part: the stated "
            f"guarantee is for {meant}"
        )
        read.openings.append(
            Opening(
                name="noise of another cohort size",
                changes=(
                    (f"noise for {meant} on the sum of {cohort}", {"noise_multiplier": min(1.0, cohort / meant)}),
                ),
            )
        )
    rounds = _count(settings, *_ROUNDS, "num_updates", "num_steps", "steps")
    epochs = _count(settings, "epochs", "num_epochs", "local_epochs", "local_steps")
    if records and epochs:  # epochs of a run, or epochs or steps of a round
        batches = -(-population // cohort) if population and cohort and "local_steps" not in settings else 1
        rounds = (rounds or 1) * epochs * batches
    text = " ".join(f"{one}" for one in settings.values() if isinstance(one, str)).lower()
    if "example" in text or "num_samples" in text or settings.get("weighted") is True:
        read.weights(cohort)
    read.fewer_replies(cohort)
    if "distributed" in text or "shares" in text or "client" in str(settings.get("noise_placement", "")).lower():
        if cohort is None:
            read.unbounded.append("noise in shares of an unknown number of clients")
        read.openings.append(
            Opening(
                name="noise: in shares of the clients, whose uploads are visible",
                changes=(
                    ("each upload has a share of the noise", {"noise_multiplier": (cohort or 1) ** -0.5}),
                    ("only the sum of all shares is visible", {}),
                ),
            )
        )
    if "noise_cohort_size" in settings or "central_num_iterations" in settings:  # pfl draws users with replacement
        read.openings.append(
            Opening(
                name="users are drawn with replacement",
                changes=(
                    ("one user is the whole cohort", {"noise_multiplier": 1 / (cohort or 1)}),
                    ("each user is at most once in a cohort", {}),
                ),
            )
        )
    secret = records or any(settings.get(name) is True for name in ("secret", "secrecy", "secret_cohorts"))
    named = str(settings.get("sampling", settings.get("batch_selection_strategy", ""))).lower()
    sampling = "all"
    for name, value in (("population", population), ("cohort", cohort)):
        if value is None:
            read.missing.append(name)
    if named.startswith(("poisson", "cyclic_poisson")) and cohort and population and "cyclic" not in named and secret:
        sampling = "poisson"
    elif named in ("fixed", "uniform", "without_replacement") and cohort and population and secret:
        sampling = "fixed"
    else:
        read.sampler(
            cohort,
            population,
            ("a fixed number is drawn in secret", "fixed"),
            ("each takes part independently (Poisson), in secret", "poisson"),
        )
    read.openings.append(
        Opening(
            name="noise_multiplier: of the clip norm, or of twice the clip norm",
            changes=(
                ("it is noise over the clip norm", {}),
                ("it is noise over twice the clip norm", {"noise_multiplier": 2}),
            ),
        )
    )
    return read.explanation(
        "DP-FedAvg (TFF, pfl, jax_privacy)",
        sampling=sampling,
        population=population,
        cohort=cohort,
        rounds=rounds,
        dpfed=(
            f"dpfed budget --clients {population or 'N'} --cohort {cohort or 'M'} --rounds {rounds or 'T'} "
            f"--noise-multiplier {upwards(read.noise or 1)}"
        ),
    )


_READERS: tuple[tuple[Callable[[Settings], bool], Callable[[Settings], Explanation]], ...] = (
    (_is_filter, _filter),
    (_is_flower, _flower),
    (_is_opacus, _opacus),
    (_is_dp_fedavg, _dp_fedavg),
)
