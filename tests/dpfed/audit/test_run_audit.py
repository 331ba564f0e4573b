"""`dpfed audit run` on real runs: every way of being private passes, with JSON, exit status and report."""

import json
import re
from dataclasses import replace

import pytest
from refusals import refused

from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.report.audit import write_cards
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import killed_before_checkpoint
from . import run_folders
from .broken_parts import ForgetsTheRound
from .run_folders import SURE, TABLES, change, change_summary, copied

KEYS = {
    "claimed_epsilon", "delta", "lower_bound", "confidence", "method", "trials", "score_gap", "checks", "verdict",
}  # fmt: skip
SHARES = ("privacy.placement=clients", "privacy.adjacency=zero-out")
ALL_CLIENTS = ("federation.sampling=all", *SHARES)
INTEGERS = (*SHARES, "aggregation.kind=masked", "aggregation.dropout=0.1", "aggregation.tolerance=0.4")
COINS = (
    "method.name=fedpm",
    "mask.edge=0.2",
    "privacy.clip_norm=0.8",
    "privacy.slots=30",
    "privacy.adjacency=zero-out",
)
SIGNS = ("privacy.noise=coins", "privacy.clip_norm=1.0", "privacy.adjacency=zero-out")
RECORDS = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.record.accountant=rdp")
WAYS = {
    "server-poisson": ("method.name=dp-fedavg",),
    "server-fixed": ("federation.sampling=fixed",),
    "server-on-integers": ("aggregation.kind=masked",),
    "one-client-a-round": ("federation.cohort=1", "federation.rounds=5"),
    "everybody-by-coins": ("federation.cohort=60",),
    "adaptive-clip": ("privacy.adaptive.quantile=0.5",),
    "shares": ALL_CLIENTS,
    "shares-charged": (*ALL_CLIENTS, "aggregation.dropout=0.2", "privacy.missing_shares=charged"),
    "shares-sized": (*ALL_CLIENTS, "aggregation.dropout=0.2"),
    "uploads": ("privacy.release=uploads", "method.name=qsgd"),
    "uploads-in-a-public-order": (
        "privacy.release=uploads", "method.name=eden", "federation.sampling=cyclic", "federation.rounds=8",
    ),
    "uploads-of-nobody": ("privacy.release=uploads", "federation.cohort=1", "federation.rounds=5"),
    "decoded-first": ("method.name=qsgd",),
    "shared-mask": ("method.name=fed-smp-randk", "method.keep=0.2"),
    "top-k-of-unequal-clients": (
        "method.name=fed-smp-topk", "method.keep=0.1", "data.public=137", "data.partition=dirichlet", "data.alpha=1.0",
    ),
    "discrete-gaussian": ("privacy.noise=discrete-gaussian",),
    "discrete-gaussian-shares": ("privacy.noise=discrete-gaussian", *INTEGERS),
    "skellam-shares": ("privacy.noise=skellam", *INTEGERS),
    "skellam-charged": (
        "privacy.noise=skellam", *INTEGERS, "federation.sampling=all", "privacy.missing_shares=charged",
    ),
    "secure-randomness": ("run.randomness=secure", "privacy.noise=discrete-gaussian"),
    "budget": ("privacy.epsilon=2.4", "federation.sampling=all", "federation.rounds=50"),
    "masked-with-losses": (
        "federation.sampling=fixed", "aggregation.kind=masked", "aggregation.dropout=0.35", "aggregation.threshold=0.7",
        "federation.rounds=8",
    ),
    "canaries": ("audit.canaries=12",),
    "canaries-beside-shares": ("privacy.noise=skellam", *INTEGERS, "audit.canaries=12"),
}  # fmt: skip
WITHOUT_NOISE_MULTIPLIER = {
    "coins": COINS,
    "coins-masked": (*COINS, "aggregation.kind=masked"),
    "coins-seen": (*COINS[:3], "privacy.release=uploads", "privacy.noise_std=0.5"),
    "signs-seen-in-a-public-order": (
        "method.name=stochastic-sign", "method.options.bound=0.5", *SIGNS, "privacy.release=uploads",
        "federation.sampling=cyclic", "federation.rounds=8",
    ),
    "signs-seen": (
        "method.name=stochastic-sign", "method.options.bound=0.5", *SIGNS, "privacy.release=uploads",
        "privacy.trials=3",
    ),
    "coins-and-canaries": (*COINS, "audit.canaries=12"),
    "signs-by-coins": ("method.name=stochastic-sign", "method.options.bound=0.5", *SIGNS),
    "records": ("method.name=fedavg", *RECORDS, "local.batch_size=16", "federation.rounds=2"),
    "records-in-one-batch": ("method.name=fedavg", *RECORDS, "local.batch_size=40", "federation.rounds=2"),
    "records-behind-masks": (
        "method.name=fedavg", *RECORDS, "local.batch_size=30", "aggregation.kind=masked", "aggregation.clip_norm=5.0",
        "aggregation.dropout=0.35", "aggregation.threshold=0.7", "federation.sampling=fixed",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def one_round(tmp_path_factory):
    """A run that passes; not to be changed."""
    return run_folders.run(tmp_path_factory.mktemp("one") / "run", "federation.sampling=all", "federation.rounds=1")


@pytest.fixture
def folder(one_round, tmp_path):
    return copied(one_round, tmp_path / "run")


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize("way", [*WAYS, *WITHOUT_NOISE_MULTIPLIER])
def test_a_run_as_the_package_makes_it_passes(tmp_path, way):
    settings = WAYS.get(way) or WITHOUT_NOISE_MULTIPLIER[way]
    folder = run_folders.run(tmp_path / "run", *settings, without=[] if way in WAYS else ["privacy"])
    found = audit_run(folder, confidence=SURE, compare=True)
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
    assert found.recomputed_epsilon == pytest.approx(found.claimed_epsilon, rel=1e-9)
    record = found.to_dict()
    assert record["trials"] == (12 if "canaries" in way else 0)
    best = found.files.trusted_ledger.if_fixed_in_advance(found.delta, with_lower_bound=False).epsilon
    lines = found.files.ledger.path.read_text()
    _check_second_opinion(record, best, gaussian='"kind":"gaussian"' in lines)


def test_a_clip_norm_at_its_limits_shows_no_noise(tmp_path):
    """An honest run failed: the limit was taken for the noise."""
    clipped = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.rate=100.0", "federation.cohort=1")
    found = audit_run(run_folders.run(tmp_path / "run", *clipped), confidence=SURE)
    assert found.verdict != "fail"
    (row,) = [one for one in found.checks if one.name == "counts are noised"]
    assert "at a limit of its range" in row.detail


def _check_second_opinion(record, best, *, gaussian):
    """Gaussian runs have one, no smaller than our best account, another upper bound; others say why not."""
    said = [note for note in record["notes"] if "second opinion" in note]
    assert len(said) == 1
    assert (record["second_opinion"] is not None) == gaussian
    if not gaussian:
        assert said[0].startswith("no second opinion: dp-accounting has no account of ")
    else:
        assert record["second_opinion"] > 0.99 * best - 1e-4
        assert said[0].startswith("second opinion ")


@pytest.mark.parametrize("randomness", ["simulated", "secure"])
def test_a_run_that_was_killed_and_resumed_passes(tmp_path, randomness):
    """Killed between a charge and its checkpoint: a secure round is then charged twice, a simulated one once."""
    settings = ["federation.sampling=all", f"run.randomness={randomness}", "privacy.noise=discrete-gaussian"]
    config = parse(override(TABLES, settings), source="test")
    killed_before_checkpoint(build(config), tmp_path / "run", 2)
    federation.run(build(config), tmp_path / "run", resume=True)
    found = audit_run(tmp_path / "run", confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
    assert len(found.files.ledger.releases) == (5 if randomness == "secure" else 4)


@pytest.mark.parametrize("settings", [(), SHARES, ("privacy.noise=discrete-gaussian",)])
def test_one_seed_for_the_noise_of_all_rounds_is_found(tmp_path, settings):
    """Differences of float32 sums have other fingerprints though the noise is the same; their lengths tell."""
    experiment = build(parse(override(TABLES, ["federation.sampling=all", *settings]), source="test"))
    stages = experiment.method.stages
    alike = stages.replace_stage(
        type(stages.private), lambda noise: replace(noise, randomness=ForgetsTheRound(noise.randomness))
    )
    federation.run(replace(experiment, method=replace(experiment.method, stages=alike)), tmp_path / "run")
    failed = run_folders.failed(tmp_path / "run", confidence=0.99)
    assert "noise is fresh in every round" in failed
    assert failed <= {"noise is fresh in every round", "noise is shaped as charged"}  # four times the same draws


@pytest.mark.drawn
def test_the_command_prints_the_contracts_json_and_writes_the_report(tmp_path, capsys):
    folder = run_folders.run(tmp_path / "run", "federation.sampling=all", "audit.canaries=12")
    assert status(["audit", "run", str(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) >= KEYS
    assert record["verdict"] == "pass"
    assert (record["trials"], record["confidence"]) == (12, 0.95)
    assert record["score_gap"] == pytest.approx(1.0, abs=1e-4)
    assert record["lower_bound"] <= record["canaries"]["round_epsilon"]
    for check in record["checks"]:
        assert set(check) == {"name", "passed", "detail", "would_find"}
        assert check["passed"] is (None if check["name"] == "canaries agree with one round's claim" else True)
    assert not record["canaries"]["power"]["enough"]  # 12 canaries: the verdict rests on the other checks
    assert (folder / "audit.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "audit.html").read_text()
    assert all(check["name"].replace("'", "&#39;") in page for check in record["checks"])
    assert "does not show" in page
    again = json.loads(json.dumps(audit_run(folder, compare=True).to_dict()))
    assert again == record


def test_a_failed_audit_has_exit_status_1_and_no_run_has_2(folder, tmp_path, capsys):
    change_summary(folder, epsilon=0.1)
    assert status(["audit", "run", str(folder), "--out", str(tmp_path / "elsewhere")]) == 1
    printed = capsys.readouterr().out
    assert "less than was spent" in " ".join(printed.replace("│", " ").split())
    assert (tmp_path / "elsewhere" / "audit.html").exists()
    assert not (folder / "audit.html").exists()
    assert status(["audit", "run", str(tmp_path / "nowhere")]) == 2
    assert "config.toml" in capsys.readouterr().err
    assert status(["audit", "run", str(folder), "--confidence", "1"]) == 2
    (tmp_path / "file").touch()
    assert status(["audit", "run", str(folder), "--out", str(tmp_path / "file")]) == 1


def test_an_inconclusive_audit_names_what_is_missing(folder, capsys):
    (folder / "diagnostics.jsonl").unlink()
    assert status(["audit", "run", str(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "inconclusive"
    assert any("diagnostics.jsonl" in check["detail"] for check in record["checks"] if check["passed"] is None)


def test_a_run_that_claims_nothing_is_refused(tmp_path):
    folder = run_folders.run(tmp_path / "run", "method.name=fedavg", "federation.rounds=1", without=["privacy"])
    refused(ConfigError, "no claim", audit_run, folder)
    change_summary(folder, epsilon=0.5)  # but now it states one
    assert audit_run(folder).verdict != "pass"


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("number", [1e99, -1e99, 0.0])
def test_the_report_takes_whatever_an_audit_takes(tmp_path, number):
    folder = run_folders.run(tmp_path / "run", "audit.canaries=12", "federation.rounds=2", "federation.cohort=60")
    change(folder, "canaries.jsonl", lambda lines: [one.update(score=number) for one in lines])
    change(folder, "diagnostics.jsonl", lambda lines: lines[0]["noise"].update(mean_square=abs(number)))
    change(folder, "diagnostics.jsonl", lambda lines: lines[0].update(cohort=10**15))
    found = audit_run(folder)
    assert found.verdict == "fail"
    assert write_cards([found], tmp_path / "out")[0].exists()


def test_the_failing_check_stands_first_and_the_headline_names_it(one_round, folder, tmp_path, capsys):
    change_summary(folder, epsilon=0.1)
    assert status(["audit", "run", str(folder)]) == 1
    printed = capsys.readouterr().out
    rows = [line.split("│")[1:3] for line in printed.splitlines() if line.startswith("│")]
    holds = [row[1].strip() for row in rows if row[1].strip()]
    assert holds == sorted(holds, key=["NO", "could not tell", "yes"].index)
    assert holds[0] == "NO"
    page = (folder / "audit.html").read_text()
    (names,) = re.findall(r'<h1>Audit of run: <span class="fail">fail: (.*?)</span></h1>', page)
    assert re.findall(r"<tr><td>(.*?)<td", page)[: holds.count("NO")] == names.split("; ")
    assert f"<title>Audit of run: fail, {names}</title>" in page
    sound = copied(one_round, tmp_path / "sound")
    assert status(["audit", "run", str(sound)]) == 0
    assert '<span class="pass">pass on these files</span></h1>' in (sound / "audit.html").read_text()


@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_that_cannot_be_written_to_is_audited_with_the_audits_status(folder, capsys, monkeypatch, fails):
    change_summary(folder, **({"epsilon": 0.1} if fails else {}))
    before = {file: file.read_bytes() for file in folder.iterdir()}

    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("dpfed.report.audit.put", refuse)
    monkeypatch.setattr("dpfed.report.figures.figure.put", refuse)
    assert status(["audit", "run", str(folder), "--json"]) == int(fails)
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == ("fail" if fails else "pass")
    assert "No report was written: " in said.err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    assert status(["audit", "run", str(folder)]) == int(fails)
    assert "report: " not in capsys.readouterr().out


def test_reports_of_two_audits_in_one_folder_are_kept(one_round, tmp_path, capsys):
    """Two runs; one run again; and the audit of a scheme in the folder of a run."""
    one, two, out = copied(one_round, tmp_path / "one"), copied(one_round, tmp_path / "two"), tmp_path / "out"
    change_summary(two, epsilon=0.1)
    for folder, code in ((one, 0), (two, 1), (one, 0)):
        assert status(["audit", "run", str(folder), "--out", str(out)]) == code
    assert {file.name for file in out.iterdir()} == {
        *("audit.html", "audit.png", "audit.json", "audit-2.html", "audit-2.png", "audit-2.json")
    }
    assert "<h1>Audit of one" in (out / "audit.html").read_text()
    assert "<h1>Audit of two" in (out / "audit-2.html").read_text()
    assert f"{out / 'audit-2.html'}".replace("/", "") in capsys.readouterr().out.replace("\n", "").replace("/", "")
    assert status(["audit", "run", str(one)]) == 0
    (one / "report.html").write_text("<title>dp-fedavg on digits</title>")  # of the run
    plot = (one / "audit.png").read_bytes()
    for _ in range(2):
        assert status(["audit", "scheme", "dense", "--out", str(one)]) == 0
    assert (one / "report.html").read_text() == "<title>dp-fedavg on digits</title>"
    assert (one / "audit.png").read_bytes() == plot
    assert {"audit-2.html", "audit-2.json"} == {file.name for file in one.iterdir() if "-2" in file.name}
    assert status(["audit", "run", str(one)]) == 0
    assert "<h1>Audit of one" in (one / "audit.html").read_text()
