"""The default delta: what new folders hold, and what counts for folders of 0.2, which hold none."""

import tomllib

import pytest

from accounting import Ledger
from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.config.tables import Config
from dpfed.runs import loop as federation
from dpfed.runs.client_level import private_loop
from dpfed.runs.client_level.book import LoopBook
from dpfed.runs.experiment import build
from dpfed.sweep import plan as sweeps
from dpfed.sweep.plan import GridCell
from tests.private_loops import level, releases, rows

from ...rounds import Killed, killed_after

OLD = 60**-1.1
RECORD = (
    "method.name=fedavg",
    "local.record.clip_norm=1.0",
    "local.record.noise_multiplier=1.0",
    "local.batch_size=16",
)


def as_of_0_2(config, folder, monkeypatch, *, rounds=3):
    """A folder as 0.2 left it after so many rounds: delta from n^-1.1, and none in config.toml."""
    old = {"client": 1.0, "record": 1.0}
    with monkeypatch.context() as version:
        version.setattr("accounting.caveats.LARGEST_DEFAULT_DELTA", old)
        version.setattr(Config, "with_delta", lambda config, delta: config)
        with pytest.raises(Killed):
            federation.run(build(config), folder, on_round=killed_after(rounds))
    assert "delta" not in (folder / "config.toml").read_text()


@pytest.mark.parametrize(("unit", "delta"), [("client", 1e-4), ("record", 1e-5)])
def test_a_new_folder_holds_its_delta(tiny_config, tmp_path, unit, delta):
    config = tiny_config("federation.rounds=1", *(RECORD if unit == "record" else ()), without=_without(unit))
    summary = federation.run(build(config), tmp_path / "run").summary
    tables = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (tables["privacy"] if unit == "client" else tables["local"]["record"])["delta"] == delta == summary["delta"]
    cell = GridCell(row="row", at={}, config=config, folder="run", choice=None)
    assert sweeps.folder_state(tmp_path / "run", cell) == "finished"
    assert audit_run(tmp_path / "run").verdict == "pass"


def _without(unit):
    return ["privacy"] if unit == "record" else []


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_folder_of_0_2_is_resumed_and_judged_by_its_own_default(tiny_config, tmp_path, monkeypatch, unit):
    config = tiny_config(*(RECORD if unit == "record" else ()), without=_without(unit))
    folder = tmp_path / "run"
    as_of_0_2(config, folder, monkeypatch, rounds=2)
    cell = GridCell(row="row", at={}, config=config, folder="run", choice=None)
    assert sweeps.folder_state(folder, cell) == "interrupted"
    assert status(["run", "--resume", "--out", str(folder)]) == 0
    delta = OLD if unit == "client" else 1438**-1.1
    found = audit_run(folder)
    assert (found.verdict, found.delta) == ("pass", pytest.approx(delta))
    assert Ledger.read(folder / "ledger.jsonl").header.about["delta"] == pytest.approx(delta)


def test_a_loop_of_0_2_goes_on_with_its_own_default(tmp_path, monkeypatch):
    real = LoopBook.open

    def as_then(path, header):
        del header.about["plan"]["privacy"]["delta"]
        return real(path, header)

    with monkeypatch.context() as version:
        version.setattr(private_loop, "default_delta", lambda clients: OLD)
        version.setattr(LoopBook, "open", as_then)
        begun = level(tmp_path, rounds=3)
        step = next(begun.rounds())
        step.release(rows(step))
    again = level(tmp_path, rounds=3)
    assert len(releases(again)) == 2
    assert again.guarantee().delta == OLD
    assert audit_run(tmp_path / "l.jsonl").verdict == "pass"


def test_a_new_loop_has_the_delta_in_its_plan(tmp_path):
    loop = level(tmp_path, rounds=1)
    releases(loop)
    assert loop.delta == Ledger.read(loop.ledger).header.about["plan"]["privacy"]["delta"] == 1e-4
    assert audit_run(loop.ledger).verdict == "pass"
