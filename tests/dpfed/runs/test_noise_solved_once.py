"""Calibrated noise is in the ledger's header before round 1, and read from there: processors differ in last digits."""

import os
import subprocess
import sys

import numpy as np
import pytest
from refusals import refused

import dpfed
from accounting import Ledger, budget
from accounting.budget.correlated import BandedNoise, BufferedNoise
from accounting.errors import AccountingError
from accounting.ledger import Release
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError, RunError
from dpfed.methods import records
from dpfed.methods.privacy_target import has_enough_noise
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.resuming import with_solved_noise

from ...private_loops import rows
from ...rounds import Killed, killed_after, killed_run

DATA = dpfed.data.from_clients(
    [(np.random.default_rng(k).normal(size=(4, 6)).astype(np.float32), np.arange(4) % 3) for k in range(20)],
    (np.zeros((9, 6), dtype=np.float32), np.arange(9) % 3),
    classes=3,
)

SAMPLINGS = {
    "poisson": {},
    "fixed": {},
    "all": {"cohort": 60},
    "balls-and-bins": {},
    "balls-and-bins, lanes": {"lanes": 5},
    "allocation": {},
    "min-separation": {"separation": 3},
    "cyclic": {},
}


@pytest.fixture
def another_processor(monkeypatch):
    """Call to let every further calibration differ in the 13th digit."""

    def change(moved=1 + 1e-13):
        clip, smallest = budget.largest_clip, records.calibrate.smallest
        solve, bands, public = budget.multiplier_for, BandedNoise.first_column, BandedNoise.public_stream
        buffers = BufferedNoise.public_stream

        def column(values):
            return (1.0, *(value / moved for value in values[1:]))

        def stream(found):
            changed = found.coefficients and column(found.coefficients)
            return type(found)(**{**vars(found), "coefficients": changed, "weights": found.weights})

        monkeypatch.setattr(budget, "multiplier_for", lambda *a, **k: solve(*a, **k) * moved)
        monkeypatch.setattr(budget, "largest_clip", lambda *a, **k: clip(*a, **k) / moved)
        monkeypatch.setattr(records.calibrate, "smallest", lambda *a, **k: smallest(*a, **k) * moved)
        monkeypatch.setattr(BandedNoise, "first_column", lambda self, rounds: column(bands(self, rounds)))
        monkeypatch.setattr(BandedNoise, "public_stream", lambda *a, **k: stream(public(*a, **k)))
        monkeypatch.setattr(BufferedNoise, "public_stream", lambda *a, **k: stream(buffers(*a, **k)))

    return change


def loop(path, name, rounds=10, **more):
    settings = {"clients": 60, "cohort": 12, "clip_norm": 1.0, "rounds": rounds, "delta": 1e-3} | {
        "sampling": name.split(",")[0],
        "ledger": path,
        "randomness": "simulated",
    }
    return dpfed.ClientLevel(**(settings | SAMPLINGS[name] | more))


def released(private, at_most=99):
    for done, step in enumerate(private.rounds(), start=1):
        step.release(rows(step))
        if done == at_most:
            break
    return private


def mechanisms(path):
    return {one.mechanism for one in Ledger.read(path).entries if isinstance(one, Release)}


def settings_of(names, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", settings_of(SAMPLINGS, ("poisson", "all", "balls-and-bins, lanes", "cyclic")))
@pytest.mark.parametrize("noise", ["gaussian", pytest.param("discrete-gaussian", marks=pytest.mark.slow)])
def test_a_loop_continues_on_another_processor(tmp_path, another_processor, name, noise):
    if noise != "gaussian" and "lanes" in name:
        pytest.skip("bands are Gaussian")
    path, more = tmp_path / "l.jsonl", {"epsilon": 3.0, "noise": noise, "dimension": 40}
    begun = released(loop(path, name, **more), 4)
    assert Ledger.header_of(path).solved["noise_multiplier"] == begun.noise_multiplier
    another_processor()
    assert loop(tmp_path / "new.jsonl", name, **more).noise_multiplier != begun.noise_multiplier
    ended = released(loop(path, name, **more))
    assert ended.noise_multiplier == begun.noise_multiplier
    assert len(mechanisms(path)) == 1
    assert ended.guarantee().epsilon <= 3.0
    assert ended.stopped_by == "rounds"


def test_the_header_is_what_a_loop_continues_with(tmp_path, another_processor, monkeypatch):
    """Planted: a loop that calibrates again is refused before any further round."""
    path = tmp_path / "l.jsonl"
    released(loop(path, "balls-and-bins", epsilon=3.0), 4)
    another_processor()
    monkeypatch.setattr("dpfed.runs.client_level.plan.with_solved_noise", lambda config, ledger: config)
    refused(RunError, r"mechanism\.noise_multiplier was", loop, path, "balls-and-bins", epsilon=3.0)
    assert len(Ledger.read(path).releases) == 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"federation.sampling": "poisson"}, "noise_multiplier"),
        ({"federation.sampling": "cyclic", "privacy.bands": 2}, "matrix"),
        *(
            pytest.param(more, "matrix", marks=pytest.mark.slow)
            for more in (
                {"federation.sampling": "balls-and-bins", "federation.lanes": 2},
                {"federation.sampling": "cyclic", "privacy.buffers": 2},
            )
        ),
        *(
            pytest.param(more, "noise_multiplier", marks=pytest.mark.slow)
            for more in (
                {"federation.sampling": "allocation"},
                {"federation.sampling": "balls-and-bins"},
                {"federation.sampling": "min-separation", "federation.separation": 2},
                {"privacy.noise": "discrete-gaussian"},
                {"federation.sampling": "poisson", "federation.cohort_cap": 9},
                {"federation.sampling": "fixed"},
                {"federation.sampling": "all", "federation.cohort": 20},
                {"federation.sampling": "cyclic"},
                {"privacy.release": "uploads"},
                {"aggregation.kind": "masked", "privacy.noise": "skellam"},
            )
        ),
    ],
)
def test_a_run_is_resumed_on_another_processor(tmp_path, another_processor, settings, key):
    given = {
        "federation.rounds": 4,
        "federation.cohort": 5,
        "privacy.noise_multiplier": None,
        "privacy.epsilon": 8.0,
        "run.device": "cpu",
    } | settings
    out = tmp_path / "run"

    def run(**more):
        return dpfed.run("dp-fedavg-digits", given, data=DATA, model=model, out=out, **{"progress": False} | more)

    refused(Killed, "", lambda: run(progress=killed_after(2)))
    header = Ledger.header_of(out / "ledger.jsonl")
    assert key in header.solved
    another_processor()
    summary = run(resume=True).summary
    assert summary["rounds"] == 4
    assert len(mechanisms(out / "ledger.jsonl")) == 1
    files = RunFiles(out)
    assert files.promise.privacy_target.solved == Ledger.header_of(out / "ledger.jsonl").solved
    assert files.promised_today.privacy_target.solved != files.promise.privacy_target.solved
    assert audit_run(out).verdict == "pass"


COINS = ("method.name=fedpm", "privacy.epsilon=20", "privacy.slots=30", "privacy.accountant=rdp")
RECORDS = ("method.name=fedavg", "local.record.clip_norm=1", "local.record.epsilon=9", "local.record.accountant=rdp")


@pytest.mark.parametrize(
    "settings",
    [
        RECORDS,
        pytest.param(
            ("method.name=dp-dithered", "privacy.clip_norm=1", "privacy.epsilon=20", "privacy.adjacency=zero-out"),
            marks=pytest.mark.slow,
        ),
        pytest.param(COINS, marks=pytest.mark.slow),
        pytest.param((*COINS, "aggregation.kind=masked"), marks=pytest.mark.slow),
        pytest.param((*RECORDS, "local.record.noise=discrete-gaussian"), marks=pytest.mark.slow),
    ],
)
def test_noise_of_clients_is_resumed_on_another_processor(tmp_path, tiny_config, another_processor, settings):
    """Their audits read the header, too. Planted: less noise than epsilon needs."""
    small = ("model.hidden=[2]", "data.train_samples=240", "federation.sampling=all")
    config = tiny_config(*settings, *small[: 3 if settings[:4] == RECORDS else 2], without=["privacy"])

    killed_run(config, tmp_path / "run", after=2)
    ledger = tmp_path / "run" / "ledger.jsonl"
    solved = Ledger.header_of(ledger).solved
    another_processor()
    assert build(config).privacy_target.solved != solved
    done = federation.run(build(with_solved_noise(config, ledger)), tmp_path / "run", resume=True).summary
    assert done["epsilon"] <= (config.privacy or config.local.record).epsilon
    files = RunFiles(tmp_path / "run")
    assert files.experiment.privacy_target.solved == solved
    assert audit_run(tmp_path / "run").verdict == "pass"
    less = {name: value * (1.001 if name == "clip_norm" else 0.999) for name, value in solved.items()}
    federation.run(build(config.with_solved_noise(less)), tmp_path / "less")
    found = {one.name: one.passed for one in audit_run(tmp_path / "less").checks}
    assert found["ledger follows the configuration"] is False


def test_an_audit_reads_the_noise_of_the_header_unless_it_is_too_little(tmp_path):
    given = {"federation.rounds": 2, "federation.cohort": 5, "privacy.noise_multiplier": None, "privacy.epsilon": 8.0}
    needed = dpfed.run(
        "dp-fedavg-digits", given, data=DATA, model=model, out=tmp_path / "run", progress=False
    ).experiment.privacy_target.solved
    assert not has_enough_noise({}, needed)
    for factor in (0.99, 1 - 1e-6, 1 + 1e-12, 1.01):
        solved = {"noise_multiplier": needed["noise_multiplier"] * factor}
        assert has_enough_noise(solved, needed) is (factor > 1 - 1e-8)
        assert not has_enough_noise(solved | {"matrix": {"coefficients": [1.0]}}, needed)


def model():
    import torch

    return torch.nn.Linear(6, 3)


PLANNED = {"epsilon": 8.0, "noise_multiplier": 4.0}


@pytest.mark.parametrize(
    "name", settings_of([name for name in SAMPLINGS if name != "all"], ("poisson", "balls-and-bins, lanes", "cyclic"))
)
def test_a_longer_loop_has_an_epsilon_or_is_refused_at_opening(tmp_path, name):
    path = tmp_path / "l.jsonl"
    released(loop(path, name, **PLANNED), 5)
    if name in ("allocation", "balls-and-bins, lanes"):
        refused(RunError, r"sampling\.(rounds was 10, is 40|coefficients was)", loop, path, name, rounds=40, **PLANNED)
        assert len(Ledger.read(path).releases) == 5
        assert len(released(loop(path, name, **PLANNED)).ledger.read_text().splitlines()) == 11
    else:
        assert released(loop(path, name, rounds=40, **PLANNED)).guarantee().epsilon <= 8.0
        assert len(Ledger.read(path).releases) == 40
    refused(RunError, "another plan", loop, path, name, **PLANNED | {"noise_multiplier": 4.0 + 1e-12})


def test_a_schedule_of_integer_noise_needs_its_dimension_before_round_1():
    refused(ConfigError, "Give dimension=", loop, None, "balls-and-bins", epsilon=3.0, noise="discrete-gaussian")


@pytest.mark.parametrize(
    "solved", [{"noise_multiplier": -1.0}, {"noise_multiplier": "1"}, {"matrix": [1.0]}, {"matrix": {"decays": 1.0}}]
)
def test_solved_numbers_of_a_header_are_checked(solved):
    from accounting.ledger import Header
    from accounting.ledger.entries import header_from

    record = Header(unit="client", clients=3, randomness="secure").to_dict() | {"solved": solved}
    refused(AccountingError, "", header_from, record)


LOOP = """
import sys, torch, dpfed
private = dpfed.ClientLevel(clients=60, cohort=12, clip_norm=1.0, epsilon=3.0, delta=1e-3, rounds=10,
    sampling="balls-and-bins", ledger=sys.argv[1], randomness="simulated", seed=3)
for number, step in enumerate(private.rounds()):
    step.release(torch.zeros(len(step.cohort), 4))
    if number == int(sys.argv[2]): break
print(private.guarantee().epsilon)
"""


@pytest.mark.slow
def test_a_loop_continues_without_the_processors_widest_instructions(tmp_path):
    words = [sys.executable, "-c", LOOP, str(tmp_path / "l.jsonl")]
    subprocess.run([*words, "4"], check=True)
    fewer = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3"}
    found = subprocess.run([*words, "99"], check=True, capture_output=True, text=True, env=fewer)
    assert float(found.stdout) <= 3.0
    assert len(mechanisms(tmp_path / "l.jsonl")) == 1


def test_spare_rounds_are_in_the_header_and_in_the_noise(tmp_path):
    given = {"federation.rounds": 3, "federation.cohort": 5, "privacy.noise_multiplier": None, "privacy.epsilon": 8.0}

    def run(name, **more):
        return dpfed.run(
            "dp-fedavg-digits", given | more, data=DATA, model=model, out=tmp_path / name, progress=False
        ).summary

    plain, spare = run("plain"), run("spare", **{"run.spare_rounds": 4})
    header = Ledger.header_of(tmp_path / "spare" / "ledger.jsonl")
    assert (header.plan.rounds, header.plan.spare) == (3, 4)
    assert header.plan.largest_charges[0].parts[0][1] == 7
    assert spare["noise_multiplier"] > plain["noise_multiplier"]
    assert spare["epsilon"] <= 8.0
    assert any("3 planned rounds and 4 spare ones" in note for note in spare["notes"])
    with pytest.raises(ConfigError, match=r"run\.spare_rounds=4 with federation\.sampling"):
        run("refused", **{"run.spare_rounds": 4, "federation.sampling": "balls-and-bins"})
