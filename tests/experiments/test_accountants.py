"""Accountants against proven bounds: what is right is not flagged, what is wrong is, with its neighbours."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import dpfed.audit
from accounting import gaussian, guarantee
from accounting.compose.pld import composition_slack
from dpfed.cli import status
from dpfed.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "audit-field"))
import accountant_adapters as adapters
import accountants
from accountant_settings import SETTINGS, Setting, compute_bounds, stored_bounds
from accountants import audit_accountant

PLAIN = [setting for setting in SETTINGS if setting.sampling == "all"]
GOLDEN = next(one for one in SETTINGS if one.sampling == "fixed" and one.noise_multiplier == 1.4)


def exact(*, sampling, adjacency, noise_multiplier, rounds, delta, **_):
    """Right where all take part: the closed form; nothing elsewhere."""
    if sampling != "all":
        return None
    shift = (2.0 if adjacency == "replace-one" else 1.0) * math.sqrt(rounds) / float(noise_multiplier)
    return float(gaussian.smallest_epsilon(delta, mu=shift))


def half(**setting):
    found = exact(**setting)
    return None if found is None else found / 2


def astronomical(**_):
    return math.inf


def test_what_is_right_is_not_flagged_and_half_of_it_is_everywhere():
    right = audit_accountant(exact)
    assert right.verdict == "pass"
    assert {one.verdict for one in right.cases} == {"right", "no answer"}
    wrong = audit_accountant(half, settings=PLAIN)
    assert wrong.verdict == "fail"
    assert {one.verdict for one in wrong.cases} == {"refuted"}
    assert "one client sends C" in wrong.cases[0].detail


def test_infinity_is_a_bound_without_meaning():
    empty = audit_accountant(astronomical, settings=PLAIN[:2])
    assert {one.verdict for one in empty.cases} == {"loose"}
    assert empty.verdict == "inconclusive"
    assert "above a hundred times the proven epsilon" in empty.as_text()


def mostly_breaks(**setting):
    if setting["rounds"] > 1:
        raise RuntimeError("no such order")
    return exact(**setting)


def test_an_error_refutes_nothing_and_more_errors_than_answers_are_no_pass():
    few = [one for one in PLAIN if one.rounds == 1][:1] + [one for one in PLAIN if one.rounds > 1][:3]
    found = audit_accountant(mostly_breaks, settings=few)
    assert found.verdict == "inconclusive"
    assert "It failed in 3 of 4 settings" in found.as_text()
    assert "RuntimeError: no such order" in found.cases[1].detail
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    ("wrap", "right"),
    [
        (lambda e: {"delta": 1e-5, "epsilon": e}, False),
        (str, False),
        (lambda e: (e, 1e-5), False),
        (lambda e: [e], False),
        (np.float32, True),
        (lambda e: np.array([[e]]), True),
        (int, True),
    ],
)
def test_only_one_number_is_an_answer(wrap, right):
    """Planted: an accountant whose delta comes first was refuted by it."""
    found = audit_accountant(lambda **_: wrap(1000.0), settings=PLAIN[:1])
    assert found.cases[0].verdict != "refuted"
    assert (found.cases[0].verdict != "error") == right
    assert right or "must return a number or None" in found.cases[0].detail


def test_every_setting_has_proven_bounds_in_order():
    assert len(SETTINGS) > 95
    assert len(set(map(str, SETTINGS))) == len(SETTINGS)
    for setting in SETTINGS:
        bounds = stored_bounds()[str(setting)]
        assert 0 <= bounds.at_least <= bounds.at_most < math.inf


def test_the_golden_setting_is_bounded_as_the_theory_says():
    bounds = stored_bounds()[str(GOLDEN)]
    assert 3.2398 <= bounds.at_least <= 3.2405 <= bounds.at_most < 3.25


@pytest.mark.parametrize("setting", PLAIN, ids=str)
def test_kept_bounds_are_those_of_the_closed_form(setting):
    """mu = sensitivity sqrt(T) / z; the smallest epsilon by the accountant's own inverse, from scratch."""
    shift = (2.0 if setting.adjacency == "replace-one" else 1.0) * math.sqrt(setting.rounds) / setting.noise_multiplier
    truth = float(gaussian.smallest_epsilon(setting.delta, mu=shift))
    bounds = stored_bounds()[str(setting)]
    assert bounds.at_least <= truth * (1 + 1e-9)
    assert bounds.at_most >= truth * (1 - 1e-9)
    assert bounds.at_least == pytest.approx(bounds.at_most, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_kept_bounds_are_what_is_computed(setting):
    """Processors round transforms differently, within the mass that the account subtracts from delta."""
    rounding = 1e-9 + composition_slack(setting.rounds * setting.releases_per_cohort) / setting.delta
    stored, computed = stored_bounds()[str(setting)], compute_bounds(setting)
    assert computed.at_least == pytest.approx(stored.at_least, rel=rounding)
    printed = guarantee(setting.mechanism, delta=setting.delta, with_lower_bound=False).epsilon
    assert printed == pytest.approx(stored.at_most, rel=rounding)


def stated(ask, *, cohorts="fixed", **wanted):
    """By an adapter, for the first setting of this kind."""
    for setting in SETTINGS:
        if setting.sampling == cohorts and all(getattr(setting, key) == value for key, value in wanted.items()):
            return setting, ask(setting.to_dict())
    raise AssertionError(wanted)


def test_dp_accounting_is_below_the_truth_where_it_is_known_to_be():
    """Replace-one of fixed-size sampling (google/differential-privacy 378), and whole numbers in nested events."""
    setting, epsilon = stated(adapters.dp_accounting_rdp, noise_multiplier=1.4)
    assert epsilon == pytest.approx(1.4708, abs=1e-3)
    assert epsilon < stored_bounds()[str(setting)].at_least
    whole = Setting(**(next(one for one in SETTINGS if one.releases_per_cohort == 100).to_dict()))
    nested = adapters.dp_accounting_rdp(whole.to_dict())
    assert nested == pytest.approx(0.9555, abs=1e-3)
    assert nested < stored_bounds()[str(whole)].at_least


def test_opacus_gdp_is_below_the_truth_and_its_rdp_is_not():
    setting, epsilon = stated(adapters.opacus_gdp, cohorts="poisson", noise_multiplier=1.4)
    assert epsilon < stored_bounds()[str(setting)].at_least
    assert adapters.opacus_rdp(setting.to_dict()) > stored_bounds()[str(setting)].at_least
    assert adapters.opacus_rdp(GOLDEN.to_dict()) is None


SOME = [one for one in SETTINGS if one.rounds <= 100][::6]
"""What CI asks of the accountants that are installed; `dpfed audit accountant` asks for all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong"), [("dp-accounting", {"dp-accounting RDP"}), ("opacus", {"opacus GDP"})], ids=lambda one: str(one)
)
def test_of_the_list_only_what_is_known_to_be_wrong_is_refuted(name, wrong):
    found = audit_accountant(name, settings=SOME, seconds=30.0)
    assert found.verdict == "fail"
    assert {case.accountant for case in found.cases_with("refuted")} == wrong
    for case in found.cases_with("refuted"):
        nested_or_replaced = case.setting.releases_per_cohort > 1 or case.setting.adjacency == "replace-one"
        assert nested_or_replaced or name == "opacus"


def test_wrong_names_are_refused():
    refused(ConfigError, "MODULE:FUNCTION", audit_accountant, "tensorflow")
    refused(ConfigError, "No module named", audit_accountant, "no_such_module:f")
    refused(ConfigError, "is float, must be a function", audit_accountant, "math:pi")
    refused(ConfigError, "It is called with keyword arguments", audit_accountant, lambda noise, steps: 1.0)


def test_the_script_takes_a_function_of_the_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text("def zero(**setting):\n    return 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert accountants.main(["mine:zero"]) == 1
    assert capsys.readouterr().out.startswith("fail: ")


def test_the_old_names_say_where_it_is(capsys):
    assert status(["audit", "accountant", "opacus"]) == 2
    assert "experiments/audit-field/accountants.py" in capsys.readouterr().err
    refused(ConfigError, "has moved", dpfed.audit.accountant, "opacus")
