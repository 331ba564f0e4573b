"""Two processes charge one project ledger until it is spent; the ledger must have every charge and stay in budget.

    python experiments/ledgers/two_processes.py --rounds 1000

The budget is the epsilon of --rounds rounds by `dpfed budget`; each process alone would charge that many. Afterwards
the file is read again: it must have every confirmed charge once and nothing else, epsilon at most the budget, and one
more round must exceed it. A concurrent reader must see prefixes of the final file within the budget.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from queue import Empty

from accounting import Gaussian, Ledger, PoissonSampling, Release, Subsampled
from accounting.compose import accountant
from accounting.errors import BudgetSpent
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import repeated

DELTA = 1e-5
ROUND = Subsampled(
    mechanism=Gaussian(noise_multiplier=1.4, adjacency="add-remove"), sampling=PoissonSampling(probability=0.01)
)


def charge(path: Path, name: str, rounds: int, told, ready) -> None:
    """Charge the project ledger until its budget is spent."""
    project, done = ProjectLedger.open(path), []
    ready.wait()
    try:
        for round in range(rounds):
            project.charge(
                Release(round=round, mechanism=ROUND, clip_norm=1.0, noise_std=1.4, noise_placement="server"), run=name
            )
            done.append(round)
    except BudgetSpent:
        pass
    told.put((name, done))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=1000)
    rounds = options.parse_args().rounds
    budget = accountant.epsilon(repeated(ROUND, rounds), delta=DELTA)
    path = Path(tempfile.mkdtemp()) / "project.jsonl"
    ProjectLedger.create(path, clients=10_000, epsilon=budget * 1.0001, delta=DELTA, reserve=0.0)
    context, began = multiprocessing.get_context("spawn"), time.perf_counter()
    told, ready = context.Queue(), context.Barrier(2)
    workers = [context.Process(target=charge, args=(path, name, rounds, told, ready)) for name in "ab"]
    for worker in workers:
        worker.start()
    charged, seen = {}, []
    while len(charged) < len(workers):
        seen.append([entry.detail["run"] + str(entry.round) for entry in Ledger.so_far(path).entries])
        try:
            name, done = told.get(timeout=1.0)
            charged[name] = done
        except Empty:
            continue
    for worker in workers:
        worker.join()
    ledger = Ledger.read(path)
    lines = [entry.detail["run"] + str(entry.round) for entry in ledger.entries]
    spent = ledger.guarantee(DELTA, with_lower_bound=False).epsilon
    one_more = accountant.epsilon(repeated(ROUND, len(lines) + 1), delta=DELTA)
    told_of = sorted(name + str(round) for name, done in charged.items() for round in done)
    figures = {
        "rounds that fit": rounds,
        "charged": {name: len(done) for name, done in charged.items()},
        "lines": len(lines),
        "every charge is a line and every line a charge": sorted(lines) == told_of,
        "budget": budget,
        "spent": spent,
        "with one round more": one_more,
        "never above the budget": spent <= budget,
        "prefixes seen by a reader": len(seen),
        "all of them prefixes": all(lines[: len(prefix)] == prefix for prefix in seen),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(figures, indent=2))
    if not (figures["never above the budget"] and sorted(lines) == told_of and figures["all of them prefixes"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
