"""Values that readers of other libraries' settings share, with the openings that follow from them.

A reader takes a flat dictionary of lower-case names. What the settings do not say is an opening, whose first reading is
the worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.explain.account import ASSUMED_DELTA, Explanation, Opening, Reading, Unit, explained

Settings = Mapping[str, object]
Readings = tuple[tuple[str, dict[str, object]], ...]

POPULATION = ("num_clients", "total_clients", "population", "num_supernodes", "clients", "num_nodes")
ROUNDS = ("num_server_rounds", "num_rounds", "total_rounds", "rounds", "central_num_iterations", "iterations")
CLIP = ("clipping_norm", "max_grad_norm", "clip", "clip_norm", "clipping_bound", "l2_clip_norm", "l2_norm_clip")
NOISE = ("noise_multiplier", "sigma", "noise_scale", "central_noise_scale")
DEVIATION = ("sigma", "noise_std", "noise_stddev", "stddev")
"""Names that may be a standard deviation in units of the updates, not over the clip norm."""
OTHER_MECHANISMS = {
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
RECORDS = ("num_samples", "dataset_size", "num_examples", "sample_size", "n")
DELTA = ("delta", "target_delta", "central_delta")

NEIGHBOURS = Opening(
    name="neighbours: not stated",
    changes=(
        ("replace-one: the data of one unit are replaced by any other data", {"adjacency": Adjacency.REPLACE_ONE}),
        ("zero-out: one unit's contribution is replaced by nothing", {"adjacency": Adjacency.ZERO_OUT}),
    ),
)


def number(settings: Settings, *names: str) -> float | None:
    """Return the first number with one of these names; None without one. Raises ConfigError for something else."""
    for name in names:
        if (value := settings.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise ConfigError(f"{name}={value!r}: must be a number.")
            return float(value)
    return None


def count(settings: Settings, *names: str) -> int | None:
    value = number(settings, *names)
    if value is None:
        return None
    if value < 1 or value != int(value):
        raise ConfigError(f"{names[0]}={value:g}: must be a positive whole number.")
    return int(value)


class Read:
    """Values that all readers need, with the openings and missing names that follow from them."""

    def __init__(self, settings: Settings, unit: Unit) -> None:
        self.settings, self.unit = settings, unit
        self.missing: list[str] = []
        self.contradictions: list[str] = []
        self.unbounded: list[str] = []
        self.openings: list[Opening] = []
        self.clip = self._clip_norm()
        self.noise = self._noise_multiplier()
        self.delta = number(settings, *DELTA)
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
        given = next((self.settings[name] for name in CLIP if self.settings.get(name) is not None), None)
        if not isinstance(given, list) or not given:
            return number(self.settings, *CLIP)
        layers = [number({"clip": one}, "clip") or 0.0 for one in given]
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
        given = {name: value for name in NOISE if (value := number(self.settings, name)) is not None}
        if len(set(given.values())) > 1:
            names = ", ".join(f"{name}={value:g}" for name, value in given.items())
            self.contradictions.append(f"{names}: several sizes of noise; their product, or the smallest, is used")
            return min(math.prod(given.values()), *given.values())
        for name in DEVIATION:
            value = number(self.settings, name)
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
        for word, why in OTHER_MECHANISMS.items():
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
        least = count(
            self.settings, "min_available_clients", "min_available_nodes", "min_fit_clients", "min_train_nodes",
            "report_goal", "min_reports", "min_clients",
        )  # fmt: skip
        dropout = number(self.settings, "dropout", "dropout_rate", "dropout_probability")
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
        return count(self.settings, *names)

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
