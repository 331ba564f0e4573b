"""Suggestion of the known name closest to a given one, if one is close enough."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_ALIKE = 0.6


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'clip_norm'?" for the end of a message; empty if no known name is close."""
    found = nearest_name(name, known)
    return "" if found is None else f" Did you mean {found!r}?"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to the given one, or None.

    The order of preference: a known name that differs in hyphens and capitals only, one that begins with the given
    name, one that contains it, and one that contains its parts between hyphens. Otherwise the known name with the most
    similar letters, if they are similar enough.
    """
    wanted = _plain_name(name)
    names = sorted(known, key=lambda one: (len(one), one))
    for fits in (str.__eq__, str.startswith, str.__contains__):
        for one in names:
            if len(wanted) > 1 and fits(_plain_name(one), wanted):
                return one
    parts = [_plain_name(part) for part in re.split(r"[-_. ]", name) if len(_plain_name(part)) > 1]
    for one in names:
        if len(parts) > 1 and re.search(".*".join(parts), _plain_name(one)):
            return one
    plain = {_plain_name(one): one for one in reversed(names)}
    close = difflib.get_close_matches(wanted, plain, n=1, cutoff=_ALIKE)
    return plain[close[0]] if close else None


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
