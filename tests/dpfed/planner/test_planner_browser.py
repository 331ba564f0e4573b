"""The planner in a real browser: a slider moves and the number follows; no error, no overflow, at both widths and in
both themes. And the page that has its answers in it."""

import json
import re
import shlex
from itertools import pairwise

import pytest
from browser import Browser

from accounting import budget
from accounting.rounding import upwards
from dpfed.cli import status
from dpfed.planner.question import question_of, read_question
from dpfed.planner.static import static_page
from dpfed.report.loopback import page_address

START = {"clients": "600", "cohort": "10", "rounds": "12", "noise_multiplier": "1.4"}
LOOKS = [(1280, False), (390, True), (1280, True), (390, False)]


@pytest.fixture(scope="module")
def static():
    return static_page(question_of({**START, "sampling": "cyclic"}), noises=3, rounds=3)


def number(browser, name="epsilon"):
    return float(browser.run(f"document.querySelector('[data-number={name}]').textContent.replaceAll(',', '')"))


def set_to(browser, name, value):
    browser.run(
        f"(() => {{ const box = document.getElementById('{name}'); box.value = '{value}';"
        "box.dispatchEvent(new Event('options' in box ? 'change' : 'input')); })()"
    )


SETTLED = "document.getElementById('account').textContent === 'upper bound'"
COMPLETE = (
    "document.querySelectorAll('#what-if tbody tr').length > 3 && "
    "![...document.querySelectorAll('#what-if td')].some((cell) => cell.textContent === '…')"
)


def fits(browser, width):
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_slider_moves_and_the_number_follows(server, tmp_path, width, dark):
    with Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open(page_address(server))
        browser.until(SETTLED)
        before = number(browser)
        assert before == float(upwards(budget.epsilon(question_of(START).plan(), noise_multiplier=1.4, rounds=12)))
        slider = "document.getElementById('noise_multiplier-slider')"
        browser.run(f"{slider}.value = Number({slider}.value) + 100, {slider}.dispatchEvent(new Event('input'))")
        browser.until(f"{SETTLED} && Number(document.querySelector('[data-number=epsilon]').textContent) < {before}")
        z = float(browser.run("document.getElementById('noise_multiplier').value"))
        assert z > 2
        assert number(browser) == float(
            upwards(budget.epsilon(question_of(START).plan(), noise_multiplier=z, rounds=12))
        )
        browser.until("document.querySelectorAll('#map rect').length > 20")
        assert browser.run("document.querySelectorAll('#curve .line').length") == 1
        fits(browser, width)
        light = (
            sum(map(int, re.findall(r"\d+", browser.run("getComputedStyle(document.body).backgroundColor"))[:3])) > 600
        )
        assert light is not dark


@pytest.mark.slow
def test_noise_is_solved_for_and_the_plan_is_kept(server, tmp_path):
    with Browser(tmp_path, width=1280, dark=False) as browser:
        browser.open(page_address(server))
        browser.until(SETTLED)
        browser.run("document.querySelector('input[name=solved][value=noise_multiplier]').click()")
        set_to(browser, "epsilon", "2")
        browser.until(f"{SETTLED} && document.querySelector('[data-number=epsilon]').textContent.startsWith('2')")
        assert number(browser, "noise_multiplier") == pytest.approx(
            budget.noise_multiplier(question_of(START).plan(), epsilon=2.0, rounds=12), abs=1e-4
        )
        browser.until("location.hash.includes('epsilon=2&')")
        kept = read_question(browser.run("location.href"))
        assert kept.solved_number == "noise_multiplier"
        assert kept.epsilon == 2.0
        set_to(browser, "epsilon", "2,5")
        browser.until("!document.getElementById('error').hidden")
        assert "must be a number" in browser.run("document.getElementById('error').textContent")
        set_to(browser, "epsilon", "2")
        set_to(browser, "cohort", "7,000")
        browser.until("document.getElementById('error').textContent.includes('a round” 7000')")
        browser.until("!document.getElementById('error').hidden")
        assert "at most the number of clients" in browser.run("document.getElementById('error').textContent")
        browser.run("location.hash = '#clients=600&cohort=20&rounds=12&noise_multiplier=1.4'")
        browser.until(f"{SETTLED} && document.getElementById('error').hidden")
        assert browser.run("document.getElementById('cohort').value") == "20"
        browser.until(COMPLETE)
        fits(browser, 1280)


def test_a_page_of_its_own_has_what_the_command_prints(static, capsys, tables):
    assert not re.search(r"https?:|(?:src|href)=|url\(|@import", static)
    assert "connect-src" not in static
    assert {table["sampling"] for table in tables(static)} == {"cyclic", "poisson", "fixed", "all"}
    for table in tables(static):
        if table["sampling"] in ("cyclic", "all"):
            command = table["command"].format(rounds=table["rounds"][1], noise=table["noise"][1])
            assert status([*shlex.split(command)[1:], "--json"]) == 0
            assert upwards(json.loads(capsys.readouterr().out)["epsilon"]) == table["cells"][1][1]
        if table["sampling"] == "fixed":
            same = question_of({**START, "sampling": "fixed", "cohort": str(table["cohort"])}).plan()
            two = {"noise_multiplier": table["noise"][0], "rounds": table["rounds"][-1]}
            assert upwards(budget.epsilon(same, **two, accountant="pld")) == table["cells"][-1][0]
            assert "--accountant pld" in table["command"]
            assert 'accountant="pld"' in table["python"]
        rows = [[float(one) for one in row] for row in table["cells"]]
        assert all(left >= right for row in rows for left, right in pairwise(row))
        assert all(below <= above for below, above in zip(rows[0], rows[1], strict=True))


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_page_of_its_own_takes_the_next_dearer_point(static, tmp_path, width, dark):
    (tmp_path / "plan.html").write_text(static)
    with Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open(f"file://{tmp_path}/plan.html")
        plan = question_of({**START, "sampling": "cyclic"}).plan()
        for noise, rounds in ((1.4, 12), (1.69, 13), (2.9, 7), (100.0, 1)):
            set_to(browser, "noise_multiplier", noise)
            set_to(browser, "rounds", rounds)
            browser.until(f"location.hash.includes('rounds={rounds}&') && {SETTLED}")
            exact = budget.epsilon(plan, noise_multiplier=noise, rounds=rounds)
            assert number(browser) >= exact
            assert (number(browser) == float(upwards(exact))) == ((noise, rounds) == (1.4, 12))
        set_to(browser, "noise_multiplier", 0.01)
        browser.until("!document.getElementById('error').hidden")
        browser.run("document.querySelector('input[name=solved][value=noise_multiplier]').click()")
        set_to(browser, "epsilon", "3")
        browser.until(SETTLED)
        found = number(browser, "noise_multiplier"), round(number(browser, "rounds"))
        assert budget.epsilon(plan, noise_multiplier=found[0], rounds=found[1]) <= 3
        fits(browser, width)


def test_a_page_of_its_own_prints_noise_as_the_served_one(tmp_path):
    """A calibrated noise multiplier has all its digits in the command alone; read by a person it is rounded upwards."""
    asked = question_of({"clients": "600", "cohort": "10", "rounds": "12", "epsilon": "4", "sampling": "all"})
    (tmp_path / "plan.html").write_text(static_page(asked, noises=3, rounds=3))
    exact = budget.noise_multiplier(asked.plan(), epsilon=4.0, rounds=12)
    with Browser(tmp_path, width=390, dark=False) as browser:
        browser.open(f"file://{tmp_path}/plan.html")
        browser.until(SETTLED)
        shown = browser.run("document.querySelector('[data-number=noise_multiplier]').textContent")
        assert shown == upwards(exact)
        words = browser.run("document.getElementById('numbers').innerText + document.getElementById('map').innerText")
        assert not re.search(r"\d\.\d{6}", words)
        fits(browser, 390)


def test_a_page_of_its_own_has_no_answer_for_a_cohort_that_a_sampling_does_not_allow(tmp_path):
    """Two of 60 clients every 40 rounds is no plan: the only table of that sampling is that of one client a round."""
    asked = question_of({**START, "clients": "60", "cohort": "1", "sampling": "min-separation", "separation": "40"})
    (tmp_path / "plan.html").write_text(static_page(asked, noises=2, rounds=2))
    with Browser(tmp_path, width=390, dark=False) as browser:
        browser.open(f"file://{tmp_path}/plan.html")
        browser.until(SETTLED)
        set_to(browser, "cohort", "2")
        browser.until("!document.getElementById('error').hidden")
        assert "no answers for that" in browser.run("document.getElementById('error').textContent")
        set_to(browser, "sampling", "all")
        browser.until(SETTLED)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)])
def test_records_chosen_by_hand_begin_with_an_example(server, tmp_path, width, dark):
    with Browser(tmp_path, width=width, dark=dark) as browser:
        browser.open(page_address(server))
        browser.until(SETTLED)
        set_to(browser, "unit", "record")
        browser.until(f"{SETTLED} && document.getElementById('numbers').innerText.includes('of 143 records')")
        assert browser.run("document.getElementById('error').hidden")
        assert "1e-5" in browser.run("document.querySelector('[data-entry=delta]').innerText")
        fits(browser, width)


@pytest.mark.slow
def test_a_link_for_another_plan_is_refused_by_a_page_of_its_own(static, tmp_path):
    (tmp_path / "plan.html").write_text(static)
    with Browser(tmp_path, width=400, dark=False) as browser:
        browser.open(f"file://{tmp_path}/plan.html#clients=50&cohort=10&rounds=12&noise_multiplier=1.4")
        browser.until("!document.getElementById('error').hidden")
        assert "for one plan only" in browser.run("document.getElementById('error').textContent")


def test_the_browser_sees_what_is_wrong(tmp_path):
    (tmp_path / "wrong.html").write_text("<script>console.error('planted')</script><div style='width:600px'>wide</div>")
    with Browser(tmp_path, width=400, dark=False) as browser:
        browser.open(f"file://{tmp_path}/wrong.html")
        browser.run("setTimeout(() => { throw new Error('thrown') })")
        browser.until("true")
        browser.call("Runtime.evaluate", expression="new Promise((done) => setTimeout(done, 50))", awaitPromise=True)
        assert browser.run("document.documentElement.scrollWidth") > 400
        assert any("planted" in one for one in browser.complaints)
        assert any("thrown" in one for one in browser.complaints)
