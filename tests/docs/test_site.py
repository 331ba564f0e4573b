"""The site that `make docs` builds: no dead link, nothing from the network; every page in a real browser."""

import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from visits import visited

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site here: make docs")
sys.path.insert(0, str(SITE.parents[1]))
import search_words  # noqa: E402


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


@needs_site
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


@needs_site
def test_no_page_shows_how_it_was_written():
    """Notation that no tool understood, or the machine where the site was built."""
    for name in pages():
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", (SITE / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\{code-cell\}|:tags:|\]\([\w./-]+\.md", text), name


@needs_site
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


@pytest.mark.parametrize("query", search_words.THREADS)
def test_the_words_of_a_thread_are_on_the_page_that_answers_it(query):
    """The site's search wants every word of a query in one page, or among its search words."""
    name = search_words.THREADS[query]
    text = (SITE.parents[1] / f"{name}.md").read_text() + " " + search_words.KEYWORDS.get(name, "")
    assert set(query.split()) - {"of", "a"} <= set(re.findall(r"[\w-]+", text.lower())), name


@needs_site
def test_the_search_index_has_the_words_of_the_threads():
    """Words of the index are stems, of at least half a word; whole queries are entries, which come first."""
    text = (SITE / "searchindex.js").read_text()
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    terms = (*index["terms"].items(), *index["titleterms"].items())
    for query, name in search_words.THREADS.items():
        number = index["docnames"].index(name)
        assert number in [place[0] for place in index["indexentries"][query]], query
        stems = {stem for stem, found in terms if found == number or (isinstance(found, list) and number in found)}
        for word in set(re.findall(r"\w+", query)) - {"of", "a"}:
            assert any(stem.startswith(word[: max(3, len(word) // 2)]) for stem in stems), (query, word, name)
