"""Commands as people and scripts use them: JSON keys, exit status, what they load."""

import json
import subprocess
import sys

import pytest

from accounting import gaussian
from accounting.rounding import upwards
from dpfed.cli import status
from dpfed.methods.catalogue import METHODS

PAPER = ["budget", "--clients", "6000", "--cohort", "100"]
BUDGET_KEYS = {
    "epsilon", "delta", "noise_multiplier", "rounds", "clients", "cohort", "sampling", "sampling_probability",
    "adjacency", "unit", "sensitivity_in_clips", "mechanism", "accountant", "conversion", "order", "lower_bound",
    "valid", "notes", "advantage", "tpr_at_fpr", "gaussian_dp",
}  # fmt: skip


def json_of(capsys, *arguments):
    assert status([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_budget_prints_one_json_object_with_the_contracts_keys(capsys):
    record = json_of(capsys, *PAPER, "--rounds", "180", "--noise-multiplier", "1.4")
    assert set(record) == BUDGET_KEYS
    assert record["epsilon"] == pytest.approx(0.6303, abs=5e-5)
    assert record["tpr_at_fpr"] == {"0.01": pytest.approx(0.01655, rel=1e-3), "0.001": pytest.approx(0.00193, rel=2e-3)}
    assert record["gaussian_dp"] == {"mu": pytest.approx(0.2023, abs=1e-4), "delta_min": record["delta"]}
    assert (record["sampling"], record["adjacency"], record["sensitivity_in_clips"]) == ("poisson", "add-remove", 1.0)


def test_budget_meets_the_targets_of_a_membership_test(capsys):
    plan = ["budget", "--clients", "600", "--sampling", "all", "--rounds", "9"]
    record = json_of(capsys, *plan, "--tpr", ".02", "--fpr", ".01")
    assert record["tpr_at_fpr"]["0.01"] == pytest.approx(0.02, rel=1e-5)
    assert record["tpr_at_fpr"]["0.01"] <= 0.02
    assert status([*plan, "--advantage", ".1"]) == 0
    assert "advantage at most 0.1000" in capsys.readouterr().out.replace("\n", " ")
    assert status([*plan, "--advantage", ".1", "--epsilon", "1"]) == 2
    assert "--advantage with --epsilon: a budget has one target" in capsys.readouterr().err


@pytest.mark.parametrize("nested", ["a = " + "[" * 20_000, ".".join(["a"] * 3000) + " = 1"], ids=["list", "tables"])
def test_a_deeply_nested_file_is_one_error(tmp_path, capsys, nested):
    for command, name in (("run", "deep.toml"), ("explain", "deep.toml"), ("explain", "deep.json")):
        (tmp_path / name).write_text(nested if name.endswith("toml") else "[" * 50_000)
        assert status([command, str(tmp_path / name)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_what_papers_print_is_shown_to_who_asks(capsys):
    few = ["budget", "--clients", "60", "--cohort", "45", "--rounds", "2", "--noise-multiplier", "1.4", "--compare"]
    assert status([*few, "--papers"]) == 0
    out = capsys.readouterr().out
    assert "fed-smp" in out
    assert "are no guarantees" in out
    assert status(few) == 0
    assert "fed-smp" not in (out := capsys.readouterr().out)
    assert "--papers" in out
    assert status([*few[:-1], "--papers"]) == 2
    assert "Add --compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PAPER, "--rounds", "180"], "exactly two"),
        ([*PAPER, "--rounds", "180", "--noise-multiplier", "-1"], "noise_multiplier"),
        (["budget", "--client", "60"], "client"),
        (["bugdet"], "budget"),
        (["run"], "preset"),
        (["run", "nothing-digits"], "neither a file nor a preset"),
        (["run", "missing.toml"], "missing.toml"),
        (["run", "dp-fedavg-digits", "--resume"], "--out"),
        ([*PAPER[:3], "--cohort", "7.5", "--rounds", "10", "--noise-multiplier", "1.4"], "is no integer"),
        ([*PAPER, "--rounds", "10.9", "--noise-multiplier", "1.4"], "is no integer"),
        ([*PAPER, "--rounds", "ten", "--noise-multiplier", "1.4"], "is no integer"),
        (["sweep", "none.toml", "--jobs", "1.5"], "is no integer"),
        (["run", "fedavg-digits", "--pay", "2.5"], "is no integer"),
    ],
)
def test_wrong_usage_is_one_message_and_status_2(capsys, arguments, words):
    assert status(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_methods_lists_the_contracts_keys(capsys):
    records = json_of(capsys, "methods")
    assert [record["name"] for record in records] == list(METHODS)
    keys = {"name", "paper", "local_training", "unbiased", "nominal_bits_per_parameter", "linear", "private_with"}
    assert all(keys <= set(record) for record in records)


SHORT = ["--set", "federation.rounds=2", "--set", "privacy.noise_multiplier=2.0", "--set", "local.epochs=1"]


@pytest.mark.drawn
def test_run_prints_its_summary_and_leaves_a_report(capsys, tmp_path):
    summary = json_of(capsys, "run", "fed-smp-randk-digits", *SHORT, "--out", str(tmp_path / "run"))
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"epsilon at most {upwards(summary['epsilon'])}" in page
    assert "Poisson sampling" in page
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_carve_out_is_declared_as_not_protected(capsys, tmp_path):
    assert status(["run", "fed-smp-topk-digits", *SHORT, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "137 samples carved out of the training set" in out
    assert "not protected" in out


def test_the_page_of_methods_is_what_the_command_prints():
    from pathlib import Path

    from dpfed.cli.methods import methods_page

    assert (Path(__file__).parents[3] / "docs" / "methods.md").read_text() == methods_page()


@pytest.mark.parametrize(
    ("preset", "settings", "words", "sampling"),
    [
        (
            "fedpm",
            ["privacy.clip_norm=0.5"],
            "Bernoulli samples in sums of a fixed number of uploads",
            "Poisson sampling of 65",
        ),
        (
            "fedpm",
            ["privacy.clip_norm=0.5", "privacy.release=uploads", "privacy.noise_std=0.3"],
            "Bernoulli samples in every upload",
            "every upload seen",
        ),
        (
            "qsgd",
            ["privacy.clip_norm=1.0", "privacy.noise_multiplier=4.0", "privacy.release=uploads"],
            "on every upload, before its compression",
            "every round charged to all",
        ),
        (
            "dp-fedavg",
            ["privacy.noise_multiplier=4.0", "privacy.placement=clients", "federation.sampling=fixed"],
            "in shares of the clients",
            "fixed sampling of 65",
        ),
    ],
    ids=["coins", "noised coins", "uploads", "shares"],
)
@pytest.mark.slow
def test_the_words_of_a_run_say_what_made_it_private(capsys, tmp_path, preset, settings, words, sampling):
    """Table and report of every way; the rest of the presets' settings does not matter."""
    size = ["model.hidden=[4]", "federation.rounds=1", "local.epochs=1", "federation.sampling=poisson"]
    size += ["federation.clients=650", "federation.cohort=65"]
    given = [part for setting in (*size, *settings) for part in ("--set", setting)]
    name = "dp-fedavg-digits" if preset == "dp-fedavg" else f"{preset}-digits"
    assert status(["run", name, *given, "--out", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "run" / "report.html").read_text()
    assert words in page
    assert sampling in page
    assert words.split(",")[0].split(" of ")[0] in shown
    assert "None" not in page.split("<table")[0]


def test_a_mask_is_shown_as_a_file(capsys, tmp_path):
    words = ["run", "fedpm-digits", "--set", "federation.rounds=1", "--verbose", "--out", str(tmp_path / "r")]
    assert status(words) == 0
    assert "model.mask.safetensors" in capsys.readouterr().out


def test_brackets_are_text(capsys):
    """Names of tables of a configuration, and folders such as keep=[0.1], are no markup."""
    from dpfed.cli.output import console

    console().print("set [audit] canaries in runs/[0.1]")
    assert capsys.readouterr().out.strip() == "set [audit] canaries in runs/[0.1]"


@pytest.mark.drawn
@pytest.mark.slow
def test_the_readings_are_a_png_beside_the_plot(capsys, tmp_path):
    arguments = ["budget", "--clients", "600", "--cohort", "60", "--rounds", "9", "--noise-multiplier", "2"]
    assert status([*arguments, "--plot", str(tmp_path / "plot.png")]) == 0
    assert "plot-readings.png" in capsys.readouterr().out.replace("\n", "")
    assert (tmp_path / "plot-readings.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_pairs_that_hold_together(capsys):
    """A plain Gaussian's are known in closed form; what is stated is above it, and not by more than its last digit."""
    arguments = ["budget", "--clients", "600", "--sampling", "all", "--rounds=9", "--noise-multiplier=9", "--table"]
    pairs = json_of(capsys, *arguments)["profile"]
    assert len(pairs) == 9
    for pair in pairs:
        exact = float(gaussian.privacy_profile(pair["epsilon"], mu=1 / 3))
        assert exact <= pair["delta"] <= exact * 1.001
    assert status(arguments) == 0
    assert upwards(pairs[3]["delta"]) in capsys.readouterr().out


def test_whole_numbers_may_be_written_as_others(capsys):
    for rounds in ("180", "180.0", "1.8e2"):
        assert json_of(capsys, *PAPER, "--rounds", rounds, "--noise-multiplier", "1.4")["rounds"] == 180


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("where", [">&-", "> /dev/full", ">&- 2>&-"])
@pytest.mark.parametrize("command", ["methods", "methods --json"])
def test_output_that_goes_nowhere_ends_in_one_message(command, where):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dpfed {command} {where}"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == (0 if "2>" in where else 1)
    assert "Traceback" not in done.stderr


def test_a_comparison_has_no_other_precision(capsys):
    assert status([*PAPER, "--rounds", "3", "--noise-multiplier", "1.0", "--compare", "--precision"]) == 2
    assert "--precision with --compare" in capsys.readouterr().err


RECORDS = ["budget", "--unit", "record", "--clients", "10", "--records", "143", "--batch-size", "32"]


def test_a_budget_of_records(capsys):
    record = json_of(capsys, *RECORDS, "--local-steps", "23", "--rounds", "3", "--noise-multiplier", "1.0")
    assert record["unit"] == "record"
    assert record["epsilon"] == pytest.approx(13.3896, abs=1e-4)
    for more in (["--compare"], ["--plot", "x.png"], ["--over", "rounds=1:3"], ["--group", "2"]):
        assert status([*RECORDS, "--rounds", "3", "--noise-multiplier", "1.0", *more]) == 2
        assert "--unit record" in capsys.readouterr().err
    assert status(["plan", *RECORDS[1:], "--rounds", "3", "--epsilon", "0", "--static", "x.html"]) == 2
