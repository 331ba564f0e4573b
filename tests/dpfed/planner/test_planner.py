"""What the planner states is what `dpfed budget` and the Python lines beside it give; quick answers are above it."""

import dataclasses
import io
import json
import os
import re
import shlex
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from accounting import budget
from accounting.budget import compare
from dpfed.cli import status
from dpfed.cli.plan import _starting_question
from dpfed.errors import ConfigError
from dpfed.planner.answers import answer_job, axis_values, brief_epsilon, epsilon_curve, epsilon_map, planner_answer
from dpfed.planner.page import DETAILS, NUMBERS, PEOPLE, planner_page
from dpfed.planner.question import OPTIONS, Question, question_of, read_question
from dpfed.planner.static import static_page

from .test_static import PLANS

DOCS = Path(__file__).parents[3] / "docs"
PAPER = {"clients": "6000", "cohort": "100"}
FORWARD = {**PAPER, "rounds": "180", "noise_multiplier": "1.4"}
COINS = {"mechanism": "bernoulli-aggregate", "dimension": "1000", "edge": "0.1", "clip_norm": "1.0"}
QUESTIONS = [
    FORWARD,
    {**PAPER, "rounds": "180", "epsilon": "1.01"},
    {**PAPER, "noise_multiplier": "1.4", "epsilon": "1.01", "delta": "1e-5"},
    {"clients": "600", "rounds": "180", "noise_multiplier": "1.3", "sampling": "balls-and-bins", "participations": "3"},
    {**FORWARD, "sampling": "cyclic", "adjacency": "zero-out"},
    {**FORWARD, "noise": "banded", "bands": "6"},
    {"clients": "600", "rounds": "9", "noise_multiplier": "9", "sampling": "all", "mechanism": "distributed-gaussian",
     "dropout": "0.1"},
    {**FORWARD, "mechanism": "skellam", "dimension": "1000", "rotate": "false"},
    {**PAPER, **COINS, "rounds": "2"},
    {**PAPER, **COINS, "epsilon": "2.5", "sampling": "fixed"},
]  # fmt: skip


def printed_by_python(lines):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(lines, {})
    return float(out.getvalue())


def stated(question):
    found = planner_answer(question)
    return found, found[found["solved"]]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("options", [*QUESTIONS, {**FORWARD, "sampling": "fixed"}])
def test_the_command_and_the_lines_give_the_number_of_the_page(options, capsys):
    found, number = stated(question_of(options))
    assert status([*shlex.split(found["command"])[1:], "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    for name in ("epsilon", "noise_multiplier", "rounds", "delta", "adjacency", "notes"):
        assert record[name] == found[name], name
    assert printed_by_python(found["python"]) == number
    assert float(found["shown"]["epsilon"]) >= found["epsilon"]


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("options", QUESTIONS)
def test_quick_answers_are_on_the_safe_side(options):
    question = question_of(options)
    for account in ("rdp", "pld"):
        quick = answer_job({"kind": "answer", "options": options, "account": account})
        if "unknown" in quick:
            continue
        best = planner_answer(question)
        assert quick["quick"]
        solved = best["solved"]
        less, more = (quick, best) if solved == "rounds" else (best, quick)
        assert less[solved] <= more[solved] * (1 + 1e-6)


@pytest.mark.slow
def test_what_if_rows_are_those_of_compare():
    question = question_of({**FORWARD, "rounds": "30"})
    best = {}
    for row in compare(question.plan(), noise_multiplier=1.4, rounds=30):
        key = row.plan.sampling.name, str(row.plan.adjacency)
        if row.valid:
            best[key] = min(row.epsilon, best.get(key, float("inf")))
    lines = planner_answer(question)["others"]
    assert {line["sampling"] for line in lines} >= {"fixed", "all", "balls-and-bins", "allocation", "min-separation"}
    for line in lines:
        key = line["sampling"], line["adjacency"]
        if key in best and line["sampling"] != "fixed":
            assert planner_answer(question_of(line["options"]))["epsilon"] == pytest.approx(best[key], rel=1e-9)


def test_the_curve_ends_beyond_the_plan_and_has_its_point():
    question = question_of(FORWARD)
    for account in ("rdp", "best"):
        points = epsilon_curve(question, account=account)["points"]
        assert [point[0] for point in points] == sorted({point[0] for point in points})
        assert points[-1][0] == 216
        (own,) = (point for point in points if point[0] == 180)
        assert own[1] == planner_answer(question, account=account)["epsilon"]


@pytest.mark.parametrize("over", ["noise-multiplier", "cohort"])
def test_the_map_has_the_plan_and_upper_bounds(over):
    question = question_of(FORWARD)
    found = epsilon_map(question, over, account="rdp")
    column, row = found["here"]
    value, short, words = found["cells"][row * len(found["across"]) + column]
    assert value == planner_answer(question, account="rdp")["epsilon"]
    assert float(short) >= value
    assert float(words.removeprefix("epsilon ")) >= value
    assert len(found["cells"]) == len(found["across"]) * len(found["up"])


def test_the_map_over_cohorts_has_lanes_of_each_cohort():
    """Planted once: the three lanes of the plan's 15 rounds, which do not divide an epoch of four rounds."""
    options = {"clients": "60", "sampling": "balls-and-bins", "noise": "banded", "bands": "2", "rounds": "3"}
    question = question_of({**options, "factorisation": "square-root", "cohort": "4", "noise_multiplier": "4"})
    found = epsilon_map(question, "cohort", account="rdp")
    assert [value for value, _, _ in found["cells"] if value is None] == []


@pytest.mark.parametrize("epsilon", [0.0, 1e-7, 0.0700001, 0.5, 1.23001, 9.996, 12.301, 104.01, 999.0])
def test_short_numbers_are_rounded_upwards(epsilon):
    assert float(brief_epsilon(epsilon)) >= epsilon
    assert len(brief_epsilon(epsilon)) <= 5
    assert [brief_epsilon(1000.1), brief_epsilon(float("inf"))] == [">999", "∞"]


def test_axes_have_their_middle_and_their_end():
    assert 1.4375 in axis_values(1.4375, 9, whole=False, most=float("inf"))
    assert axis_values(3, 9, whole=True, most=4) == [1.0, 2.0, 3.0, 4.0]


def test_every_option_of_a_question_is_on_the_page():
    boxes = [box.name for box in (*NUMBERS, *PEOPLE, *DETAILS)]
    assert sorted(boxes) == sorted(field.name for field in dataclasses.fields(Question))


@pytest.mark.parametrize("options", [*QUESTIONS, {}])
def test_a_plan_comes_back_from_its_file_and_its_link(options, tmp_path):
    question = question_of(options)
    file = tmp_path / "plan.json"
    file.write_text(question.to_json())
    assert read_question(str(file)) == question
    assert read_question(f"http://127.0.0.1:1234/#{urlencode(question.option_texts)}") == question


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": "many"}, "--clients 'many': must be a whole number"),
        ({"clients": "6000.5"}, "must be a whole number"),
        ({"sampling": "lottery"}, "must be one of poisson"),
        ({"rotate": "perhaps"}, "true or false"),
        ({"epsilon": "a lot"}, "must be a number"),
        ({"epsilom": "1"}, "no option of a plan"),
        ({"cohort": ["1"]}, "must be a whole number"),
    ],
)
def test_what_no_plan_has_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        question_of(options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**FORWARD, "epsilon": "1"}, "give exactly two of"),
        (PAPER, "give exactly two of"),
        ({**FORWARD, "cohort": "7000"}, "at most the number of clients"),
        ({**FORWARD, "rounds": "0"}, "“Rounds” 0"),
        ({**FORWARD, "noise_multiplier": "nan"}, "“Noise multiplier” nan"),
        ({**FORWARD, "sampling": "allocation"}, "“Rounds a client takes part in” is missing"),
        ({**FORWARD, "edge": "0.1"}, "Remove it"),
        ({"cohort": "5"}, "hospitals” is missing"),
        ({**PAPER, **COINS, "rounds": "5", "noise_multiplier": "1"}, "Bernoulli samples: it requires Gaussian noise"),
        ({"unit": "record", "clients": "5"}, "“Records a client holds” is missing: “Protected” record needs it."),
        ({**FORWARD, "clients": "50"}, "“Cohort: clients a round” 100 of “Clients, such as people or hospitals” 50"),
        ({**FORWARD, "rounds": ""}, "“Rounds”, “Noise multiplier” and “Epsilon”"),
    ],
)
def test_what_describes_no_plan_is_one_message_with_the_labels_of_the_page(options, words):
    message = answer_job({"kind": "answer", "options": options, "account": "best"})["error"]
    assert words in message
    assert "--" not in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json"], "cannot be read"),
        (["{odd}"], "holds no plan"),
        (["{plan}", "--clients", "5"], "--clients beside"),
        (["--clients", "50", "--cohort", "60"], "at most the number of clients"),
        (["--rounds", "5", "--noise-multiplier", "1", "--epsilon", "1"], "give exactly two"),
        (["--port", "99999"], "--port 99999"),
        (["--mechanism", "skellam", "--static", "{out}"], "dimension is missing"),
        (["#clients=x"], "--clients 'x'"),
        (["--clients", "9", "--noise", "banded", "--bands", "2", "--separation", "0"], "separation=0: must be a whole"),
        (["--clients", "9", "--participations", "1", "--rounds", "0"], "rounds must be a multiple"),
        (["--clients", str(10**400), "--participations", "1", "--rounds", "1"], "clients=1000"),
        (["{pipe}"], "is a FIFO"),
    ],
)
def test_a_bad_start_is_one_message(arguments, words, tmp_path, capsys):
    (tmp_path / "odd.json").write_text('{"format": "something else"}')
    (tmp_path / "plan.json").write_text(Question(clients=9, cohort=3, rounds=1, epsilon=1.0).to_json())
    os.mkfifo(tmp_path / "pipe.json")
    here = {name: str(tmp_path / f"{name}.json") for name in ("odd", "plan", "out", "pipe")}
    assert status(["plan", *(one.format(**here) for one in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_what_is_not_said_is_begun_with():
    assert _starting_question(None, Question()).given_options == {
        "clients": 6000,
        "cohort": 100,
        "rounds": 180,
        "noise_multiplier": 1.4,
    }
    assert _starting_question(None, Question(clients=50)).given_options == {
        "clients": 50, "cohort": 50, "rounds": 180, "noise_multiplier": 1.4,
    }  # fmt: skip
    assert _starting_question(None, Question(epsilon=2.0)).solved_number == "noise_multiplier"
    assert _starting_question(None, Question(epsilon=2.0, noise_multiplier=1.0)).solved_number == "rounds"
    assert _starting_question(None, question_of(COINS)).given_options["rounds"] == 180


def test_a_page_of_records_begins_with_hospitals_and_has_their_words():
    found = planner_answer(_starting_question(None, Question(unit="record")))
    assert found["population"] == "10 clients of 143 records each, 1,430 in all; each record is protected."
    assert found["each_round"] == "2 steps each, on about 72 of 143 records"
    assert found["others"] == []


@pytest.mark.parametrize(
    ("clients", "cohort", "noise", "few"),
    [(5, 5, 5.47, True), (99, 10, 1.1, True), (99, 10, 1.0, False), (100, 5, 9, False)],
)
def test_few_clients_are_warned_of(clients, cohort, noise, few):
    plan = Question(clients=clients, cohort=cohort, sampling="all" if clients == cohort else "poisson").plan()
    notes = budget.solve(plan, noise_multiplier=noise, rounds=3).notes
    assert any("few clients" in note for note in notes) is few


def test_central_data_have_one_client():
    question = question_of(
        {"unit": "record", "records": "60000", "batch_size": "256", "rounds": "10", "noise_multiplier": "1"}
    )
    assert question.plan().clients == 1
    assert planner_answer(question)["population"].startswith("1 client of 60,000 records")


def test_the_page_takes_every_budget_of_the_docs():
    """The hospitals' plan was refused by the page that its tutorial names."""
    taken = 0
    for words in map(str.split, PLANS):
        options, k = {}, 0
        while k < len(words):
            name = words[k].removeprefix("--").replace("-", "_")
            valued = k + 1 < len(words) and not words[k + 1].startswith("--")
            options[name] = words[k + 1] if valued else "true"
            k += 2 if valued else 1
        known = {name: value for name, value in options.items() if name in OPTIONS}
        if len(known) == len(options):
            assert _starting_question(None, question_of(known)).solved_number
            taken += 1
    assert taken > 15


@pytest.mark.parametrize("page", [planner_page, partial(static_page, noises=2, rounds=2)])
def test_a_plan_says_that_public_samples_alone_may_do_as_well(page):
    words = re.sub(r"<.*?>", "", page(question_of(FORWARD)))
    assert "Public samples that resemble the clients' may alone do as well or better, without any epsilon;" in words
    assert "each run with data.public states their score" in words
    guide = (DOCS / "choose.md").read_text()
    assert "**Public samples first.**" in guide
    assert "may give more than a private run" in guide
