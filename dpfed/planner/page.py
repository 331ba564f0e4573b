"""Page of the planner, on the template of the reports: its boxes and sliders, one for each option of a question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from accounting.budget.plan import MECHANISMS
from accounting.budget.samplings import SAMPLING_CLASSES
from accounting.mechanisms.adjacency import Adjacency
from dpfed.planner.question import Question
from dpfed.report.page import rendered

Choices = Sequence[tuple[str, str]]
_ANY, _INTEGERS = MECHANISMS, ("discrete-gaussian", "skellam")
_COINS = ("bernoulli-channel", "bernoulli-aggregate")
SAMPLERS: dict[str, str] = {
    "poisson": "Poisson: every client with the same chance, independently",
    "fixed": "fixed size: exactly this number, without replacement",
    "all": "all clients in every round",
    "balls-and-bins": "balls and bins: once in every epoch, in a secret round",
    "allocation": "allocation: in a fixed number of secret rounds",
    "min-separation": "min-separation: by chance, then a rest",
    "cyclic": "public order: clients take turns",
}
NEIGHBOURS: dict[str, str] = {
    "": "as the sampling needs",
    "add-remove": "add-remove: one client added or removed",
    "zero-out": "zero-out: one client sends zeros, as without samples",
    "replace-one": "replace-one: one client is another",
}
MECHANISM_WORDS: dict[str, str] = {
    "gaussian": "Gaussian noise from the server",
    "distributed-gaussian": "Gaussian noise in shares of the clients",
    "discrete-gaussian": "integers: discrete Gaussian noise",
    "skellam": "integers: Skellam noise",
    "bernoulli-channel": "Bernoulli samples, seen one by one",
    "bernoulli-aggregate": "Bernoulli samples, in sums",
}
assert set(SAMPLERS) == set(SAMPLING_CLASSES)
assert set(MECHANISM_WORDS) == set(MECHANISMS)
assert set(NEIGHBOURS) == {"", *map(str, Adjacency)}


@dataclass(frozen=True, kw_only=True)
class InputBox:
    """A number, or one of several choices. `when`: shown if these options have one of these values; `slider`: its
    ends.
    """

    name: str
    label: str
    choices: Choices = ()
    slider: tuple[float, float] | None = None
    whole: bool = False
    hint: str = ""
    when: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the script of the page reads."""
        return {"name": self.name, "whole": self.whole, "slider": self.slider, "when": dict(self.when)}


def _noisy(**when: Sequence[str]) -> dict[str, Sequence[str]]:
    return {"mechanism": [name for name in _ANY if name not in _COINS], **when}


NUMBERS = (
    InputBox(name="rounds", label="Rounds", slider=(1, 100_000), whole=True),
    InputBox(
        name="noise_multiplier", label="Noise multiplier", slider=(0.1, 50), when=_noisy(),
        hint="standard deviation of the noise on the sum, over the clip norm",
    ),
    InputBox(name="epsilon", label="Epsilon", slider=(0.05, 50)),
)  # fmt: skip
"""The three numbers of a plan: two are given, the third is the answer."""

PEOPLE = (
    InputBox(name="clients", label="Clients", slider=(10, 100_000_000), whole=True),
    InputBox(
        name="unit", label="Protected",
        choices=(("client", "a client, all of its data"), ("record", "a record of a client")),
    ),
    InputBox(name="records", label="Records a client holds", whole=True, when={"unit": ["record"]}),
    InputBox(name="batch_size", label="Records of a batch, expected", whole=True, when={"unit": ["record"]}),
    InputBox(
        name="local_steps", label="Local steps a round", whole=True, hint="empty: one pass", when={"unit": ["record"]}
    ),
    InputBox(
        name="cohort", label="Cohort: clients a round", slider=(1, 100_000_000), whole=True,
        when={"sampling": [name for name in SAMPLERS if name != "all"], "unit": ["client"]},
    ),
    InputBox(
        name="sampling", label="Who takes part", choices=tuple(SAMPLERS.items()), when={"unit": ["client"]}
    ),
    InputBox(
        name="participations", label="Rounds a client takes part in", whole=True,
        when={"sampling": ["allocation", "balls-and-bins"]},
    ),
    InputBox(
        name="separation", label="Rounds from one part to the next", whole=True, when={"sampling": ["min-separation"]}
    ),
    InputBox(name="adjacency", label="Neighbours", choices=tuple(NEIGHBOURS.items())),
    InputBox(name="delta", label="Delta", hint="empty: the smaller of clients^-1.1 and 1e-4"),
)  # fmt: skip

_SCALED = {"mechanism": list(_INTEGERS)}
_TOSSED = {"mechanism": list(_COINS)}
DETAILS = (
    InputBox(name="mechanism", label="Mechanism", choices=tuple(MECHANISM_WORDS.items())),
    InputBox(
        name="noise", label="Noise over rounds", when={"mechanism": ["gaussian"]},
        choices=(
            ("independent", "independent"),
            ("banded", "banded: taken back over rounds"),
            ("blt", "blt: taken back from a few buffers"),
        ),
    ),
    InputBox(
        name="bands", label="Bands", whole=True, hint="balls and bins: empty for the number of lanes",
        when={"noise": ["banded"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="lanes", label="Lanes", whole=True, hint="empty: those of least error, if epsilon is given",
        when={"sampling": ["balls-and-bins"], "noise": ["banded"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="secret_lanes", label="Lanes are", choices=(("", "public"), ("true", "secret, drawn for a run")),
        when={"sampling": ["balls-and-bins"], "noise": ["banded"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="buffers", label="Buffers", whole=True, hint="empty: 3",
        when={"noise": ["blt"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="factorisation", label="Factorisation", when={"noise": ["banded"], "mechanism": ["gaussian"]},
        choices=(("optimised", "optimised"), ("square-root", "square root, in closed form")),
    ),
    InputBox(
        name="factorisation_power", label="Power of prefix sums", hint="empty: the factorisation",
        when={"noise": ["banded"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="server_momentum", label="Server momentum", hint="0 to 1",
        when={"noise": ["banded", "blt"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="server_decay", label="Server's decay a round", hint="0 to 1",
        when={"noise": ["banded", "blt"], "mechanism": ["gaussian"]},
    ),
    InputBox(
        name="dropout", label="Share of noise that may be missing", hint="0 to 1",
        when={"mechanism": ["distributed-gaussian", *_INTEGERS]},
    ),
    InputBox(name="dimension", label="Coordinates, d", whole=True, when={"mechanism": [*_INTEGERS, *_COINS]}),
    InputBox(name="scale", label="Steps per clip norm", hint="empty: rounding adds 1%", when=_SCALED),
    InputBox(name="rotate", label="Random rotation", choices=(("", "yes"), ("false", "no")), when=_SCALED),
    InputBox(
        name="placement", label="Noise from", when=_SCALED,
        choices=(("", "the clients, in shares"), ("server", "the server")),
    ),
    InputBox(
        name="cohort_cap", label="Cohort cap", whole=True, hint="empty: none, or seldom reached",
        when={"mechanism": ["gaussian", *_INTEGERS, "bernoulli-aggregate"], "sampling": ["poisson"]},
    ),
    InputBox(name="edge", label="Probabilities lie in [c, 1-c]: c", when=_TOSSED),
    InputBox(name="clip_norm", label="Clip of the move, L2", when=_TOSSED),
    InputBox(name="l2_sensitivity", label="or L2 sensitivity itself", when=_TOSSED),
    InputBox(name="linf_clip", label="Clip of one coordinate", when=_TOSSED),
    InputBox(name="noise_std", label="Noise on probabilities, std", when=_TOSSED),
    InputBox(
        name="clip_metric", label="Clips are measured", when=_TOSSED,
        choices=(("", "in plain distance"), ("fisher", "in standard deviations (fisher)")),
    ),
    InputBox(
        name="others", label="Other clients", when={"mechanism": ["bernoulli-aggregate"]},
        choices=(("", "anywhere in [c, 1-c]"), ("near-reference", "trusted to keep to the clip")),
    ),
)  # fmt: skip


def planner_page(
    question: Question,
    *,
    numbers: Sequence[InputBox] = NUMBERS,
    people: Sequence[InputBox] = PEOPLE,
    details: Sequence[InputBox] = DETAILS,
    grid: Mapping[str, object] | None = None,
) -> str:
    """Return the page, which requests answers from its server, or uses a `grid` of answers."""
    known = {
        "boxes": [box.to_dict() for box in (*numbers, *people, *details)],
        "start": question.texts,
        "solved": question.solved,
        "samplers": SAMPLERS,
        "neighbours": NEIGHBOURS,
        "grid": grid,
    }
    return rendered(
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
