"""Write the tables between the marks of experiments/*/README.md from files of results.

    python experiments/readmes.py

A table begins after `<!-- table: NAME -->` and ends before `<!-- end -->`. NAME is a table of papers.py, "fed-smp
runs", "one start: DATA" (methods from one start, with rows named as in the sweep's file), or a name of `STORED`. Both
kinds have verdicts by the rule of verdicts.py.
"""

from __future__ import annotations

import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accounting.rounding import downwards

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
    "features": ("one-start-features", "one-start-features"),
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
    "features": (
        (_SIGNS, "DP-FedAvg"),
        (_SIGNS, "Fed-SMP top-k, 20%"),
        (_SIGNS, "Fed-SMP rand-k, 66%"),
        (_STEP_1, "DP-FedAvg"),
        ("dithered quantiser", "DP-FedAvg"),
        ("FedPM, hidden 256", "Fed-SMP top-k, 20%"),
    ),
}
"""Pairs of methods, the first of which may be above the second from the same warm start."""


def folder(row: str) -> str:
    """Return the name of a row's folder, which is its name in the results."""
    return re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def names_of_rows(sweep: str) -> list[str]:
    """Return the names of the rows of a sweep's file."""
    return [row["name"] for row in tomllib.loads((HERE / sweep).read_text())["row"]]


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
    names = names_of_rows(f"accuracy/{sweep}.toml")

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


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Table of a file of results, with a row for each of its rows, and a table of claims on pairs of these rows.

    group: the group of the file's lines; "" for all lines. early: an earlier round than the last, from curves.csv
    beside the file. sweep: TOML file of the rows, if the file of results has names of folders. pairs: rows, the first
        of which may be above the second in runs of one seed. seeds: names of the seeds of each column of claims
    """

    file: str
    group: str = ""
    early: str = ""
    sweep: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    seeds: tuple[tuple[str, ...], ...] = ((),)

    def lines(self, file: str) -> list[papers.Line]:
        """Return the lines of the group in this file, with the names and in the order of the sweep's rows."""
        found = [line for line in papers.read(file) if line.get("group", "") == self.group]
        if not self.sweep:
            return found
        names = {folder(name): name for name in names_of_rows(self.sweep)}
        found.sort(key=lambda line: list(names).index(line["row"]))
        return [line | {"row": names[line["row"]]} for line in found]

    def table(self) -> str:
        """Return both tables; a column without any cell is left out."""
        lines = self.lines(self.file)
        curves = self.lines(f"{self.file.partition('/')[0]}/curves.csv") if self.early else []
        before = {(one["row"], one["seed"]): one for one in curves if one["round"] == self.early}

        def early(runs: Sequence[papers.Line]) -> str:
            return papers.mean([100 * float(before[one["row"], one["seed"]]["test_accuracy"]) for one in runs])

        def accuracy(runs: Sequence[papers.Line]) -> str:
            found = [100 * float(one["test_accuracy"]) for one in runs]
            return papers.mean(found) + (f" ({', '.join(f'{one:.1f}' for one in found)})" if len(found) > 1 else "")

        def value(key: str, form: str) -> Callable[[Sequence[papers.Line]], str]:
            return lambda runs: "; ".join(dict.fromkeys(format(float(one[key]), form) for one in runs if one.get(key)))

        def noise(runs: Sequence[papers.Line]) -> str:
            drawn = [one["noise_multiplier"] for one in runs if one.get("noise_multiplier")]
            return "; ".join(dict.fromkeys(downwards(float(one)) for one in drawn))

        def average(key: str) -> Callable[[Sequence[papers.Line]], str]:
            return lambda runs: f"{statistics.fmean(float(one[key]) for one in runs):.4g}" if runs[0].get(key) else ""

        def word(key: str) -> Callable[[Sequence[papers.Line]], str]:
            return lambda runs: "; ".join(dict.fromkeys(one[key] for one in runs if one.get(key)))

        columns: dict[str, Callable[[Sequence[papers.Line]], str]] = {
            "": word("row"),
            **({f"after {self.early} rounds": early} if self.early else {}),
            "last round, % (seeds)": accuracy,
            "epsilon": papers.epsilons,
            "neighbours": word("adjacency"),
            "noise": noise,
            "bits a parameter": value("uplink_bits_per_parameter", ".3g"),
            "uplink of all, MB": average("uplink_megabytes_total"),
            "mask file, bits a parameter": value("mask_file_bits_per_parameter", ".3g"),
            "audit": word("audit"),
        }
        cells = [[make(runs) for make in columns.values()] for runs in papers.grouped(lines, "row").values()]
        kept = [place for place in range(len(columns)) if any(row[place] for row in cells)]
        rows = [[row[place] for place in kept] for row in cells]
        text = papers.table([list(columns)[place] for place in kept], rows)
        return "\n\n".join([text, *self._claims(lines)])

    def _claims(self, lines: Sequence[papers.Line]) -> list[str]:
        """Return the table of claims, if there are any."""

        def difference(higher: str, lower: str, seeds: Sequence[str]) -> str:
            chosen = [one for one in lines if not seeds or one["seed"] in seeds]
            found = verdicts.paired(chosen, higher, lower, "test_accuracy")
            return judged([100 * one for one in found]) if found else ""

        rows = [[one, other, *(difference(one, other, seeds) for seeds in self.seeds)] for one, other in self.pairs]
        names = [f"difference, seeds {seeds[0]} to {seeds[-1]}" if seeds else "difference" for seeds in self.seeds]
        return [papers.table(("is this row", "above this one?", *names), rows, text=(0, 1))] if rows else []


def _masks(group: str, early: str, *pairs: tuple[str, str]) -> Stored:
    return Stored(file="fedpm-masks/results.csv", group=group, early=early, pairs=pairs)


_SMALL, _FEW = ", 10 of 650 clients a round", ", 13 of 65 clients a round"
_IMAGES = (("fedpm", "fed-smp-topk, p = .05"), ("fedpm", "fed-smp-topk, p = .05, averaged"), ("fedpm", "dp-fedavg"))
STORED = {
    "fed-smp, 12 rounds": Stored(
        file="fed-smp/12-rounds.csv",
        pairs=(
            ("DP-FedAvg, tight", "DP-FedAvg, as published"),
            ("Fed-SMP rand-k 0.4, tight", "Fed-SMP rand-k 0.4, as published"),
            ("DP-FedAvg, as published", "Fed-SMP rand-k 0.4, as published"),
            ("Fed-SMP rand-k 0.4, as published", "Fed-SMP top-k 0.005, as published"),
        ),
    ),
    "masks: fashion-mnist": _masks("fashion-mnist", "5"),
    "masks: mnist": _masks("mnist", "5"),
    "masks: digits-private": _masks(
        "digits-private",
        "20",
        ("fedpm", "fed-smp-topk, 7 bits"), ("fedpm", "fed-smp-topk, p = .1"), ("fedpm", "dp-fedavg"),
        ("fedpm", "fedpm, masks"),
    ),
    "masks: fashion-mnist-private": _masks("fashion-mnist-private", "20", *_IMAGES),
    "masks: mnist-private": _masks("mnist-private", "20", *_IMAGES),
    "masks: digits-ways": _masks("digits-ways", "20", ("c, clip 3.32, noise .2", "dp-fedavg")),
    "masks: digits-signs": _masks("digits-signs", "20", ("signs", "dp-fedavg")),
    "masks: small cohorts": Stored(
        file="fedpm-masks/small-cohorts.csv",
        pairs=tuple(
            (f"FedPM{cell}", f"{other}{cell}") for cell in (_SMALL, _FEW) for other in ("Fed-SMP top-k", "DP-FedAvg")
        ),
    ),
    "masks: ideas": Stored(
        file="fedpm-masks/ideas-digits.csv",
        sweep="fedpm-masks/ideas-digits.toml",
        pairs=(
            ("FedPM, 200 clients a round", "FedPM"),
            ("FedPM, 16 trials", "FedPM"),
            ("masks around public weights (FedMRNS)", "FedPM"),
            ("signs of weights, 16 trials", "Fed-SMP top-k, integers of 6 bits"),
        ),
        seeds=(("2", "3", "4"), ("5", "6", "7", "8")),
    ),
}  # fmt: skip


def made(name: str) -> str:
    """Return the table of this name."""
    if name == "fed-smp runs":
        return collect.table(papers.read("fed-smp/results.csv"))
    if name in STORED:
        return STORED[name].table()
    if name == "claims of FedScalar":
        return papers.claims("FedScalar")
    kind, _, data = name.partition(": ")
    return one_start(data) if kind == "one start" else papers.TABLES[name]()


def filled(text: str) -> str:
    """Return the text with all its tables made anew."""
    marked = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}\n{made(found[2])}\n\n{found[3]}", text)


if __name__ == "__main__":
    for readme in READMES:
        readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
