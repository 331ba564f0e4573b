"""Tampered run folders fail by the check they are about, damaged ones never pass."""

import itertools
import json
from copy import deepcopy

import numpy as np
import pytest
from refusals import refused

from accounting import Ledger
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError

from . import run_folders
from .run_folders import (
    SURE,
    change,
    change_config,
    change_ledger,
    change_summary,
    copied,
    failed,
    records,
    undecided,
    write_records,
)

pytestmark = pytest.mark.slow_but_one_in(3)

SEED = "cohorts follow the seed only if simulated"
SHARES = ("privacy.placement=clients", "federation.sampling=all", "privacy.adjacency=zero-out")
RECORDS = ("method.name=fedavg", "local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0")
LOSING = ("aggregation.kind=masked", "aggregation.dropout=0.35", "aggregation.threshold=0.7", "federation.rounds=8")
MADE = {
    "server": (),
    "everybody": ("federation.sampling=all",),
    "shares": SHARES,
    "losing": ("federation.sampling=fixed", *LOSING),
    "canaries": ("audit.canaries=60", "federation.rounds=20", "federation.sampling=all"),
    "records": (*RECORDS, "local.batch_size=16", "local.record.accountant=rdp", "federation.rounds=2"),
    "uneven": (*RECORDS, "local.batch_size=16", "federation.rounds=2", "data.partition=dirichlet", "data.alpha=0.5"),
    "coins": ("method.name=fedpm", "mask.edge=0.2", "privacy.clip_norm=0.8", "privacy.slots=30"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(name)`: the folder of that run, made at the first call; not to be changed."""
    folders = {}

    def of(name):
        if name not in folders:
            without = ["privacy"] if name in ("records", "uneven", "coins") else []
            folders[name] = run_folders.run(tmp_path_factory.mktemp(name) / "run", *MADE[name], without=without)
        return folders[name]

    return of


@pytest.fixture
def folder(made, tmp_path):
    """`folder(name)`: a new copy of that run."""
    numbers = itertools.count()
    return lambda name: copied(made(name), tmp_path / f"{name}-{next(numbers)}")


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize("name", MADE)
def test_the_runs_that_are_tampered_with_pass_before(made, name):
    found = audit_run(made(name), confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if not one.passed]
    assert found.recomputed_epsilon == found.claimed_epsilon > 0


@pytest.mark.parametrize("key", ["hostile_clients_epsilon", "hostile_clients_epsilon_rounds"])
def test_another_epsilon_against_hostile_clients(folder, key):
    """Of a secure sum with the server's noise; without one the key must be empty."""
    edited = folder("losing")
    stated = json.loads((edited / "summary.json").read_text())[key]
    change_summary(edited, **{key: stated - 1})
    assert failed(edited) == {"summary names what ran"}
    plain = folder("server")
    change_summary(plain, **{key: stated})
    assert failed(plain) == {"summary names what ran"}


def test_an_edited_line_and_a_lost_line_break_the_chain(folder):
    edited = folder("server")
    path = edited / "ledger.jsonl"
    path.write_text(path.read_text().replace('"noise_multiplier":2.0', '"noise_multiplier":2.5', 1))
    assert failed(edited) == {"ledger is intact"}
    assert "epsilon follows from the ledger" in undecided(edited)
    write_records(edited, "ledger.jsonl", [one for n, one in enumerate(records(edited, "ledger.jsonl")) if n != 2])
    assert failed(edited) == {"ledger is intact"}


def test_a_lower_epsilon_in_the_summary(folder):
    lowered = folder("server")
    change_summary(lowered, epsilon=0.9999 * json.loads((lowered / "summary.json").read_text())["epsilon"])
    assert failed(lowered) == {"epsilon follows from the ledger"}


@pytest.mark.parametrize("which", [1, 2, 4])
def test_an_uncharged_round_though_hashes_and_epsilon_are_made_to_fit(folder, which):
    cheated = folder("server")
    change_ledger(cheated, lambda lines: lines.pop(which))
    delta = json.loads((cheated / "summary.json").read_text())["delta"]
    epsilon = Ledger.read(cheated / "ledger.jsonl").guarantee(delta, accountant="rdp").epsilon
    change_summary(cheated, epsilon=epsilon)
    change(cheated, "metrics.jsonl", lambda lines: lines[-1].update(epsilon=epsilon))
    assert failed(cheated) == {"every round is charged"}


def test_a_round_charged_twice_shows_where_noise_is_repeatable(folder):
    twice = folder("everybody")
    change_ledger(twice, lambda lines: lines.insert(2, deepcopy(lines[1])))
    assert failed(twice) == {
        "every round is charged",
        "epsilon follows from the ledger",
        "epsilon is possible",
        "all files have the same rounds",  # and no charge was interrupted
    }


def test_a_ledger_with_other_noise_than_the_configuration_and_the_sums(folder):
    cheated = folder("everybody")

    def more_noise(lines):
        for line in lines[1:]:
            line["mechanism"]["noise_multiplier"] = 2.2

    change_ledger(cheated, more_noise)
    delta = json.loads((cheated / "summary.json").read_text())["delta"]
    change_summary(cheated, epsilon=Ledger.read(cheated / "ledger.jsonl").guarantee(delta, accountant="rdp").epsilon)
    change(cheated, "metrics.jsonl", lambda lines: lines[-1].update(epsilon=audit_run(cheated).recomputed_epsilon))
    assert failed(cheated) == {"ledger follows the configuration"}
    change_ledger(cheated, lambda lines: [line.update(noise_std=2.2) for line in lines[1:]])
    assert failed(cheated) == {"ledger follows the configuration", "noise is as large as charged"}


@pytest.mark.parametrize(
    ("table", "values", "also"),
    [
        ("privacy", {"noise_multiplier": 1.9}, {"summary names what ran"}),
        ("privacy", {"clip_norm": 1.5}, set()),
        ("privacy", {"adjacency": "replace-one"}, set()),
        ("privacy", {"delta": 1e-3}, {"summary names what ran", "epsilon is possible"}),
        ("federation", {"clients": 61}, {"summary names what ran", "uploads are as accounted", SEED}),
        (
            "federation",
            {"sampling": "all"},
            {"summary names what ran", "cohort sizes follow the sampler", "members follow the sampler"},
        ),
        ("run", {"randomness": "secure"}, {"summary names what ran", SEED}),
    ],
)
def test_a_configuration_that_is_not_the_runs(folder, table, values, also):
    other = folder("server")
    change_config(other, table, **values)
    found = failed(other)
    expected = set() if "delta" in values else {"ledger follows the configuration"}
    assert expected <= found <= expected | also | {"denominator is public"}
    assert found


def scaled(factor):
    return lambda lines: [line["noise"].update(mean_square=factor * line["noise"]["mean_square"]) for line in lines]


def of_line(number, **values):
    return lambda lines: lines[number].update(values)


def of_noise(**values):
    return lambda lines: lines[1]["noise"].update(values)


def repeated(key, factor=1):
    def repeat(lines):
        lines[2]["noise"][key] = lines[0]["noise"][key] * factor

    return repeat


def fewer_shares(lines):
    noise = lines[1]["noise"]
    lines[1].update(arrived=50, noise=noise | {"draws": 50, "mean_square": noise["mean_square"] * 50 / 60})


LARGE, FRESH, SUMS = "noise is as large as charged", "noise is fresh in every round", "sums are of what went in"
ACCOUNTED, SIZES = "uploads are as accounted", "cohort sizes follow the sampler"
CHANGED = {
    "noise short by a tenth": ("server", scaled(0.9**2), {LARGE}),
    "noise long by a tenth": ("shares", scaled(1.1**2), {LARGE}),
    "a round of unknown noise": ("server", of_line(1, noise=None), {LARGE, SUMS}),
    "a round without noise": ("server", of_noise(mean_square=0.0), {LARGE}),
    "noise in half of the entries": ("server", of_noise(entries=305), {LARGE}),
    "noise of an earlier round": ("server", repeated("digest"), {FRESH}),
    "the same up to the rounding of float32 sums, which have other fingerprints": (
        "server", repeated("mean_square", 1 + 1e-9), {FRESH},
    ),
    "noise of shares left out": ("shares", lambda lines: [one.update(noise=None) for one in lines], {LARGE}),
    "fewer shares than are charged": ("shares", fewer_shares, {ACCOUNTED}),
    "a row beyond the bound": ("server", of_line(0, largest_norm=1.01), {"rows are bounded"}),
    "a denominator that follows the cohort": (
        "server", lambda lines: [one.update(divisor=float(one["cohort"])) for one in lines],
        {"denominator is public", "model moves by what was released"},
    ),
    "more coins than slots": (
        "coins", of_line(0, cohort=31, participants=31, arrived=31), {ACCOUNTED, "members follow the sampler"},
    ),
}  # fmt: skip


@pytest.mark.slow_but_one_in(1)  # all are quick
@pytest.mark.parametrize(("run", "edit", "checks"), CHANGED.values(), ids=CHANGED)
def test_changed_diagnostics_fail_the_check_that_they_are_about(folder, run, edit, checks):
    changed = folder(run)
    change(changed, "diagnostics.jsonl", edit)
    assert failed(changed, confidence=0.99) == checks


def test_cohorts_of_fixed_size_under_a_poisson_account(folder):
    fixed = folder("server")
    change(
        fixed, "diagnostics.jsonl", lambda lines: [one.update(cohort=12, participants=12, arrived=12) for one in lines]
    )
    assert SIZES in failed(fixed, confidence=0.95)


def test_a_cohort_of_another_size_under_an_exact_account(folder):
    for name in ("everybody", "losing"):
        other = folder(name)
        change(other, "diagnostics.jsonl", lambda lines: lines[0].update(cohort=11))
        assert SIZES in failed(other)


def test_a_row_of_unknown_length_is_undecided(folder):
    unknown = folder("server")
    change(unknown, "diagnostics.jsonl", lambda lines: lines[0].pop("largest_norm"))
    assert undecided(unknown) == {"rows are bounded"}


def test_noise_that_only_the_clients_have_seen_is_no_finding(folder):
    """As on nodes elsewhere: whoever sums cannot know it. No fault, and nothing to pass either."""
    unknown = folder("shares")
    change(unknown, "diagnostics.jsonl", lambda lines: [one.update(noise=None, noise_known=False) for one in lines])
    assert not failed(unknown)
    assert undecided(unknown) == {
        "noise is as large as charged",
        "noise is fresh in every round",
        "noise is shaped as charged",
    }


def test_a_round_said_to_have_no_result_that_shows_one(folder):
    lines = records(folder("losing"), "metrics.jsonl")
    aborted = next(n for n, line in enumerate(lines) if "aborted" in line and n > 0)
    for edit in (
        lambda lines: lines[aborted].update(test_accuracy=lines[aborted]["test_accuracy"] + 0.01),
        lambda lines: lines[aborted].pop("aborted"),
    ):
        shown = folder("losing")
        change(shown, "metrics.jsonl", edit)
        assert "every round is charged" in failed(shown)


def _another_client(lines):
    charged = {one for line in lines[1:] for part in line["steps"] for one in part["clients"]}
    lines[1]["steps"][0]["clients"][0] = min(set(range(lines[0]["clients"])) - charged)


def _once(lines):
    """Leave a client out in the first round that is charged in the second, too."""
    later = {one for part in lines[2]["steps"] for one in part["clients"]}
    part = next(one for one in lines[1]["steps"] if later & set(one["clients"]))
    part["clients"].remove(min(later & set(part["clients"])))
    lines[1]["steps"] = [one for one in lines[1]["steps"] if one["clients"]]


STEPS_NOT_CHARGED = {
    "a client": ("records", lambda lines: lines[1]["steps"][0]["clients"].pop()),
    "a step": ("records", lambda lines: lines[1]["steps"][0].update(count=1)),
    "noise": ("records", lambda lines: lines[2].update(noise_std=1.1)),
    "clip": ("records", lambda lines: lines[1].update(clip_norm=2.0, noise_std=2.0)),
    "another client": ("uneven", _another_client),
    "size": ("records", lambda lines: lines[1]["steps"][0]["mechanism"]["sampling"].update(probability=0.1)),
    "no size": ("records", lambda lines: lines[1]["steps"][0]["mechanism"]["sampling"].update(probability=0.3)),
    "a round": ("uneven", _once),
}


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("what", STEPS_NOT_CHARGED)
def test_steps_of_records_that_are_not_charged_or_are_of_other_clients(folder, what):
    name, edit = STEPS_NOT_CHARGED[what]
    cheated = folder(name)
    assert not failed(cheated)
    change_ledger(cheated, edit)
    assert "ledger follows the configuration" in failed(cheated)


def test_canaries_whose_coins_were_turned_or_who_were_left_out(folder):
    turned = folder("canaries")
    change(turned, "canaries.jsonl", lambda lines: lines[0].update(present=not lines[0]["present"]))
    assert failed(turned) == {"canaries follow the seed"}
    fewer = folder("canaries")
    change(fewer, "canaries.jsonl", lambda lines: lines.pop())
    assert failed(fewer) == {"canaries follow the seed"}


def test_canaries_that_are_found_too_easily(folder):
    """As with noise of a tenth: the scores of the claim, ten times as far apart."""
    loud = folder("canaries")
    generator = np.random.default_rng(1)
    change(
        loud,
        "canaries.jsonl",
        lambda lines: [one.update(score=one["present"] + 0.2 * float(generator.standard_normal())) for one in lines],
    )
    found = audit_run(loud, confidence=0.95)
    assert {one.name for one in found.checks if one.passed is False} == {"canaries agree with one round's claim"}
    assert found.to_dict()["lower_bound"] > found.canaries.round_epsilon
    assert 0.7 < found.canaries.moved < 1
    assert not found.canaries.too_far


def test_canaries_that_are_in_the_sum_twice_move_it_too_far(folder):
    """Planted: whole scores see it, and state less than is true."""
    twice = folder("canaries")
    generator = np.random.default_rng(1)
    change(
        twice,
        "canaries.jsonl",
        lambda lines: [
            one.update(score=2 * one["present"] + 0.5 * float(generator.standard_normal())) for one in lines
        ],
    )
    found = audit_run(twice)
    assert found.canaries.too_far
    assert 1 < found.canaries.moved < 2
    assert found.verdict == "fail"


def test_canaries_shorter_than_the_clip_norm_leave_the_bound_untested(folder):
    quiet = folder("canaries")
    change(quiet, "canaries.jsonl", lambda lines: [one.update(norm=0.5 * one["norm"]) for one in lines])
    assert undecided(quiet) == {"canaries agree with one round's claim"}


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "diagnostics.jsonl", "summary.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "not text", "not JSON", "deep", "an array", "a folder"])
def test_without_one_of_its_files_a_run_does_not_pass(folder, name, damage):
    damaged = folder("everybody")
    path = damaged / name
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "cut": content[:-20],
                "not text": b"\xff\xfe\n" + content,
                "not JSON": content + b"NaN\n",
                "deep": b"[" * 100_000 + b"\n",
                "an array": b"[]\n",
            }[damage]
        )
    found = audit_run(damaged)
    assert found.verdict in ("fail", "inconclusive")
    assert any(name in one.detail for one in found.checks if one.passed is not True)
    json.dumps(found.to_dict(), allow_nan=False)


def test_lost_lines_of_diagnostics_are_no_pass(folder):
    lost = folder("server")
    change(lost, "diagnostics.jsonl", lambda lines: lines.pop())
    assert audit_run(lost).verdict == "inconclusive"
    change(lost, "diagnostics.jsonl", lambda lines: [line.pop("noise") for line in lines])
    assert audit_run(lost).verdict == "inconclusive"


def test_without_a_configuration_there_is_no_audit(folder, tmp_path):
    bare = folder("everybody")
    for content in (None, b"\xff", b"= 3", b"[data]\nname = 3", b"a = " + b"[" * 100_000):
        (bare / "config.toml").unlink(missing_ok=True)
        if content is not None:
            (bare / "config.toml").write_bytes(content)
        refused(ConfigError, r"config\.toml", audit_run, bare)
    refused(ConfigError, "no-such-run", audit_run, tmp_path / "no-such-run")


HOSTILE = [None, True, -1, 0, 1e308, 10**400, 2**62, "x", "", [], [1], {}, {"a": 1}, 0.5, 3, "NaN", [[[]]]]


def mutated(value, generator):
    """`value` with one of its leaves, or itself, replaced by something hostile."""
    if isinstance(value, dict) and value and generator.random() < 0.9:
        key = sorted(value)[generator.integers(len(value))]
        return {**value, key: mutated(value[key], generator)}
    if isinstance(value, list) and value and generator.random() < 0.9:
        place = int(generator.integers(len(value)))
        return [*value[:place], mutated(value[place], generator), *value[place + 1 :]]
    return HOSTILE[generator.integers(len(HOSTILE))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ledger.jsonl", "metrics.jsonl", "diagnostics.jsonl", "canaries.jsonl", "summary.json"]
)
def test_hostile_values_are_findings_and_never_crashes(folder, name):
    """Hashes of the ledger are made to fit, so that its values are what is met."""
    generator = np.random.default_rng(list(name.encode()))
    hostile = folder("canaries")
    original = (hostile / name).read_bytes()
    for _ in range(50):
        (hostile / name).write_bytes(original)
        if name == "summary.json":
            (hostile / name).write_text(json.dumps(mutated(json.loads(original), generator)))
        else:

            def replace(lines):
                place = int(generator.integers(len(lines)))
                changed = mutated(lines[place], generator)
                lines[place] = changed if isinstance(changed, dict) else {"kind": changed}

            (change_ledger if name == "ledger.jsonl" else lambda folder, edit: change(folder, name, edit))(
                hostile, replace
            )
        found = audit_run(hostile)
        json.dumps(found.to_dict(), allow_nan=False)
