"""The page over runs: its numbers against hand-made folders, what it must say, what it must not hide."""

import csv
import json
import re
from dataclasses import replace

import pytest
from run_folders import PRIVATE, run_folder

from dpfed.cli import status
from dpfed.report.collection import collect_runs
from dpfed.report.experiment import write_experiment_report
from dpfed.report.statistics import group_mean, groups_of, privacy_paragraph, readings_of
from dpfed.runs.sweep_folder import ListedRun, PublishedNumber, Sweep, read_sweep, write_sweep

pytestmark = pytest.mark.slow_but_one_in(3)


@pytest.fixture
def sweep_folder(tmp_path):
    """Row A (not private) with seeds 1, 2; row B (private) at keep 0.1, 0.2, of which one seed of 0.2 is missing."""
    listed = []
    for row, keep, seed, last in (
        ("A", None, 1, 0.8), ("A", None, 2, 0.9),
        ("B", "0.1", 1, 0.70), ("B", "0.1", 2, 0.72), ("B", "0.2", 1, 0.6), ("B", "0.2", 2, None),
    ):  # fmt: skip
        at = {"run.seed": str(seed)} | ({} if keep is None else {"method.keep": keep})
        folder = f"{row.lower()}/" + ",".join(f"{key}={value}" for key, value in at.items())
        listed.append(ListedRun(row=row, at=at, folder=folder))
        if last is not None:
            changes = PRIVATE if row == "B" else {}
            run_folder(tmp_path / "out" / folder, accuracies=(0.95, last), seed=seed, **changes)
    write_sweep(
        tmp_path / "out",
        Sweep(
            title="Table <I>",
            paper="A paper",
            profile="cpu",
            note="two seeds instead of five",
            quantities=("test_accuracy", "best_test_accuracy", "epsilon"),
            x="method.keep",
            rows=("A", "B"),
            runs=tuple(listed),
            published=(
                PublishedNumber(row="A", x=None, quantity="test_accuracy", value=86.98, where="Table I, p. 9"),
                PublishedNumber(row="B", x="0.2", quantity="test_accuracy", value=80.76, where="Table I, p. 9"),
                PublishedNumber(row="B", x="0.1", quantity="epsilon", value=1.01, where="Table I, p. 9"),
            ),
            command="dpfed sweep table.toml --profile cpu",
            versions={"torch": "9.9"},
            commit="abc123",
            tuned=(
                {
                    "row": "B", "at": {}, "chosen": {"privacy.clip_norm": 0.4}, "rule": "highest", "seed": 0,
                    "validation_samples": 1000,
                    "scores": [{"values": {"privacy.clip_norm": 0.4}, "validation_accuracy": 0.5}],
                },
            ),
        ),
    )  # fmt: skip
    return tmp_path / "out"


def read_csv(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_candidates_are_shown_by_their_loss_without_classes(sweep_folder, tmp_path):
    text = (sweep_folder / "sweep.json").read_text()
    (sweep_folder / "sweep.json").write_text(text.replace('"validation_accuracy": 0.5', '"validation_loss": 0.51234'))
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page")
    assert "0.5123" in page.read_text()


def test_means_deviations_and_differences_by_hand(sweep_folder, tmp_path):
    write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page")
    table = {(one["row"], one["method.keep"], one["quantity"]): one for one in read_csv(tmp_path / "page/table.csv")}
    a = table["A", "", "test_accuracy"]
    assert (a["n"], a["unit"], a["published_where"]) == ("2", "%", "Table I, p. 9")
    assert float(a["mean"]) == pytest.approx(85.0)
    assert float(a["std"]) == pytest.approx(50**0.5)  # of 80 and 90, divided by n - 1
    assert float(a["difference"]) == pytest.approx(85 - 86.98)
    best = table["A", "", "best_test_accuracy"]
    assert (float(best["mean"]), best["published"]) == (pytest.approx(95.0), "")
    single = table["B", "0.2", "test_accuracy"]
    assert (single["n"], single["std"], float(single["mean"])) == ("1", "", pytest.approx(60.0))
    assert float(single["difference"]) == pytest.approx(60 - 80.76)
    assert float(table["B", "0.1", "epsilon"]["difference"]) == pytest.approx(3.4887 - 1.01)
    assert (table["A", "", "epsilon"]["n"], table["A", "", "epsilon"]["mean"]) == ("0", "")


def test_an_epsilon_over_seeds_is_the_largest_and_a_lower_bound_the_smallest(tmp_path):
    epsilons = [(1.0, 0.8), (1.2, 0.9), (1.1, 0.7)]
    folders = [
        run_folder(tmp_path / str(seed), **(PRIVATE | {"epsilon": epsilon, "lower_bound": bound, "seed": seed}))
        for seed, (epsilon, bound) in enumerate(epsilons)
    ]
    found = collect_runs(folders)
    (group,) = groups_of(found)
    assert (group_mean(group, "epsilon", found).mean, group_mean(group, "epsilon", found).std) == (1.2, None)
    assert group_mean(group, "lower_bound", found).mean == 0.7
    assert readings_of(group).stated_epsilon == 1.2


def test_folders_of_one_name_with_many_differences_are_no_seeds(tmp_path):
    """They were one row of two seeds: the epsilon of one of them, under the delta and unit of the other."""
    runs = (("a", 2.0, 1e-5, "client"), ("b", 1.0, 1e-3, "record"))
    folders = [
        run_folder(
            tmp_path / name / "run",
            config="".join(f"[{table}]\nkey = {delta}\n" for table in ("data", "local", "privacy", "server")),
            **(PRIVATE | {"epsilon": epsilon, "delta": delta, "unit": unit}),
        )
        for name, epsilon, delta, unit in runs
    ]
    found = collect_runs(folders)
    assert [len(group.runs) for group in groups_of(found)] == [1, 1]
    words = privacy_paragraph(found)
    assert "epsilon at most 2 and delta 1e-05 for one client" in words
    assert "epsilon at most 1 and delta 0.001 for one record" in words


def test_a_number_without_x_is_for_its_row_at_every_x_that_has_none_of_its_own(sweep_folder):
    found = collect_runs([sweep_folder])
    without = PublishedNumber(row="B", x=None, quantity="test_accuracy", value=70.0, where="text")
    found = replace(found, published=(*found.published, without))
    shown = {
        (group.row, group.at.get("method.keep")): group_mean(group, "test_accuracy", found).published.value
        for group in groups_of(found)
    }
    assert shown == {("A", None): 86.98, ("B", "0.1"): 70.0, ("B", "0.2"): 80.76}


@pytest.mark.slow
def test_small_means_keep_two_digits_and_published_numbers_the_papers(sweep_folder, tmp_path):
    found = collect_runs([sweep_folder])
    small = replace(found.runs[0], summary=replace(found.runs[0].summary, uplink_megabytes_total=0.00234))
    quantities = ("uplink_megabytes_total", "test_accuracy")
    page = write_experiment_report(
        replace(found, runs=(small, *found.runs[2:]), quantities=quantities), tmp_path / "page"
    ).read_text()
    assert ">0.0023<" in page
    assert ">7.20<" in page
    rounder = [replace(one, value=one.value if one.row == "A" else 80.0) for one in found.published]
    page = write_experiment_report(replace(found, published=tuple(rounder)), tmp_path / "page").read_text()
    assert re.search(r">86\.98\s*<", page)
    assert re.search(r">80\.00\s*<", page)


@pytest.mark.slow
def test_the_page_says_what_set_has_changed(sweep_folder, tmp_path):
    listed = read_sweep(sweep_folder)
    note = "the paper's 100 rounds; changed by --set: federation.rounds=8"
    write_sweep(sweep_folder, replace(listed, profile="full", note=note))
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page").read_text()
    assert "changed by --set: federation.rounds=8. This is not the paper" in page
    write_sweep(sweep_folder, replace(listed, profile=None, note="changed by --set: federation.rounds=8"))
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page").read_text()
    assert "Changed by --set: federation.rounds=8. This is not the paper" in page


def test_results_have_one_line_a_run(sweep_folder, tmp_path):
    write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page")
    lines = read_csv(tmp_path / "page/results.csv")
    assert [(one["row"], one["run.seed"], one["method.keep"]) for one in lines] == [
        ("A", "1", ""), ("A", "2", ""), ("B", "1", "0.1"), ("B", "2", "0.1"), ("B", "1", "0.2"),
    ]  # fmt: skip
    assert [one["epsilon"] for one in lines] == ["", "", "3.4887", "3.4887", "3.4887"]
    assert lines[0]["uplink_megabytes_total"] == "7.2"


def test_the_page_says_what_must_be_known_beside_the_numbers(sweep_folder, tmp_path):
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for words in (
        "Table &lt;I&gt;", "two seeds instead of five.", "This is not the paper",
        "Not finished and therefore not on this page: 1 of 6 runs (B).",
        "85.00", "86.98", "-1.98", "last round", "best over rounds", "chosen on the test set",
        "Not protected: the weather (B).", "dpfed sweep table.toml --profile cpu", "torch 9.9", "abc123", "Seeds 1, 2.",
        "The epsilons above do not cover tuning on private data", "privacy.clip_norm 0.4", "50.00%",
    ):  # fmt: skip
        assert words in text, words


def test_epsilon_under_each_reading_of_the_papers_setting(sweep_folder, tmp_path):
    """Fed-SMP's Table I: noise 1.4, 100 of 6,000 clients, 180 rounds, sampled in fixed size. The paper prints 1.01."""
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page").read_text()
    row = re.search(r"<td>B, keep 0.1<td>(.*?)</?t(?:r|able)", page, flags=re.DOTALL).group(1)
    for number in ("<td>1.4\n", "3.4887", "3.2142", "1.0077*", "0.6303*"):
        assert number in row, number
    assert "for it this number is no guarantee" in page


@pytest.mark.drawn
def test_figures_are_png_and_pdf_and_the_page_needs_no_other_file(sweep_folder, tmp_path):
    page = write_experiment_report(collect_runs([sweep_folder]), tmp_path / "page").read_text()
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        "report.html", "results.csv", "table.csv", "curves.png", "curves.pdf", "axis.png", "axis.pdf",
    }  # fmt: skip
    assert (tmp_path / "page/curves.pdf").read_bytes().startswith(b"%PDF")
    assert not re.search(r"https?:|(?:src|href)=\"(?!#)|url\((?!#)|@import", page)
    assert page.count("<svg viewBox") >= 3


def test_rows_that_differ_in_epsilon_are_shown_against_it(tmp_path):
    for epsilon, seed, last in ((1.0, 1, 0.6), (1.0, 2, 0.7), (3.0, 1, 0.8)):
        run_folder(
            tmp_path / f"e{epsilon}s{seed}",
            config=f"[privacy]\nepsilon = {epsilon}",
            **(PRIVATE | {"epsilon": epsilon, "seed": seed, "test_accuracy": last}),
        )
    folders = [tmp_path / name for name in ("e1.0s1", "e1.0s2", "e3.0s1")]
    found = collect_runs(folders)
    assert [(run.row, dict(run.at)) for run in found.runs] == [
        ("dp-fedavg", {"privacy.epsilon": "1.0", "run.seed": "1"}),
        ("dp-fedavg", {"privacy.epsilon": "1.0", "run.seed": "2"}),
        ("dp-fedavg", {"privacy.epsilon": "3.0", "run.seed": "1"}),
    ]
    write_experiment_report(found, tmp_path / "page")
    assert (tmp_path / "page/privacy-utility.pdf").exists()
    assert len(read_csv(tmp_path / "page/table.csv")) == 2 * 4


@pytest.mark.drawn
@pytest.mark.slow
def test_many_groups_are_divided_among_figures(tmp_path):
    folders = [
        run_folder(tmp_path / f"{method}-{keep}", config=f"[method]\nkeep = {keep}", method=method, seed=1)
        for method in ("one", "two", "three")
        for keep in (0.1, 0.2, 0.3)
    ]
    write_experiment_report(collect_runs(folders), tmp_path / "page")
    assert sorted(path.name for path in (tmp_path / "page").glob("curves*.png")) == [
        "curves-1.png", "curves-2.png", "curves-3.png",
    ]  # fmt: skip


def test_a_resumed_runs_seconds_are_those_of_all_its_rounds(tmp_path):
    folder = run_folder(tmp_path / "run", seconds=3.0)
    lines = [json.dumps({"round": i, "cohort": 3, "participants": 3, "seconds": 4.0}) for i in (1, 2)]
    (folder / "diagnostics.jsonl").write_text("\n".join(lines) + "\n")
    assert collect_runs([folder]).runs[0].summary.seconds == 8.0


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda path: [], 2, "no folder given"),
        (lambda path: [path / "nothing"], 1, "no folder of a finished run"),
        (lambda path: [path / "out", path / "other"], 2, "is the folder of a sweep. Give it as the only folder"),
        (lambda path: [path / "empty"], 1, "no run of this sweep is finished"),
        (lambda path: [path / "broken"], 1, "is not a valid description of a sweep"),
    ],
)
def test_what_cannot_be_reported(sweep_folder, tmp_path, capsys, make, code, words):
    for name, content in (("broken", "{}"), ("empty", (sweep_folder / "sweep.json").read_text())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.json").write_text(content)
    assert status(["report", *map(str, make(tmp_path))]) == code
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_the_table(sweep_folder, capsys):
    assert status(["report", str(sweep_folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(sweep_folder / "report" / "report.html")
    assert found["missing"] == 1
    first = found["table"][0]
    assert (first["row"], first["quantity"], first["n"], first["published"]) == ("A", "test_accuracy", 2, 86.98)
    assert status(["report", str(sweep_folder)]) == 0
    assert "85.00" in capsys.readouterr().out
