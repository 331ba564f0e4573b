"""What `dpfed run --list` says that presets come to."""

import pytest

import dpfed
from accounting.rounding import upwards
from dpfed.cli import status
from dpfed.methods import catalogue
from dpfed.methods.catalogue import expected_results

DIGITS = sorted(name for name in expected_results() if name.endswith("-digits"))


def test_every_preset_on_the_digits_was_measured():
    assert set(DIGITS) == {name for name in catalogue.preset_names() if name.endswith("-digits")}
    assert set(expected_results()) <= set(catalogue.preset_names())


def test_no_preset_is_a_failure():
    """Ten classes; a method whose preset learns nothing has a preset that is wrong."""
    assert {name: one.accuracy for name, one in expected_results().items() if one.accuracy < 0.7} == {}


@pytest.mark.slow_but_one_in(30)
@pytest.mark.parametrize("name", sorted(DIGITS, key=lambda name: name != "fed-smp-randk-digits"))
def test_a_preset_comes_to_what_is_stated(name, tmp_path):
    """The same seed: accuracy within a point and a half, for other processors' rounding; epsilon and bits as stated."""
    summary, stated = dpfed.run(name, out=tmp_path / "run").summary, expected_results()[name]
    assert summary["test_accuracy"] == pytest.approx(stated.accuracy, abs=0.015)
    assert summary["epsilon"] == (None if stated.epsilon is None else pytest.approx(stated.epsilon, rel=1e-4))
    assert summary["uplink_bits_per_parameter"] == pytest.approx(stated.bits_per_parameter, rel=0.02)


def test_a_terminal_is_shown_them(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert status(["run", "--list"]) == 0
    said = capsys.readouterr().out
    one = expected_results()["dp-fedavg-digits"]
    assert f"{one.accuracy:.1%}" in said
    assert upwards(one.epsilon) in said
