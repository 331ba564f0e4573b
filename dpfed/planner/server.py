"""The planner's page and its answers, for this machine only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from accounting.compose.accountant import Accountant
from dpfed.planner.answers import done
from dpfed.planner.lane import Lane, Superseded
from dpfed.planner.page import planner_page
from dpfed.planner.question import Question
from dpfed.report.loopback import LoopbackHandler, LoopbackServer

_SOON = 0.06
_TRIED_AGAIN, _AWFUL = 3.0, 0.5
_MOSTLY_QUICK = ("poisson", "fixed", "all", "cyclic")
_FIRST: tuple[Accountant, ...] = ("best", "pld", "rdp")


class Pace:
    """Seconds that each account took last, for each kind of question."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, ...], tuple[float, float]] = {}

    @contextmanager
    def measured(self, job: Mapping[str, object], account: Accountant) -> Iterator[None]:
        """Measure the time of the block."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self._took[_kind_of(job, account)] = now - began, now

    def quick_ones(self, job: Mapping[str, object]) -> list[Accountant]:
        """Return the accounts to try in turn; the last is always quick."""
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
        return seconds < _SOON or forgotten


def _kind_of(job: Mapping[str, Any], account: Accountant) -> tuple[str, ...]:
    """Return a key for jobs that take about equally long."""
    options = job["options"]
    chosen = (options.get(name) for name in ("sampling", "mechanism", "adjacency", "noise"))
    wanted = (name for name in ("epsilon", "noise_multiplier", "rounds") if not options.get(name))
    return (account, job["kind"], *(str(one) for one in chosen), *wanted)


LARGEST_BODY = 8192
_KINDS = ("answer", "curve", "noise-multiplier", "cohort")
_ODD = {"error": "a request of the planner's page is {options: {...}, kind: ..., quick: ..., turn: ...}."}


class PlannerServer(LoopbackServer):
    """Server that answers quick questions at once, and others by a process in which newer questions end older ones."""

    def __init__(self, question: Question, *, port: int) -> None:
        page = planner_page(question)
        self.lane, self._pace, self._one = Lane(), Pace(), threading.Lock()
        super().__init__(port, lambda: page, PlannerHandler)

    def soon(self, job: Mapping[str, object]) -> dict[str, object]:
        """Return the answer by the tightest account that is quick enough."""
        with self._one:
            found: dict[str, Any] = {"unknown": True}
            for account in self._pace.quick_ones(job):
                with self._pace.measured(job, account):
                    found = done({**job, "account": account})
                if "unknown" not in found:
                    break
            return found

    def later(self, job: Mapping[str, object], turn: int) -> dict[str, object]:
        """Return the answer by the default account. Superseded if a newer question arrived."""
        with self._pace.measured(job, "best"):
            return self.lane.ask(turn, {**job, "account": "best"})


class PlannerHandler(LoopbackHandler):
    """Handler of GET for the page and POST for a question from the page; other requests are refused."""

    server: PlannerServer

    def do_POST(self) -> None:
        self.close_connection = True
        if not self.is_for("ask") or not self._by_the_page():
            self.answer(HTTPStatus.FORBIDDEN, "Only the planner's own page may ask.")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or self.headers.get("Transfer-Encoding"):
            self.answer(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing.")
        elif len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"At most {LARGEST_BODY} bytes.")
        else:
            status, found = self._found(self.rfile.read(int(length)))
            self.answer(status, json.dumps(found, allow_nan=False), "application/json")

    def _by_the_page(self) -> bool:
        origins = [f"http://{name}" for name in self.server.names]
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        return self.headers.get("Origin") in origins and site == "same-origin" and kind == "application/json"

    def _found(self, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            job = json.loads(body.decode())
            options, kind, turn = job["options"], job["kind"], int(job["turn"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return HTTPStatus.BAD_REQUEST, _ODD
        if not isinstance(options, dict) or kind not in _KINDS:
            return HTTPStatus.BAD_REQUEST, _ODD
        asked = {"options": options, "kind": kind}
        try:
            found = self.server.soon(asked) if job.get("quick") else self.server.later(asked, turn)
        except Superseded:
            found = {"superseded": True}
        return HTTPStatus.OK, found  # a body even for an error: browsers complain without one
