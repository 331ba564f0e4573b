"""Server of the planner's page and its answers, for this machine only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from accounting.compose.accountant import Accountant
from dpfed.planner.answer_process import AnswerProcess, SupersededQuestion
from dpfed.planner.answers import answer_job
from dpfed.planner.page import planner_page
from dpfed.planner.question import Question
from dpfed.report.loopback import LoopbackHandler, LoopbackServer

_QUICK_SECONDS = 0.06
_RETRY_SECONDS, _NEVER_RETRIED_SECONDS = 3.0, 0.5
_MOSTLY_QUICK = ("poisson", "fixed", "all", "cyclic")
_ACCOUNTANT_ORDER: tuple[Accountant, ...] = ("best", "pld", "rdp")


class AnswerTimes:
    """Seconds that each account took for its latest answer, by kind of question."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, ...], tuple[float, float]] = {}

    @contextmanager
    def measure_time(self, job: Mapping[str, object], account: Accountant) -> Iterator[None]:
        """Record the seconds that the block takes."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self._took[_timing_key(job, account)] = now - began, now

    def quick_accountants(self, job: Mapping[str, object]) -> list[Accountant]:
        """Return the accounts to try for a quick answer, in order; the last one is always quick."""
        return [account for account in _ACCOUNTANT_ORDER if self._is_quick(job, account)]

    def _is_quick(self, job: Mapping[str, Any], account: Accountant) -> bool:
        if account == "rdp":
            return True
        kind = _timing_key(job, account)
        if kind not in self._took:
            options = job["options"]
            mostly = options.get("sampling", "poisson") in _MOSTLY_QUICK and not options.get("epsilon")
            return account == "pld" and job["kind"] == "answer" and bool(mostly)
        seconds, then = self._took[kind]
        forgotten = (
            seconds < _NEVER_RETRIED_SECONDS and time.perf_counter() - then > _RETRY_SECONDS and account != "best"
        )
        return seconds < _QUICK_SECONDS or forgotten


def _timing_key(job: Mapping[str, Any], account: Accountant) -> tuple[str, ...]:
    """Return a key that is equal for jobs of about equal computing time."""
    options = job["options"]
    chosen = (options.get(name) for name in ("sampling", "mechanism", "adjacency", "noise"))
    wanted = (name for name in ("epsilon", "noise_multiplier", "rounds") if not options.get(name))
    return (account, job["kind"], *(str(one) for one in chosen), *wanted)


LARGEST_BODY = 8192
_KINDS = ("answer", "curve", "noise-multiplier", "cohort")
_MALFORMED_REQUEST = {"error": "a request must have the form {options: {...}, kind: ..., quick: ..., turn: ...}."}


class PlannerServer(LoopbackServer):
    """Server that answers quick questions itself; a separate process answers slow questions, the newest one only."""

    def __init__(self, question: Question, *, port: int) -> None:
        page = planner_page(question)
        self.answer_process, self._answer_times, self._one = AnswerProcess(), AnswerTimes(), threading.Lock()
        super().__init__(port, lambda: page, PlannerHandler)

    def quick_answer(self, job: Mapping[str, object]) -> dict[str, object]:
        """Return the answer of the tightest account that is quick enough."""
        with self._one:
            found: dict[str, Any] = {"unknown": True}
            for account in self._answer_times.quick_accountants(job):
                with self._answer_times.measure_time(job, account):
                    found = answer_job({**job, "account": account})
                if "unknown" not in found:
                    break
            return found

    def default_answer(self, job: Mapping[str, object], turn: int) -> dict[str, object]:
        """Return the answer of the default account. SupersededQuestion if a newer question arrived."""
        with self._answer_times.measure_time(job, "best"):
            return self.answer_process.ask(turn, {**job, "account": "best"})


class PlannerHandler(LoopbackHandler):
    """Handler of GET for the page and of POST for questions sent by the page; other requests are refused."""

    server: PlannerServer

    def do_POST(self) -> None:
        self.close_connection = True
        if not self.requests_path("ask") or not self._is_from_own_page():
            self.send_answer(HTTPStatus.FORBIDDEN, "Only the planner's page may send questions.")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or self.headers.get("Transfer-Encoding"):
            self.send_answer(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing.")
        elif len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
            self.send_answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"At most {LARGEST_BODY} bytes.")
        else:
            status, found = self._response(self.rfile.read(int(length)))
            self.send_answer(status, json.dumps(found, allow_nan=False), "application/json")

    def _is_from_own_page(self) -> bool:
        origins = [f"http://{name}" for name in self.server.host_names]
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        return self.headers.get("Origin") in origins and site == "same-origin" and kind == "application/json"

    def _response(self, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            job = json.loads(body.decode())
            options, kind, turn = job["options"], job["kind"], int(job["turn"])
            if not isinstance(options, dict) or kind not in _KINDS:
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return HTTPStatus.BAD_REQUEST, _MALFORMED_REQUEST
        asked = {"options": options, "kind": kind}
        try:
            found = self.server.quick_answer(asked) if job.get("quick") else self.server.default_answer(asked, turn)
        except SupersededQuestion:
            found = {"superseded": True}
        return HTTPStatus.OK, found  # errors have a body, too, because browsers report an empty answer as a failure
