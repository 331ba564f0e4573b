"""Power and false alarms of the audits on planted faults, as Markdown tables.

python experiments/audit-faults/run.py                 every fault of a round, by every layer that should find it
python experiments/audit-faults/run.py --runs          every fault of a whole run, by `dpfed audit FOLDER`
python experiments/audit-faults/run.py --methods       every private method at its default, 6,000 trials each; resumes
                                                       an interrupted run
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from accounting.rounding import downwards, upwards
from dpfed.audit.round.method_setting import audit_upload, audited_methods
from dpfed.audit.statistics.error_counts import upper_limit
from tests.dpfed.audit.faults import FAULTS  # the broken parts exist in the tests only
from tests.dpfed.audit.run_faults import FAULTS as RUN_FAULTS

TWINS = 200
FEW = {"trials": 200, "draws": 20_000, "coins": 30_000, "cohorts": 200, "rounds": 10}
DRAWN = 2_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--methods", action="store_true", help="audit every private method instead")
    options.add_argument("--runs", action="store_true", help="plant faults in whole runs, for `dpfed audit FOLDER`")
    options.add_argument("--seeds", type=int, default=20, help="rounds with the fault that each layer sees")
    options.add_argument("--twins", type=int, default=TWINS, help="sound rounds that each layer sees")
    options.add_argument("--only", default="", help="faults whose names contain this")
    options.add_argument("--trials", type=int, default=6_000, help="with --methods")
    options.add_argument("--kept", type=Path, default=Path("methods.txt"), help="rows of --methods that are done")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.methods:
        methods([one for one in audited_methods() if given.only in one], given.trials, given.kept)
        return
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


def methods(names: list[str], trials: int, kept: Path) -> None:
    """Write a row for each audit as it ends; audits already in the file are skipped. Seconds are CPU time."""
    done = {line.split("`")[1]: line for line in kept.read_text().splitlines()} if kept.exists() else {}
    print("| method | seen | mechanism | claimed epsilon | at least | if Gaussian | known law |", end="")
    print(" finds | checks | CPU s | verdict |\n|---|---|---|---:|---:|---:|---:|---|---:|---:|---|")
    for name in names:
        if name not in done:
            began = time.process_time()
            row = method_row(audit_upload(name, trials=trials))
            done[name] = row.format(seconds=time.process_time() - began)
            with kept.open("a") as file:
                file.write(done[name] + "\n")
        print(done[name], flush=True)


def method_row(found) -> str:
    record = found.to_dict()
    bounds = [record[f"lower_bound{kind}"] for kind in ("", "_if_gaussian", "_known_law")]
    shown = " | ".join("–" if one is None else downwards(one) for one in bounds)
    passed = f"{sum(bool(one.passed) for one in found.checks)}/{len(found.checks)}"
    return (
        f"| `{found.method}` | {found.claim.visible_output} | {record['mechanism']['kind']} "
        f"| {upwards(found.claim.epsilon)} "
        f"| {shown} | {found.power.as_text().partition(', with')[0]} | {passed} | {{seconds:.0f}} | {found.verdict} |"
    )


def runs(seeds: int) -> None:
    """Audit faults of whole runs at the command's default confidence; the correct twins have equal seeds."""
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
