"""Page of the planner with one input box, and possibly a slider, for each option of a question."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from accounting.budget.gaussians import PlannedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES
from accounting.options import options_of
from dpfed.planner.question import EXAMPLES, Question
from dpfed.report.page import render_page

Choices = Sequence[tuple[str, str]]
SAMPLERS: dict[str, str] = {name: one.words for name, one in SAMPLING_CLASSES.items()}
NEIGHBOURS: dict[str, str] = {
    "": "default of the sampling",
    "add-remove": "add-remove: one client added or removed",
    "zero-out": "zero-out: one client's contribution becomes zero",
    "replace-one": "replace-one: one client is replaced by another",
}
MECHANISM_WORDS = {one.name: one.words for one in PlannedMechanism.classes if one.noise == "independent"}
assert set(NEIGHBOURS) == {"", *map(str, Adjacency)}


@dataclass(frozen=True, kw_only=True)
class InputBox:
    """Input of the page: a number, or one of several choices.

    shown_if: {option: values} under which the box is shown. slider: its smallest and largest value.
    record_hint: hint where records are the unit, if it differs."""

    name: str
    label: str
    choices: Choices = ()
    slider: tuple[float, float] | None = None
    integer_only: bool = False
    hint: str = ""
    record_hint: str = ""
    shown_if: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the script of the page reads."""
        return {"name": self.name, "whole": self.integer_only, "slider": self.slider, "when": dict(self.shown_if)}


def _taken(name: str, **shown_if: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the conditions under which an option of mechanisms is shown: a mechanism with this option is chosen."""
    known = [one.name for one in PlannedMechanism.classes if name in options_of((one,))]
    return {**shown_if, "mechanism": list(dict.fromkeys(known))}


_RECORD, _CLIENT = {"unit": ["record"]}, {"unit": ["client"]}
NUMBERS = (
    InputBox(name="rounds", label="Rounds", slider=(1, 100_000), integer_only=True),
    InputBox(
        name="noise_multiplier", label="Noise multiplier", slider=(0.1, 50), shown_if=_taken("noise_multiplier"),
        hint="standard deviation of the noise on the sum, over the clip norm",
    ),
    InputBox(name="epsilon", label="Epsilon", slider=(0.05, 50)),
)  # fmt: skip
"""Boxes of rounds, noise multiplier and epsilon: two are given, the third is the answer."""

PEOPLE = (
    InputBox(name="clients", label="Clients, such as people or hospitals", slider=(10, 100_000_000), integer_only=True),
    InputBox(
        name="unit", label="Protected",
        choices=(("client", "a client, all of its data"), ("record", "a record of a client")),
    ),
    InputBox(name="records", label="Records a client holds", integer_only=True, shown_if=_RECORD),
    InputBox(name="batch_size", label="Expected records of a batch", integer_only=True, shown_if=_RECORD),
    InputBox(
        name="local_steps", label="Local steps a round", integer_only=True, hint="empty: one pass over the records",
        shown_if=_RECORD,
    ),
    InputBox(
        name="cohort", label="Cohort: clients a round", slider=(1, 100_000_000), integer_only=True,
        shown_if={"sampling": [name for name in SAMPLERS if name != "all"], **_CLIENT},
    ),
    InputBox(name="sampling", label="Who takes part", choices=tuple(SAMPLERS.items()), shown_if=_CLIENT),
    InputBox(
        name="participations", label="Rounds a client takes part in", integer_only=True,
        shown_if={"sampling": ["allocation", "balls-and-bins"]},
    ),
    InputBox(
        name="separation", label="Least rounds from one participation to the next", integer_only=True,
        shown_if={"sampling": ["min-separation"]},
    ),
    InputBox(name="adjacency", label="Neighbours", choices=tuple(NEIGHBOURS.items()), shown_if=_CLIENT),
    InputBox(
        name="delta", label="Delta", hint="empty: the smaller of clients^-1.1 and 1e-4",
        record_hint="empty: the smaller of 1e-5 and (all records)^-1.1",
    ),
)  # fmt: skip

_INTEGERS, _BERNOULLI = _taken("scale"), _taken("edge")
_BANDED = {"noise": ["banded"], "mechanism": ["gaussian"]}
_LANES = {"sampling": ["balls-and-bins"], **_BANDED}
_CORRELATED = {"noise": ["banded", "blt"], "mechanism": ["gaussian"]}
DETAILS = (
    InputBox(name="mechanism", label="Mechanism", choices=tuple(MECHANISM_WORDS.items())),
    InputBox(
        name="noise", label="Noise over rounds", shown_if={"mechanism": ["gaussian"]},
        choices=(
            ("independent", "independent"),
            ("banded", "banded: partly cancelled in later rounds"),
            ("blt", "blt: partly cancelled, from a few buffers"),
        ),
    ),
    InputBox(
        name="bands", label="Bands", integer_only=True, hint="balls and bins: empty means one per lane",
        shown_if=_BANDED,
    ),
    InputBox(
        name="lanes", label="Lanes", integer_only=True, hint="empty: the number of least error, if epsilon is given",
        shown_if=_LANES,
    ),
    InputBox(
        name="secret_lanes", label="Lanes are", choices=(("", "public"), ("true", "secret, drawn for a run")),
        shown_if=_LANES,
    ),
    InputBox(
        name="buffers", label="Buffers", integer_only=True, hint="empty: 3",
        shown_if={"noise": ["blt"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="factorisation", label="Factorisation", shown_if=_BANDED,
        choices=(("optimised", "optimised"), ("square-root", "square root, in closed form")),
    ),
    InputBox(
        name="factorisation_power", label="Power of prefix sums", hint="empty: as the factorisation has it",
        shown_if=_BANDED,
    ),
    InputBox(name="server_momentum", label="Server momentum", hint="0 to 1", shown_if=_CORRELATED),
    InputBox(name="server_decay", label="Server's decay a round", hint="0 to 1", shown_if=_CORRELATED),
    InputBox(
        name="dropout", label="Fraction of noise that may be missing", hint="0 to 1", shown_if=_taken("dropout")
    ),
    InputBox(name="dimension", label="Coordinates, d", integer_only=True, shown_if=_taken("dimension")),
    InputBox(name="scale", label="Steps per clip norm", hint="empty: rounding adds 1%", shown_if=_INTEGERS),
    InputBox(name="rotate", label="Random rotation", choices=(("", "yes"), ("false", "no")), shown_if=_INTEGERS),
    InputBox(
        name="placement", label="Noise from", shown_if=_INTEGERS,
        choices=(("", "the clients, in shares"), ("server", "the server")),
    ),
    InputBox(
        name="cohort_cap", label="Cohort cap", integer_only=True, hint="empty: no cap, or one that is seldom reached",
        shown_if={"mechanism": ["gaussian", *_INTEGERS["mechanism"], "bernoulli-aggregate"], "sampling": ["poisson"]},
    ),
    InputBox(name="edge", label="Probabilities lie in [c, 1-c]: c", shown_if=_BERNOULLI),
    InputBox(name="clip_norm", label="L2 clip norm of the change", shown_if=_BERNOULLI),
    InputBox(name="l2_sensitivity", label="or: L2 sensitivity", shown_if=_BERNOULLI),
    InputBox(name="linf_clip", label="Clip of one coordinate", shown_if=_BERNOULLI),
    InputBox(name="noise_std", label="Standard deviation of noise on probabilities", shown_if=_BERNOULLI),
    InputBox(
        name="clip_metric", label="Metric of clip norms", shown_if=_BERNOULLI,
        choices=(("", "Euclidean"), ("fisher", "standard deviations (fisher)")),
    ),
    InputBox(
        name="others", label="Other clients", shown_if=_taken("others"),
        choices=(("", "anywhere in [c, 1-c]"), ("near-reference", "trusted to respect the clip norm")),
    ),
)  # fmt: skip


def with_labels(message: str) -> str:
    """Return an error message in which the page's labels replace the names of options."""
    labels = {box.name: f"“{box.label}”" for box in (*NUMBERS, *PEOPLE, *DETAILS)}
    flags = re.sub(r"--([a-z0-9-]+)", lambda found: labels.get(found[1].replace("-", "_"), found[0]), message)
    return re.sub(
        r"\b([a-z0-9_]+)=(?=[^\s=])", lambda found: f"{labels[found[1]]} " if found[1] in labels else found[0], flags
    )


def planner_page(
    question: Question,
    *,
    numbers: Sequence[InputBox] = NUMBERS,
    people: Sequence[InputBox] = PEOPLE,
    details: Sequence[InputBox] = DETAILS,
    grid: Mapping[str, object] | None = None,
) -> str:
    """Return the HTML page; it requests answers from its server, or reads them from `grid`."""
    known = {
        "boxes": [box.to_dict() for box in (*numbers, *people, *details)],
        "start": question.option_texts,
        "solved": question.solved_number,
        "samplers": SAMPLERS,
        "neighbours": NEIGHBOURS,
        "examples": {unit: {name: str(value) for name, value in one.items()} for unit, one in EXAMPLES.items()},
        "grid": grid,
    }
    return render_page(
        "planner.html",
        room=files(__package__),
        title="Privacy plan",
        connects=grid is None,
        scripts=("figures.js", "sources.js", "planner.js"),
        style="planner.css",
        numbers=numbers,
        people=people,
        details=details,
        grid=grid,
        known=Markup(json.dumps(known, allow_nan=False).replace("<", "\\u003c")),
    )
