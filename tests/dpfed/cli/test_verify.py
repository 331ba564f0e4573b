"""`dpfed verify` and the second verifier: they agree on random ledgers and refuse planted changes."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import bundles
import pytest
from bundles import change_json, change_lines

from accounting import Gaussian, PoissonSampling, subsample
from accounting.ledger import Ledger
from accounting.mechanisms import FixedSizeSampling
from accounting.mechanisms.samplings.public_orders import CyclicSchedule
from dpfed import second_verifier
from dpfed.cli import ledger_signature, status
from dpfed.cli.verify import verified
from dpfed.records.round import configuration_hash
from dpfed.runs import loop
from dpfed.runs.experiment import build

FIXED = subsample(Gaussian(noise_multiplier=1.3, adjacency="zero-out"), FixedSizeSampling(cohort=60, clients=600))
POISSON = subsample(Gaussian(noise_multiplier=1.3, adjacency="add-remove"), PoissonSampling(probability=0.1))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return bundles.written(tmp_path_factory.mktemp("bundles") / "run", POISSON, 20)


def head_of(folder):
    return Ledger.read(folder / "ledger.jsonl").head


def both(folder, head=None):
    """Return the verdicts of the first verifier alone, and of the second."""
    found = verified(folder, head=head)
    return ("refused" if found.problems else "holds"), found.second["verdict"], found.verdict


def test_an_unchanged_bundle_is_verified_with_a_head_and_only_consistent_without(bundle):
    assert both(bundle, head_of(bundle)) == ("holds", "verified", "verified")
    assert both(bundle) == ("holds", "consistent with itself", "consistent with itself")


@pytest.mark.parametrize(
    ("mechanism", "federation"),
    [
        (Gaussian(noise_multiplier=1.3, adjacency="add-remove"), {"cohort": 60}),
        (subsample(Gaussian(noise_multiplier=1.3, adjacency="zero-out"), CyclicSchedule(period=8)), {"cohort": 77}),
    ],
)
def test_the_cohort_of_a_summary_is_that_of_its_sampling(mechanism, federation, tmp_path):
    """The key is ignored under 'all', and rounded to whole epochs by schedules."""
    folder = bundles.written(tmp_path / "run", mechanism, 4, **federation)
    assert both(folder) == ("holds", "consistent with itself", "consistent with itself")


@pytest.mark.parametrize(
    ("settings", "second"),
    [
        (("run.randomness=secure", "run.spare_rounds=2", "privacy.noise=discrete-gaussian"), "not verified"),
        (("privacy.accountant=rdp",), "not verified"),
        (("privacy.adaptive.quantile=0.5",), "consistent with itself"),
        (("privacy.noise_schedule=[1.5]",), "consistent with itself"),
        (("privacy.noise_schedule=[2, 1]",), "consistent with itself"),
    ],
    ids=["secure without release, and spare rounds", "another accountant", "adaptive clip norm", "a factor", "factors"],
)
def test_a_folder_of_a_run_is_no_contradiction(tiny_config, tmp_path, settings, second):
    """Spare rounds and early ends state more than metrics.jsonl has spent, and rdp more than the second verifier."""
    loop.run(build(tiny_config(*settings)), tmp_path / "run")
    assert both(tmp_path / "run") == ("holds", second, second)


def test_a_prolonged_run_is_no_contradiction(tiny_config, tmp_path):
    settings = ("privacy.epsilon=20", "privacy.noise_multiplier=3")
    for rounds in (1, 2):
        experiment = build(tiny_config(*settings, f"federation.rounds={rounds}"))
        loop.run(experiment, tmp_path / "run", resume=rounds > 1)
    assert both(tmp_path / "run") == ("holds", "not verified", "not verified")


def test_a_custom_sampler_is_no_contradiction(tmp_path):
    folder = bundles.written(tmp_path / "run", POISSON, 4, sampling="custom")
    assert both(folder) == ("holds", "not verified", "not verified")


def lines_of(edit_line):
    """Return an edit of all lines but the header."""
    return lambda records: [edit_line(one) for one in records[1:]] and None


def each(**values):
    return lines_of(lambda one: one.update(values))


def noise(**values):
    return lines_of(lambda one: one["mechanism"]["mechanism"].update(values))


def sampling(**values):
    return lines_of(lambda one: one["mechanism"]["sampling"].update(values))


def make_noisier(one):
    one["mechanism"]["mechanism"]["noise_multiplier"] = 2.6
    one["noise_std"] = 1.3


def without_last(records):
    return records[:-1]


def header(**values):
    return lambda records: records[0].update(values)


def plan(**values):
    return lambda records: records[0]["plan"].update(values)


def rewritten(name, old, new):
    def change(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))
        if name != "pack.json":
            bundles.write_pack(folder)

    return change


CHANGES = {
    "epsilon lower": change_json("summary.json", epsilon=1.0),
    "epsilon a little lower": change_json("summary.json", epsilon=2.29),
    "epsilon higher": change_json("summary.json", epsilon=5.0),
    "epsilon none": change_json("summary.json", epsilon=None),
    "epsilon as text": change_json("summary.json", unreadable=True, epsilon="1.0"),
    "delta lower": change_json("summary.json", delta=1e-9),
    "delta higher": change_json("summary.json", delta=1e-3),
    "unit": change_json("summary.json", unit="record"),
    "adjacency": change_json("summary.json", adjacency="replace-one"),
    "sampling": change_json("summary.json", sampling="all"),
    "clients": change_json("summary.json", clients=60_000),
    "cohort": change_json("summary.json", cohort=6),
    "rounds": change_json("summary.json", rounds=10),
    "noise multiplier": change_json("summary.json", noise_multiplier=3.0),
    "clip norm": change_json("summary.json", clip_norm=0.1),
    "noise by clients": change_json("summary.json", noise_placement="clients"),
    "randomness": change_json("summary.json", randomness="simulated"),
    "population": change_json("summary.json", population="1" * 64),
    "head": change_json("summary.json", ledger_head="0" * 64),
    "entries": change_json("summary.json", ledger_entries=19),
    "lower bound": change_json("summary.json", lower_bound=4.0),
    "no statement": change_json("summary.json", no_statement="nothing"),
    "sentence": rewritten("pack.json", "epsilon at most 2", "epsilon at most 1"),
    "sentence of other neighbours": rewritten("pack.json", "add-remove", "replace-one"),
    "sentence of another unit": rewritten("pack.json", "Client-level", "Record-level"),
    "digest": rewritten("pack.json", '"config.toml": "', '"config.toml": "0'),
    "file that is not there": rewritten("pack.json", '"config.toml"', '"model.safetensors"'),
    "file outside": rewritten("pack.json", '"config.toml"', '"../run/config.toml"'),
    "config: clients": rewritten("config.toml", "clients = 600", "clients = 6000"),
    "config: delta": rewritten("config.toml", "delta = 1e-05", "delta = 1e-09"),
    "config: a key more": rewritten("config.toml", "[data]", "[data]\nroot = 1"),
    "not chained again": rewritten("ledger.jsonl", '"noise_multiplier":1.3', '"noise_multiplier":2.6'),
    "blank in a line": rewritten("ledger.jsonl", '"clients":600', '"clients": 600'),
    "more noise charged than drawn": change_lines(noise(noise_multiplier=2.6)),
    "more noise": change_lines(lines_of(make_noisier)),
    "more noise in ledger and summary": change_lines(lines_of(make_noisier), noise_multiplier=2.6),
    "rarer": change_lines(sampling(probability=0.05)),
    "rarer in ledger and summary": change_lines(sampling(probability=0.05), cohort=30),
    "zero-out in the ledger": change_lines(noise(adjacency="zero-out")),
    "less noise drawn": change_lines(each(noise_std=0.1)),
    "clip norm in the ledger": change_lines(each(clip_norm=5.0)),
    "sensitivity": change_lines(each(sensitivity_in_clips=0.5)),
    "a key more in each line": change_lines(each(extra=1)),
    "noise by clients in each line": change_lines(each(noise_placement="clients")),
    "last line gone": change_lines(without_last),
    "last line gone, also in the summary": change_lines(without_last, rounds=19),
    "first line gone": change_lines(lambda records: [records[0], *records[2:]]),
    "a line twice": change_lines(lambda records: [*records, dict(records[-1])]),
    "two lines swapped": change_lines(lambda records: [records[0], records[2], records[1], *records[3:]]),
    "one nonce for all": change_lines(each(nonce="same")),
    "fewer planned": change_lines(plan(rounds=10)),
    "spare rounds": change_lines(plan(spare=5)),
    "clients in the header": change_lines(header(clients=60_000)),
    "a later version": change_lines(header(version=2)),
    "a key more in the header": change_lines(header(extra=1)),
}  # fmt: skip
QUICK = ("epsilon a little lower", "more noise in ledger and summary", "a line twice", "sentence")
NEEDS_HEAD = ("one nonce for all", "two lines swapped")
"""Changes that change no epsilon; a head from outside shows them, or the second verifier."""


def changed(bundle, tmp_path, change):
    folder = tmp_path / "run"
    shutil.copytree(bundle, folder)
    change(folder)
    return folder


@pytest.mark.parametrize("number", ["cohort = inf", "cohort = 1" + "0" * 400, "clients = 0"])
def test_a_number_beyond_all_bounds_in_the_configuration_is_refused(bundle, tmp_path, number):
    """The ledger binds this configuration, as a forger makes it."""

    def change(folder):
        key = number.partition(" ")[0]
        rewritten("config.toml", {"cohort": "cohort = 60", "clients": "clients = 600"}[key], number)(folder)
        tables = tomllib.loads((folder / "config.toml").read_text())
        change_lines(header(binding={"configuration": configuration_hash(tables)}))(folder)

    assert both(changed(bundle, tmp_path, change))[0] == "refused"


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one in QUICK else pytest.mark.slow) for one in CHANGES])
def test_a_planted_change_is_refused_by_both(bundle, tmp_path, name):
    folder = changed(bundle, tmp_path, CHANGES[name])
    first, second, verdict = both(folder, head_of(bundle))
    assert first == "refused"
    assert second in ("refused", "not verified")
    assert verdict in ("refused", "not verified")
    assert both(folder)[0] == "refused" or name in NEEDS_HEAD


CERTIFICATE = {"epsilon": 0.01, "delta": 1e-5, "failure": 1e-12, "tries": 1, "samples": 8_000_000}
CERTIFICATE |= {"bounds": [1e-6, 1e-6], "seed": "ab" * 32, "deterministic": 2.2, "description": {}}


@pytest.mark.parametrize(
    "values",
    [
        {"certificate": CERTIFICATE},
        {"noise_schedule": [10.0], "noise_multiplier": 0.13},
        {"noise": "skellam"},
        {"server_epsilon": 0.01},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_sentence_that_says_more_than_was_released_is_refused(bundle, tmp_path, values):
    """Forgeries that passed with the head: a certificate put "epsilon at most 0.01" into the verified sentence."""
    folder = changed(bundle, tmp_path, change_json("summary.json", **values))
    assert both(folder, head_of(bundle))[::2] == ("refused", "refused")


def test_rounds_that_the_configuration_plans_are_those_of_the_ledger(bundle, tmp_path):
    """No hash binds them, since a run with a budget may be prolonged; 200 of 20 rounds were verified."""
    for number in ("200", "10"):
        folder = changed(bundle, tmp_path / number, rewritten("config.toml", "rounds = 20", f"rounds = {number}"))
        assert both(folder, head_of(bundle))[::2] == ("refused", "refused")


def test_a_signature_counts_only_with_a_key_from_outside(bundle, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(bundle, folder)
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    for one in (ours, theirs):
        ledger_signature.generate_key_pair(one)
    ledger_signature.sign(Ledger.read(folder / "ledger.jsonl"), ours)
    assert verified(folder, key=Path(f"{ours}.pub")).verdict == "verified"
    CHANGES["clients in the header"](folder)
    ledger_signature.sign(Ledger.read(folder / "ledger.jsonl"), theirs)
    assert verified(folder, key=Path(f"{ours}.pub")).verdict == "refused"


def test_the_command_and_the_copied_file_agree_without_torch(bundle, tmp_path, capsys):
    assert status(["verify", str(bundle), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "consistent with itself"
    assert found["statement"].startswith("Client-level differential privacy: epsilon at most")
    copied = tmp_path / "alone.py"
    shutil.copy(second_verifier.__file__, copied)
    hidden = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'torch', 'accounting', 'dpfed', 'pydantic']));"
    script = (
        f"{hidden} import runpy; sys.argv = ['', {str(bundle)!r}]; runpy.run_path({str(copied)!r}, None, '__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("consistent with itself: epsilon between")
    assert done.returncode == 0
    assert len(copied.read_text().splitlines()) <= 400


def test_a_kind_that_the_second_does_not_know_is_not_verified(tmp_path):
    noise = Gaussian(noise_multiplier=1.3, adjacency="replace-one")
    folder = bundles.written(tmp_path / "run", subsample(noise, FixedSizeSampling(cohort=60, clients=600)), 1)
    found = verified(folder, head=head_of(folder))
    assert (found.problems, found.verdict, found.second["verdict"]) == ([], "not verified", "not verified")
    assert status(["verify", str(folder)]) == 1


@pytest.mark.parametrize(
    ("drawn", "noised"),
    [({"name": "fixed", "cohort": 60, "clients": 0}, {"adjacency": "zero-out"}), ({}, {"noise_multiplier": 10**400})],
)
def test_numbers_beyond_all_bounds_are_not_verified(bundle, tmp_path, drawn, noised, capsys):
    def beyond(one):
        one["mechanism"]["sampling"] = drawn or one["mechanism"]["sampling"]
        one["mechanism"]["mechanism"].update(noised)

    folder = changed(bundle, tmp_path, change_lines(lines_of(beyond)))
    assert second_verifier.main([str(folder)]) == 1
    assert capsys.readouterr().out.startswith("not verified: a file is missing or not in the known form")


@pytest.fixture(scope="module")
def fixed_bundle(tmp_path_factory):
    return bundles.written(tmp_path_factory.mktemp("fixed") / "run", FIXED, 20)


FIXED_CHANGES = {
    "epsilon 1% lower": change_json("summary.json", epsilon=5.39),
    "epsilon .1% lower": change_json("summary.json", epsilon=5.448),
    "epsilon 1% higher": change_json("summary.json", epsilon=5.51),
    "smaller cohort in ledger and summary": change_lines(sampling(cohort=30), cohort=30),
    "more clients drawn from": change_lines(sampling(clients=6000)),
    "more clients drawn from, also in the summary": change_lines(sampling(clients=6000), cohort=6),
    "more noise in ledger and summary": change_lines(lines_of(make_noisier), noise_multiplier=2.6),
    "one line with more noise": change_lines(lambda records: make_noisier(records[-1])),
    "last line gone, also in the summary": change_lines(without_last, rounds=19),
    "delta higher": change_json("summary.json", delta=1e-3),
    "Poisson in ledger and summary": change_lines(
        lines_of(lambda one: one["mechanism"].update(sampling={"name": "poisson", "probability": 0.1})),
        sampling="poisson",
    ),
}


@pytest.mark.slow
def test_fixed_size_is_verified(fixed_bundle):
    assert both(fixed_bundle, head_of(fixed_bundle)) == ("holds", "verified", "verified")


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED_CHANGES)
def test_a_planted_change_of_fixed_size_is_refused_by_both(fixed_bundle, tmp_path, name):
    first, second, verdict = both(changed(fixed_bundle, tmp_path, FIXED_CHANGES[name]))
    assert (first, verdict) == ("refused", "refused")
    assert second in ("refused", "not verified")
