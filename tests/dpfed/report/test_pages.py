"""Pages load nothing, fit a telephone, follow light and dark, and say of every mark what it is; in a real browser."""

import base64
import hashlib
import re

import pytest
from browser import seen
from visits import visited

from dpfed.report.collection import collect_runs
from dpfed.report.experiment import write_experiment_report
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import DIGITS, configured

pytestmark = pytest.mark.drawn


class Pages(dict):
    """Pages by name, and the folder where their runs are."""

    def __init__(self, folder, pages):
        super().__init__(pages)
        self.folder = folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A private run's page, a run's that is not, and one over both."""

    folder = tmp_path_factory.mktemp("pages")
    more = {"fedavg": {"privacy": None}, "dp-fedavg": {}}
    for name, changes in more.items():
        config = configured("federation.rounds=4", start=DIGITS, method={"name": name}, **changes)
        write_report(federation.run(build(config), folder / name))
    over = write_experiment_report(collect_runs([folder / name for name in more]), folder / "over")
    files = {"plain": folder / "fedavg/report.html", "private": folder / "dp-fedavg/report.html", "over": over}
    return Pages(folder, {name: file.read_text() for name, file in files.items()})


def visible(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page[page.index("<main ") : page.index("<script>")]))


@pytest.mark.parametrize("name", ["plain", "private", "over"])
def test_a_page_loads_nothing_and_runs_its_own_script_only(pages, name):
    page = pages[name]
    assert len(page) < 1_000_000
    assert not re.search(r"https?:|(?:src|href)=\"(?!#)|url\((?!#)|@import", page)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src &#39;none&#39;" in page
    assert f"script-src &#39;sha256-{digest}&#39;" in page


def test_the_card_says_what_is_promised_and_what_is_not(pages):
    words = visible(pages["private"])
    for part in (
        "client-level differential privacy", "experiment: not for release", "epsilon, at most", "For whom One client",
        "one client is added or removed", "Against whom Anyone who sees the models of all rounds but does not know who",
        "The server is trusted: it sees every upload", "Not protected", "Do not release this model",
        "dpfed audit .",
        "Rounds 1 to 4: Gaussian noise, multiplier 2, clip norm 1", "Poisson sampling of 12 out of 60 clients",
    ):  # fmt: skip
        assert part in words, part
    plain = visible(pages["plain"])
    assert "not private" in plain
    assert "For whom" not in plain
    assert "Ledger" not in plain


@pytest.mark.parametrize("name", ["plain", "private", "over"])
def test_a_page_shows_no_python(pages, name):
    words = visible(pages[name]).partition("Configuration")[0]
    assert not re.search(r"\bNone\b|(?<!\")\bTrue\b|\bFalse\b|\{'|nan\b", words)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", ["private", "over", "plain"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_in_a_browser(pages, tmp_path, name, dark, width):
    found = seen(pages[name], tmp_path, width=width, dark=dark)
    assert found.console == []
    assert found.width <= width
    assert not found.small
    assert found.notes
    assert all("round 4" in note or "fedavg" in note for note in found.notes)
    light = sum(map(int, re.findall(r"\d+", found.paper)[:3])) > 600
    assert light is not dark


def test_the_browser_test_sees_what_overflows_and_what_is_blocked(pages, tmp_path):
    wide = pages["private"].replace(
        '<main data-state="done">', '<main><img src="http://127.0.0.1:9/x.png"><div style="width:600px">wide</div>'
    )
    found = seen(wide, tmp_path, width=400, dark=False)
    assert found.width > 400
    assert found.console


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_words_of_every_page_stand_out_from_their_paper(pages, tmp_path, dark):
    """WCAG's AA, for every word that can be seen; the page of an audit, too."""
    from dpfed.audit.run import audit_run
    from dpfed.report.audit import write_cards

    site = tmp_path / "site"
    write_cards([audit_run(pages.folder / "dp-fedavg")], site)
    for name, page in pages.items():
        (site / f"{name}.html").write_text(page)
    found, console = visited(
        site, sorted(file.name for file in site.glob("*.html")), tmp_path, widths=(1280, 390), dark=dark
    )
    assert len(found) == 2 * 4
    assert not console
    assert not [(one.page, one.width, one.wide, one.faint, one.error) for one in found if bad(one)]


def bad(one):
    return one.faint or one.error or one.wide > one.width
