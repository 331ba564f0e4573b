"""Seconds and memory to write, read and state a ledger of a million records, each in a separate process.

python experiments/ledgers/growth.py --records 1000000 --out /tmp/ledger.jsonl
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from accounting import Gaussian, Ledger, PoissonSampling, Release, Subsampled
from accounting.ledger.project import ProjectLedger
from accounting.rounding import upwards

ROUND = Subsampled(
    mechanism=Gaussian(noise_multiplier=20.0, adjacency="add-remove"), sampling=PoissonSampling(probability=0.001)
)
STEPS = ("write", "read", "epsilon", "project")


def release(number: int) -> Release:
    return Release(
        round=number,
        mechanism=ROUND,
        clip_norm=1.0,
        noise_std=20.0,
        noise_placement="server",
        detail={"dimension": 580_000, "divided_by": 100.0, "run": "a"},
    )


def step(name: str, path: Path, records: int) -> str:
    if name == "write":
        path.unlink(missing_ok=True)
        ledger = ProjectLedger.create(path, clients=100_000, epsilon=8.0, delta=1e-6).ledger
        for start in range(0, records, 10_000):
            ledger.record_all(release(round) for round in range(start, min(start + 10_000, records)))
        return f"{path.stat().st_size / 2**20:.0f} MB on disk"
    if name == "read":
        return f"{len(Ledger.read(path).entries)} records"
    if name == "epsilon":
        return f"epsilon {upwards(Ledger.read(path).guarantee(1e-6).epsilon)}"
    return f"one round more: {ProjectLedger.open(path).refusal(ROUND, run='a', number=records) or 'is paid for'}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--out", type=Path, default=Path("/tmp/ledger.jsonl"))
    options.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.step is None:
        for name in STEPS:
            command = [sys.executable, __file__, "--records", str(given.records), "--out", str(given.out)]
            subprocess.run([*command, "--step", name], check=True)
        return
    began, cpu = time.perf_counter(), time.process_time()
    said = step(given.step, given.out, given.records)
    figures = {
        "step": given.step,
        "said": said,
        "seconds": round(time.perf_counter() - began, 2),
        "seconds of processor": round(time.process_time() - cpu, 2),
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
