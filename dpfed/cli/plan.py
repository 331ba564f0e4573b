"""`dpfed plan`: serve a page for planning a budget on this machine, or write it as one file. Never loads torch."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from rich.progress import Progress

from dpfed.cli.output import console, write_file
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import option_flag, solve_budget
from dpfed.planner.question import Question, read_question
from dpfed.planner.whole_numbers import WholeNumber
from dpfed.report.loopback import page_address

_NO_OPTIONS = Question()
_PAGE = Parameter(group=Group("Page", sort_key=50))
_TARGET = Parameter(group=Group("Targets in place of --epsilon", sort_key=51))


def plan(
    file: Annotated[str | None, _PAGE] = None,
    *,
    options: Question = _NO_OPTIONS,
    port: Annotated[WholeNumber, _PAGE] = 0,
    browser: Annotated[bool, _PAGE] = True,
    static: Annotated[Path | None, _PAGE] = None,
    advantage: Annotated[float | None, _TARGET] = None,
    tpr: Annotated[float | None, _TARGET] = None,
    fpr: Annotated[float | None, _TARGET] = None,
) -> None:
    """Serve a page with sliders for epsilon, noise and rounds: curve, map, what-if, and the equivalent command.

    The page is served on 127.0.0.1 only; the printed address contains a secret. Ctrl-C stops the server.

    Example: dpfed plan --clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4

    Parameters
    ----------
    file
        A plan file saved by the page, or a link copied from it.
    port
        Port to listen on; 0: any free port.
    browser
        Open a browser, if there is a display.
    static
        Write one page with a grid of answers to this file, for sending or publishing, and serve nothing.
    advantage
        A target in place of --epsilon: the largest advantage of any membership test. The page starts from its noise.
    tpr
        A target in place of --epsilon, with --fpr: the largest true positive rate of any membership test.
    fpr
        The false positive rate at which --tpr holds.
    """
    given = {"advantage": advantage, "tpr": tpr, "fpr": fpr}
    targets = {name: value for name, value in given.items() if value is not None}
    question = _starting_question(file, _options_of_targets(options, targets) if targets else options)
    if static is not None:
        _write_static(question, static)
        return
    from dpfed.planner.server import PlannerServer

    server = PlannerServer(question, port=port)
    console().print(f"{page_address(server)}   (Ctrl-C ends it)", soft_wrap=True)
    if browser and _has_display():
        webbrowser.open(page_address(server))
    with server.answer_process, server:
        server.serve_forever()


def _options_of_targets(options: Question, targets: Mapping[str, float]) -> Question:
    """Return the options with the number that keeps the targets: noise multiplier, or rounds."""
    found = solve_budget(
        options.plan(), options.rounds, options.noise_multiplier, options.epsilon, "best", "improved", targets=targets
    )
    return options.with_options(noise_multiplier=found.noise_multiplier, rounds=found.rounds)


def _write_static(question: Question, file: Path) -> None:
    from dpfed.planner.static import static_page

    with Progress(console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task("computing the grid")
        page = static_page(question, progress=lambda done, total: bar.update(task, completed=done, total=total))
    write_file(file, page)
    console(to_stderr=True).print(f"written: {file}")


def _starting_question(file: str | None, options: Question) -> Question:
    """Return the plan that the page shows first; missing numbers are those of an example."""
    if file is not None:
        if options != _NO_OPTIONS:
            named = ", ".join(option_flag(name) for name in options.given_options)
            raise ConfigError(f"{named} beside {file}: the file or link describes the whole plan. Remove one.")
        question = read_question(file)
    else:
        question = options.with_example
    question.solved_number  # noqa: B018  the property raises ConfigError for an invalid plan
    return question


def _has_display() -> bool:
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
