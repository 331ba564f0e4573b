"""Every experiment: its profiles give configurations that can be built, beside numbers that the papers print."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from dpfed.sweep.experiment_file import read_experiment
from dpfed.sweep.plan import GridCell, plan

pytestmark = pytest.mark.usefixtures("_own_code")

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(path.relative_to(EXPERIMENTS).as_posix() for path in EXPERIMENTS.glob("*/*.toml"))
FED_SMP = [name for name in FILES if name.startswith(("fed-smp/table", "fed-smp/figure"))]
DATA = ("fashion-mnist", "svhn", "shakespeare")
FEDMRN_DATA = ("fashion-mnist", "svhn", "cifar-10", "cifar-100")
WANTED = {
    *(f"fed-smp/table-{number}.toml" for number in range(1, 10)),
    *(f"fed-smp/figure-{number}-{data}.toml" for number in (2, 3) for data in DATA),
    *(f"fedpm/figure-3-{data}.toml" for data in ("cifar-10", "cifar-100", "mnist", "emnist")),
    "fedpm/tables-1-and-3.toml",
    *(f"fedmrn/{part}-{data}.toml" for part in ("table-1", "figure-3", "figure-4") for data in FEDMRN_DATA),
    "fedmrn/table-3.toml",
    "fedmrn/figure-5.toml",
    "fed-smp/clip-fashion-mnist.toml",
    "fed-smp/main-rows.toml",
    "fedscalar/figure-2.toml",
    "fedscalar/figure-3.toml",
}
"""Tables and figures of papers; the other experiments repeat no paper."""
WITHOUT_RUNS = ("fedpm/figure-5/run.py", "fedmrn/table_2.py", "fedmrn/figure_6.py")
ON_DISK_OR_NOT = {
    *("digits", "mnist", "fashion-mnist", "emnist-balanced", "svhn", "svhn-extra", "cifar-10", "cifar-100"),
    *("shakespeare", "shakespeare-leaf"),
}


def cells(name: str, profile: str | None, tmp_path: Path) -> tuple[GridCell, ...]:
    """All runs but those of other seeds, parsed and checked without data."""
    return plan(EXPERIMENTS / name, profile=profile, out=tmp_path / "runs", settings=["run.seed=1"]).grid.runs


def published(name: str) -> list[dict[str, str]]:
    """The paper's numbers; none of an experiment that repeats no paper."""
    numbers = (EXPERIMENTS / name).with_suffix(".csv")
    if name not in WANTED:
        return []
    with numbers.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_table_and_figure_has_its_file() -> None:
    assert set(FILES) >= WANTED
    assert all((EXPERIMENTS / path).is_file() for path in WITHOUT_RUNS)


@pytest.mark.slow_but_one_in(42)
@pytest.mark.parametrize("name", FILES)
def test_profiles_give_configurations_that_can_be_built(name: str, tmp_path: Path) -> None:
    file = read_experiment(EXPERIMENTS / name)
    if not file.profiles:  # a comparison of one size
        assert name not in WANTED
        assert {cell.row for cell in cells(name, None, tmp_path)} == {row.name for row in file.row}
        return
    assert {"smoke", "cpu", "full"} <= set(file.profiles)
    runs = {profile: cells(name, profile, tmp_path) for profile in ("smoke", "cpu", "full")}
    assert all(file.profiles[profile].note for profile in runs)
    assert {cell.config.data.name for cell in runs["smoke"]} == {"digits"}
    assert all(cell.config.federation.rounds <= 2 for cell in runs["smoke"])
    assert {cell.row for cell in runs["full"]} == {row.name for row in file.row}
    assert {cell.config.data.name for profile in runs for cell in runs[profile]} <= ON_DISK_OR_NOT


@pytest.mark.slow_but_one_in(48)
@pytest.mark.parametrize("name", FILES)
def test_published_numbers_belong_to_rows_that_run_in_full(name: str, tmp_path: Path) -> None:
    file = read_experiment(EXPERIMENTS / name)
    profile = "full" if file.profiles else None
    run_at = {(cell.row, cell.at.get(file.x or "", "")) for cell in cells(name, profile, tmp_path)}
    rows = {row for row, _ in run_at}
    for line in published(name):
        assert line["row"] in rows
        assert not line["x"] or (line["row"], line["x"]) in run_at
        assert line["where"]


@pytest.mark.slow_but_one_in(15)
@pytest.mark.parametrize("name", FED_SMP)
def test_fed_smp_has_three_blocks_of_the_same_rows(name: str, tmp_path: Path) -> None:
    runs = [cell for cell in cells(name, "full", tmp_path) if cell.config.privacy is not None]
    blocks: dict[str, dict[tuple[str, float | None], GridCell]] = defaultdict(dict)
    for cell in runs:
        row, _, block = cell.row.rpartition(", ")
        blocks[block][row, cell.config.method.keep] = cell
    as_published, poisson, tight = (blocks[block] for block in ("as published", "Poisson", "tight"))
    assert as_published.keys() == poisson.keys() == tight.keys()
    for key, cell in as_published.items():
        same, less = poisson[key].config, tight[key].config
        assert cell.config.privacy is not None
        assert less.privacy is not None
        assert (cell.config.federation.sampling, same.federation.sampling) == ("fixed", "poisson")
        assert cell.config.privacy == same.privacy
        assert (less.federation.sampling, less.privacy.accountant) == ("poisson", "best")
        assert (less.privacy.noise_multiplier, less.privacy.epsilon is None) == (None, False)
        changed = {"federation": {"sampling": "poisson"}, "privacy": less.privacy.model_dump()}
        rest = cell.config.model_dump()
        rest["federation"] |= changed["federation"]
        assert rest | {"privacy": changed["privacy"]} == less.model_dump()


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize("name", [name for name in FED_SMP if "table" in name])
def test_published_noise_gives_the_published_epsilon_in_the_paper_s_way(name: str, tmp_path: Path) -> None:
    """Poisson, add-remove, RDP, classical conversion; Shakespeare for the 10^9 clients that the paper imagines."""
    stated = {line["row"]: float(line["value"]) for line in published(name) if line["quantity"] == "epsilon"}
    noises = {
        cell.row: (cell.config.federation, cell.config.privacy.noise_multiplier)
        for cell in cells(name, "full", tmp_path)
        if cell.config.privacy is not None and cell.row.endswith("as published")
    }
    for row, (federation, noise) in noises.items():
        assert noise is not None
        clients = 10**9 if federation.clients == 715 else federation.clients
        assert _in_the_paper_s_way(noise, clients, federation.cohort, federation.rounds) == pytest.approx(
            stated[row], abs=0.011
        )


def _in_the_paper_s_way(noise: float, clients: int, cohort: int, rounds: int) -> float:
    """On opacus' orders, with E over N(0, s^2) of (1 - q + q e^((2 x - 1) / (2 s^2)))^alpha summed on a fine grid."""
    q, log_delta = cohort / clients, -1.1 * math.log(clients)

    def divergence(order: float) -> float:
        x = np.linspace(-12 * noise, order + 12 * noise, 4001)
        log_density = -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
        log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * noise**2))
        return float(logsumexp(log_density + order * log_ratio) + math.log(x[1] - x[0])) / (order - 1)

    orders = [*(1 + k / 10 for k in range(1, 100)), *range(12, 64)]
    return min(rounds * divergence(order) - log_delta / (order - 1) for order in orders)
