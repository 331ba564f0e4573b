"""`dpfed.run`: what the command does, with data and a network of one's own, and a folder only where something ran."""

import inspect
import json
import pickle
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import dpfed
from accounting.errors import AccountingError, LedgerError
from accounting.ledger.project import ProjectLedger
from dpfed.cli import status
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, DataError, RunError
from dpfed.methods.catalogue import preset_tables
from dpfed.runs.loop import Outcome
from dpfed.sweep.jobs import RunJob, run_job

from ...rounds import DIGITS, tables

TABLES = tables(DIGITS, privacy={"accountant": "rdp"})
SAME = ("test_accuracy", "best_test_accuracy", "epsilon", "delta", "noise_multiplier", "rounds", "parameters")


def pairs(count, seed=0):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 5))
    return inputs, (inputs[:, 0] > 0).astype(int)


def own_data(**more):
    return dpfed.data.from_clients([pairs(10, seed=i) for i in range(30)], pairs(50, seed=99), classes=2, **more)


@pytest.fixture(autouse=True)
def _without_plots(request, monkeypatch):
    """They take most of the time of a small run, and one test looks at them."""
    if "with_plots" not in request.fixturenames:
        monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


@pytest.fixture
def with_plots():
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.mark.slow
def test_the_call_and_the_command_do_the_same(tmp_path, capsys, with_plots):
    called = dpfed.run("dp-fedavg-digits", {"federation.rounds": 2, "privacy.epsilon": 4.0}, out=tmp_path / "called")
    settings = ["--set", "federation.rounds=2", "--set", "privacy.epsilon=4.0"]
    assert status(["run", "dp-fedavg-digits", *settings, "--out", str(tmp_path / "typed"), "--json"]) == 0
    typed = json.loads(capsys.readouterr().out)
    assert {key: called.summary[key] for key in SAME} == {key: typed[key] for key in SAME}
    files = {path.name for path in (tmp_path / "called").iterdir()}
    assert files == {path.name for path in (tmp_path / "typed").iterdir()}
    assert {"report.html", "ledger.jsonl", "model.safetensors", "metrics.jsonl", "config.toml"} <= files
    for name in ("metrics.jsonl", "config.toml", "model.safetensors"):
        assert (tmp_path / "called" / name).read_bytes() == (tmp_path / "typed" / name).read_bytes()


def test_tables_and_files_are_taken_as_well(tmp_path):
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(TABLES))
    one = dpfed.run(TABLES, {"run.seed": 3}, out=tmp_path / "one")
    other = dpfed.run(tmp_path / "mine.toml", {"run": {"seed": 3}}, out=tmp_path / "other")
    assert one.metrics == other.metrics
    assert TABLES["data"] == {"name": "digits"}


def test_the_result_has_model_guarantee_and_numbers(tmp_path):
    done = dpfed.run(TABLES, out=tmp_path / "run")
    assert done.folder == tmp_path / "run"
    assert done.guarantee.epsilon == done.summary["epsilon"]
    assert [line["round"] for line in done.metrics] == [1, 2, 3]
    digits = dpfed.data.load("digits")
    with torch.no_grad():
        guessed = done.model(torch.from_numpy(digits.test_inputs)).argmax(dim=1).numpy()
    assert float((guessed == digits.test_labels).mean()) == pytest.approx(done.summary["test_accuracy"], abs=1e-6)


def test_a_run_without_privacy_has_no_guarantee(tmp_path):
    tables = {key: value for key, value in TABLES.items() if key != "privacy"}
    done = dpfed.run(tables, {"method.name": "fedavg"}, out=tmp_path / "run")
    assert (done.summary["epsilon"], done.summary["unit"]) == (None, "none")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    with pytest.raises(RunError, match="is not private and has no guarantee"):
        done.guarantee  # noqa: B018


def test_own_data_and_network(tmp_path):
    settings = {
        "federation.sampling": "all",
        "federation.cohort": 30,
        "federation.rounds": 4,
        "privacy.epsilon": None,
        "privacy.noise_multiplier": 0.1,
    }
    done = dpfed.run("dp-fedavg-digits", settings, data=own_data(), model=Net, out=tmp_path / "run")
    assert done.summary["clients"] == 30  # who holds what is what the data say, not the preset
    assert done.summary["test_accuracy"] > 0.8
    assert isinstance(done.model, Net)
    assert (done.summary["dataset"], done.summary["model"]) == ("own", "Net")


def test_a_module_is_copied_and_a_function_makes_fresh_weights(tmp_path):
    given = Net()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    tables = override(TABLES, ["federation.clients=30", "federation.rounds=1", "data.partition=natural"])
    tables["local"] = {"learning_rate": 1e-30, "epochs": 1, "batch_size": 10}
    tables["privacy"] |= {"clip_norm": 1e-9}
    done = dpfed.run(tables, data=own_data(), model=given, out=tmp_path / "given")
    for name, value in done.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())

    def maker(input_shape, classes):
        return nn.Linear(*input_shape, classes)

    seeds = [
        dpfed.run(tables, {"run.seed": seed}, data=own_data(), model=maker, out=tmp_path / f"{i}")
        for i, seed in enumerate((1, 1, 2))
    ]
    weights = [one.model.weight for one in seeds]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_an_interrupted_run_goes_on_with_the_same_objects_only(tmp_path):
    class Stop(Exception):
        pass

    def stop(line):
        if line["round"] == 2:
            raise Stop

    tables = override(TABLES, ["federation.clients=30", "data.partition=natural"])
    whole = dpfed.run(tables, data=own_data(), model=Net, out=tmp_path / "whole")
    refused(Stop, "", lambda: dpfed.run(tables, data=own_data(), model=Net, out=tmp_path / "parts", progress=stop))
    other = dpfed.data.from_clients([pairs(10, seed=i + 1) for i in range(30)], pairs(50, seed=99), classes=2)
    refused(RunError, "its clients", dpfed.run, tables, data=other, model=Net, out=tmp_path / "parts", resume=True)
    with pytest.raises(RunError, match="the model that it starts from"):
        dpfed.run(tables, {"model.name": "Net"}, data=own_data(), model=lambda: nn.Linear(5, 2), out=tmp_path / "parts",
                  resume=True)  # fmt: skip
    parts = dpfed.run(tables, data=own_data(), model=Net, out=tmp_path / "parts", resume=True)
    assert parts.metrics == whole.metrics


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"config": "dp-fedavg-digit"}, "neither a file nor a preset"),
        ({"settings": {"privacy.clip": 1}}, "unknown key"),
        ({"settings": {"rounds": 1}}, "must be table.key"),
        ({"settings": {"privacy.epsilon": 1e-6}}, "not even one round fits"),
        ({"settings": {"federation.cohort": 61}}, "must be from 1 to"),
        ({"resume": True}, "name the run folder"),
        ({"model": 7}, "must be a torch.nn.Module or a function"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, "must give logits"),
        ({"model": lambda: nn.Linear(64, 10).missing}, "cannot be made"),
        ({"engine": "flower", "model": Net}, "nodes are other processes"),
        ({"engine": "spark"}, "must be 'in-process' or 'flower'"),
    ],
    ids=range(11),
)
def test_what_is_refused_leaves_no_folder(tmp_path, monkeypatch, change, complaint):
    monkeypatch.chdir(tmp_path)
    how = {"config": TABLES, **change}
    with pytest.raises((ConfigError, DataError, AccountingError, RunError), match=complaint):
        dpfed.run(how.pop("config"), how.pop("settings", {}), **how)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_by_a_project_leaves_no_folder(tmp_path, capsys):
    ledger = tmp_path / "project.jsonl"
    ProjectLedger.create(ledger, clients=61, epsilon=5.0, delta=1e-3)
    with pytest.raises(RunError, match="all runs of a project have the same clients"):
        dpfed.run(TABLES, out=tmp_path / "deep" / "run", ledger=ledger)
    poor = tmp_path / "poor.jsonl"
    ProjectLedger.create(poor, clients=60, epsilon=1e-4, delta=1e-3)
    refused(RunError, "epsilon", dpfed.run, TABLES, out=tmp_path / "deep" / "run", ledger=poor)
    (tmp_path / "there").mkdir()
    refused(RunError, "epsilon", dpfed.run, TABLES, out=tmp_path / "there", ledger=poor)
    assert status(["run", "dp-fedavg-digits", "--ledger", str(poor), "--out", str(tmp_path / "typed")]) == 1
    assert not (tmp_path / "deep").exists()
    assert not (tmp_path / "typed").exists()
    assert list((tmp_path / "there").iterdir()) == []  # it was there before


def test_a_failure_after_a_charge_keeps_the_folder(tmp_path, monkeypatch):
    """The other way round: what was charged is never taken away."""
    monkeypatch.setattr(
        "dpfed.runs.folder.RunFolder.save_checkpoint", lambda *_: (_ for _ in ()).throw(RunError("full"))
    )
    refused(RunError, "full", dpfed.run, TABLES, out=tmp_path / "run")
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 2


def test_progress_goes_where_somebody_looks(tmp_path, capsys):
    lines = []
    dpfed.run(TABLES, out=tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    dpfed.run(TABLES, out=tmp_path / "told", progress=lines.append)
    assert [line["round"] for line in lines] == [1, 2, 3]
    dpfed.run(TABLES, out=tmp_path / "wished", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "round 3/3" in err


LIGHT = """
import sys, dpfed
assert dpfed.__dir__() == dir(dpfed) and "run" in dir(dpfed) and "ClientLevel" in dir(dpfed), dir(dpfed)
heavy = {"torch", "numpy", "scipy", "pydantic", "rich"} & sys.modules.keys()
print(sorted(heavy), len([name for name in sys.modules if name.startswith("dpfed")]))
"""


def test_importing_the_package_loads_nothing():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "2"]  # dpfed and dpfed.version


def test_the_room_is_a_module_and_a_call():
    from dpfed.runs import loop

    assert loop.Outcome is Outcome
    assert dpfed.runs.loop is loop
    assert list(inspect.signature(dpfed.run).parameters)[:2] == ["config", "settings"]
    assert pickle.loads(pickle.dumps(dpfed.run)) is dpfed.run
    with pytest.raises(AttributeError, match="has no attribute 'clientlevel'"):
        dpfed.clientlevel  # noqa: B018


def test_the_configuration_in_the_folder_names_what_ran(tmp_path):
    done = dpfed.run(TABLES, {"federation.clients": 30, "data.partition": "natural"}, data=own_data(name="wards"),
                     model=Net, out=tmp_path / "run")  # fmt: skip
    tables = tomllib.loads((done.folder / "config.toml").read_text())
    assert (tables["data"]["name"], tables["model"]) == ("wards", {"name": "Net"})


def test_a_ledger_of_a_project_is_charged(tmp_path):
    ProjectLedger.create(tmp_path / "p.jsonl", clients=60, epsilon=50.0, delta=1e-2)
    done = dpfed.run(TABLES, out=tmp_path / "run", ledger=tmp_path / "p.jsonl")
    assert done.summary["project_epsilon"] == 50.0 > ProjectLedger.open(tmp_path / "p.jsonl").spent().epsilon > 0
    assert done.summary["project_delta"] == 1e-2 > done.summary["delta"]
    assert "Epsilon at most 50 at delta 0.01 for all runs" in done._repr_html_()
    with pytest.raises(LedgerError, match="the project ledger does not exist"):
        dpfed.run(TABLES, out=tmp_path / "other", ledger=tmp_path / "q.jsonl")
    assert not (tmp_path / "other").exists()


ROWS, ZEROS = torch.zeros(4, 4), torch.zeros(4, 2).long()


@pytest.mark.parametrize(
    ("clients", "test", "complaint"),
    [
        ([], pairs(3), "must be a pair"),
        ([(np.zeros((3, 5)), np.zeros(2, int))], pairs(3), "must be a pair"),
        ([(np.zeros((0, 5)), np.zeros(0, int))], pairs(3), "no client has a sample"),
        ([pairs(3), (np.zeros((2, 4)), np.zeros(2, int))], pairs(3), "different shapes"),
        ([pairs(3)], (np.zeros((3, 5)), np.array([0, 1, 2])), "not among the 2 declared classes"),
        ([pairs(3)], (["a"], [0]), "must be numbers"),
        ([(ROWS, ZEROS, ZEROS[:, 0])] * 3, pairs(3), "2 arrays of inputs without names. Give a dictionary"),
        ([((ROWS, ZEROS), ZEROS[:, 0])] * 3, pairs(3), "2 arrays of inputs without names. Give a dictionary"),
        ([(ROWS, torch.zeros(4))] * 3, (ROWS, torch.zeros(4)), r"\.long\(\).*classes=None"),
        ([(ROWS[:, 0], ZEROS[:, 0])] * 3, (ROWS[:, 0], ZEROS[:, 0]), r"\[N, 1\] by \.reshape"),
    ],
    ids=range(10),
)
def test_data_of_clients_that_do_not_fit_are_one_error(clients, test, complaint):
    refused(DataError, complaint, dpfed.data.from_clients, clients, test, classes=2)


def test_data_of_clients_are_those_of_arrays():
    held = [pairs(4), (np.zeros((0, 5)), np.zeros(0, int)), pairs(3, seed=1)]
    one = dpfed.data.from_clients(held, pairs(5, seed=2), classes=2)
    assert (one.natural_clients, one.train_clients.tolist()) == (3, [0] * 4 + [2] * 3)
    both = [torch.from_numpy(np.concatenate(parts)) for parts in zip(held[0], held[2], strict=True)]
    other = dpfed.data.from_arrays(tuple(both), pairs(5, seed=2), classes=2, clients=["a"] * 4 + ["c"] * 3)
    np.testing.assert_array_equal(one.train_inputs, other.train_inputs)
    np.testing.assert_array_equal(one.train_labels, other.train_labels)
    assert other.natural_clients == 2


def test_an_interruption_passes_with_a_note_and_the_run_can_be_continued(tmp_path, caplog):
    settings = {"federation.rounds": 4, "federation.clients": 20, "federation.cohort": 5, "privacy.epsilon": 20.0}
    whole = dpfed.run("dp-fedavg-digits", settings, out=tmp_path / "whole", progress=False)

    def interrupt(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with caplog.at_level("WARNING", logger="dpfed"), pytest.raises(KeyboardInterrupt) as raised:
        dpfed.run("dp-fedavg-digits", settings, out=tmp_path / "run", progress=interrupt)
    (note,) = raised.value.__notes__
    assert "resume=True" in note
    assert str(tmp_path / "run") in note
    assert note in caplog.text
    inside = [frame for frame in raised.traceback if "runs/loop" in str(frame.path)]
    assert not inside  # of dpfed, the traceback shows the call alone
    done = dpfed.run("dp-fedavg-digits", settings, out=tmp_path / "run", resume=True, progress=False)
    assert done.summary["epsilon"] == whole.summary["epsilon"]
    for name in ("ledger.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def weights_of(done):
    return torch.cat([one.flatten() for one in done.model.state_dict().values()])


@pytest.mark.parametrize(
    ("steps", "change", "words", "flips"),
    [
        (4, {}, "no client can flip an entry of its mask in any later round", False),
        (5, {}, "an entry at the end of its range starts 1.39 from 0", True),
        (4, {"federation.cohort": 6}, "an entry at the end of its range", None),
        (4, {"federation.sampling": "poisson"}, "an entry at the end of its range", None),
        (4, {"aggregation.dropout": 0.1}, "an entry at the end of its range", None),
        (4, {"server.prior": 2.0}, "an entry at the end of its range", None),
        (3, {"server.prior": 1.5}, "every score starts 0.336 or further", None),
        (4, {"server.rule": "step", "server.learning_rate": 1.0}, "in any later round", None),
        (4, {"server.rule": "step", "server.learning_rate": 0.5}, "an entry at the end of its range", None),
        (15, {}, None, None),
    ],
)
def test_a_run_warns_that_masks_cannot_move_and_no_entry_flips(tmp_path, caplog, steps, change, words, flips):
    """After rounds without a flip the mean of all masks is the threshold of the first round's, to the last bit."""
    made = preset_tables("fedmask-digits")
    del made["local"]["epochs"]
    small = {"local.steps": steps, "mask.edge": 0.2, "model.hidden": [8], "federation.rounds": 1, **change}
    fixed = {"federation.sampling": "fixed", "federation.cohort": 5, "run.evaluate_every": 9} | small
    first = dpfed.run(made, fixed, out=tmp_path / "first")
    assert caplog.messages == ([] if words is None else caplog.messages[:1])
    assert words is None or words in caplog.text
    if flips is not None:
        last = dpfed.run(made, fixed | {"federation.rounds": 6, "mask.readout": "mean"}, out=tmp_path / "last")
        assert bool((weights_of(first) != weights_of(last)).any()) == flips


def test_a_run_of_a_sweep_warns_too(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("dpfed.sweep.jobs.write_report", lambda outcome: None)
    set_keys = ["federation.rounds=1", "local.epochs=1", "local.batch_size=100", "model.hidden=[8]", "mask.edge=0.2"]
    tables_of_run = parse(override(preset_tables("fedmask-digits"), set_keys), source="test").to_dict()
    done = run_job(RunJob(number=0, config=tables_of_run, folder=tmp_path / "run", state="to run"))
    assert done.error is None
    assert f"{tmp_path / 'run'}: local.learning_rate=0.1 and at most 2 steps" in caplog.text
