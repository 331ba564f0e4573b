"""docs/papers.md is what its command prints, and every table on it has the numbers of its files."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import ModuleType

import pytest
from scipy import stats
from scripts import script

from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def papers() -> ModuleType:
    return script("experiments/papers.py")


@pytest.fixture(scope="module")
def page(papers: ModuleType) -> str:
    return papers.page()


def test_the_page_is_what_the_command_prints(page: str) -> None:
    assert (ROOT / "docs" / "papers.md").read_text(encoding="utf-8") == page


def test_every_cell_of_table_1_is_there_with_its_result_or_without(papers: ModuleType) -> None:
    rows = [line.split(" | ") for line in papers.fed_smp_table_1().splitlines()[2:]]
    with (ROOT / "experiments" / "fed-smp" / "table-1.csv").open(encoding="utf-8", newline="") as file:
        printed = [
            line
            for line in csv.DictReader(file)
            if line["quantity"] == "best_test_accuracy" and not line["row"].endswith(("Poisson", "tight"))
        ]
    assert [row[1] for row in rows if row[1] != "not printed"] == [line["value"] for line in printed]
    assert all(row[2].startswith(papers.NONE) or re.match(r"\d\d\.\d\d", row[2]) for row in rows)


def test_savings_until_72_percent(papers: ModuleType) -> None:
    """Recomputed from the curves: the first evaluated round at 72%, in DP-FedAvg's bytes, as a mean over seeds."""
    until: dict[str, dict[str, float]] = {}
    with (ROOT / "experiments" / "fed-smp" / "curves.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if float(line["test_accuracy"]) >= 0.72:
                seeds_of_row = until.setdefault(f"{line['row']} {line['x']}", {})
                seeds_of_row.setdefault(line["seed"], float(line["uplink_megabytes"]))
    (whole,) = until["DP-FedAvg, as published "].values()
    text = papers.fed_smp_figure_2()
    for row in ("Fed-SMP rand-k, as published 0.4", "Fed-SMP top-k, as published 0.005"):
        seeds = until[row].values()
        assert f"| {100 * (1 - sum(seeds) / len(seeds) / whole):.1f}% |" in text


def test_every_table_of_the_text_is_made_and_every_made_table_is_in_it(papers: ModuleType) -> None:
    text = (ROOT / "experiments" / "papers.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\{\{(\w+)\}\}", text)) == sorted(papers.TABLES)
    assert all((ROOT / "experiments" / f"{name}.toml").is_file() for name in papers.RESULTS)


def test_a_row_without_a_result_has_its_cost(papers: ModuleType, page: str) -> None:
    assert {one.partition("/")[0] for one in papers.costs()} == set(papers.FILES.values())
    files = {
        f"{folder}/{path.stem}" for folder in papers.FILES.values() for path in papers.HERE.glob(f"{folder}/*.toml")
    }
    assert papers.costs().keys() == files
    rows = [line for line in page.splitlines() if papers.NONE in line and line.startswith("|")]
    assert len(rows) > 20
    assert all(re.search(r"; [\d.]+ hours a run|\| [\d,.]+ \|$", row) for row in rows)


@pytest.mark.slow
def test_the_costs_are_what_the_command_writes() -> None:
    costs = script("experiments/costs.py")
    stored = (ROOT / "experiments" / "costs.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [",".join(map(str, line)) for line in costs.lines()] == stored


def test_the_cost_of_table_1_is_near_what_its_runs_took(papers: ModuleType) -> None:
    """Two cores; a run took 25 to 60 minutes of one."""
    line = papers.costs()["fed-smp/table-1"]
    assert 25 / 60 < 2 * float(line["hours"]) / int(line["runs"]) < 1


def test_seed_1_has_few_large_normals_by_chance(page: str) -> None:
    """Counts beyond 4.5 of the noise of rand-k at .01, from the seeds alone: why the audit of one run fails."""
    rounds, sent = 180, 16_634
    found = []
    for seed in range(1, 6):
        source = Simulated(seeds=Seeds(root=seed))
        found.append(sum(int((source.normal(sent, "noise.sum", r).abs() > 4.5).sum()) for r in range(rounds)))
    expected = rounds * sent * 2 * stats.norm.sf(4.5)
    assert (found[0], min(found[1:]), max(found[1:]), round(expected)) == (7, 16, 30, 20)
    text = " ".join(page.split())
    assert f"of seed 1's {rounds * sent:,} normals 7 are beyond 4.5 standard deviations, where 20 are expected" in text
    assert "seeds 2 to 5 have 16 to 30" in text
