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
    assert status([*SKELLAM, "--rounds", "2", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
