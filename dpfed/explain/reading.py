"""Values that readers of other libraries' settings share, with the openings that follow from them.

A reader takes a flat dictionary of lower-case names. What the settings do not say is an opening, whose first reading is
the worst.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from typing import Any

from accounting import require
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.explain import account
from dpfed.explain.account import ASSUMED_DELTA, Explanation, Opening, Reading, Unit

Settings = Mapping[str, object]
Change = tuple[str, dict[str, Any]]
"""Reading of an opening: what it means, and fields of `Reading`."""

POPULATION = (
    "num_clients", "total_clients", "population", "population_size", "num_supernodes", "clients", "num_nodes",
    "num_users", "total_users", "n_clients", "client_num_in_total",
)  # fmt: skip
FEDERATED_ROUNDS = (
    "num_server_rounds", "num_rounds", "total_rounds", "rounds", "n_rounds", "communication_rounds", "comm_rounds",
    "comm_round", "global_rounds",
)  # fmt: skip
ROUNDS = (*FEDERATED_ROUNDS, "central_num_iterations", "iterations", "num_compositions")
STEPS = (
    "steps", "num_steps", "max_steps", "total_steps", "train_steps", "training_steps", "num_updates",
    "num_training_updates", "max_iterations",
)  # fmt: skip
EPOCHS = ("epochs", "num_epochs", "n_epochs", "num_train_epochs")
BATCH = (
    "batch_size", "expected_batch_size", "train_batch_size", "per_device_train_batch_size", "lot_size",
    "logical_batch_size", "virtual_batch_size",
)  # fmt: skip
PASS = ("steps_per_epoch", "batches_per_epoch")
COHORT = (
    "num_sampled_clients", "clients_per_round", "expected_clients_per_round", "cohort_size", "cohort",
    "client_num_per_round",
)  # fmt: skip
RECORD_CLIP = (
    "max_grad_norm", "l2_norm_clip", "per_sample_max_grad_norm", "per_example_max_grad_norm",
    "max_per_sample_grad_norm",
)  # fmt: skip
CLIP = (
    "clipping_norm", "clip", "clip_norm", "clipping_bound", "l2_clip_norm", "initial_clipping_norm",
    "initial_l2_norm_clip", "initial_clipping_bound", *RECORD_CLIP,
)  # fmt: skip
COUNT_NOISE = ("clipped_count_stddev", "unclipped_num_std", "clipping_indicator_noise_stddev")
DEVIATION = ("sigma", "noise_std", "noise_stddev", "stddev")
"""Names that may be a standard deviation in units of the updates, not over the clip norm."""
NOISE = (
    "noise_multiplier", "sigma", "noise_scale", "central_noise_scale", "noise_parameter", "relative_noise_stddev",
)  # fmt: skip
_SIZES = {*NOISE, *DEVIATION}
BANDS = ("num_bands", "bands", "min_separation", "bandwidth")
RECORDS = ("num_samples", "dataset_size", "num_examples", "sample_size", "n")
DELTA = ("delta", "target_delta", "central_delta")
_MATRIX, _TREE = (
    "bands|blt|band_?mf|banded|toeplitz|matrix_?(fac|mech)|dp_?mf|min_separation|correlated",
    "ftrl|tree",
)
_ADAPTIVE = "|".join(
    ("adaptive|adaclip|clipped_?quantile|clipping_norm_quantile|initial_(clip|l2)|clip_norm_lr", *COUNT_NOISE)
)
_AGAIN = "units are drawn with replacement, so one may be many times in a batch"
_ALONE = "{} is clipped alone, so the norm of an update grows with their number"
OTHER_MECHANISMS = {
    "laplac": "Laplace noise on L2-clipped updates has no bound",
    "(?<![a-z])l_?inf": _ALONE.format("each coordinate"),
    "per_?layer|layer_?wise": _ALONE.format("each layer"),
    "per_?param": _ALONE.format("each parameter"),
    "weighted_?random": "a record may be drawn many times into one batch",
    "bulyan|qfedavg|fedxgb|fedrdf": "updates are not averaged, and this reader has no bound for the rule of the server",
    "noise_?(schedul|decay|gamma|anneal)|(exponential|step|lambda)_?noise|sigma_?decay": (
        "the noise changes over rounds, and its smallest size is not stated"
    ),
    "quantiz|qsgd|terngrad|rand_?k(?![a-z])": "updates may be lengthened by an unknown amount after the clip",
    "^with_?replacement": _AGAIN,
    "clipping_only": "no noise is added",
    "zeroing": "thresholds that drop updates are computed from updates, without noise",
}
"""Patterns in names or values of settings for which nothing here bounds epsilon."""
_LARGEST = 1e100
"""Largest size of a number of settings; the inverse of the smallest one above 0."""
_OFF = (False, None, 0, "none", "off", "no", "false")
_PARTS = "dp|differential_privacy|privacy|clipping|noise"
_SWITCH = re.compile(
    f"((use|enable|with|add|is)_)?({_PARTS}|private)(_enabled)?|enabled|((central_)?privacy_)?mechanism"
)
_DISABLING = re.compile(f"(disable|no|without)_({_PARTS})")

NEIGHBOURS = Opening(
    name="neighbours: not stated",
    changes=(
        ("replace-one: the data of one unit are replaced by any other data", {"adjacency": Adjacency.REPLACE_ONE}),
        ("zero-out: one unit's contribution is replaced by nothing", {"adjacency": Adjacency.ZERO_OUT}),
    ),
)


_SHARES = (
    *DELTA, "fraction_train", "fraction_fit", "dropout", "dropout_rate", "dropout_probability", "beta",
    "target_clipped_quantile",
)  # fmt: skip
_NOT_NEGATIVE = (*_SHARES, "clip_norm_lr")


def stated_number(settings: Settings, *names: str) -> float | None:
    """Return the first number with one of these names; None without one. Raises ConfigError for something else.

    Only a clip norm may be infinite. Sizes are limited so that products and quotients of settings are finite.
    """
    for name in names:
        if (value := settings.get(name)) is not None:
            least, most = 0 if name in _NOT_NEGATIVE else -_LARGEST, 1 if name in _SHARES else _LARGEST
            if not require.is_number(value) or not (least <= value <= most or (name in CLIP and value == math.inf)):
                raise ConfigError(f"{name}={require.short_repr(value)}: must be a number from {least:g} to {most:g}.")
            if 0 < abs(value) < 1 / _LARGEST:
                raise ConfigError(f"{name}={value}: must be 0, or a number of at least {1 / _LARGEST:g}.")
            return float(value)
    return None


def number_or(settings: Settings, name: str, usual: float) -> float:
    """Return the number with this name, or the usual one if it is not stated."""
    found = stated_number(settings, name)
    return usual if found is None else found


def count(settings: Settings, *names: str) -> int | None:
    """Return the first whole number with one of these names; None without one. Raises ConfigError for others."""
    for name in names:
        if (value := stated_number(settings, name)) is not None:
            if not 1 <= value <= require.LARGEST_COUNT or value != int(value):
                raise ConfigError(f"{name}={value:g}: must be a positive whole number, at most 1e+15.")
            return int(value)
    return None


def largest_count(settings: Settings, *names: str) -> int | None:
    """Return the largest whole number with one of these names; None without one."""
    return max((value for name in names if (value := count(settings, name)) is not None), default=None)


def product_of_counts(*counts: int | None) -> int | None:
    """Return the product of the counts that are known; None if none is."""
    known = [one for one in counts if one is not None]
    return math.prod(known) if known else None


def noise_of_sum_alone(noise: float, count_std: float) -> float:
    """Return the factor on a multiplier of sum and count together that gives that of the sum (Andrew et al. 2021)."""
    return (1 - (noise / (2 * count_std)) ** 2) ** -0.5 if 0 < noise < 2 * count_std else 1.0


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
        self.delta = min((one for name in DELTA if (one := stated_number(settings, name)) is not None), default=None)
        if self.noise is None:
            self.missing.append("noise_multiplier")
            self.unbounded.append("the size of the noise is not stated")
        elif self.noise <= 0:
            self.unbounded.append("no noise is added")
        if self.clip is None:
            self.missing.append("clip norm")
            self.unbounded.append("updates are not clipped, so one of them may be of any size")
        elif not 0 < self.clip < math.inf:
            self.unbounded.append(f"the clip norm is {'infinite' if self.clip > 0 else 'not above 0'}")
        if self.delta == 0:
            self.unbounded.append("delta is 0, at which Gaussian noise has no epsilon")
        self._find_other_mechanisms()
        if self.delta is None:
            self.missing.append(f"delta ({upwards(ASSUMED_DELTA)} is used)")

    def _clip_norm(self) -> float | None:
        """Return the clip norm; of a list, one for each layer, the norm of all, with the opening of its noise."""
        given = next((one for name in CLIP if isinstance(one := self.settings.get(name), list) and one), None)
        numbers = {name: one for name in CLIP if not isinstance(one := self.settings.get(name), list)}
        stated = [one for name in numbers if (one := stated_number(numbers, name)) is not None]
        if given is None:
            return max(stated, default=None)
        layers = [stated_number({"clip": one}, "clip") or 0.0 for one in given]
        self.leave_open(
            "clip norms of layers: noise over each one, or over the norm of all",
            ("each layer has noise over its own clip norm", {"noise_multiplier": len(layers) ** -0.5}),
            ("all layers have noise over the norm of all clip norms", {}),
        )
        return max([math.hypot(*layers), *stated])

    def leave_open(self, name: str, *changes: Change) -> None:
        """Add an opening with these readings, the worst for privacy first."""
        self.openings.append(Opening(name=name, changes=changes))

    def _noise_multiplier(self) -> float | None:
        """Return the smallest multiplier that the names of noise state; None without one."""
        stated = [(value, name) for name in DEVIATION if (value := stated_number(self.settings, name)) is not None]
        given = {name: value for name in NOISE if (value := stated_number(self.settings, name)) is not None}
        if "noise_parameter" in given and "noise_scale" in given:  # of pfl, whose scale is a factor
            given["noise_parameter"] *= given.pop("noise_scale")
        elif given.keys() == {"noise_scale"} and any("epsilon" in name for name in self.settings):
            given.clear()  # of pfl, a factor on noise of unknown size
        if len(set(given.values())) > 1:
            names = ", ".join(f"{name}={value:g}" for name, value in given.items())
            self.contradictions.append(f"{names}: several sizes of noise; their product, or the smallest, is used")
        multiplier = min(math.prod(set(given.values())), *given.values()) if given else None
        if not stated or not self.clip or math.isinf(self.clip):
            return multiplier
        value, name = min(stated)
        if multiplier is not None and given.keys() != {"sigma"}:  # beside a multiplier, whichever is smaller
            return min(multiplier, value, value / self.clip)
        readings: list[Change] = [
            (f"{name} is a standard deviation in units of the updates", {"noise_multiplier": 1 / self.clip}),
            (f"{name} is over the clip norm", {}),
        ]
        if self.clip != 1:
            self.leave_open(f"{name}: over the clip norm or not", *readings[:: 1 if self.clip > 1 else -1])
        return value

    def _find_other_mechanisms(self) -> None:
        """Add what the settings name and this reader has no account of, and clipping of whole batches."""
        on = [pair for pair in self.settings.items() if pair[1] not in _OFF]
        off = [name for name, value in self.settings.items() if value in _OFF and value is not None]
        if any(map(_SWITCH.fullmatch, off)) or any(_DISABLING.fullmatch(name) for name, _ in on):
            self.unbounded.append("differential privacy, its noise or its clip norm is turned off")
        texts = [str(one).lower() for pair in on for one in pair if isinstance(one, str | list)]
        texts = [text.replace("-", "_").replace(" ", "_") for text in texts if "://" not in text]
        if str(self.settings.get("norm_type")).lower() in ("inf", "infinity", "max"):
            texts.append("linf")
        for pattern, why in OTHER_MECHANISMS.items():
            if "layer" in pattern and isinstance(self.settings.get("max_grad_norm"), list):
                continue  # its norms are read
            if any(re.search(pattern, text) for text in texts):
                self.unbounded.append(why)
        self.adaptive, self.banded, self.tree = (
            any(re.search(pattern, text) for text in texts) for pattern in (_ADAPTIVE, _MATRIX, _TREE)
        )
        self.only_tree = any("tree" in text for text in texts)
        self.usual_count: float | None = None
        stated_twice = any(
            len({str(one) for name in names if (one := self.settings.get(name)) is not None}) > 1
            for names in ((*POPULATION, *RECORDS), (*ROUNDS, *STEPS, *EPOCHS), BATCH, COHORT, _SIZES, DELTA)
        )
        # no reading is a lower bound of what ran
        self.only_above = self.adaptive or self.banded or self.tree or stated_twice
        self.neighbours = NEIGHBOURS
        if self.adaptive and any(name in self.settings for name in DEVIATION):
            self.unbounded.append("noise of a fixed size on updates whose clip norm moves")
        for name in ("per_sample", "per_sample_clip", "per_example", "per_sample_gradients"):
            if self.settings.get(name, True) in _OFF:
                self.unbounded.append("gradients of whole batches are clipped, not those of records")
        if True in (self.settings.get("replacement"), self.settings.get("replace")):
            self.unbounded.append(_AGAIN)

    def least_replies(self, cohort: int | None) -> int | None:
        """Return the smallest number of replies below the cohort that the settings allow; None without one."""
        least = count(
            self.settings, "min_available_clients", "min_available_nodes", "min_fit_clients", "min_train_nodes",
            "report_goal", "min_reports", "min_clients",
        )  # fmt: skip
        dropout = stated_number(self.settings, "dropout", "dropout_rate", "dropout_probability")
        if cohort is None or cohort <= 1 or (not dropout and (least is None or least >= cohort)):
            return None
        return 1 if dropout or least is None else least

    def mean(self, cohort: int | None, replies: int | None, *, weighted: bool, certain: bool = False) -> None:
        """Add the opening of the weights of a mean whose noise is meant for the cohort.

        replies: smallest number of replies, if it may be below the cohort; `certain` if they are never more
        weighted: True if weights may be numbers of examples; one client has at most the weight 1, so that both together
            are no worse than the weights alone
        """
        if cohort is None:
            if weighted:
                self.unbounded.append("weights by numbers of examples, in a cohort of unknown size")
            return
        changes: list[Change] = []
        if weighted and cohort > 1:
            alone = {"noise_multiplier": 1 / cohort, "left_out_moves_twice": True}
            changes.append(("one client has nearly all examples of the cohort", alone))
        if replies is not None:
            few = {"noise_multiplier": replies / cohort}
            changes.append((f"a mean of {replies} replies has noise that is meant for {cohort}", few))
        if changes and not certain:
            best = ["all of the cohort reply"] * (replies is not None) + ["all weights are equal"] * weighted
            changes.append((" and ".join(best), {}))
        if changes:
            names = ["weights by numbers of examples"] * weighted + ["number of replies"] * (replies is not None)
            self.leave_open(" and ".join(names), *changes)

    def adaptive_clip(self, usual: float | None, shift: float) -> None:
        """Add the opening of a clip norm that moves by a noisy count of clipped updates.

        usual: standard deviation of the count's noise if it is not stated; None if nothing says it. shift: factor by
        which noise that is correlated over rounds hides less
        """
        deviation = stated_number(self.settings, *COUNT_NOISE)
        deviation = usual if deviation is None else deviation
        if deviation is None or deviation <= 0:
            self.unbounded.append("the noise on the count of clipped updates, by which the clip norm moves, is unknown")
            return
        if "clipping_indicator_noise_stddev" in self.settings:  # of pfl, whose indicators are -1 and 1
            deviation /= 2
        beside = {"count_std": deviation / shift}
        together = {**beside, "noise_multiplier": noise_of_sum_alone(self.noise or 0.0, deviation)}
        self.leave_open(
            "adaptive clip norm: noise on the count of clipped updates",
            (f"noise of {deviation:g} on the count, beside the noise on the sum", beside),
            ("the noise multiplier is that of sum and count together", together),
        )

    def correlated(self, rounds: int) -> float:
        """Add the opening of noise that is correlated over rounds; return the largest factor by which it hides less.

        Claim: the factor is the largest shift of all rounds over that of one. A unit in all rounds moves the sums of a
        tree's nodes by the nodes' sizes. It moves C X, C lower triangular with b bands, by at most min(r, b) in row r
        if coefficients are at most 1, and by sqrt(b T) in all if columns have norm 1.
        Source: Denisov et al. 2022, Theorem 2.1: updates may depend on earlier releases.
        """
        bands = min(largest_count(self.settings, *BANDS) or rounds, rounds)
        found: list[tuple[str, float]] = []
        if self.tree:
            nodes = sum(rounds // 2**level * 4**level for level in range(rounds.bit_length()))
            found += [
                ("sums over the nodes of a binary tree, a unit in every round", math.sqrt(nodes)),
                ("sums over the nodes of a binary tree, a unit in one round", math.sqrt(rounds.bit_length())),
            ]
        if self.banded or not self.only_tree:
            whole = bands * (bands + 1) * (2 * bands + 1) // 6  # squares of the first rows
            rows = math.sqrt(whole + (rounds - bands) * bands**2)
            found += [
                (f"{bands} bands of coefficients up to 1, a unit in every round", rows),
                (f"{bands} bands, columns of norm 1, a unit in every round", math.sqrt(bands * rounds)),
                (f"{bands} bands, columns of norm 1, a unit in every {bands}th round", math.sqrt(-(-rounds // bands))),
            ]
        found.sort(key=lambda pair: -pair[1])
        self.openings = [one for one in self.openings if not one.name.startswith(("sampler", "loader"))]
        changes = [(words, {"noise_multiplier": 1 / shift}) for words, shift in found]
        self.leave_open("noise: correlated over rounds, by an unstated matrix", *changes)
        return found[0][1]

    def population(self, *names: str) -> int | None:
        """Return the smallest number with one of these names, None if it is missing."""
        return min((one for name in names if (one := count(self.settings, name)) is not None), default=None)

    def sampler(self, cohort: int | None, population: int | None, *kinds: tuple[str, str]) -> None:
        """Add the opening of the sampler: everyone in every round, then the given pairs of text and kind."""
        if cohort is not None and population is not None and cohort < population:
            everyone = ("all units take part in every round", "all")
            changes = [(words, {"sampling": kind}) for words, kind in (everyone, *kinds)]
            self.leave_open("sampler: who takes part is not stated", *changes)

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
        """Return the explanation of the settings, over all that the openings leave open.

        Claim: epsilon is at least that of every combination of the openings' readings, so an upper bound for whichever
        of them ran. `at_least` is the smallest lower bound of all combinations, a lower bound for whichever ran; it is
        0 if the population is not known, because sampling may then amplify by any factor.
        Source: enumeration of all combinations.
        Adjacency: that of the worst combination.
        Direction of error: outwards.
        """
        if rounds is None:
            self.missing.append("rounds (epsilon is that of one round)")
        shift = 1.0
        if self.banded or self.tree:
            shift = self.correlated(rounds or 1)
            sampling, rounds = "all", 1
        if self.adaptive:
            self.adaptive_clip(self.usual_count, shift)
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
        openings = (*self.openings, self.neighbours)
        every = account.all_readings(reading, openings)
        worst = account.largest_reading(every)
        best = [one.changes[-1][0] for one in openings]

        def epsilon(numbers: Container[int]) -> float:
            return math.inf if self.unbounded else account.closed(reading, openings, numbers).epsilon()

        is_lower = None not in (population, cohort) and not self.only_above
        return Explanation(
            library=library,
            stated=dict(self.settings),
            worst=worst,
            epsilon=math.inf if self.unbounded else worst.epsilon(),
            at_least=account.smallest_lower_bound(every) if is_lower else 0.0,
            openings=openings,
            alone=tuple((words, epsilon({number})) for number, words in enumerate(best)),
            steps=tuple(
                (f"{'and ' if number else ''}{words}", epsilon(range(number + 1))) for number, words in enumerate(best)
            ),
            missing=tuple(self.missing),
            contradictions=tuple(self.contradictions),
            unbounded=tuple(dict.fromkeys(self.unbounded)),
            dpfed=dpfed,
        )
