"""The planner's page, on the template of the reports: with a server behind it, or with a grid of answers in it."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from dpfed.planner.answers import texts
from dpfed.planner.form import DETAILS, NEIGHBOURS, NUMBERS, PEOPLE, SAMPLERS, InputBox
from dpfed.planner.question import Question
from dpfed.report.page import rendered


def planner_page(question: Question) -> str:
    """The page that asks its server."""
    return _page(NUMBERS, PEOPLE, DETAILS, question, connects=True)


def page_of_grid(question: Question, boxes: tuple[InputBox, ...], grid: dict[str, Any]) -> str:
    """The page that has its answers in it; `boxes`: rounds, noise and epsilon first."""
    return _page(boxes[:3], boxes[3:], (), question, connects=False, grid=grid)


def _page(
    numbers: tuple[InputBox, ...],
    people: tuple[InputBox, ...],
    details: tuple[InputBox, ...],
    question: Question,
    *,
    connects: bool,
    grid: dict[str, Any] | None = None,
) -> str:
    boxes = (*numbers, *people, *details)
    known = {
        "boxes": [box.to_dict() for box in boxes],
        "start": texts(question),
        "solved": question.solved,
        "samplers": SAMPLERS,
        "neighbours": NEIGHBOURS,
        "grid": grid,
    }
    return rendered(
        "planner.html",
        title="Privacy plan",
        connects=connects,
        scripts=("hover.js", "planner_figures.js", "planner_sources.js", "planner.js"),
        style="planner.css",
        numbers=numbers,
        people=people,
        details=details,
        grid=grid,
        known=Markup(json.dumps(known, allow_nan=False).replace("<", "\\u003c")),
    )
