"""Public lanes and orders of clients that have ids of their own: one client more changes nothing for the others."""

import json
import shutil
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from private_loops import level
from refusals import refused

import dpfed
import dpfed.runs.experiment
import dpfed.runs.training
from accounting import Plan, budget
from accounting.budget import BallsAndBins, Cyclic
from accounting.mechanisms.samplings.planned import Cohorts
from dpfed.audit.evidence.cohort_members import cohorts_follow_schedule
from dpfed.audit.run import audit_run
from dpfed.data import from_arrays, from_clients
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, DataError, RunError
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

NAMES = [f"ward {number}" for number in range(60)]
TABLES = {
    "model": {"name": "mlp", "hidden": [3]},
    "federation": {"cohort": 10, "rounds": 12, "sampling": "balls-and-bins", "lanes": 3},
    "local": {"learning_rate": 0.1, "steps": 1, "batch_size": 4},
    "method": {"name": "dp-fedavg"},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": 2.0, "adjacency": "add-remove"},
    "data": {"name": "own"},
}
ORDERS = [TABLES["federation"], {"cohort": 10, "rounds": 12, "sampling": "cyclic"}]


def table(names):
    """Two rows of each client."""
    owners = [name for name in names for _ in range(2)]
    rng = np.random.default_rng(3)
    return pa.table(
        {"who": owners, "x": rng.random(len(owners)), "y": rng.random(len(owners)), "sick": [0, 1] * len(names)}
    )


def frame(names):
    return from_clients(table(names), table(names), classes=2, client="who", inputs=["x", "y"], label="sick")


def listed(names, **ids):
    pair = np.ones((2, 2), dtype=np.float32), np.array([0, 1])
    return from_clients([pair] * len(names), pair, classes=2, **ids)


def turns_of(dataset, **federation):
    """Rounds of each client, by its id."""
    settings = {f"federation.{key}": value for key, value in federation.items()}
    found = dpfed.runs.experiment.build(
        configured(dataset, settings), own=dpfed.runs.training.CustomObjects(data=dataset)
    )
    who = found.method.sampler
    drawn = [who.sample(found.method.randomness, number).tolist() for number in range(12)]
    return {
        name: [t for t, ids in enumerate(drawn) if place in ids] for place, name in enumerate(who.ids.hashes.tolist())
    }


def configured(dataset, settings):
    from dpfed.config.tables import override, parse

    count = {"federation.clients": dataset.natural_clients, "data.partition": "natural"}
    return parse(override(TABLES, [f"{key}={value}" for key, value in (count | settings).items()]), source="test")


@pytest.mark.parametrize("federation", ORDERS, ids=["lanes", "cyclic"])
@pytest.mark.parametrize("made", [frame, lambda names: listed(names, ids=names)], ids=["column", "list with ids"])
def test_one_client_more_or_less_changes_no_other_clients_turns(made, federation):
    """The client is first, last, or between others; epochs stay 6 rounds."""
    whole = made(sorted(NAMES))
    with patch.dict(TABLES, {"federation": federation}):
        everyone = turns_of(whole)
        assert sum(map(len, everyone.values())) == 120
        for gone in ("ward 0", "ward 33", "ward 9"):
            fewer = turns_of(made([name for name in sorted(NAMES) if name != gone]))
            assert len(fewer) == 59
            assert all(everyone[name] == rounds for name, rounds in fewer.items())


def test_a_client_of_a_column_takes_part_once_an_epoch_in_its_lane():
    ids = ClientIds.of(sorted(NAMES))
    who = BallsAndBins(cohort=10, lanes=3).cohorts(60, "s", ids)
    cohorts = [who.sample(Simulated(seeds=Seeds(root=2)), number) for number in range(24)]
    passed, words = cohorts_follow_schedule(who.law, cohorts, 60, alpha=1e-6, ids=ids)
    assert passed, words
    assert "4 complete epochs have every client once, each in its lane of 3, drawn anew" in words
    by_place = replace(who, ids=None)
    wrong = [by_place.sample(Simulated(seeds=Seeds(root=2)), number) for number in range(24)]
    passed, words = cohorts_follow_schedule(who.law, wrong, 60, alpha=1e-6, ids=ids)
    assert not passed
    assert "takes part in a round of lane" in words


def test_bins_by_id_are_uniform_and_independent_of_lanes():
    """3,000 clients, 5 bins of a lane each: chi-square by hand; 5 standard deviations of each count."""
    who = BallsAndBins(cohort=200, lanes=3).cohorts(3000, "s", ClientIds.of(range(3000)))
    lane = np.bincount(who.ids.lanes(3), minlength=3)
    assert np.all(np.abs(lane - 1000) < 5 * (3000 * 2 / 9) ** 0.5)
    for number in range(30):
        size = len(who.sample(Simulated(seeds=Seeds(root=4)), number))
        assert abs(size - lane[number % 3] / 5) < 5 * (lane[number % 3] * 0.16) ** 0.5


def run_of(dataset, out, *, resume=False, **settings):
    return dpfed.run(TABLES, {"federation.clients": 60, "data.partition": "natural", **settings}, data=dataset, out=out,
                     resume=resume, progress=False)  # fmt: skip


@pytest.mark.parametrize("federation", ORDERS, ids=["lanes", "cyclic"])
def test_a_run_by_ids_is_charged_audited_and_resumed_with_these_ids_alone(tmp_path, federation):
    with patch.dict(TABLES, {"federation": federation}):
        outcome = run_of(frame(NAMES), tmp_path / "run")
        more = {"adjacency": "add-remove", "delta": outcome.summary["delta"]}
        more |= {"lanes": 3, "noise": "banded"} if "lanes" in federation else {}
        plan = Plan(clients=60, cohort=10, sampling=federation["sampling"], **more)
        stated = budget.epsilon(plan, noise_multiplier=2.0, rounds=12)
        assert outcome.summary["epsilon"] == pytest.approx(stated, rel=1e-6)
        assert outcome.summary["adjacency"] == "add-remove"
        assert any("only on its id" in note for note in outcome.summary["notes"])
        found = {one.name: one for one in audit_run(tmp_path / "run").checks}
        assert not [one for one in found.values() if one.passed is False]
        assert found["members follow the sampler"].passed
        other = [f"house {number}" for number in range(60)]
        refused(RunError, "", lambda: run_of(frame(other), tmp_path / "run", resume=True))
        path = tmp_path / "run" / "client_ids.json"
        path.write_text(json.dumps({"sha256": json.loads(path.read_text())["sha256"][::-1]}))
        changed = {one.name: one.passed for one in audit_run(tmp_path / "run").checks}
        assert changed["members follow the sampler"] is False
        path.unlink()
        assert {one.name: one.passed for one in audit_run(tmp_path / "run").checks}[
            "members follow the sampler"
        ] is None


REAL = Cohorts.sample


def by_place(self, randomness, number):
    """The planted fault: lanes by places in the list."""
    return REAL(replace(self, ids=None), randomness, number)


def test_lanes_by_place_in_the_list_are_found(tmp_path):
    with patch.object(Cohorts, "sample", by_place):
        run_of(frame(NAMES), tmp_path / "run")
        failed = {one.name for one in audit_run(tmp_path / "run").checks if one.passed is False}
    assert "members follow the sampler" in failed
    assert all_moved_by_one_client_more()


def all_moved_by_one_client_more():
    """Under the fault one client less moves the lanes of all clients behind it."""
    with patch.object(Cohorts, "sample", by_place):
        whole, fewer = (turns_of(frame(names)) for names in (NAMES, sorted(NAMES)[1:]))
    return sum(whole[name] != rounds for name, rounds in fewer.items()) > 50


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("federation", ORDERS, ids=["lanes", "cyclic"])
def test_places_in_a_list_are_refused_under_add_remove_alone(tmp_path, federation):
    with patch.dict(TABLES, {"federation": federation}):
        for dataset in (
            listed(NAMES),
            from_arrays(*[(np.ones((60, 2)), np.arange(60) % 2)] * 2, classes=2, clients=np.arange(60) / 2),
        ):
            refused(ConfigError, "positions in a list", run_of, dataset, tmp_path / "run")
            outcome = run_of(dataset, tmp_path / "run", **{"privacy.adjacency": "zero-out"})
            assert outcome.summary["adjacency"] == "zero-out"
            shutil.rmtree(tmp_path / "run")
        with pytest.raises(ConfigError, match="positions in a list"):
            run_of(
                from_arrays(*[(np.ones((60, 2)), np.arange(60) % 2)] * 2, classes=2),
                tmp_path / "run",
                **{"data.partition": "iid"},
            )


def test_zero_out_is_the_default_of_a_public_order(tmp_path):
    tables = {"clip_norm": 1.0, "noise_multiplier": 2.0}
    with patch.dict(TABLES, {"federation": {"cohort": 10, "rounds": 6, "sampling": "cyclic"}, "privacy": tables}):
        assert run_of(listed(NAMES), tmp_path / "run").summary["adjacency"] == "zero-out"
    assert str(Plan(clients=60, cohort=10, sampling="cyclic").adjacency) == "zero-out"


def test_ids_of_a_list():
    assert ClientIds.of([7]).hashes.tolist() == ClientIds.of(["7"]).hashes.tolist()
    assert ClientIds.of([7.0]) is ClientIds.of([True]) is ClientIds.of([None]) is None
    for ids, words in (
        (NAMES[:3], "must be a list of 60"),
        (["a"] * 60, "occurs twice"),
        ([1.5] * 60, "texts or whole"),
    ):
        refused(DataError, words, listed, NAMES, ids=ids)
    with pytest.raises(DataError, match="Remove ids="):
        from_clients(table(NAMES), table(NAMES), classes=2, client="who", inputs=["x"], label="sick", ids=NAMES)
    refused(DataError, "is not a file", ClientIds.from_json, "[]")


def looped(clients, **more):
    return level(clients=clients, cohort=10, rounds=12, dimension=3, **more)


@pytest.mark.parametrize("order", [{"sampling": "balls-and-bins", "lanes": 3}, {"sampling": "cyclic"}])
def test_a_loop_takes_turns_by_the_names_of_its_clients(tmp_path, order):
    def turns(names, ledger):
        private, found = looped(names, adjacency="add-remove", ledger=ledger, **order), {name: [] for name in names}
        for step in private.rounds():
            for name in private.names_of(step.cohort):
                found[name].append(step.round)
            step.release(torch.zeros(len(step.cohort), 3))
        assert private.guarantee().adjacency == "add-remove"
        return found

    whole = turns(NAMES, tmp_path / "one.jsonl")
    fewer = turns(NAMES[1:], tmp_path / "two.jsonl")
    assert all(whole[name] == rounds for name, rounds in fewer.items())
    checks = {one.name: one for one in audit_run(tmp_path / "one.jsonl").checks}
    assert not [one for one in checks.values() if one.passed is False]
    assert checks["members follow the sampler"].passed
    refused(ConfigError, "list of their names", looped, 60, adjacency="add-remove", **order)
    step = next((places := looped(60, **order)).rounds())
    step.release(torch.zeros(len(step.cohort), 3))
    assert places.guarantee().adjacency == "zero-out"


def test_a_loop_has_a_cap():
    private = looped(60, cohort_cap=11)
    sizes = []
    for step in private.rounds():
        sizes.append(len(step.cohort))
        step.release(torch.zeros(len(step.cohort), 3))
    assert max(sizes) == 11
    plan = Plan(clients=60, cohort=10, cohort_cap=11, delta=private.delta)
    assert private.guarantee().epsilon == pytest.approx(budget.epsilon(plan, noise_multiplier=2.0, rounds=12), rel=1e-6)


def test_a_public_order_by_id_is_in_every_turn_once():
    who = Cyclic(cohort=10).cohorts(60, "s", ClientIds.of(NAMES))
    cohorts = [who.sample(Simulated(seeds=Seeds(root=1)), number) for number in range(6)]
    assert sorted(np.concatenate(cohorts).tolist()) == list(range(60))
    assert cohorts_follow_schedule(who.law, cohorts, 60, alpha=1e-6, ids=who.ids)[0]
    assert not cohorts_follow_schedule(who.law, cohorts[::-1], 60, alpha=1e-6, ids=who.ids)[0]
