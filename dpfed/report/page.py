"""Rendering of every page from a template: self-contained HTML in light and dark colours, also for small screens."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from accounting.ledger.regular_file import LARGEST_LINES, open_input
from dpfed.version import __version__

_HERE = files(__package__)
_HEAD = 2000
"""Number of bytes at the start of a page that contain its subject and its title."""


def render_page(
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
    """Return the HTML page of a template.

    connects: True if the page may send requests to its own server; `state` changes whenever the content does. subject:
    text that distinguishes pages of one kind (`free_paths`). The template, `scripts` and `style` are files of the
    folder `room`, or else of this folder.
    """

    def text(name: str) -> str:
        file = room / name
        return (file if file.is_file() else _HERE / name).read_text(encoding="utf-8")

    script = "".join(text(name) for name in scripts)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["code"] = code_marked
    return environment.get_template(template).render(
        title=title,
        state=state,
        subject=_subject_hash(subject) if subject else "",
        css=Markup(text("page.css") + (text(style) if style else "")),
        script=Markup(script),
        policy=_content_security_policy(script, connects),
        version=__version__,
        **content,
    )


def code_marked(text: str) -> Markup:
    """Return a text as HTML in which `words between backticks` are code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # an odd number of backticks marks nothing
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def free_paths(folder: Path, page: str, *others: str, subject: str) -> list[Path]:
    """Return paths in `folder` for a page and its other files, such that no page of a different subject is overwritten.

    The names are as given, or end in -2, -3, ... (audit-2.html) if files of a different subject have the names.
    """
    names = [folder / name for name in (page, *others)]
    places, number = names, 1
    while any(one.exists() for one in places) and _page_subject(places[0]) != _subject_hash(subject):
        number += 1
        places = [one.with_stem(f"{one.stem}-{number}") for one in names]
    return places


def _page_subject(page: Path) -> str | None:
    """Return the subject hash in the head of a page, None if there is none."""
    try:
        with open_input(page, at_most=LARGEST_LINES) as file:
            head = file.read(_HEAD).decode("utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'<meta name="subject" content="([0-9a-f]+)">', head)
    return None if found is None else found[1]


def _subject_hash(subject: str) -> str:
    return hashlib.sha256(subject.encode()).hexdigest()[:16]


def _content_security_policy(script: str, connects: bool) -> str:
    """Return the content security policy, which allows only the page's inline style and this script."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return f"{policy}; connect-src 'self'" if connects else policy
