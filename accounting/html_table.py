"""HTML tables of results for notebooks; every name and value is escaped."""

from collections.abc import Iterable
from html import escape


def html_table(title: str, rows: Iterable[tuple[str, str]], notes: Iterable[str] = ()) -> str:
    """Return a table of names and values under a title, with notes below it."""
    body = "".join(f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<table><caption>{escape(title)}</caption>{body}</table>" + (f"<ul>{items}</ul>" if items else "")
