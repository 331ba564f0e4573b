"""The site that `make docs` builds: no dead link, nothing from the network; every page in a real browser."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from visits import visited

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site here: make docs")


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places = [], [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "source", "iframe"):
            self.loads += [given[key] for key in ("href", "src", "srcset") if given.get(key)]


@cache
def page(file):
    return Page(file.read_text(encoding="utf-8"))


def pages():
    found = (file.relative_to(SITE) for file in SITE.rglob("*.html"))
    return sorted(file.as_posix() for file in found if not {"_static", "_modules"} & set(file.parts))


def leads_somewhere(name, link):
    target, place = urldefrag(link)
    file = (SITE / name).parent / unquote(target.partition("?")[0]) if target else SITE / name
    if not file.exists():
        return False
    return not place or file.suffix != ".html" or unquote(place) in page(file).places


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere():
    assert len(pages()) > 40
    dead, foreign = [], []
    for name in pages():
        here = page(SITE / name)
        dead += [
            (name, link) for link in here.links + here.loads if not has_scheme(link) and not leads_somewhere(name, link)
        ]
        foreign += [(name, link) for link in here.loads if has_scheme(link) and not link.startswith("data:")]
    assert not dead
    assert not foreign
    assert not leads_somewhere("index.html", "nowhere.html")
    assert not leads_somewhere("index.html", "quickstart.html#nowhere")


def has_scheme(link):
    return re.match(r"[a-z]+:|//", link) is not None


def test_no_page_shows_how_it_was_written():
    """Notation that no tool understood, or the machine where the site was built."""
    for name in pages():
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", (SITE / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\{code-cell\}|:tags:|\]\([\w./-]+\.md", text), name


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_every_page_in_a_browser(tmp_path, dark):
    found, console = visited(SITE, [*pages(), "search.html?q=epsilon"], tmp_path, widths=(1280, 400), dark=dark)
    assert len(found) == 2 * (len(pages()) + 1)
    assert not console
    assert not [one for one in found if one.error]
    assert not [(one.page, one.width, one.beyond) for one in found if one.wide > one.width]
    assert not {one.page: one.faint for one in found if one.faint}
    assert all(one.results for one in found if "?q=" in one.page)
    assert all((sum(map(int, re.findall(r"\d+", one.paper)[:3])) < 300) is dark for one in found)


def test_the_visit_finds_what_is_wrong(tmp_path):
    (tmp_path / "bad.html").write_text(
        '<!doctype html><body style="background:#fff"><p style="color:#999">pale</p><p>plain</p>'
        '<div style="width:900px">wide</div><img src="missing.png"><script>missing()</script>'
    )
    found, console = visited(tmp_path, ["bad.html"], tmp_path, widths=(400,), dark=False, patience=60)
    assert [one.wide > 400 for one in found] == [True]
    assert [words.split(">")[1].strip() for words in found[0].faint] == ["pale"]
    assert len(console) >= 2
