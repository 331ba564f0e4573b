"""`dpfed plan --static` takes every plan of the documentation; its cells are upper bounds between grid points, too."""

import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from accounting import budget
from dpfed.cli import status
from dpfed.planner.question import question_of
from dpfed.planner.static import static_page

ROOT = Path(__file__).parents[3]
ONLY_PRINTED = ("--compare", "--papers", "--second-opinion")
"""Options of `dpfed budget` that add to its output, and describe no plan."""


def documented_plans():
    """Options of every `dpfed budget` line of README and docs, but those of a project's ledger."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
            found += re.findall(r"^(?:!|\$ )?dpfed budget (--[^|>\n]*)", block, flags=re.MULTILINE)
        found += re.findall(r"`dpfed budget (--mechanism[^`]*)`", page.read_text())
    lines = {" ".join(shlex.split(line, comments=True)) for line in found if "--ledger" not in line}
    return sorted(
        {re.sub(r" --certificate \w+", "", " ".join(w for w in one.split() if w not in ONLY_PRINTED)) for one in lines}
    )


PLANS = documented_plans()
QUICK = [one for one in PLANS if re.search(r"--unit record|skellam|bernoulli", one)]


def test_the_documented_plans_are_found():
    assert len(PLANS) > 15
    assert len(QUICK) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("options", PLANS)
def test_every_documented_plan_is_a_page(options, tmp_path, capsys, tables, monkeypatch):
    """Pages of three noises and three rounds; larger ones have more cells of the same account."""
    monkeypatch.setattr("dpfed.planner.static.static_page", partial(static_page, noises=3, rounds=3))
    assert status(["plan", "--static", str(tmp_path / "page.html"), *options.split()]) == 0, capsys.readouterr().err
    assert tables((tmp_path / "page.html").read_text())


def as_question(options):
    words = options.split()
    return question_of({w[2:].replace("-", "_"): v for w, v in zip(words[::2], words[1::2], strict=True)})


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("options", QUICK[::-1])
def test_cells_are_what_the_plan_gives_and_bounds_between(options, tables):
    """Plans without plain Gaussian noise: cells by `accounting`, and random points below them, by a seed."""
    question, draws = as_question(options), np.random.default_rng(0)
    (table,) = tables(static_page(question, noises=3, rounds=2))
    plan, noises = question.plan(rounds=None), table["noise"]
    for r, count in enumerate(table["rounds"]):
        for c, z in enumerate(noises):
            exact = budget.epsilon(plan, noise_multiplier=z, rounds=count)
            assert exact <= float(table["cells"][r][c]) <= 1.001 * exact + 1e-3
            if z is not None and c + 1 < len(noises) and exact < 1e6:
                between = float(draws.uniform(z, noises[c + 1]))
                assert budget.epsilon(plan, noise_multiplier=between, rounds=count) <= float(table["cells"][r][c])


def test_the_shares_of_noise_that_must_arrive_are_a_condition(tables):
    """The variance of a share differs between grid points, and its note is on no page."""
    options = "--clients 60 --cohort 20 --sampling fixed --mechanism skellam --dimension 4 --dropout 0.25"
    (table,) = tables(static_page(as_question(f"{options} --rounds 2 --noise-multiplier 2"), noises=2, rounds=2))
    assert "holds if at least 15 of 20 noise shares are present" in table["notes"]
