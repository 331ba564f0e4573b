"""Results in a notebook, in other processes, in pandas, as figures; trackers of packages; the log."""

import json
import logging
import pickle
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pytest
from refusals import refused

import dpfed
from accounting import Plan, budget, guarantee
from dpfed.api import track
from dpfed.errors import ConfigError
from dpfed.runs.metrics_endpoint import ADDRESS, MetricsEndpoint

SETTINGS = {"federation.rounds": 2, "data.train_samples": 300, "federation.clients": 30, "federation.cohort": 10}


class Remembering:
    """A tracker as a package has one."""

    lines: ClassVar[list[object]] = []

    def __init__(self, folder, config):
        self.folder, self.config = folder, config

    def line(self, record):
        self.lines.append(record["round"])

    def close(self):
        self.lines.append("closed")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return dpfed.run("dp-fedavg-digits", SETTINGS, out=tmp_path_factory.mktemp("run") / "a<b")


PLAN = Plan(clients=600, cohort=60)


@pytest.fixture(scope="module")
def row():
    return budget.solve(PLAN, noise_multiplier=1.4, rounds=10)


def test_tables_for_notebooks(done, row):
    stated = guarantee(row.mechanism, delta=1e-4)
    for one, words in ((row, "noise multiplier"), (stated, "accountant"), (done, "test accuracy")):
        html = one._repr_html_()
        assert html.startswith("<table>")
        assert words in html
    assert "a&lt;b" in done._repr_html_()
    assert "Likelihood of extraction" in done._repr_html_()


def test_results_pickle(done, row):
    assert pickle.loads(pickle.dumps(row)) == row
    again = pickle.loads(pickle.dumps(done))
    assert (again.summary, again.metrics) == (done.summary, done.metrics)
    assert pickle.loads(pickle.dumps(done.guarantee)) == done.guarantee


def test_rounds_as_a_data_frame(done):
    pytest.importorskip("pandas")
    frame = done.to_pandas()
    assert list(frame.index) == [1, 2]
    assert frame["epsilon"].tolist() == [line["epsilon"] for line in done.metrics]


@pytest.mark.drawn
def test_figures_are_returned_and_drawn_on_axes_of_a_caller(row, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from dpfed.report.figures.budget import plot_budget, plot_readings

    assert isinstance(plot_budget(PLAN, row), Figure)
    assert isinstance(plot_readings(row), Figure)
    mine = Figure()
    axes = mine.subplots(1, 2)
    assert plot_budget(PLAN, row, tmp_path / "plot.png", ax=axes[1]) is mine
    assert axes[1].lines
    assert not axes[0].lines
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.drawn
def test_the_figure_of_a_run_on_axes_of_a_caller(done, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    assert len(done.plot(tmp_path / "run.png").axes) == 3  # the run is private
    assert (tmp_path / "run.png").stat().st_size > 1000
    mine = Figure()
    panels = mine.subplots(1, 4)
    assert done.plot(ax=panels[:3]) is mine
    assert [len(one.lines) > 0 for one in panels] == [True, True, True, False]
    assert panels[2].lines[0].get_ydata()[-1] == pytest.approx(done.summary["epsilon"])


@pytest.mark.drawn
def test_figures_of_experiments_and_audits_on_axes_of_a_caller():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from dpfed.report.figures import audit, experiment

    mine = Figure()
    panels = mine.subplots(1, 8)
    at, rates = np.arange(1, 9), np.linspace(0, 1, 9)
    curve = experiment.Curve(name="a", rounds=at, megabytes=0.1 * at, accuracies=np.ones((2, 8)))
    assert experiment.plot_curves([curve], ax=panels[:2]) is mine
    point = experiment.Point(name="a", x=1.0, mean=0.5, std=0.1)
    assert experiment.plot_over_axis([point], xlabel="x", ylabel="y", ax=panels[2]) is mine
    assert audit.plot_trials(rates, 0.5 * rates, rates, 1 - rates, [], ax=panels[3:5]) is mine
    sizes = audit.CohortSizes(sizes=[3, 4, 4], smallest_size=2, mass=np.array([0.2, 0.3, 0.5]))
    assert audit.plot_audit(None, None, sizes, ax=panels[5:]) is mine
    assert [len(one.lines) > 0 for one in panels] == [True, True, True, True, True, False, False, True]
    assert not mine.legends  # a legend beside the whole figure would be among the caller's panels


@pytest.mark.drawn
def test_several_panels_and_maps_on_axes_of_a_caller(row):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    from matplotlib.figure import Figure

    from dpfed.report.figures.budget import MapAxis, budget_map, plot_budget_map, plot_readings

    mine = Figure()
    panels = mine.subplots(2, 4).ravel()
    assert plot_readings(row, ax=panels[:4]) is mine
    assert all(one.lines or one.images or one.collections for one in panels[:4])
    refused(ConfigError, "1 axes for 4 panels", plot_readings, row, ax=panels[7])
    axes = MapAxis(name="noise-multiplier", low=1, high=2), MapAxis(name="rounds", low=5, high=20)
    found = budget_map(PLAN, axes, fixed={}, accountant="rdp")
    assert plot_budget_map(found, ax=panels[6]) is mine
    frame = found.to_pandas()
    assert (frame.columns.name, frame.index.name) == ("noise-multiplier", "rounds")
    assert frame.iloc[-1, 0] == found.epsilon[-1, 0] == frame.to_numpy().max()


def test_a_tracker_of_an_installed_package(monkeypatch, tmp_path, caplog):
    name = f"{__name__}:Remembering"
    monkeypatch.setattr(EntryPoint, "load", lambda self: Remembering)
    there = [EntryPoint(name="mine", value=name, group=track.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(track, "entry_points", lambda group: there if group == track.ENTRY_POINT_GROUP else [])
    with caplog.at_level(logging.INFO, logger="dpfed"):
        dpfed.run("dp-fedavg-digits", SETTINGS, out=tmp_path / "run", track=["mine"])
    assert Remembering.lines == [1, 2, "closed"]
    said = [record.getMessage() for record in caplog.records if record.name == "dpfed"]
    assert "begun, 2 rounds" in said[0]
    assert "round 2, epsilon" in said[-2]
    assert "done after 2 rounds" in said[-1]
    with pytest.raises(ConfigError, match="must be one of csv, tensorboard, mlflow, wandb, prometheus, mine"):
        dpfed.run("dp-fedavg-digits", SETTINGS, out=tmp_path / "other", track=["yours"])


def test_weights_and_biases_as_it_is(monkeypatch, tmp_path):
    calls = []

    class Run:
        def log(self, numbers, step):
            calls.append((step, sorted(numbers)[:1]))

        def finish(self):
            calls.append("finished")

    class Wandb:
        @staticmethod
        def init(**given):
            calls.append((given["name"], given["config"]["method"]["name"]))
            return Run()

    monkeypatch.setattr(track, "import_module", lambda name: Wandb)
    dpfed.run("dp-fedavg-digits", SETTINGS, out=tmp_path / "run", track=["wandb"])
    assert calls[0] == ("run", "dp-fedavg")
    assert [one[0] for one in calls[1:3]] == [1, 2]
    assert calls[-1] == "finished"


def test_numbers_for_prometheus_and_health(monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv(ADDRESS, "127.0.0.1:0")
    endpoint = MetricsEndpoint({"federation": {"rounds": 9, "clients": 30, "cohort": 10}, "privacy": {"epsilon": 3.0}})
    endpoint.line({"round": 2, "epsilon": 1.25, "uplink_megabytes": 0.5, "test_accuracy": None, "clip_norm": 1.0})

    def page(path):
        return urllib.request.urlopen(f"{endpoint.address}{path}", timeout=10).read().decode()

    numbers = dict(line.split() for line in page("/metrics").splitlines() if not line.startswith("#"))
    assert numbers["dpfed_round"] == "2.0"
    assert (numbers["dpfed_epsilon_spent"], numbers["dpfed_epsilon_left"]) == ("1.25", "1.75")
    assert (numbers["dpfed_cohort_expected"], numbers["dpfed_uplink_megabytes"]) == ("10.0", "0.5")
    assert set(json.loads(page("/health"))) == {"seconds", "seconds_since_round"}
    refused(urllib.error.HTTPError, "404", page, "/")
    assert endpoint.address.startswith("http://127.0.0.1:")
    monkeypatch.setenv(ADDRESS, endpoint.address.removeprefix("http://"))
    refused(ConfigError, "the server cannot start", MetricsEndpoint, {"federation": {"rounds": 9, "clients": 30}})
    endpoint.close()


def test_the_log_as_json_lines_on_request():
    lines = "from dpfed.runs.metrics_endpoint import configure_log as a; a(); a(); import logging; "
    lines += "logging.getLogger('dpfed').info('round %s', 3)"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, env={"DPFED_LOG": "json"})
    (record,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (record["level"], record["message"]) == ("INFO", "round 3")
