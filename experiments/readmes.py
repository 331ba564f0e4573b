"""Write the tables between the marks of experiments/*/README.md from files of results.

    python experiments/readmes.py

A table begins after `<!-- table: NAME -->` and ends before `<!-- end -->`. NAME is a table of papers.py, "fed-smp
runs", or "one start: DATA": methods from one start, with rows named as in the sweep's file, and verdicts by the rule of
verdicts.py.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "fed-smp")]

# These scripts are no package: they are found on the path above.
import collect  # noqa: E402
import papers  # noqa: E402
import verdicts  # noqa: E402

READMES = sorted(HERE.glob("*/README.md"))
FILES = {
    "digits": ("one-start", "one-start"),
    "Fashion-MNIST": ("one-start-fashion-mnist", "one-start-fashion-mnist"),
    "MNIST": ("one-start-fashion-mnist", "one-start-mnist"),
}
"""Names of a data set's sweep and results."""
COLD, COORDINATES, WARM = ", cold", ", public samples for coordinates only", ", warm"
_STEP_1, _SIGNS, _TOP_K, _RAND_K = (
    "DP-FedAvg, server step 1",
    "signs, 16 trials",
    "Fed-SMP top-k, 5%",
    "Fed-SMP rand-k, 40%",
)
_PAIRS = (
    (_SIGNS, _STEP_1), (_SIGNS, _TOP_K), (_SIGNS, _RAND_K), (_STEP_1, "DP-FedAvg"), ("FedPM, 27%", _TOP_K),
)  # fmt: skip
CLAIMS = {
    "digits": (("Fed-SMP rand-k", "DP-FedAvg"), ("Fed-SMP top-k", "DP-FedAvg"), ("FedPM", "Fed-SMP top-k")),
    "Fashion-MNIST": _PAIRS,
    "MNIST": _PAIRS,
}
"""Pairs of methods, the first of which may be above the second from the same warm start."""


def folder(row: str) -> str:
    """Return the name of a row's folder, which is its name in the results."""
    return re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def judged(differences: Sequence[float]) -> str:
    """Return the mean difference in points, its standard error and the verdict; a mark without differences."""
    return f"{verdicts.points(differences)}, {verdicts.verdict(differences)}" if differences else papers.NONE


def percents(lines: Sequence[papers.Line], quantity: str) -> str:
    """Return mean and standard deviation in percent; a mark without runs."""
    return papers.mean([100 * float(line[quantity]) for line in lines]) if lines else papers.NONE


def one_start(data: str) -> str:
    """Return the accuracy of the public images alone, the table of methods, and the table of claims."""
    sweep, name = FILES[data]
    results = papers.read(f"accuracy/{name}.csv")
    runs = papers.grouped(results, "row")
    names = [row["name"] for row in tomllib.loads((HERE / f"accuracy/{sweep}.toml").read_text())["row"]]

    def above(higher: str, lower: str) -> list[float]:
        return [100 * one for one in verdicts.paired(results, folder(higher), folder(lower), "test_accuracy")]

    rows = []
    for name in (name.removesuffix(WARM) for name in names if name.endswith(WARM)):
        ending = COORDINATES if name + COORDINATES in names else COLD
        cold, warm = runs[folder(name + ending),], runs[folder(name + WARM),]
        gains = [100 * (float(line["test_accuracy"]) - float(line["public_samples_alone"])) for line in warm]
        before = percents(cold, "test_accuracy") + (" (coordinates)" if ending == COORDINATES and cold else "")
        after = percents(warm, "test_accuracy") + (f" ({len(warm)} seeds)" if 0 < len(warm) < 3 else "")
        bits = "; ".join(dict.fromkeys(f"{float(line['uplink_bits_per_parameter']):.3g}" for line in [*cold, *warm]))
        rows.append([name, before, after, judged(above(name + WARM, name + ending)), judged(gains), bits])
    claims = [[one, other, judged(above(one + WARM, other + WARM))] for one, other in CLAIMS[data]]
    alone = runs[folder(next(name for name in names if name.endswith(WARM))),]
    head = ("", "cold", "warm", "warm less cold", "gain over the public images alone", "bits a parameter")
    return "\n\n".join(
        (
            f"**The public images alone, without any client, give {percents(alone, 'public_samples_alone')}%.**",
            papers.table(head, rows),
            papers.table(("is this row", "above this one, both warm?", "difference"), claims, text=(0, 1)),
        )
    )


def made(name: str) -> str:
    """Return the table of this name."""
    if name == "fed-smp runs":
        return collect.table(papers.read("fed-smp/results.csv"))
    kind, _, data = name.partition(": ")
    return one_start(data) if kind == "one start" else papers.TABLES[name]()


def filled(text: str) -> str:
    """Return the text with all its tables made anew."""
    marked = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}\n{made(found[2])}\n\n{found[3]}", text)


if __name__ == "__main__":
    for readme in READMES:
        readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
