"""Power and false alarms of the audits on planted faults, as Markdown tables.

python experiments/audit-faults/run.py                 every fault of a round, by every layer that should find it
python experiments/audit-faults/run.py --runs          every fault of a whole run, by `dpfed audit FOLDER`
python experiments/audit-faults/run.py --later         faults planted afterwards, by a round's audit and a run's
python experiments/audit-faults/run.py --methods       every private method at its default; resumes an interrupted run
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from accounting.rounding import downwards, upwards
from dpfed.audit.round.method_setting import audit_upload, audited_methods
from dpfed.audit.round.round_audit import audit_round
from dpfed.audit.run import audit_run
from dpfed.audit.statistics.rejection import upper_limit
from dpfed.config.tables import override, parse
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from tests.dpfed.audit.faults import FAULTS  # the broken parts exist in the tests only
from tests.dpfed.audit.later_faults import LATER_FAULTS, audited_round
from tests.dpfed.audit.run_faults import FAULTS as RUN_FAULTS
from tests.dpfed.audit.run_folders import TABLES

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
    options.add_argument("--later", action="store_true", help="faults planted after the checks were written")
    options.add_argument("--kept", type=Path, default=Path("methods.txt"), help="rows of --methods that are done")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.methods:
        methods([one for one in audited_methods() if given.only in one], given.kept)
        return
    if given.later:
        later([one for one in LATER_FAULTS if given.only in one])
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


def later(names: list[str]) -> None:
    """Print, for each later fault, the rows that fail in the audit of its round, and of the files of a run with it."""
    print("| fault | round | CPU s | files of a run | CPU s |\n|---|---|---:|---|---:|")
    for name in names:
        planted, began = LATER_FAULTS[name]()[1], time.process_time()
        done = audit_round(audited_round(planted), planted.layout, method=name, draws=100_000)
        middle = time.process_time()
        experiment = build(parse(override(TABLES, ["federation.sampling=all", "federation.rounds=20"]), source=name))
        with tempfile.TemporaryDirectory() as folder:
            federation.run(replace(experiment, method=planted.broken(experiment.method)), Path(folder) / "run")
            audited = time.process_time()
            files = audit_run(Path(folder) / "run")
        rows = [", ".join(one.name for one in each.checks if one.passed is False) or "-" for each in (done, files)]
        ended = time.process_time()
        print(f"| {name} | {rows[0]} | {middle - began:.0f} | {rows[1]} | {ended - audited:.1f} |", flush=True)


def methods(names: list[str], kept: Path) -> None:
    """Write a row for each audit as it ends; audits already in the file are skipped. Seconds are CPU time."""
    done = {line.split("`")[1]: line for line in kept.read_text().splitlines()} if kept.exists() else {}
    print("| method | seen | mechanism | claimed epsilon | distance reached | checks | CPU s | verdict |")
    print("|---|---|---|---:|---:|---:|---:|---|")
    for name in names:
        if name not in done:
            began, found = time.process_time(), audit_upload(name)
            passed = f"{sum(bool(one.passed) for one in found.checks)}/{len(found.checks)}"
            done[name] = (
                f"| `{name}` | {found.details['seen']} | {found.details['mechanism']['kind']} "
                f"| {upwards(found.claimed_epsilon)} | {found.score_gap:.3f} | {passed} "
                f"| {time.process_time() - began:.0f} | {found.verdict} |"
            )
            with kept.open("a") as file:
                file.write(done[name] + "\n")
        print(done[name], flush=True)


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
