"""One template for every page: self-contained HTML that loads nothing, with light and dark colours, also for phones."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

import jinja2
from markupsafe import Markup

from dpfed.version import __version__

_HERE = files(__package__)


def rendered(
    template: str,
    *,
    title: str,
    room: Traversable = _HERE,
    connects: bool = False,
    state: str = "done",
    scripts: Sequence[str] = (),
    style: str | None = None,
    **content: object,
) -> str:
    """Return the page of a template.

    connects: the page may send requests to its own server only; `state` changes when there is news. The template,
    `scripts` and `style` are files of `room`, or else of this folder.
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
        css=Markup(text("page.css") + (text(style) if style else "")),
        script=Markup(script),
        policy=_policy(script, connects),
        version=__version__,
        **content,
    )


def _policy(script: str, connects: bool) -> str:
    """Return the content security policy: the page may load its own style and script only."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return f"{policy}; connect-src 'self'" if connects else policy
