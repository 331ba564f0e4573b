"""Which accounts are quick enough to answer while a slider moves, from how long they took a moment ago."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accounting.compose.accountant import Accountant

SOON = 0.06
_TRIED_AGAIN, _AWFUL = 3.0, 0.5
_MOSTLY_QUICK = ("poisson", "fixed", "all", "cyclic")
_FIRST: tuple[Accountant, ...] = ("best", "pld", "rdp")


class Pace:
    """Seconds that each account took last, for each kind of question."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, ...], tuple[float, float]] = {}

    @contextmanager
    def measured(self, job: Mapping[str, Any], account: Accountant) -> Iterator[None]:
        """Remembers what is computed within."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self._took[_kind_of(job, account)] = now - began, now

    def quick_ones(self, job: Mapping[str, Any]) -> list[Accountant]:
        """The accounts to ask in turn; the last is always quick."""
        return [account for account in _FIRST if self._is_quick(job, account)]

    def _is_quick(self, job: Mapping[str, Any], account: Accountant) -> bool:
        if account == "rdp":
            return True
        kind = _kind_of(job, account)
        if kind not in self._took:
            options = job["options"]
            mostly = options.get("sampling", "poisson") in _MOSTLY_QUICK and not options.get("epsilon")
            return account == "pld" and job["kind"] == "answer" and bool(mostly)
        seconds, then = self._took[kind]
        forgotten = seconds < _AWFUL and time.perf_counter() - then > _TRIED_AGAIN and account != "best"
        return seconds < SOON or forgotten


def _kind_of(job: Mapping[str, Any], account: Accountant) -> tuple[str, ...]:
    """What takes about as long."""
    options = job["options"]
    chosen = (options.get(name) for name in ("sampling", "mechanism", "adjacency", "noise"))
    wanted = (name for name in ("epsilon", "noise_multiplier", "rounds") if not options.get(name))
    return (account, job["kind"], *(str(one) for one in chosen), *wanted)
