"""What the audits catch: planted faults, power and false alarms, as tables in Markdown.

python experiments/audit-faults/run.py                 every fault of a round, by every layer that is to catch it
python experiments/audit-faults/run.py --runs          every fault of a whole run, by `dpfed audit run`
python experiments/audit-faults/run.py --methods       every private method at its default, 6,000 trials each
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from accounting.rounding import downwards, upwards
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.cli import status
from tests.dpfed.audit.faults import FAULTS  # the broken parts exist in the tests only
from tests.dpfed.audit.run_faults import FAULTS as RUN_FAULTS

TWINS = 200
FEW = {"trials": 200, "draws": 20_000, "coins": 30_000, "cohorts": 200, "rounds": 10}
DRAWN = 2_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--methods", action="store_true", help="audit every private method instead")
    options.add_argument("--runs", action="store_true", help="plant faults in whole runs, for `dpfed audit run`")
    options.add_argument("--seeds", type=int, default=20, help="rounds with the fault that each layer sees")
    options.add_argument("--twins", type=int, default=TWINS, help="sound rounds that each layer sees")
    options.add_argument("--only", default="", help="faults whose names contain this")
    options.add_argument("--trials", type=int, default=6_000, help="with --methods")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.methods:
        sys.exit(status(["audit", "upload", "--all", "--trials", str(given.trials)]))
    if given.runs:
        runs(given.seeds)
        return
    print("| fault | epsilon claimed | true | layer | size | caught | alarms on the twin | at size |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    began, most = time.monotonic(), 0
    for fault in [one for one in FAULTS if given.only in one.name]:
        sound, broken = fault.make()
        claimed, true = fault.epsilons()
        for layer in fault.layers:
            caught = sum(layer.alarm(broken, seed, layer.trials) for seed in range(given.seeds if layer.trials else 1))
            few = DRAWN if "drawn" in layer.name else min(layer.trials, FEW[layer.unit])
            seeds = given.twins if layer.trials else 1
            wrong = sum(layer.alarm(sound, 1000 + seed, few) for seed in range(seeds))
            if layer.trials:
                most = max(most, wrong)
            size = f"{layer.trials:,} {layer.unit}" if layer.trials else "–"
            tries = given.seeds if layer.trials else 1
            print(
                f"| {fault.name} | {upwards(claimed)} | {downwards(true)} | {layer.name} | {size} "
                f"| {caught} of {tries} | {wrong} of {seeds} | {f'{few:,}' if few else '–'} |",
                flush=True,
            )
    none, worst = (float(upper_limit(count, given.twins, alpha=0.05)) for count in (0, most))
    print(
        f"\nSound twins: at most {most} alarms in {given.twins} looks of a layer, a rate of at most {worst:.2%} with "
        f"95% confidence (Clopper-Pearson); none in {given.twins} says at most {none:.2%}. "
        f"{time.monotonic() - began:.0f} s."
    )


def runs(seeds: int) -> None:
    """Faults of whole runs, at the confidence that the command has; their twins see the same seeds."""
    began = time.monotonic()
    print("| fault | check | caught | twins that fail |")
    print("|---|---|---:|---:|")
    for fault in RUN_FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder)
            caught = sum(fault.check in fault.caught(there / f"broken-{seed}", seed) for seed in range(seeds))
            wrong = sum(bool(fault.twin(there / f"sound-{seed}", seed)) for seed in range(seeds))
        print(f"| {fault.name} | {fault.check} | {caught} of {seeds} | {wrong} of {seeds} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
