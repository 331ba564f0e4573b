"""One look for every page: self-contained HTML that loads nothing, follows the light or dark of its reader, and fits a
telephone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from dpfed import __version__


def rendered(
    template: str,
    *,
    title: str,
    connects: bool = False,
    state: str = "done",
    scripts: Sequence[str] = (),
    style: str | None = None,
    **content: Any,
) -> str:
    """The page of a template in this folder. `connects`: it may ask its own server, and nothing else; `state`: what
    changes when there is news. `scripts` and `style` are more files of this folder."""
    script = "".join(_text(name) for name in scripts)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        title=title,
        state=state,
        css=Markup(_text("page.css") + (_text(style) if style else "")),
        script=Markup(script),
        policy=_policy(script, connects),
        version=__version__,
        **content,
    )


def _policy(script: str, connects: bool) -> str:
    """What the page may load: its own style and this very script."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return f"{policy}; connect-src 'self'" if connects else policy


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
