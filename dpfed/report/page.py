"""One template for every page: self-contained HTML that loads nothing, with light and dark colours, also for phones."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import jinja2
from markupsafe import Markup

from accounting.ledger.regular_file import LARGEST_LINES, open_input
from dpfed.version import __version__

_HERE = files(__package__)
_HEAD = 2000
"""Bytes of a page in which its subject and its title are."""
_OLDER_AUDIT = "an audit of a version without subjects"


def rendered(
    template: str,
    *,
    title: str,
    room: Traversable = _HERE,
    connects: bool = False,
    state: str = "done",
    scripts: Sequence[str] = (),
    style: str | None = None,
    subject: str = "",
    **content: object,
) -> str:
    """Return the page of a template.

    connects: the page may send requests to its own server only; `state` changes when there is news. subject: text that
    differs between pages of one kind (`places_for`). The template, `scripts` and `style` are files of `room`, or
    else of this folder.
    """

    def text(name: str) -> str:
        file = room / name
        return (file if file.is_file() else _HERE / name).read_text(encoding="utf-8")

    script = "".join(text(name) for name in scripts)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        title=title,
        state=state,
        subject=_hashed(subject) if subject else "",
        css=Markup(text("page.css") + (text(style) if style else "")),
        script=Markup(script),
        policy=_policy(script, connects),
        version=__version__,
        **content,
    )


def places_for(folder: Path, page: str, *others: str, subject: str) -> list[Path]:
    """Return paths in `folder` for a page and the files beside it, so that no page of another subject is overwritten.

    The names are as given, or end in -2, -3, ... (audit-2.html) where files of another subject have these names. A page
    of an older version has no subject: an audit's is overwritten.
    """
    for number in itertools.count(1):
        places = [folder / (name if number == 1 else _numbered(name, number)) for name in (page, *others)]
        if not any(one.exists() for one in places) or _subject_of(places[0]) in (_hashed(subject), _OLDER_AUDIT):
            return places
    raise AssertionError


def _numbered(name: str, number: int) -> str:
    file = Path(name)
    return f"{file.stem}-{number}{file.suffix}"


def _subject_of(page: Path) -> str | None:
    """Return the subject in the head of a page, `_OLDER_AUDIT`, or None for a file that is no page of an audit."""
    try:
        with open_input(page, at_most=LARGEST_LINES) as file:
            head = file.read(_HEAD).decode("utf-8", errors="replace")
    except OSError:
        return None
    if found := re.search(r'<meta name="subject" content="([0-9a-f]+)">', head):
        return found[1]
    return _OLDER_AUDIT if "<title>Audit" in head else None


def _hashed(subject: str) -> str:
    return hashlib.sha256(subject.encode()).hexdigest()[:16]


def _policy(script: str, connects: bool) -> str:
    """Return the content security policy: the page may load its own style and script only."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return f"{policy}; connect-src 'self'" if connects else policy
