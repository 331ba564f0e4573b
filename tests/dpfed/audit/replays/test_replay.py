"""Replay audits: planted faults are found, sound code passes, and a pair that tests nothing does not pass."""

import json

import numpy as np
import pytest
from refusals import refused

import dpfed
from accounting.errors import AccountingError
from dpfed.api.replay import ConfiguredRun, replay_config
from dpfed.audit.replays.pairs import Pair
from dpfed.config.tables import set_key
from dpfed.errors import ConfigError, DataError, DpfedError
from dpfed.methods import catalogue

from .planted import DpfedRun, RoundSeven
from .plants import NETWORKS, PLANTS, RECORDS, SOUND, mean_taken_away, nothing, rows_added_twice
from .sound_pieces import SoundPiece

PRIVATE = sorted(
    (one for one in catalogue.preset_names() if one.endswith("-digits") and "privacy" in catalogue.preset_tables(one)),
    key=lambda name: name != "dp-fedavg-digits",  # the quick one
)


@pytest.mark.slow_but_one_in(30)
@pytest.mark.parametrize("fault", [*PLANTS, *NETWORKS, *RECORDS], ids=lambda one: one.name)
def test_a_planted_fault_is_found(fault):
    assert dpfed.audit.replay(fault).verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("sound", SOUND, ids=lambda one: one.name)
def test_sound_code_passes(sound):
    dpfed.audit.replay(sound).require_pass()


@pytest.mark.slow_but_one_in(len(PRIVATE))
@pytest.mark.parametrize("name", PRIVATE)
def test_two_half_pairs_of_every_preset_pass(name):
    found = replay_config(name, rounds=1, pairs=3)
    assert found.verdict == "pass", found.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_all_pairs_of_every_preset_pass(name):
    found = replay_config(name)
    assert found.verdict == "pass", found.as_text()


OTHER_DATA = [
    one for one in catalogue.preset_names() if not one.endswith("-digits") and "privacy" in catalogue.preset_tables(one)
]
IN_SMALL = {
    "federation.rounds": 2,
    "federation.clients": 40,
    "federation.cohort": 10,
    "data.train_samples": 800,
    "data.test_samples": 50,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_DATA)
def test_two_half_pairs_of_presets_on_other_data_pass(name):
    tables = catalogue.preset_tables(name)
    public = tables["data"].get("public", 0)  # taken from the training samples
    settings = [f"{key}={value}" for key, value in IN_SMALL.items()] + ["data.train_samples=2000"] * (public > 0)
    settings += ["local.epochs=", "local.steps=2"]
    try:
        found = replay_config(name, [*settings, "run.device=cpu"], rounds=1, pairs=3)
    except DpfedError as error:
        if "DPFED_DATA_DIR" not in str(error):
            raise
        pytest.skip(f"{tables['data']['name']} is not here: {error}"[:200])
    assert found.verdict == "pass", found.as_text()


SMALL = {
    "federation.rounds": 6,
    "federation.clients": 60,
    "federation.cohort": 10,
    "data.train_samples": 480,
    "local.epochs": None,
    "local.steps": 2,
    "model.hidden": [8],
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1.0,
}
LANES = {"federation.sampling": "balls-and-bins", "federation.lanes": 2, "privacy.adjacency": "zero-out"}
SHARES = {"federation.sampling": "fixed", "privacy.placement": "clients", "privacy.adjacency": "replace-one"}
KINDS = {
    "lanes": ("dp-fedavg-digits", LANES | {"privacy.bands": 2}),
    "error feedback": ("fedavg-topk-digits", {"privacy.clip_norm": 1.0, "method.error_feedback": True}),
    "a cap": ("dp-fedavg-digits", {"federation.cohort_cap": 9}),
    "a masked sum": ("dp-fedavg-digits", {"privacy.noise": "discrete-gaussian", "aggregation.kind": "masked"}),
    "every upload": ("dp-fedavg-digits", {"privacy.release": "uploads", "privacy.adjacency": "zero-out"}),
    "a protocol's sum": (
        "dp-fedavg-digits",
        {"privacy.noise": "discrete-gaussian", "aggregation.kind": "protocol", "federation.sampling": "fixed"},
    ),
    "canaries": ("dp-fedavg-digits", {"audit.canaries": 3}),
    "shares, some lost": ("dp-fedavg-digits", SHARES | {"aggregation.dropout": 0.2}),
    "bands": ("dp-fedavg-digits", {"federation.sampling": "cyclic", "privacy.bands": 3}),
    "allocation": ("dp-fedavg-digits", {"federation.sampling": "allocation"}),
    "secure draws": ("dp-fedavg-digits", {"run.randomness": "secure", "privacy.noise": "discrete-gaussian"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_noise_sum_and_sampler_passes(name):
    preset, settings = KINDS[name]

    def call(data, out):
        reporting = {"run.evaluate_every": 1} if data.reporting else {}
        dpfed.run(preset, SMALL | settings | reporting, out=out, progress=False)

    dpfed.audit.replay(call).require_pass()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sound_pieces_drawn_by_a_seed_pass(seed):
    dpfed.audit.replay(SoundPiece(2 + seed)).require_pass()


def _among_ranks(plant, processes=2):
    given = catalogue.preset_tables("dp-fedavg-digits")
    few = SMALL | {"federation.rounds": 1, "federation.clients": 30, "data.train_samples": 240}
    for key, value in few.items():
        set_key(given, key, value, given=key, form="table.key")
    run = ConfiguredRun(given, processes=processes)

    def call(data, out):
        plant()
        run(data, out)

    return call


@pytest.mark.slow
def test_a_run_of_two_processes_passes():
    found = dpfed.audit.replay(_among_ranks(nothing), 3)
    assert found.verdict == "pass", found.as_text()
    alone = dpfed.audit.replay(_among_ranks(nothing, processes=1), 3)
    rows = [sum(one.findings.rows for one in audit.evidence.pairs) for audit in (found, alone)]
    assert rows[0] == rows[1] > 5  # two halves of all who take part, whichever rank trains them


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("plant", "words"), [(mean_taken_away, "row after Clip"), (rows_added_twice, "sum of the rows")]
)
def test_a_fault_among_two_processes_is_found(plant, words):
    found = dpfed.audit.replay(_among_ranks(plant), 3)
    assert found.verdict == "fail"
    assert words in found.as_text()


def test_no_run_of_an_audit_stays(tmp_path):
    """A replayed run draws its noise from known seeds, although the run may say "secure"."""
    secure = {"federation.rounds": 1, "run.randomness": "secure", "privacy.noise": "discrete-gaussian"}
    for there in (tmp_path / "kept", None):
        with pytest.raises(DpfedError, match="known seeds"):
            dpfed.audit.replay(lambda data, out, to=there: dpfed.run("dp-fedavg-digits", secure, out=to), 2)
    assert not list(tmp_path.iterdir())


def test_clients_that_take_no_part_test_nothing():
    def call(data, out):
        dpfed.run("dp-fedavg-digits", SMALL | {"federation.rounds": 1}, out=out, progress=False)

    audits = (dpfed.audit.replay(call, [Pair((client,), "far")]) for client in range(60))  # 10 of 60 take part
    found = next(audit for audit in audits if audit.evidence.pairs[0].outcome != "pass")
    assert [one.outcome for one in found.evidence.pairs] == ["nothing tested"]
    assert found.verdict == "inconclusive"


def test_a_pair_that_fails_is_run_again_from_its_file(tmp_path):
    pair = Pair(range(0, 60, 2), "far")
    tables = catalogue.preset_tables("dp-fedavg-digits")
    for key, value in SMALL.items():
        set_key(tables, key, value, given=key, form="table.key")
    path = tmp_path / "pair.json"
    path.write_text(json.dumps({"config": tables, "load": [], "rounds": 1, "seed": 0, "pair": pair.to_dict()}))
    again = replay_config(str(path))
    assert [one.pair for one in again.evidence.pairs] == [pair]
    assert again.verdict == "pass"


def test_pairs_are_refused_with_their_reason():
    refused(ConfigError, "must be one of far", Pair, (0,), "other")
    refused(ConfigError, "must be a record of exactly one client", Pair, (0, 1), "far", record=3)
    refused(DataError, "mapping", lambda: Pair((0,), "removed").changed([np.zeros(3), np.ones(3)]))
    refused(ConfigError, "must be numbers of clients", Pair, 5, "far")
    for none in ([], 0, 2.5, "3"):
        refused(ConfigError, "nothing would be tested", dpfed.audit.replay, lambda data, out: None, pairs=none)


def test_outside_an_audit_marks_do_nothing():
    f = dpfed.audit.mechanism(lambda total: total + 1, sensitivity=1.0)
    assert f(2) == 3
    dpfed.audit.outside("value", 3)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"sensitivity": float("nan")}, "sensitivity=nan"),
        ({"sensitivity": 1.0, "norm": "L2"}, "norm='L2'"),
        ({"sensitivity": 1.0, "adjacency": "replace_one"}, "adjacency='replace_one'"),
    ],
)
def test_a_mark_that_would_bound_nothing_or_something_else_is_refused(setting, words):
    refused(AccountingError, words, dpfed.audit.mechanism, lambda total: total + 1, **setting)


FAULTY_IN_ROUND_SEVEN = DpfedRun(RoundSeven)
"""Eight rounds."""


def test_a_fault_in_round_seven_is_found_by_the_last_rounds():
    found = dpfed.audit.replay(FAULTY_IN_ROUND_SEVEN, 2, last=2)
    assert (found.verdict, found.failed.first_difference.round) == ("fail", 7)


@pytest.mark.slow
def test_the_first_rounds_of_that_run_and_the_last_of_a_preset_pass():
    assert dpfed.audit.replay(FAULTY_IN_ROUND_SEVEN, 2, rounds=3).verdict == "pass"
    tables = catalogue.preset_tables("dp-fedavg-digits")
    assert tables["federation"]["rounds"] > 2
    assert replay_config("dp-fedavg-digits", ["federation.rounds=4"], last=1, pairs=2).verdict == "pass"
