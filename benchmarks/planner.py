"""Response time of the planner over HTTP while a slider moves, and the account that answers.

python benchmarks/planner.py [--csv FILE]

Milliseconds of one answer: the median and the slowest of `REPEATS` positions of a slider, after the first, in
wall-clock time and in processor time (client and server), which other work affects less. Then seconds of the default
account, which replaces the quick account once the slider stops.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import statistics
import threading
import time

from dpfed.planner.question import question_of
from dpfed.planner.server import PlannerServer

REPEATS = 20
PAPER = {"clients": "6000", "cohort": "100", "rounds": "180", "noise_multiplier": "1.4"}
QUESTIONS: dict[str, dict[str, str]] = {
    "epsilon, Poisson": {},
    "epsilon, Poisson, replace-one": {"adjacency": "replace-one"},
    "epsilon, fixed size": {"sampling": "fixed"},
    "epsilon, balls and bins": {"sampling": "balls-and-bins"},
    "epsilon, min-separation": {"sampling": "min-separation", "separation": "20"},
    "epsilon, public order": {"sampling": "cyclic"},
    "epsilon, Skellam": {"mechanism": "skellam", "dimension": "100000"},
    "epsilon, Poisson, a million clients, 5000 rounds": {"clients": "1000000", "cohort": "1000", "rounds": "5000"},
    "noise, Poisson": {"noise_multiplier": "", "epsilon": "1.01"},
    "noise, fixed size": {"noise_multiplier": "", "epsilon": "3", "sampling": "fixed"},
    "rounds, Poisson": {"rounds": "", "epsilon": "1.01"},
}


def asked(server: PlannerServer, options: dict[str, str], *, quick: bool) -> tuple[float, float, dict[str, object]]:
    """Return wall-clock and processor seconds of one answer, and the answer."""
    port = server.server_address[1]
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    body = json.dumps({"kind": "answer", "options": options, "quick": quick, "turn": time.time_ns()})
    began, used = time.perf_counter(), time.process_time()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", f"/{server.secret}/ask", body, headers)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return time.perf_counter() - began, time.process_time() - used, found


def moved(options: dict[str, str], step: int) -> dict[str, str]:
    """Return the options with the slider of noise or epsilon moved a little."""
    name = "noise_multiplier" if options["noise_multiplier"] else "epsilon"
    return {**options, name: repr(float(options[name]) * (1 + step / 100))}


def row(server: PlannerServer, name: str, change: dict[str, str]) -> list[str]:
    options = {**PAPER, **change}
    later = [asked(server, moved(options, step), quick=False)[0] for step in (0, 1)]
    answers = [asked(server, moved(options, step), quick=True) for step in range(2, REPEATS + 3)][1:]
    took, used = ([1e3 * answer[place] for answer in answers] for place in (0, 1))
    last = answers[-1][2]
    by = "no quick one" if "unknown" in last else ("quick: " if last["quick"] else "default: ") + str(last["account"])
    return [
        name,
        f"{statistics.median(took):.0f}",
        f"{max(took):.0f}",
        f"{statistics.median(used):.0f}",
        by,
        f"{min(later):.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv")
    chosen = parser.parse_args()
    server = PlannerServer(question_of(PAPER), port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    heading = [
        "question",
        "median ms",
        "slowest ms",
        "processor ms",
        "account while a slider moves",
        "default account, s",
    ]
    rows = []
    print(f"| {' | '.join(heading)} |\n|---|--:|--:|--:|---|--:|")
    with server.lane:
        for name, change in QUESTIONS.items():
            rows.append(row(server, name, change))
            print(f"| {' | '.join(rows[-1])} |", flush=True)
    if chosen.csv:
        with open(chosen.csv, "w", newline="") as file:
            csv.writer(file).writerows([heading, *rows])


if __name__ == "__main__":
    main()
