"""A run goes on with its own ledger, clients and project, or not at all; a project has one population."""

import hashlib
import json
import tomllib

import numpy as np
import pytest
from refusals import refused

from accounting import Ledger
from accounting.errors import LedgerError
from accounting.ledger.project import ProjectLedger
from dpfed import data
from dpfed.cli import status
from dpfed.errors import RunError
from dpfed.records.round import configuration_hash
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import stopped_run
from ..audit.run_folders import forge_ledger

DISCRETE = ("privacy.noise=discrete-gaussian", "aggregation.steps=1000", "run.randomness=secure")


@pytest.fixture
def two_rounds(tiny_config, tmp_path):
    """`two_rounds("table.key=value", ...)`: the folder of a run of three rounds that ended after two."""

    def run(*settings, name="run", project=None, without=()):
        stopped_run(build(tiny_config(*settings, without=without)), tmp_path / name, after=2, project=project)
        return tmp_path / name

    return run


@pytest.fixture
def project(tmp_path):
    return ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=50.0, delta=1e-3)


def resume(tiny_config, folder, *settings, without=(), **options):
    return federation.run(build(tiny_config(*settings, without=without)), folder, resume=True, **options)


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


# A run's ledger


def test_the_ledger_of_a_run_with_more_noise_is_refused(tiny_config, two_rounds):
    """The attack: z = 10 was charged where z = 1 ran, and epsilon is stated from the ledger."""
    weak = two_rounds("privacy.noise_multiplier=1", name="weak")
    strong = two_rounds("privacy.noise_multiplier=10", name="strong")
    (weak / "ledger.jsonl").write_bytes((strong / "ledger.jsonl").read_bytes())
    with pytest.raises(RunError, match=r"ledger\.jsonl: is the ledger of another run.*its configuration"):
        resume(tiny_config, weak, "privacy.noise_multiplier=1")
    assert not (weak / "summary.json").exists()


def test_entries_of_another_run_under_the_own_header_are_refused(tiny_config, two_rounds):
    """The same by somebody who also makes the chain fit: the checkpoint remembers its last hash."""
    weak = two_rounds("privacy.noise_multiplier=1", name="weak")
    strong = two_rounds("privacy.noise_multiplier=10", name="strong")
    others = [json.loads(line) for line in lines_of(strong / "ledger.jsonl")]

    def replaced(lines):
        lines[1:] = others[1:]

    forge_ledger(weak / "ledger.jsonl", replaced)
    assert len(Ledger.read(weak / "ledger.jsonl").entries) == 2
    with pytest.raises(RunError, match=r"has no line of hash .* its last one when the checkpoint was written"):
        resume(tiny_config, weak, "privacy.noise_multiplier=1")


def test_a_charge_that_was_cut_off_is_missed(tiny_config, two_rounds, monkeypatch):
    """Secure: the third round was charged, interrupted, and charged again. Every round has a line without the last."""
    settings, folder = ("federation.rounds=4", *DISCRETE), two_rounds("federation.rounds=4", *DISCRETE)

    def kill(self, saved):
        raise KeyboardInterrupt

    monkeypatch.setattr(federation.RunFolder, "save_checkpoint", kill)
    refused(KeyboardInterrupt, "", resume, tiny_config, folder, *settings)
    monkeypatch.undo()
    refused(RunError, "interrupted", lambda: resume(tiny_config, folder, *settings, stop=iter([False, True]).__next__))
    path = folder / "ledger.jsonl"
    whole = path.read_bytes()
    assert [entry.round for entry in Ledger.read(path).entries] == [0, 1, 2, 2]
    path.write_bytes(b"".join(lines_of(path)[:-1]))
    refused(RunError, r"ledger\.jsonl: has no line of hash", resume, tiny_config, folder, *settings)
    path.write_bytes(whole)
    summary = resume(tiny_config, folder, *settings).summary
    assert (summary["rounds"], summary["interrupted_charges"]) == (4, 1)


def test_the_header_names_what_the_run_is_made_of(two_rounds):
    folder = two_rounds()
    header = Ledger.read(folder / "ledger.jsonl").header
    tables = tomllib.loads((folder / "config.toml").read_text())
    assert header.binding["configuration"] == configuration_hash(tables)
    assert header.binding.keys() == {"format", "configuration", "start"}
    assert len(header.population) == len(header.binding["start"]) == 64
    assert (folder / "population.key").stat().st_mode & 0o077 == 0


def test_a_run_of_version_0_1_is_not_gone_on_with(tiny_config, two_rounds):
    """Its ledger says nothing of what it belongs to."""
    folder = two_rounds()
    forge_ledger(folder / "ledger.jsonl", lambda lines: [lines[0].pop(key) for key in ("population", "binding")])
    assert Ledger.read(folder / "ledger.jsonl").guarantee(1e-3).epsilon > 0
    refused(RunError, r"changed since it began in the version of dpfed that began it", resume, tiny_config, folder)


# Its clients


@pytest.fixture
def points():
    """`points(0)` makes data of one's own known as "points"; `points(1)` others, with one number changed."""

    def register(changed):
        generator = np.random.default_rng(5)
        inputs = generator.normal(size=(240, 6)).astype(np.float32)
        inputs[17, 3] += changed
        own = data.Dataset(
            name="points",
            train_inputs=inputs,
            train_labels=generator.integers(0, 3, 240),
            test_inputs=np.zeros((40, 6), np.float32),
            test_labels=np.arange(40) % 3,
            classes=3,
        )
        data.register("points", own)

    return register


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("randomness", ["simulated", "secure"])
def test_data_that_were_replaced_are_found(tiny_config, two_rounds, points, private, randomness):
    settings = ["data.name=points", *(DISCRETE if randomness == "secure" and private else [])]
    without = () if private else ("privacy",)
    settings += [] if private else ["method.name=fedavg"]
    points(0)
    folder = two_rounds(*settings, without=without)
    points(1)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors: is the checkpoint of another run.*its clients"):
        resume(tiny_config, folder, *settings, without=without)
    (folder / "checkpoint.safetensors").unlink()
    if private:
        with pytest.raises(RunError, match=r"ledger\.jsonl: is the ledger of another run.*its clients"):
            resume(tiny_config, folder, *settings, without=without)
    points(0)
    assert resume(tiny_config, folder, *settings, without=without).summary["rounds"] == 3


def test_a_lost_key_is_found(tiny_config, two_rounds):
    folder = two_rounds(*DISCRETE)
    (folder / "population.key").unlink()
    refused(RunError, r"population\.key", resume, tiny_config, folder, *DISCRETE)
    assert not (folder / "population.key").exists()  # so that a restore of the ledger puts it back


DIVISION = ("data.validation=100", "data.public=50", "data.train_samples=900", "method.name=fed-smp-topk",
            "method.keep=0.5", "data.partition=dirichlet", "data.alpha=0.3")  # fmt: skip


def division(tiny_config, *settings):
    """Who holds what, and what is set aside, by a hash."""
    made = build(tiny_config(*DIVISION, *settings))
    held = made.method.clients.partition
    arrays = [
        made.dataset.train_inputs,
        made.validation.inputs.numpy(),
        made.method.stages.project.choice.inputs.numpy(),
    ]
    return hashlib.sha256(b"".join(one.tobytes() for one in [*arrays, held.indices, held.offsets])).hexdigest()


def test_the_division_of_data_has_a_seed_of_its_own(tiny_config):
    """What was 0.1's with run.seed = 0, by its own code, whatever run.seed is."""
    before = "6800a972add27106992152e0542aa6e61572f9fd2edc33a9d1b39b395cb38612"
    assert division(tiny_config, "run.seed=0") == division(tiny_config, "run.seed=1") == before
    assert division(tiny_config, "data.partition_seed=1") != before


# A project


def test_runs_on_the_same_clients_share_a_project(tiny_config, tmp_path, project):
    """run.seed changes cohorts and noise, not who the clients are."""
    for seed in (0, 1):
        federation.run(build(tiny_config(f"run.seed={seed}")), tmp_path / f"{seed}", project=project)
    lines = Ledger.read(project.ledger.path).releases
    assert len(lines) == 6
    assert len({line.detail["population"] for line in lines}) == 1
    headers = [Ledger.read(tmp_path / f"{seed}" / "ledger.jsonl").header for seed in (0, 1)]
    assert headers[0].population == headers[1].population == ProjectLedger.open(project.ledger.path).population


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    "other", ["data.partition_seed=1", "data.alpha=0.2", "data.train_samples=1000", "data.validation=100"]
)
def test_runs_on_other_clients_are_refused(tiny_config, tmp_path, project, other):
    base = ("data.partition=dirichlet", "data.alpha=0.3")
    federation.run(build(tiny_config(*base)), tmp_path / "first", project=project)
    with pytest.raises(LedgerError, match=r"project\.jsonl: is for the clients of fingerprint .*this run's are"):
        federation.run(build(tiny_config(*base, other)), tmp_path / "other", project=project)
    assert len(Ledger.read(project.ledger.path).releases) == 3
    assert not (tmp_path / "other" / "ledger.jsonl").exists()


def test_two_first_runs_at_once_cannot_both_say_who_the_clients_are(tiny_config, tmp_path, project):
    """Both have looked before either was charged: the charge looks again, under the lock."""
    late = build(tiny_config("data.partition_seed=1"))

    def first():
        if not project.ledger.releases:
            federation.run(build(tiny_config()), tmp_path / "first", project=project)
        return False

    with pytest.raises(LedgerError, match="is for the clients of fingerprint"):
        federation.run(late, tmp_path / "late", project=ProjectLedger.open(project.ledger.path), stop=first)
    assert len(Ledger.read(project.ledger.path).releases) == 3
    assert not Ledger.read(tmp_path / "late" / "ledger.jsonl").releases


def test_an_old_copy_of_a_project_with_its_head_is_refused_by_who_saw_more(tiny_config, tmp_path, two_rounds, project):
    """Lines of others that this run has seen, too."""
    path, head = project.ledger.path, tmp_path / "project.jsonl.head"
    folder = two_rounds(project=project)
    federation.run(build(tiny_config("run.seed=1", "federation.rounds=1")), tmp_path / "b", project=project)
    copies = path.read_bytes(), head.read_bytes()
    refused(RunError, "interrupted", resume, tiny_config, folder, project=project, stop=lambda: True)
    resume(tiny_config, folder, project=project)  # the third round, charged after b's
    own = [line for line in lines_of(path) if b'"run":"run-' in line]
    assert len(own) == 3
    path.write_bytes(copies[0])
    head.write_bytes(copies[1])
    with pytest.raises(RunError, match=r"project\.jsonl: has no charge of round 2"):
        resume(tiny_config, folder, project=ProjectLedger.open(path))


def test_a_project_without_lines_that_a_run_has_seen_is_refused(tiny_config, tmp_path, two_rounds, project):
    """Cut before the run's own lines there is nothing of it to miss: its header and its checkpoint remember."""
    path, head = project.ledger.path, tmp_path / "project.jsonl.head"
    federation.run(build(tiny_config("run.seed=1", "federation.rounds=1")), tmp_path / "b", project=project)
    folder = two_rounds(project=project)
    head.write_text(forge_ledger(path, lambda lines: lines.pop(1)))
    with pytest.raises(RunError, match=r"project\.jsonl: has no line of hash .* which its project had"):
        resume(tiny_config, folder, project=ProjectLedger.open(path))


def test_a_project_for_the_clients_of_a_run(tiny_config, tmp_path, capsys):
    folder, path = tmp_path / "first", tmp_path / "p.jsonl"
    federation.run(build(tiny_config()), folder)
    create = ["ledger", "create", str(path), "--clients", "60", "--epsilon", "50", "--population", str(folder)]
    assert status(create) == 0
    project = ProjectLedger.open(path)
    with pytest.raises(LedgerError, match="is for the clients of fingerprint"):
        federation.run(build(tiny_config("data.partition_seed=3")), tmp_path / "other", project=project)
    assert federation.run(build(tiny_config("run.seed=9")), tmp_path / "same", project=project).summary["rounds"] == 3
    assert status([*create[:2], str(tmp_path / "q.jsonl"), *create[3:-1], str(tmp_path)]) == 1


def test_the_summary_names_heads_and_population(tiny_config, tmp_path, project):
    summary = federation.run(build(tiny_config()), tmp_path / "run", project=project).summary
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (summary["ledger_head"], summary["ledger_entries"]) == (ledger.head, 3)
    assert (summary["project_head"], summary["population"]) == (project.ledger.head, ledger.header.population)
    free = federation.run(build(tiny_config("method.name=fedavg", without=["privacy"])), tmp_path / "free").summary
    assert (free["ledger_head"], free["ledger_entries"], free["project_head"]) == (None, None, None)


def test_a_run_of_before_there_was_a_partition_seed_had_that_of_the_run(tiny_config, two_rounds):
    """Another division is no default: a folder of version 0.1 with run.seed = 1 is on other clients than today's."""
    folder = two_rounds("run.seed=1")
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("partition_seed = 0\n", ""))
    refused(RunError, r"data\.partition_seed was 1, is 0", resume, tiny_config, folder, "run.seed=1")
