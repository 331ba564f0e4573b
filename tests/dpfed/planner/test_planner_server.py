"""The planner's server answers its own page on this machine, and nobody else; a newer question ends an older one's."""

import http.client
import json
import threading
import time

import pytest

from dpfed.planner.answer_process import AnswerProcess, SupersededQuestion
from dpfed.planner.answers import planner_answer
from dpfed.planner.question import question_of
from dpfed.planner.server import LARGEST_BODY, AnswerTimes

START = {"clients": "6000", "cohort": "100", "rounds": "20", "noise_multiplier": "1.4"}
SLOW = {**START, "rounds": "2000", "sampling": "fixed", "epsilon": "3", "noise_multiplier": ""}


def asked(server, body, path=None, method="POST", **changes):
    port = server.server_address[1]
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {
        "Host": f"127.0.0.1:{port}",
        "Origin": f"http://127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(text)),
    }
    named = {name.replace("_", "-"): value.replace("PORT", str(port)) for name, value in changes.items() if value}
    headers = {name: value for name, value in {**headers, **named}.items() if changes.get(name.replace("-", "_"), "x")}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path or f"/{server.secret}/ask", skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(text)
    response = connection.getresponse()
    found = response.read().decode()
    connection.close()
    return response.status, found


def question(kind="answer", *, options=START, quick=True, turn=1):
    return {"kind": kind, "options": options, "quick": quick, "turn": turn}


def test_the_page_is_there_and_asks_nobody_else(server):
    code, page = asked(server, b"", f"/{server.secret}/", method="GET")
    assert code == 200
    assert "connect-src &#39;self&#39;" in page
    assert server.secret not in page


@pytest.mark.parametrize("kind", ["answer", "curve", "noise-multiplier", "cohort"])
def test_an_answer_is_json(server, kind):
    code, text = asked(server, question(kind))
    assert code == 200
    found = json.loads(text)
    assert found["account"]
    if kind == "answer":
        assert found["epsilon"] >= planner_answer(question_of(START))["epsilon"]


def test_the_default_account_answers_as_the_command(server):
    code, text = asked(server, question(quick=False, turn=2))
    assert code == 200
    assert json.loads(text)["epsilon"] == planner_answer(question_of(START))["epsilon"]


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/ask", {}),
        ("/wrong/ask", {}),
        ("/{secret}/", {}),
        ("/{secret}/ask?x=1", {}),
        ("/{secret}/ask", {"Host": "evil.example"}),
        ("/{secret}/ask", {"Host": "127.0.0.1"}),
        ("/{secret}/ask", {"Host": ""}),
        ("/{secret}/ask", {"Origin": "http://evil.example"}),
        ("/{secret}/ask", {"Origin": "null"}),
        ("/{secret}/ask", {"Origin": ""}),
        ("/{secret}/ask", {"Origin": "http://localhost:1"}),
        ("/{secret}/ask", {"Content_Type": "text/plain"}),
        ("/{secret}/ask", {"Sec_Fetch_Site": "cross-site"}),
    ],
)
def test_nobody_else_is_answered(server, path, changes):
    code, words = asked(server, question(), path.format(secret=server.secret), **changes)
    assert code == 403
    assert "epsilon" not in words


@pytest.mark.parametrize(
    ("body", "changes", "code"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"\xff", {}, 400),
        (b"[" * 5000, {}, 400),
        (b'{"kind": "answer", "options": {}, "turn": "x"}', {}, 400),
        (b'{"kind": "files", "options": {}, "turn": 1}', {}, 400),
        (b'{"kind": "answer", "options": [], "turn": 1}', {}, 400),
        (b'{"kind": "answer", "options": {}, "turn": 1e999}', {}, 400),
        (b"x" * (LARGEST_BODY + 1), {}, 413),
        (b"{}", {"Content_Length": "99999999999999999999"}, 413),
        (b"{}", {"Content_Length": "-1"}, 411),
        (b"{}", {"Content_Length": ""}, 411),
        (b"{}", {"Transfer_Encoding": "chunked"}, 411),
    ],
)
def test_what_is_no_question_is_refused(server, body, changes, code):
    assert asked(server, body, **changes)[0] == code


@pytest.mark.parametrize("quick", [True, False])
def test_a_plan_without_an_answer_is_one_message(server, quick):
    code, text = asked(server, question(options={**START, "cohort": "7000"}, quick=quick, turn=3))
    assert code == 200
    assert "at most the number of clients" in json.loads(text)["error"]


@pytest.mark.slow
def test_a_newer_question_ends_the_job_of_an_older_one():
    ended = []
    with AnswerProcess() as answer_process:

        def ask():
            try:
                answer_process.ask(1, {"kind": "answer", "options": SLOW, "account": "best"})
            except SupersededQuestion:
                ended.append(time.monotonic())

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        assert answer_process.ask(2, {"kind": "answer", "options": START, "account": "best"})["rounds"] == 20
        thread.join(10)
        assert ended
        with pytest.raises(SupersededQuestion):
            answer_process.ask(1, {"kind": "answer", "options": START, "account": "best"})
        process = answer_process._process
    assert process.poll() is not None


@pytest.mark.slow
def test_a_computation_that_ends_by_itself_is_one_message_and_another_begins():
    with AnswerProcess() as answer_process:
        answer_process._process.kill()
        assert (
            "the process of this computation was killed"
            in answer_process.ask(1, {"kind": "answer", "options": START, "account": "best"})["error"]
        )
        assert answer_process.ask(1, {"kind": "answer", "options": START, "account": "best"})["rounds"] == 20


def test_what_was_slow_a_moment_ago_is_not_asked_while_a_slider_moves():
    pace, job = AnswerTimes(), {"kind": "answer", "options": START}
    assert pace.quick_accountants(job) == ["pld", "rdp"]
    with pace.measure_time(job, "best"):
        pass
    assert pace.quick_accountants(job) == ["best", "pld", "rdp"]
    with pace.measure_time(job, "pld"):
        time.sleep(0.07)
    assert pace.quick_accountants(job) == ["best", "rdp"]
    assert pace.quick_accountants({"kind": "answer", "options": {**START, "sampling": "balls-and-bins"}}) == ["rdp"]
