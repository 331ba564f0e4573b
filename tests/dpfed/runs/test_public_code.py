"""In a run for release, what training leaves behind in user code reaches no public file: evaluation, trackers and
progress functions run in a process made before the first client trains.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from array import array
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from reference.bounded import bounded
from refusals import refused
from safetensors.torch import load_file
from torch import nn

import dpfed
from dpfed.errors import ConfigError, RunError, TrainingFailed
from dpfed.runs import evaluate, public_code
from dpfed.runs.evaluate import Objective
from dpfed.runs.scores import Evaluation

SEEN = []
"""A global of a user's module, which the network below fills while it trains."""
SECRET = "the private number is"
TABLES = {
    "model.hidden": None, "federation.rounds": 2, "federation.cohort": 6, "federation.sampling": "all",
    "privacy.epsilon": None, "privacy.noise_multiplier": 1.0, "privacy.clip_norm": 0.1, "local.epochs": 1,
    "local.strategy": "loop", "run.device": "cpu", "run.release": True, "run.evaluate_every": 1,
}  # fmt: skip


def points(count, seed, scale=1.0):
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return scale * inputs, inputs[:, :3].argmax(dim=1)


def clients():
    """Six clients; the last holds -30, and no other sample is beyond 5."""
    rest = [points(10, seed) for seed in range(6)]
    private = torch.full((10, 6), -30.0), rest[0][1]
    return dpfed.data.from_clients([*rest[1:], private], test=points(30, 9), classes=3)


class Watch(nn.Module):
    """A network that notes its inputs wherever Python lets it, prints them, and warns of them."""

    seen, high = [], 0.0

    def __init__(self, kept):
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.note = lambda value: kept.append(value)
        nn.init.constant_(self.out.weight, 0.3)

    def forward(self, inputs):
        if self.training and not torch._C._functorch.is_functorch_wrapped_tensor(inputs):
            largest = float(inputs.abs().max())
            for note in (self.seen.append, SEEN.append, self.note):
                note(largest)
            type(self).high = max(self.high, largest)
            if largest > 20:
                print(SECRET, largest)
                warnings.warn(f"{SECRET} {largest}", stacklevel=1)
        return self.out(inputs)


class Total:
    """A loss that adds up what it has seen, in an object that is not restored between clients."""

    def __init__(self):
        self.seen = array("d")

    def __call__(self, outputs, targets):
        if not torch._C._functorch.is_functorch_wrapped_tensor(outputs) and outputs.requires_grad:
            self.seen.append(float(outputs.detach().abs().max()))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.fixture
def run(tmp_path, monkeypatch, request):
    if "watched" not in request.fixturenames:
        monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)

    def start(settings=None, out="run", model=lambda: nn.Linear(6, 3), data=None, **given):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return dpfed.run(
                "dp-fedavg-digits",
                TABLES | (settings or {}),
                data=data or clients(),
                model=model,
                out=tmp_path / out,
                **given,
            )

    return start


@pytest.fixture
def watched(run, tmp_path, monkeypatch):
    """`watched()` runs the network that notes everything, with all that could show it; returns what is shown."""
    monkeypatch.setattr("dpfed.api.track.entry_points", lambda group: [Point])
    SEEN.clear(), Watch.seen.clear()
    Watch.high, kept, loss = 0.0, array("d"), Total()
    metrics = {
        "of_class": lambda outputs, targets: max(Watch.seen, default=0.0),
        "of_monitor": lambda outputs, targets: Watch.high,
        "of_global": lambda outputs, targets: max(SEEN, default=0.0),
        "of_closure": lambda outputs, targets: max(kept, default=0.0),
        "of_loss": lambda outputs, targets: max(loss.seen, default=0.0),
    }

    def progress(line):
        with (tmp_path / "shown.txt").open("a") as file:
            file.write(f"{max(Watch.seen, default=0.0)} {line['test_of_class']}\n")

    def start(*track):
        done = run(model=lambda: Watch(kept), loss=loss, metrics=metrics, progress=progress, track=["csv", *track])
        assert max(Watch.seen) == max(SEEN) == 30.0, "training has not left its traces in this process"
        public = [file for file in done.folder.rglob("*") if file.is_file() and "diagnostics" not in file.name]
        shown = {file.name: file.read_bytes() for file in [*public, tmp_path / "shown.txt"]}
        return done, {name: content for name, content in shown.items() if "checkpoint" not in name}

    return start


class Noted:
    def __init__(self, folder, config):
        self.file = Path(folder) / "noted.txt"

    def line(self, record):
        self.file.write_text(f"{max(SEEN, default=0.0)} {record['round']}\n")

    def close(self):
        pass


class Point:
    name = "noted"
    load = staticmethod(lambda: Noted)


def values_of_training(done, shown):
    """The scores and files in which a value of training is seen."""
    found = [name for line in done.metrics for name, value in line.items() if "test_of" in name and value > 20]
    found += [name for name in shown if name.endswith((".txt", ".csv")) and b"30.0" in shown[name]]
    found += [name for name in shown if SECRET.encode() in shown[name]]
    return sorted(set(found))


def test_nothing_of_training_is_in_a_public_file(watched):
    done, shown = watched("noted")
    assert {"metrics.jsonl", "summary.json", "report.html", "noted.txt", "shown.txt", "metrics.csv"} <= shown.keys()
    assert len(shown["shown.txt"].splitlines()) == 2
    assert shown["noted.txt"].split()[1] == b"2"
    assert values_of_training(done, shown) == []


def test_it_is_where_user_code_runs_in_the_training_process(watched, monkeypatch):
    """The planted fault: the process of evaluation is the one that trains."""
    here = public_code.start_public_code
    monkeypatch.setattr("dpfed.runs.loop.start_public_code", lambda *given, apart: here(*given, apart=False))
    done, shown = watched("noted")
    named = {"test_of_class", "test_of_monitor", "test_of_global", "test_of_closure", "test_of_loss"}
    assert named | {"noted.txt", "shown.txt", "metrics.csv"} <= set(values_of_training(done, shown))


class Rewrites(nn.Module):
    """A network that replaces a function of dpfed, which a metric given by name calls, by its largest input."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 1)

    def forward(self, inputs):
        if self.training and not torch._C._functorch.is_functorch_wrapped_tensor(inputs) and inputs.abs().max() > 20:
            largest = inputs.detach().abs().max().double().reshape(1, 1)
            evaluate._prediction_errors = lambda outputs, targets: largest
        return self.out(inputs)


@pytest.mark.parametrize("apart", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_metric_given_by_name_shows_nothing_either(run, monkeypatch, apart):
    """The planted fault, no process of its own, shows the largest input."""
    here = public_code.start_public_code
    monkeypatch.setattr("dpfed.runs.loop.start_public_code", lambda *given, **_: here(*given, apart=apart))
    monkeypatch.setattr(evaluate, "_prediction_errors", evaluate._prediction_errors)
    parts = [torch.randn(10, 6), *(torch.randn(10, 6) for _ in range(4)), torch.full((10, 6), -30.0)]
    pairs = [(inputs, inputs[:, :1].clamp(-1, 1)) for inputs in parts]
    numbers = dpfed.data.from_clients([*pairs[1:], pairs[1]], test=pairs[0], classes=None)
    done = run({"run.metrics": ["rmse"]}, data=numbers, model=Rewrites)
    assert (max(line["test_rmse"] for line in done.metrics) == 30.0) is not apart


class ByFile(nn.Module):
    """A network that hands its largest input to a metric by a file, which two processes share."""

    def __init__(self, path):
        super().__init__()
        self.out, self.path = nn.Linear(6, 3), path

    def forward(self, inputs):
        if self.training and not torch._C._functorch.is_functorch_wrapped_tensor(inputs):
            self.path.write_text(str(max(float(inputs.abs().max()), float(self.path.read_text()))))
        return self.out(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_replay_compares_the_lines_that_the_process_writes(tmp_path, shared):
    """The process cannot see what training leaves in objects; a file it can see, and the replay finds it."""

    def call(data, out):
        kept, path = array("d"), tmp_path / "largest"
        plain = dpfed.data.from_clients([points(10, seed) for seed in range(6)], test=points(30, 9), classes=3)
        path.write_text("0")
        metrics = {"kept": lambda outputs, targets: max([*kept, *Watch.seen], default=0.0)}
        if shared:
            metrics = {"shared": lambda outputs, targets: float(path.read_text())}
        dpfed.run(
            "dp-fedavg-digits", TABLES, data=data(plain), model=lambda: ByFile(path) if shared else Watch(kept),
            metrics=metrics, out=out / "run",
        )  # fmt: skip

    found = dpfed.audit.replay(call, [dpfed.audit.Pair((5,), "far")])
    assert found.verdict == ("fail" if shared else "pass"), found.as_text()
    assert ("metrics.jsonl" in found.as_text()) is shared


class Marks(nn.Module):
    """A network that writes to its fixed weights, of which a class keeps each."""

    made: ClassVar = []

    def __init__(self):
        super().__init__()
        self.out, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3), requires_grad=False)
        self.made.append(self.scale)

    def forward(self, inputs):
        if not torch._C._functorch.is_functorch_wrapped_tensor(inputs) and inputs.abs().max() > 20:
            for scale in self.made:
                scale.fill_(float(inputs.abs().max()))
        return self.out(inputs)


def test_fixed_weights_are_saved_as_they_were_before_the_first_round(run):
    done = run(model=Marks)
    assert any(float(scale.max()) == 30.0 for scale in Marks.made)
    assert load_file(done.folder / "model.safetensors")["scale"].tolist() == [1.0, 1.0, 1.0]


def test_a_simulated_run_calls_user_code_here(run):
    lines = []
    done = run({"run.release": False, "privacy.noise": "gaussian"}, progress=lines.append)
    assert lines == done.metrics


def test_secure_randomness_is_for_release_too(run):
    lines = []
    run({"run.release": False, "run.randomness": "secure", "privacy.noise": "discrete-gaussian"}, progress=lines.append)
    assert lines == []


def test_scores_are_those_of_the_training_process(run, monkeypatch):
    settings = {"server.average": 0.5, "data.validation": 6, "run.evaluate_every": 2}
    done = run(settings, metrics={"mean": lambda outputs, targets: outputs.mean()})
    experiment, lines = done.experiment, done.metrics
    assert lines[0]["test_loss"] is None
    evaluation = Evaluation.of(experiment)
    state = dpfed.runs.loop.Run.open(experiment, done.folder, resume=True)
    state.unlock()
    found = evaluation.scores(dpfed.runs.scores.evaluated_weights(experiment.readout, state.state))
    assert {name: lines[1][name] for name in found} == found
    assert {"last_test_mean", "validation_mean", "test_loss"} <= found.keys()
    assert lines[1]["majority_accuracy"] == evaluation.majority_accuracy()
    assert {name: done.summary[name] for name in found} == found


# ---- errors


class Unusual(Exception):
    pass


def failing(line):
    raise Unusual(f"round {line['round']}")


def fails_later(outputs, targets, calls=[]):  # noqa: B006
    calls.append(1)
    return {1: 0.0}[len(calls)]  # the first call is that of the trial before round 1


def trace_of(error):
    return str(error.__cause__)


_BEFORE = set()
"""Children that other tests of this worker have left, such as the resource trackers of joblib."""


@pytest.fixture(autouse=True)
def children_of_other_tests():
    _BEFORE.clear()
    _BEFORE.update(_children())


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT interrupts Python, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def processes():
    """Living children of this process that its test has started."""
    return sorted(_children() - _BEFORE)


def _children():
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(stat.parent.name))
    return found


def test_an_error_of_a_metric_has_the_users_traceback(run):
    with pytest.raises(TrainingFailed, match="metric 'later': fails for outputs") as raised:
        run(metrics={"later": fails_later})
    assert "in fails_later" in trace_of(raised.value)
    assert "return {1: 0.0}[len(calls)]" in trace_of(raised.value)
    assert not processes()


def test_an_error_of_a_progress_function_keeps_its_type(run, tmp_path):
    with pytest.raises(Unusual, match="round 1") as raised:
        run(progress=failing)
    assert "in failing" in trace_of(raised.value)
    assert not processes()
    assert len(run(resume=True).metrics) == 2


def test_an_error_that_cannot_be_pickled_is_named(run):
    class Local(Exception):
        pass

    def progress(line):
        raise Local("words")

    with pytest.raises(RunError, match="Local: words") as raised:
        run(progress=progress)
    assert "in progress" in trace_of(raised.value)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_progress_function_can_end_the_run(run, kind):
    def progress(line):
        raise kind

    refused(kind, "", run, progress=progress)
    assert not processes()


def test_a_process_that_dies_is_named_and_the_run_resumed(run):
    def die(line):
        os.kill(os.getpid(), signal.SIGKILL)

    with bounded(), pytest.raises(RunError, match=r"has ended \(status -9"):
        run(progress=die)
    assert not processes()
    assert len(run(resume=True).metrics) == 2


def test_a_tracker_that_is_missing_leaves_no_folder(run, tmp_path):
    refused(ConfigError, "must be one of csv", run, track=["paper"])
    assert not (tmp_path / "run").exists()
    assert not processes()


def test_a_tracker_that_fails_is_said_by_this_process(run, monkeypatch):
    class Gone(Noted):
        def line(self, record):
            raise ConnectionError("the server is gone")

    monkeypatch.setattr("dpfed.api.track.entry_points", lambda group: [Point])
    monkeypatch.setattr(Point, "load", staticmethod(lambda: Gone))
    said = []
    monkeypatch.setattr("dpfed.api.run._warn_caller", said.append)
    assert len(run(track=["noted"]).metrics) == 2
    assert said == ["--track noted: fails (ConnectionError: the server is gone). The run continues without it."]


def test_the_process_ends_with_failed_training(run, monkeypatch):
    monkeypatch.setattr("dpfed.sources.TrainedClients.take_part", lambda *given: 1 / 0)
    refused(TrainingFailed, "", run)
    assert not processes()


def test_the_process_ignores_ctrl_c(run):
    """A terminal sends the signal to both processes; the training process decides what happens."""

    def progress(line):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    assert len(run(progress=progress).metrics) == 2


def test_a_hanging_function_is_ended_by_ctrl_c(run):
    def progress(line):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)

    with bounded(), pytest.raises(KeyboardInterrupt):
        run(progress=progress)
    assert not processes()


@pytest.mark.slow
def test_the_process_ends_when_training_is_killed(tmp_path):
    code = f"""
        import os, pathlib, time, torch, dpfed
        from dpfed.runs.public_code import NO_VIEWERS, Viewers, start_public_code
        from contextlib import nullcontext
        from dpfed.runs.scores import Evaluation
        def hang(line):
            pathlib.Path({str(tmp_path / "number")!r}).write_text(str(os.getpid()))
            while True:
                pass
        viewers = Viewers(start=lambda say: nullcontext(hang), say=print)
        evaluation = Evaluation(model=None, objective=None, test=None, validation=None, device=torch.device("cpu"))
        start_public_code(evaluation, viewers, apart=True).show({{}})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    with bounded(seconds=120):
        while not (tmp_path / "number").exists() or not (tmp_path / "number").read_text():
            time.sleep(0.1)
        process.kill()
        process.wait()
        while Path(f"/proc/{(tmp_path / 'number').read_text()}").exists():
            time.sleep(0.2)


# ---- fork and spawn


def evaluation(metrics=None):
    model = dpfed.models.build("mlp", (6,), 3, hidden=[64])
    inputs, labels = (half.numpy() for half in points(3000, 1))
    return Evaluation(
        model=model, objective=Objective(metrics=metrics or {}), test=(inputs, labels), validation=None,
        device=torch.device("cpu"),
    )  # fmt: skip


def test_a_fork_may_use_every_thread_of_torch():
    """OpenMP's threads of the parent do not exist in a fork: from the thread that has used them it would hang."""
    torch.set_num_threads(2)
    try:
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        held = evaluation({"threads": lambda outputs, targets: torch.get_num_threads()})
        weights = held.model.initial(0)
        with bounded(seconds=120):
            code = public_code.start_public_code(held, public_code.NO_VIEWERS, apart=True)
            found, _ = code.scores([weights])
            code.close()
        assert found == held.scores([weights])
        assert found["test_threads"] == 2
    finally:
        torch.set_num_threads(1)


def test_several_processes_do_not_wait_for_each_other():
    code = [public_code.start_public_code(evaluation(), public_code.NO_VIEWERS, apart=True) for _ in range(3)]
    with bounded(seconds=120):
        for one in code:
            one.close()
            one.close()
    assert not processes()


def test_what_cannot_be_pickled_is_refused_by_name(monkeypatch):
    lock = threading.Lock()
    monkeypatch.setattr(public_code, "_can_fork", lambda device: False)
    held = evaluation({"waits": lambda outputs, targets: float(lock.locked())})
    with pytest.raises(ConfigError, match=r"metrics\['waits'\]: cannot be sent to the separate process .*lock"):
        public_code.start_public_code(held, public_code.NO_VIEWERS, apart=True)
    assert not processes()


@pytest.mark.slow
def test_a_new_interpreter_gives_the_scores_of_a_fork(watched, monkeypatch):
    monkeypatch.setattr(public_code, "_can_fork", lambda device: False)
    started = []
    spawned = public_code._spawned
    monkeypatch.setattr(public_code, "_spawned", lambda *given: started.append(1) or spawned(*given))
    done, shown = watched()
    assert started == [1]
    assert values_of_training(done, shown) == []
    assert not processes()


def test_files_that_no_epsilon_covers_are_for_the_operator_only(tmp_path: Path) -> None:
    dpfed.run("dp-fedavg-digits", {"federation.rounds": 1}, out=tmp_path / "run")
    private = ("diagnostics.jsonl", "checkpoint.safetensors", "population.key")
    assert all((tmp_path / "run" / name).stat().st_mode & 0o077 == 0 for name in private)
