"""`dpfed budget` for integer noise: the JSON contract, defaults, and refusals."""

import json

import pytest

from dpfed.cli import status

PLAN = ["budget", "--clients", "1000", "--cohort", "100", "--delta", "1e-5"]
NOISE = [*PLAN, "--mechanism", "discrete-gaussian", "--dimension", "1600000", "--noise-multiplier", "1.4"]
SKELLAM = [*PLAN, "--mechanism", "skellam", "--dimension", "1600000", "--noise-multiplier", "1.4"]


def record(capsys, *arguments):
    assert status([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [NOISE, SKELLAM])
def test_json_has_the_keys_of_integer_noise(arguments, capsys):
    answer = record(capsys, *arguments, "--rounds", "2", "--sampling", "fixed", "--dropout", "0.1", "--scale", "8000")
    assert answer["shares"] == 90
    assert answer["bits_per_coordinate"] == 18
    assert answer["dimension"] == 1_600_000
    assert answer["scale"] == 8000
    assert 8000 < answer["l2_bound"] < 8035
    assert answer["adjacency"] == "replace-one"
    assert answer["sensitivity_in_clips"] == 2


def test_discrete_noise_costs_one_percent_more_than_continuous_noise(capsys):
    """The default scale, q = 0.1, 100 rounds; Skellam noise stays below a Gaussian of nearly its variance."""
    plain = record(capsys, *PLAN, "--rounds", "100", "--noise-multiplier", "1.4")["epsilon"]
    fine = ["--rounds", "100", "--no-rotate", "--scale", "6000"]
    assert plain < record(capsys, *NOISE, *fine)["epsilon"] < 1.01 * plain
    assert plain < record(capsys, *SKELLAM, *fine)["epsilon"] < 1.01 * plain


def test_the_servers_noise_needs_no_slots(capsys):
    answer = record(capsys, *NOISE, "--rounds", "2", "--placement", "server")
    assert (answer["shares"], answer["adjacency"]) == (1, "add-remove")
    assert not any("alone" in note for note in answer["notes"])


def test_the_noise_multiplier_for_a_target(capsys):
    arguments = [*PLAN, "--mechanism", "skellam", "--dimension", "1000", "--rounds", "20"]
    answer = record(capsys, *arguments, "--epsilon", "2.0")
    assert answer["epsilon"] <= 2.0
    assert record(capsys, *arguments, "--noise-multiplier", str(answer["noise_multiplier"]))["epsilon"] <= 2.0


def test_the_table_prints_bits_and_shares(capsys):
    assert status([*NOISE, "--rounds", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("17 bits a coordinate", "noise share of variance", "accountant: pld", "tau"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN, "--mechanism", "skellam", "--noise-multiplier", "1", "--rounds", "2"], "--dimension"),
        ([*NOISE, "--rounds", "2", "--edge", "0.1"], "--edge"),
        ([*NOISE, "--rounds", "2", "--clip-norm", "1"], "--clip-norm"),
        ([*NOISE, "--rounds", "2", "--compare"], "--compare"),
        ([*NOISE, "--rounds", "2", "--adjacency", "add-remove"], "zero-out"),
        ([*NOISE, "--rounds", "2", "--placement", "server", "--dropout", "0.1"], "does not drop out"),
        ([*NOISE, "--rounds", "2", "--sampling", "all", "--slots", "9"], "cohort-cap"),
        ([*NOISE, "--rounds", "2", "--accountant", "fed-smp-lemma", "--sampling", "fixed"], "Gaussian noise"),
        ([*SKELLAM, "--rounds", "2", "--accountant", "fed-smp-lemma", "--sampling", "fixed"], "Gaussian noise"),
        ([*PLAN, "--noise-multiplier", "1", "--rounds", "2", "--scale", "100"], "--scale"),
        ([*PLAN, "--noise-multiplier", "1", "--rounds", "2", "--no-rotate"], "--rotate"),
        ([*PLAN, "--noise-multiplier", "1", "--rounds", "2", "--dimension", "5"], "--dimension"),
        (
            [*PLAN, "--mechanism", "bernoulli-aggregate", "--dimension", "9", "--edge", ".1", "--clip-norm", "1",
             "--rounds", "2", "--placement", "server"],
            "--placement",
        ),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_clear_line(arguments, words, capsys):
    assert status(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.drawn
def test_a_plot_of_discrete_noise(tmp_path):
    path = tmp_path / "plot.png"
    assert status([*SKELLAM, "--rounds", "30", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
