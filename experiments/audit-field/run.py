"""Audit of bugs from public trackers, planted again, and of a correct twin of each bug.

python experiments/audit-field/run.py                  # every bug and its twin, by `dpfed audit METHOD`
python experiments/audit-field/run.py --sound 1000     # false alarms in 1,000 audits of correct code; resumable
"""

import argparse
import importlib
import sys
import time
from pathlib import Path

from accounting.rounding import upwards
from dpfed.audit.functions.audit import audit_calls, audit_function
from dpfed.audit.functions.claim import claim_of
from dpfed.audit.functions.outputs import output_of, pairs_of_updates
from dpfed.audit.statistics.rejection import upper_limit

HERE = Path(__file__).parent / "bugs"
COMMON = {"arrays": "numpy", "dimension": 16}
sys.path.insert(0, str(HERE))
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "parts")


class Here:
    """Caller in this process: quick, for functions that are known to terminate."""

    def __init__(self, function):
        self.function = function

    def outputs(self, inputs, which, seeds):
        return [output_of(self.function(inputs[k].copy(), seed)) for k, seed in zip(which, seeds, strict=True)]


def audited(name, which, seed=0):
    bug = importlib.import_module(name)
    return audit_function(getattr(bug, which), name=name, seed=seed, **COMMON, **bug.SETTING)


def table(names):
    print(
        "| bug | report | upstream | trials | claimed epsilon | neighbours | shown at least "
        "| the bug | sound twin | seconds |"
    )
    print("|---|---|---|---:|---:|---|---:|---|---|---:|")
    for name in names:
        bug = importlib.import_module(name)
        began = time.monotonic()
        broken = audited(name, "broken")
        seconds, sound = time.monotonic() - began, audited(name, "sound")
        shown = max(max(one.lower_bound, one.lower_bound_gdp * broken.claim.is_gaussian) for one in broken.tests)
        repository, number = bug.THREAD.split("#")
        print(
            f"| {bug.__doc__.rstrip('.')} | [{bug.THREAD}](https://github.com/{repository}/issues/{number}) | "
            f"{bug.UPSTREAM} | {broken.trials:,} | {upwards(broken.claim.epsilon, digits=3)} | "
            f"{broken.claim.adjacency} | {shown:.2f} | {broken.verdict} | {sound.verdict} | {seconds:.0f} |",
            flush=True,
        )


def false_alarms(count, kept):
    """Audit the correct twins in turn with changing seeds, 200 trials over two pairs of neighbours.

    Audits that the file `kept` already has, one per line, are skipped."""
    done = {int(line.split()[0]): line.split()[2] for line in kept.read_text().splitlines()} if kept.exists() else {}
    for k in range(count):
        name = NAMES[k % len(NAMES)]
        if k not in done:
            done[k] = sound_audit(name, seed=10_000 + k).verdict
            with kept.open("a") as file:
                file.write(f"{k} {name} {done[k]}\n")
        if (k + 1) % 50 == 0:
            alarms = sum(done[one] == "fail" for one in range(k + 1))
            rate = float(upper_limit(alarms, k + 1, alpha=0.05))
            print(f"{alarms} false alarms in {k + 1} sound audits: a rate of at most {rate:.2%}", flush=True)


def sound_audit(name, seed):
    bug = importlib.import_module(name)
    claim = claim_of(bug.SETTING["claim"], adjacency=bug.SETTING.get("adjacency"))
    pairs = pairs_of_updates(claim.adjacency, clients=4, dimension=16, clip_norm=1.0)
    return audit_calls(Here(bug.sound), claim, pairs[:1] + pairs[4:5], trials=200, seed=seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sound", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("sound-audits.txt"), help="finished sound audits, to go on")
    parser.add_argument("names", nargs="*", default=NAMES)
    given = parser.parse_args()
    false_alarms(given.sound, given.kept) if given.sound else table(given.names)
