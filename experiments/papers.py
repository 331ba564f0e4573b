"""Write the page of the four papers, docs/papers.md, from files of results.

    python experiments/papers.py > docs/papers.md

The text is papers.md in this folder, in which `{{name}}` is replaced by the table of the function of this name. A row
without a result is marked. No run is started.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from accounting import Plan, budget
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import downwards, upwards

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import verdicts  # noqa: E402

Line = dict[str, str]
NONE = "no result yet"


def read(name: str) -> list[Line]:
    """Return the lines of a CSV file under experiments/; an empty list without such a file."""
    path = HERE / name
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[int] = (0,)) -> str:
    """Return a Markdown table with left-aligned columns of text, by default the first."""
    rule = ["---" if column in text else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def mean(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean as text, with the standard deviation of several values."""
    middle = f"{statistics.fmean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ± {statistics.stdev(values):.{digits}f}"


def grouped(lines: Iterable[Line], *keys: str) -> dict[tuple[str, ...], list[Line]]:
    """Return the lines grouped by their values of `keys`."""
    found: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        found[tuple(line[key] for key in keys)].append(line)
    return found


def period(lines: Sequence[Line]) -> str:
    """Return the number of passes of the server over public samples."""
    return "; ".join(sorted({line["public_epochs"] for line in lines}))


def claims(paper: str = "") -> str:
    """Return the verdict on every claim (verdicts.py), or on those of one paper."""
    head = ("paper", "claim", "ours: difference ± standard error", "cells", "seeds", "verdict")
    return table(head, [row for row in verdicts.rows() if row[0].startswith(paper)], text=(0, 1, 5))


def neighbourhoods() -> str:
    """Return the epsilon of Table I's plan for the three kinds of neighbours that its text may mean."""
    rows = []
    for sampling, neighbours, meaning in (
        ("fixed", "zero-out", "the paper's words: all data of a client, at a fixed number of clients a round"),
        (
            "fixed",
            "replace-one",
            "the same sampler; the data of a client are exchanged for any other's: Lemma 3 with 2C",
        ),
        ("poisson", "add-remove", "the sampler that the paper's formula is for; it does not run"),
    ):
        plan = Plan(clients=6000, cohort=100, sampling=sampling, adjacency=Adjacency(neighbours))
        bound = budget.solve(plan, noise_multiplier=1.4, rounds=180)
        least = f" (at least {downwards(bound.lower_bound)})" if bound.lower_bound else ""
        rows.append([f"{sampling}, {neighbours}", f"{upwards(bound.epsilon)}{least}", meaning])
    plan = Plan(clients=6000, cohort=100)
    printed = budget.epsilon(plan, noise_multiplier=1.4, rounds=180, accountant="rdp", conversion="classical")
    rows.append(["poisson, add-remove", upwards(printed), "the same by the paper's formula: the printed 1.01"])
    return table(("sampler, neighbours", "epsilon", "meaning"), rows, text=(0, 2))


def fed_smp_table_1() -> str:
    """Compare each cell of Table I with two runs: the paper's sampler and noise, and a true epsilon of 1.01."""
    runs, rows = grouped(read("fed-smp/results.csv"), "row", "x"), []
    cells = [line for line in read("fed-smp/table-1.csv") if line["quantity"] == "best_test_accuracy"]
    printed = {(cell["row"], cell["x"]) for cell in cells}
    others = [
        {"row": row, "x": x, "value": "not printed"}
        for row, x in runs
        if (row, x) not in printed and not row.startswith(WITHOUT_FACTOR)
    ]
    for cell in [*cells, *others]:
        method, _, block = cell["row"].partition(", ")
        if block not in ("", "as published", "the clients' public period"):
            continue
        ours, tight = runs[cell["row"], cell["x"]], []
        if block == "as published":
            tight = runs[f"{method}, tight", cell["x"]]
        both = [*ours, *tight]
        rows.append(
            [
                f"{method} {cell['x']}".strip(),
                cell["value"],
                accuracies(ours),
                epsilons(ours),
                accuracies(tight) if block == "as published" else "",
                epsilons(tight),
                "; ".join(dict.fromkeys(str(len(lines)) for lines in (ours, tight) if lines)),
                "; ".join(sorted({line["rounds"] for line in both})),
                "; ".join(sorted({line["audit"] for line in both} - {""})),
                "; ".join(sorted({line["device"] for line in both})),
                period(both) if both else "",
            ]
        )
    alone = public_samples_alone("fed-smp/public_alone.csv")
    ours = mean(alone, 2)
    rows.append(["1,000 public samples alone", "not printed", ours, "", ours, "", str(len(alone)), *4 * [""]])
    head = ("", "paper, best", "ours, as published", "its epsilon, replace-one", "ours, true 1.01")
    return table(
        (*head, "its epsilon, add-remove", "seeds", "rounds", "audit", "device", "public epochs"),
        rows,
    )


WITHOUT_FACTOR = "Fed-SMP rand-k without d/k"


def fed_smp_without_factor() -> str:
    """Compare Table I's rand-k with and without the factor d/k, as published."""
    runs, rows = grouped(read("fed-smp/results.csv"), "row", "x"), []
    for cell in read("fed-smp/table-1.csv"):
        if (cell["row"], cell["quantity"]) == ("Fed-SMP rand-k, as published", "best_test_accuracy"):
            with_factor, without = (
                runs[f"{name}, as published", cell["x"]] for name in ("Fed-SMP rand-k", WITHOUT_FACTOR)
            )
            device, audit = ("; ".join(sorted({line[key] for line in without})) for key in ("device", "audit"))
            found = accuracies(without) if without else missing("fed-smp/without-factor")
            made = [str(len(without) or ""), audit, device]
            rows.append([cell["x"], cell["value"], found, accuracies(with_factor), *made])
    head = ("share of coordinates", "paper, best", "ours, without d/k", "ours, with d/k", "seeds", "audit", "device")
    return table(head, rows)


def public_samples_alone(name: str) -> list[float]:
    """Return the test accuracy of each seed's network that sees public samples and no client; a warm start's, if some
    runs begin with one and others only rank coordinates."""
    lines = [line for line in read(name) if line["public_samples_alone"]]
    warm = [line for line in lines if line.get("row", "").endswith("-warm")]
    found = {(line["seed"], line["public_samples_alone"]) for line in warm or lines}
    return [100 * float(one) for _, one in sorted(found)]


def accuracies(lines: Sequence[Line]) -> str:
    """Return the best accuracy over rounds and, in brackets, that of the last round."""
    if not lines:
        return missing("fed-smp/table-1")
    best, last = ([float(line[key]) for line in lines] for key in ("best_test_accuracy", "test_accuracy"))
    return f"{mean(best, 2)} (last {mean(last, 2)})"


def epsilons(lines: Sequence[Line]) -> str:
    """Return the largest epsilon, rounded upwards, and the smallest lower bound, rounded downwards."""
    if not [line for line in lines if line["epsilon"]]:
        return ""
    least = [float(line["lower_bound"]) for line in lines if line.get("lower_bound")]
    most = upwards(max(float(line["epsilon"]) for line in lines))
    return f"{most} (at least {downwards(min(least))})" if least else most


def fed_smp_figure_2() -> str:
    """Return megabytes until test accuracy first reaches 72%, and savings compared with DP-FedAvg; means over seeds."""
    first: dict[tuple[str, str], dict[str, tuple[int, float]]] = defaultdict(dict)
    for line in read("fed-smp/curves.csv"):
        if line["row"].endswith("as published") and float(line["test_accuracy"]) >= 0.72:
            here, seeds = (int(line["round"]), float(line["uplink_megabytes"])), first[line["row"], line["x"]]
            seeds[line["seed"]] = min(here, seeds.get(line["seed"], here))
    means = {key: [statistics.fmean(one) for one in zip(*of.values(), strict=True)] for key, of in first.items()}
    _, whole = means["DP-FedAvg, as published", ""]
    printed = {"Fed-SMP top-k 0.005": "99%", "Fed-SMP rand-k 0.4": "70%"}
    rows = []
    for (row, x), (number, megabytes) in means.items():
        method, seeds = row.partition(",")[0], len(first[row, x])
        saved = "" if not x else f"{100 * (1 - megabytes / whole):.1f}%"
        name = f"{method} {x}".strip()
        rows.append([name, f"{number:.3g}", f"{megabytes:,.0f}", saved, printed.get(name, ""), str(seeds)])
    return table(("", "rounds until 72%", "uplink of all, MB", "saved", "paper", "seeds"), rows)


def fed_smp_figure_3() -> str:
    """Return accuracy over the share of coordinates sent: with the paper's noise, without it, and without its clip."""
    rounds = 60
    columns = {
        "Fed-SMP rand-k, as published": "rand-k, noise 1.4",
        "FedAvg-randk, shared coordinates": "the same without noise",
        "FedAvg-randk": "FedAvg-randk: no noise, no clip",
        "Fed-SMP top-k, as published": "top-k, noise 1.4",
        "FedAvg-topk": "FedAvg-topk: no noise, no clip",
    }
    whole = {"DP-FedAvg, as published": [0, 3], "FedAvg": [2, 4]}  # all coordinates: one row for several columns
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in [*read("fed-smp/curves.csv"), *read("fed-smp/60-rounds/curves.csv")]:
        if int(line["round"]) <= rounds:
            for row in [[*columns][place] for place in whole.get(line["row"], [])] or [line["row"]]:
                best = found[row, line["x"] or "1"]
                best[line["seed"]] = max(best.get(line["seed"], 0.0), 100 * float(line["test_accuracy"]))
    shares = sorted({x for row, x in found if row in columns}, key=float)
    hours = missing("fed-smp/figure-3-fashion-mnist", rounds / 180)
    rows = [
        [x, *(mean([*found[row, x].values()], 2) if (row, x) in found else hours for row in columns)] for x in shares
    ]
    return table(("share of coordinates", *columns.values()), rows)


def private_masks() -> str:
    """Compare private FedPM with Fed-SMP's top-k at equal epsilon and bits."""
    rows = []
    for data, start in (("digits", ""), ("mnist", "-mnist"), ("fashion-mnist", "-fashion-mnist")):
        lines = [line for line in read("fedpm-masks/results.csv") if line["group"] == f"{data}-private"]
        for (row,), runs in grouped(lines, "row").items():
            if row not in ("fedpm", "dp-fedavg") and not row.startswith("fed-smp-topk"):
                continue
            rows.append(
                [
                    f"{data}: {row}",
                    mean([100 * float(line["test_accuracy"]) for line in runs]),
                    epsilons(runs),
                    runs[0]["adjacency"],
                    f"{float(runs[0]['uplink_bits_per_parameter']):.3g}",
                    str(len(runs)),
                    runs[0]["rounds"],
                    "; ".join(sorted({line["audit"] for line in runs})),
                    period(runs),
                ]
            )
        if alone := public_samples_alone(f"accuracy/one-start{start}.csv"):
            rows.append([f"{data}: public samples alone", mean(alone), *3 * [""], str(len(alone)), *3 * [""]])
    head = (
        "",
        "last round, %",
        "epsilon",
        "neighbours",
        "bits a parameter",
        "seeds",
        "rounds",
        "audit",
        "public epochs",
    )
    return table(head, rows)


def extremes(values: Sequence[float]) -> str:
    """Return the smallest and the largest value, or one if both are equal as printed; "" without values."""
    return " to ".join(dict.fromkeys(f"{one:.2f}" for one in (min(values), max(values)))) if values else ""


def fedpm_table_1() -> str:
    """Return FedPM's Table 1 settings on small images."""
    runs = grouped(read("fedpm/table-1-small-images.csv"), "images", "method", "setting")
    settings = sorted({setting for _, _, setting in runs}, reverse=True)
    rows = []
    for images, method in dict.fromkeys((images, method) for images, method, _ in runs):
        cells = {one: runs[images, method, one] for one in settings if (images, method, one) in runs}
        ours = [
            mean([100 * float(line["test_accuracy"]) for line in cells[one]])
            if one in cells
            else missing("fedpm/table-1-small-images")
            for one in settings
        ]
        bits = [
            statistics.fmean(float(line["uplink_bits_per_parameter"]) for line in lines) for lines in cells.values()
        ]
        found = {
            key: sorted({line[key] for lines in cells.values() for line in lines}, key=float)
            for key in ("batch_size", "learning_rate", "rounds", "seed")
        }
        rows.append(
            [
                f"{images}: {method}",
                *ours,
                *("; ".join(found[key]) for key in ("batch_size", "learning_rate", "rounds")),
                str(len(found["seed"])),
                extremes(bits),
            ]
        )
    return table(("", *settings, "batch", "rate", "rounds", "seeds", "bits a parameter"), rows)


def fedpm_figure_5() -> str:
    """Return the squared error of a mean of Bernoulli samples, and the noise before sampling, at four epsilons."""
    methods = {
        "1": "noise alone",
        "2": "the paper's bound",
        "3": "the same, corrected",
        "4": "ours",
        "5": "ours, corrected",
    }
    rows = []
    settings = (("5", "d5", "any two vectors"), ("100,000", "d100000", "both within 1/2 of a public vector"))
    for d, name, neighbours in settings:
        runs = {(line["method"], line["epsilon"]): line for line in read(f"fedpm/figure-5/{name}.csv")}
        for method, words in methods.items():
            cells = [runs[method, epsilon] for epsilon in ("1", "6", "9", "12")]
            noises = [downwards(float(one["noise_std"]), digits=2) for one in cells]
            errors = [f"{float(one['squared_error']):.2g}" for one in cells]
            texts = [f"{error} ({noise})" for error, noise in zip(errors, noises, strict=True)]
            rows.append([f"d = {d}: {words}", neighbours, *texts])
    head = ("squared error (noise)", "neighbours: one client's vectors", *(f"epsilon {one}" for one in (1, 6, 9, 12)))
    return table(head, rows, text=(0, 1))


def fedmrn_table_1() -> str:
    """Compare FedMRN's Table 1 on Fashion-MNIST with 12 rounds of dpfed."""
    lines, splits = read("fedmrn/12-rounds/table.csv"), ("IID", "Non-IID-1", "Non-IID-2")
    runs = {(line["row"], line["split"]): line for line in lines if line["quantity"] == "test_accuracy"}
    bits = grouped([line for line in lines if line["quantity"] == "uplink_bits_per_parameter"], "row")
    printed = {
        (line["row"], line["x"]): line["value"]
        for line in read("fedmrn/table-1-fashion-mnist.csv")
        if line["quantity"] == "test_accuracy"
    }
    rows = []
    for method in dict.fromkeys(row for row, _ in printed):
        cells = [method]
        for split in splits:
            line = runs.get((method, split))
            ours = f"{float(line['mean']):.1f} ± {float(line['std']):.1f}" if line else NONE
            cells += [printed[method, split], ours]
        sent = extremes([float(line["mean"]) for line in bits[method,]])
        rows.append([*cells, runs[method, "IID"]["n"] if (method, "IID") in runs else "", sent])
    head = [f"{split}, {whose}" for split in splits for whose in ("paper", "ours")]
    return table(("", *head, "seeds", "bits a parameter"), rows)


def fedmrn_figure_4() -> str:
    """Return FedMRN's accuracy with and without its two parts, on Fashion-MNIST, Non-IID-2."""
    runs = {
        line["row"]: f"{float(line['mean']):.1f} ± {float(line['std']):.1f}"
        for line in read("fedmrn/12-rounds/figure-4.csv")
        if line["quantity"] == "test_accuracy"
    }
    signed = {"FedMRN": "FedMRNS", "FedAvg with SM": "FedAvg with SM, signed"}
    rows = []
    for row in ("FedMRN", "FedMRN without SM", "FedMRN without PM", "FedMRN without PSM", "FedAvg with SM"):
        other = signed.get(row, row.replace("FedMRN", "FedMRNS"))
        rows.append([row, *(runs.get(one, NONE) for one in (row, other))])
    return table(("", "masks 0 and 1", "masks -1 and 1"), rows)


def fedmrn_figure_6() -> str:
    """Return the seconds of one client's training and of encoding its message."""
    lines = read("fedmrn/figure-6.csv")
    if not lines:
        return f"Figure 6: {NONE}."
    rows = []
    for line in lines:
        training, message = float(line["training_seconds"]), float(line["message_seconds"])
        rows.append([line["row"], f"{training:.2f}", f"{message:.3f}", f"{100 * message / training:.1f}%"])
    return table(("", "training, s", "message, s", "message over training"), rows)


def fedscalar_figures() -> str:
    """Return loss, its gradient, accuracy and bits of FedScalar at the rounds that the page shows."""
    rows = []
    for (row, number), lines in grouped(read("fedscalar/curves.csv"), "row", "round").items():
        if number not in ("600", "2000", "10000"):
            continue
        cells = [f"{row}, round {int(number):,}", mean([float(line["train_loss"]) for line in lines], 3)]
        cells += [mean([float(line["gradient_norm_squared"]) for line in lines], 4)]
        cells += [mean([100 * float(line["test_accuracy"]) for line in lines])]
        rows.append([*cells, f"{float(lines[0]['uplink_bits_per_client']):,.0f}", str(len(lines))])
    return table(
        ("", "training loss", "squared norm of its gradient", "test accuracy, %", "bits a client", "seeds"), rows
    )


def fedscalar_variance() -> str:
    """Return the trace of one round's covariance, measured and exact."""
    rows = []
    for line in read("fedscalar/variance.csv"):
        measured = f"{float(line['measured']):.4g} ± {float(line['standard_error']):.1g}"
        rows.append([line["directions"], measured, f"{float(line['exact']):.4g}", line["draws"]])
    return table(("directions", "measured", "exact", "rounds drawn"), rows)


def public_epochs() -> str:
    """Return the passes over public samples, chosen on public samples only."""
    rows = [
        [
            f"{line['preset']}, {line['public_epochs']}",
            f"{float(line['accuracy']):.1f} ± {float(line['standard_error']):.1f}",
            line["splits"],
            line["rounds"],
        ]
        for line in read("fed-smp/public_epochs.csv")
    ]
    return table(("preset, passes", "accuracy on public samples, %", "splits", "rounds"), rows)


FILES = {
    "Fed-SMP": "fed-smp",
    "FedPM": "fedpm",
    "FedMRN": "fedmrn",
    "FedScalar": "fedscalar",
}
RESULTS = {
    "fed-smp/table-1": "17 cells as published and seven at a true 1.01, 180 rounds, one to three seeds",
    "fed-smp/main-rows": "12 of 180 rounds, three to five seeds",
    "fed-smp/without-factor": "six ratios, 180 rounds, one seed",
    "fed-smp/figure-2-fashion-mnist": "from Table I's runs",
    "fed-smp/figure-3-fashion-mnist": "two cells with noise, 12 without, 60 of 180 rounds, one seed",
    "fedpm/table-1-small-images": "a twentieth of the paper's rounds",
    "fedmrn/figure-4-fashion-mnist": "12 of 100 rounds, one epoch of ten, three seeds",
    "fedmrn/table-1-fashion-mnist": "12 of 100 rounds, one epoch of ten",
    "fedscalar/figure-2": "in full, five seeds",
    "fedscalar/figure-3": "in full, five seeds",
}
"""Experiment files with stored results; all other files have none."""


def costs() -> dict[str, Line]:
    """Return the estimated cost of every experiment file (costs.py), by its name."""
    return {line["experiment"]: line for line in read("costs.csv")}


def missing(experiment: str, share: float = 1.0) -> str:
    """Return the mark of a row without a result, with the estimated hours of one run, or of a share of its rounds."""
    line = costs()[experiment]
    return f"{NONE}; {share * float(line['hours']) / int(line['runs']):.1g} hours a run"


def what_has_run() -> str:
    """Return every experiment file, the share of its rows with a result, and the cost of the whole file."""
    rows = []
    for name, line in costs().items():
        folder, _, stem = name.partition("/")
        paper = next(paper for paper, own in FILES.items() if own == folder)
        cost = [line["runs"], f"{float(line['hours']):,g}"]
        rows.append([f"{paper}: {stem}", f"`experiments/{name}.toml`", RESULTS.get(name, NONE), *cost])
    return table(("", "file", "results", "runs in full", "hours on two cores"), rows, text=(0, 1, 2))


TABLES: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        claims,
        neighbourhoods,
        fed_smp_table_1,
        fed_smp_figure_2,
        fed_smp_figure_3,
        fed_smp_without_factor,
        public_epochs,
        private_masks,
        fedpm_table_1,
        fedpm_figure_5,
        fedmrn_table_1,
        fedmrn_figure_4,
        fedmrn_figure_6,
        fedscalar_figures,
        fedscalar_variance,
        what_has_run,
    )
}


def page() -> str:
    """Return the text of the page with its tables."""
    text = (HERE / "papers.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: TABLES[found[1]](), text)


if __name__ == "__main__":
    print(page(), end="")
