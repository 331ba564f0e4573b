"""`dpfed plan`: a page to plan a budget with, on this machine only, or as one file. Never loads torch."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from rich.progress import Progress

from dpfed.cli.output import console, write_file
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import flag
from dpfed.planner.question import Question, opened
from dpfed.planner.whole import Whole
from dpfed.report.loopback import address_of

_NOTHING = Question()
_START = Question(clients=6000, cohort=100)


def plan(
    file: str | None = None,
    *,
    options: Question = _NOTHING,
    port: Whole = 0,
    browser: bool = True,
    static: Path | None = None,
) -> None:
    """Serve a page with sliders for epsilon, noise and rounds: curve, map, what-if, and the equivalent command.

    The page is served on 127.0.0.1 alone, under a printed address that has a secret in it. Ctrl-C ends the server.

    Example: dpfed plan --clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4

    Parameters
    ----------
    file
        A plan that the page saved, or the link that it copied.
    port
        Port to listen on; 0: any free port.
    browser
        Open a browser, if there is a display.
    static
        Write one page with a grid of answers to this file, to send or to publish, and serve nothing.
    """
    question = _start(file, options)
    if static is not None:
        _write_static(question, static)
        return
    from dpfed.planner.server import PlannerServer

    server = PlannerServer(question, port=port)
    console().print(f"{address_of(server)}   (Ctrl-C ends it)", soft_wrap=True)
    if browser and _has_display():
        webbrowser.open(address_of(server))
    with server.lane, server:
        server.serve_forever()


def _write_static(question: Question, file: Path) -> None:
    from dpfed.planner.static import static_page

    with Progress(console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task("computing the grid")
        page = static_page(question, progress=lambda done, total: bar.update(task, completed=done, total=total))
    write_file(file, page)
    console(to_stderr=True).print(f"written: {file}")


def _start(file: str | None, options: Question) -> Question:
    """Return the plan to begin with; by default 6,000 clients, 180 rounds, noise multiplier 1.4."""
    if file is not None:
        if options != _NOTHING:
            named = ", ".join(flag(name) for name in options.given)
            raise ConfigError(f"{named} beside {file}: it has all of a plan. Remove one.")
        question = opened(file)
    elif options == _NOTHING:
        question = _START.changed(rounds=180, noise_multiplier=1.4)
    else:
        question = _completed_options(options)
    question.solved  # noqa: B018  the property raises ConfigError for an invalid plan
    return question


def _completed_options(options: Question) -> Question:
    """Fill in clients, cohort, rounds and noise where they were not given."""
    clients = options.clients or _START.clients
    needs = options.cohort is None and options.sampling != "all" and options.participations is None
    cohort = min(_START.cohort or 1, clients or 1) if needs else options.cohort
    whole = options.changed(clients=clients, cohort=cohort)
    if not whole.plan().has_noise_multiplier:
        return whole if whole.epsilon is not None else whole.changed(rounds=whole.rounds or 180)
    if whole.rounds is None and (whole.epsilon is None or whole.noise_multiplier is None):
        whole = whole.changed(rounds=180)
    if whole.noise_multiplier is None and whole.epsilon is None:
        whole = whole.changed(noise_multiplier=1.4)
    return whole


def _has_display() -> bool:
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
