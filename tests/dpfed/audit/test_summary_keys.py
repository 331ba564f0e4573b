"""Every key of summary.json: a changed value fails the audit, or the key is listed as not checked."""

import json

import pytest

from dpfed.audit.evidence.run_checks import _OF_CLAIMS, _make_checks
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.step_evidence import _sum_matches_rows
from dpfed.audit.evidence.summary_evidence import unchecked_keys
from dpfed.audit.run import audit_run
from dpfed.records.round import Probes
from dpfed.runs.protection import limitation_on_nodes

from .run_folders import copied, run

UNCHECKED = {
    "device", "interrupted_charges", "local_training", "notes", "processes", "seconds", "stopped_by",
}  # fmt: skip
OF_METRICS = "metrics.jsonl: scores and epsilon before the last round"
WAYS = {
    "central": ("method.name=fed-smp-randk", "method.keep=0.2"),
    "measured-bytes-validation-average": (
        "method.name=qsgd", "data.validation=100", "server.average=0.5", "federation.sampling=fixed",
    ),
    "masks": ("method.name=fedpm", "mask.edge=0.2", "privacy.clip_norm=0.8", "privacy.slots=30",
              "privacy.adjacency=zero-out", "privacy.noise_multiplier="),
    "secure-sums": ("aggregation.kind=protocol", "federation.sampling=fixed", "federation.rounds=2"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run; not to be changed."""
    return run(tmp_path_factory.mktemp("plain") / "run")


def another(value):
    """A value of the same kind that says something else."""
    if isinstance(value, bool) or value is None:
        return 0.125 if value is None else not value
    if isinstance(value, int | float):
        return 1.5 * value + 1
    return value + "x" if isinstance(value, str) else type(value)()


def judged(folder, summary=None, experiment=None):
    """The checks of what is stated, and which keys are listed as not checked; with another summary if one is given."""
    files, written = RunFiles(folder), (folder / "summary.json").read_text()
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
        files.__dict__ |= {"experiment": experiment}
    checks, listed = _make_checks(_OF_CLAIMS, files, 1.0), set(unchecked_keys(files))
    (folder / "summary.json").write_text(written)
    return {one.name for one in checks if one.passed is False}, listed, files.experiment


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("way", WAYS)
def test_no_key_of_a_summary_can_be_forged_unnoticed(way, tmp_path):
    folder = run(tmp_path / "run", *WAYS[way])
    summary = json.loads((folder / "summary.json").read_text())
    failed, listed, experiment = judged(folder)
    assert not failed
    assert listed - {OF_METRICS} == UNCHECKED
    for key, value in summary.items():
        failed, listed, _ = judged(folder, {**summary, key: another(value)}, experiment)
        assert failed or key in listed, key
    _, listed, _ = judged(folder, {**summary, "new_key": 1.0}, experiment)
    assert "new_key" in listed


@pytest.mark.parametrize("key", ["lower_bound", "test_accuracy", "uplink_bits_per_parameter", "uplink_megabytes_total"])
def test_a_small_change_is_enough(key, plain):
    """2% more, where the figure is computed again."""
    summary = json.loads((plain / "summary.json").read_text())
    failed, _, experiment = judged(plain)
    assert not failed
    more = summary[key] + 0.02 if key == "test_accuracy" else 1.02 * summary[key]
    beside = {"metrics agree with other files"} if key in ("test_accuracy", "uplink_megabytes_total") else set()
    assert judged(plain, {**summary, key: more}, experiment)[0] == {"other summary values follow"} | beside


def test_figures_are_listed_where_the_data_are_others(plain, tmp_path):
    """Planted: the key of the clients' fingerprint is gone, so that the data here may be those of another run."""
    folder = copied(plain, tmp_path / "run")
    (folder / "population.key").unlink()
    failed, listed, _ = judged(folder)
    assert not failed
    assert {"test_accuracy", "best_test_accuracy", "uplink_bits_per_parameter"} <= listed
    assert "lower_bound" not in listed


def test_notes_of_a_run_on_nodes_are_those_of_its_secure_sum(tmp_path):
    """A run whose clients are an engine's nodes says where its secure sum hides uploads. Planted: it says nothing."""
    folder = run(tmp_path / "run", *WAYS["secure-sums"])
    summary = json.loads((folder / "summary.json").read_text())
    notes = [limitation_on_nodes(note) for note in summary["not_protected"]]
    assert notes != summary["not_protected"]
    failed, _, experiment = judged(folder, {**summary, "not_protected": notes}, RunFiles(folder).experiment)
    assert not failed
    lacking = {**summary, "not_protected": [note for note in notes if "secure sum" not in note]}
    assert judged(folder, lacking, experiment)[0] == {"summary names what ran"}


def test_counts_that_a_ring_cannot_hold_are_the_sum_of_their_rows_up_to_the_ring():
    """Rows of counts are floats, a masked sum of them is a whole number modulo 2^5. Planted: one count more."""
    of_sum = {"bits": 5, "filled": 0.0, "released": 0.0, "moved": 0.0, "before": 0.0, "before_norm": 0.0, "after": 0.0}
    assert _sum_matches_rows(Probes(added=-1587.0, summed=269, **of_sum), None, 90.0)
    assert not _sum_matches_rows(Probes(added=-1587.0, summed=270, **of_sum), None, 90.0)
    assert not _sum_matches_rows(Probes(added=-1587.5, summed=269, **of_sum), None, 90.0)


def test_what_an_audit_of_files_does_not_look_at_is_said_with_the_command(plain):
    found = audit_run(plain)
    (note,) = [one for one in found.notes if "mixes clients' rows" in one]
    assert "`dpfed audit dp-fedavg` and a replay test both" in note
    assert "no replay audit of this configuration is recorded" in note
    assert found.to_dict()["not_checked"] == [*sorted(UNCHECKED), OF_METRICS]
    assert found.to_dict()["verdict_in_full"] in ("pass on these files", "inconclusive")
