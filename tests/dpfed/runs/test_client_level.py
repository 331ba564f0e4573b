"""`dpfed.ClientLevel`: what is released is what is charged, whoever trains, in whatever form updates come."""

import itertools
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from private_loops import D, level, releases, rows
from refusals import refused
from safetensors.torch import load_file

from accounting import Aborted, Composed, Ledger, Release, guarantee
from dpfed import ClientLevel
from dpfed.errors import ConfigError, RunError
from dpfed.runs import loop as federation
from dpfed.runs.client_level.book import diagnostics_file
from dpfed.runs.client_level.private_loop import SKIPPED
from dpfed.runs.experiment import build

from ...rounds import preset


@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ((), {}),
        (("run.randomness=secure", "privacy.noise=discrete-gaussian"), {"randomness": "secure"}),
        (("federation.sampling=fixed",), {"sampling": "fixed"}),
        (("federation.sampling=all", "privacy.noise=skellam"), {"sampling": "all", "noise": "skellam"}),
        (("privacy.epsilon=2.0",), {"epsilon": 2.0}),
        (("privacy.adjacency=zero-out", "privacy.delta=1e-3"), {"adjacency": "zero-out", "delta": 1e-3}),
    ],
    ids=range(6),
)
@pytest.mark.slow_but_one_in(3)
def test_the_epsilon_is_that_of_a_run_of_the_same_plan(tiny_config, tmp_path, settings, plan):
    """To the last digit, and so is every line of the ledger."""
    without = ("privacy.noise_multiplier=2.0",) if "epsilon" not in plan else ("privacy.noise_multiplier=1.9",)
    experiment = build(tiny_config(*without, *settings))
    done = federation.run(experiment, tmp_path / "run")
    private = level(tmp_path, **{"noise_multiplier": float(without[0].split("=")[1]), **plan})
    releases(private, partial(rows, size=experiment.model.size))
    assert private.guarantee().epsilon == done.summary["epsilon"]
    assert private.guarantee().adjacency == done.summary["adjacency"]
    assert private.noise_multiplier == done.summary["noise_multiplier"]
    own, run = (Ledger.read(path).entries for path in (private.ledger, tmp_path / "run" / "ledger.jsonl"))
    assert own == run


@pytest.mark.parametrize(("epsilon", "randomness"), [(1.0, "simulated"), (3.0, "secure")])
def test_calibrated_as_the_preset(epsilon, randomness):
    noise = "gaussian" if randomness == "simulated" else "discrete-gaussian"
    settings = [f"privacy.epsilon={epsilon}", f"run.randomness={randomness}", f"privacy.noise={noise}"]
    experiment = build(preset("dp-fedavg-digits", *settings))
    plan = {key: getattr(experiment.config.federation, key) for key in ("clients", "cohort", "rounds")}
    plan |= {"epsilon": epsilon, "noise_multiplier": None, "randomness": randomness}
    private = level(**plan, clip_norm=2.0, dimension=experiment.model.size)
    assert private.noise_multiplier == experiment.privacy_target.noise_multiplier
    assert private.delta == experiment.privacy_target.delta


def test_the_release_is_the_one_of_a_run(tiny_config, tmp_path):
    """The same cohorts, the same updates, the same seed: the same model to the bit."""
    config = tiny_config()
    experiment = build(config)
    done = federation.run(experiment, tmp_path / "run")
    weights = experiment.start.broadcast.clone()
    for step in level().rounds():
        moves = experiment.method.clients.train(weights, step.cohort, number=step.round, seeds=experiment.seeds)
        weights = torch.add(weights, step.release(moves))
    saved = load_file(done.folder / "model.safetensors")
    assert torch.equal(weights, torch.cat([saved[b.name].reshape(-1) for b in experiment.model.layout]))


def test_a_release_is_the_noisy_mean_of_clipped_updates():
    private = level(noise_multiplier=1e-9, clip_norm=0.5)
    for step in private.rounds():
        given = rows(step)
        norms = given.norm(dim=1, keepdim=True)
        expected = (given / torch.clamp(norms / 0.5, min=1.0)).sum(dim=0) / 12
        torch.testing.assert_close(step.release(given), expected, rtol=1e-5, atol=1e-6)


def tensors(row):
    return {"layer.weight": row[:30].reshape(5, 6), "layer.bias": row[30:]}


@pytest.mark.parametrize(
    "form",
    [
        lambda made: made,
        lambda made: made.double(),
        lambda made: made.numpy(),
        lambda made: list(made),
        lambda made: (row for row in made),
        lambda made: [row.numpy() for row in made],
        lambda made: [tensors(row) for row in made],
        lambda made: (tensors(row) for row in made),
    ],
    ids=["matrix", "float64", "numpy", "list", "generator", "arrays", "dictionaries", "generated dictionaries"],
)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
@pytest.mark.slow_but_one_in(3)
def test_every_form_of_updates_gives_the_same_release(form, noise):
    expected = releases(level(noise=noise))
    for step, wanted in zip((private := level(noise=noise)).rounds(), expected, strict=True):
        given = rows(step)
        before = given.clone()
        found = step.release(form(given))
        assert torch.equal(given, before)  # clipping is done on copies
        if isinstance(found, dict):
            assert {name: value.shape for name, value in found.items()} == {"layer.weight": (5, 6), "layer.bias": (10,)}
            found = torch.cat([value.reshape(-1) for value in found.values()])
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert private.stopped_by == "rounds"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "form",
    [
        lambda row: row[::-1].copy()[::-1],
        lambda row: row.astype(">f4"),
        lambda row: row.astype(np.longdouble),
        lambda row: np.frombuffer(row.tobytes(), dtype=np.float32),
    ],
    ids=["reversed", "big-endian", "long double", "read-only"],
)
def test_every_array_of_floating_point_numbers_is_an_update(form):
    (step, other) = (next(level(sampling="all").rounds()) for _ in range(2))
    assert torch.equal(step.release([form(row.numpy()) for row in rows(step)]), other.release(rows(other)))


def test_a_stream_is_read_a_group_at_a_time():
    """Of 20 clients with a million numbers each, three are there at once; more would be 80 MB."""
    alive, most = weakref.WeakSet(), 0

    def stream(step):
        nonlocal most
        for _ in step.cohort:
            row = torch.ones(1 << 20)
            alive.add(row)
            most = max(most, len(alive))
            yield row
            del row

    for step in level(clients=20, sampling="all", rounds=1).rounds():
        step.release(stream(step))
    assert most <= 3


def test_rows_that_are_not_finite_count_as_zeros():
    """An error would tell that a client whose update diverged was drawn."""
    plan = {"noise_multiplier": 1e-9, "rounds": 1, "sampling": "all"}
    for bad in (float("nan"), float("inf"), -float("inf")):
        for step in level(**plan).rounds():
            given = rows(step)
            expected = given / torch.clamp(given.norm(dim=1, keepdim=True), min=1.0)
            given[3, 7] = bad
            torch.testing.assert_close(
                step.release(given), (expected.sum(dim=0) - expected[3]) / 60, rtol=1e-5, atol=1e-6
            )


WRONG = [
    (lambda made: made[1:], "must be one for each client of step.cohort"),
    (lambda made: iter(made[1:]), "11 for a cohort of 12"),
    (lambda made: torch.cat([made, made[:1]]), "more than 12 for a cohort of 12"),
    (lambda made: iter([*made, made[0]]), "more than 12 for a cohort of 12"),
    (lambda made: itertools.repeat(made[0]), "more than 12 for a cohort of 12"),
    (lambda made: made[0], r"of shape \(40,\); must be \[clients of the cohort, d\]"),
    (lambda made: made.long(), r"torch\.int64; must be a tensor or an array of floating-point numbers"),
    (lambda made: made.numpy().astype(int), "must be a tensor or an array of floating-point numbers"),
    (lambda made: [row.tolist() for row in made], "is list; must be a tensor or an array"),
    (lambda made: made[:, :30], "vectors of 30 numbers on cpu; earlier updates were vectors of 40"),
    (lambda made: [*made[:11], made[11, :30]], "vectors of 30 numbers on cpu after vectors of 40"),
    (lambda made: [*made[:11], made[11].to("meta")], "on meta after vectors of 40 numbers on cpu"),
    (lambda made: [tensors(row) for row in made], "dictionaries of 2 tensors"),
    (lambda made: tensors(made[0]), "one dictionary; must be one for each client"),
    (lambda made: [{"count": torch.zeros(1, dtype=torch.int64)}] * 12, r"update\['count'\]: is torch.int64"),
    (lambda made: [{}] * 12, "a dictionary without numbers"),
    (lambda made: [made[0][None]] * 12, "must be a vector"),
    (lambda made: [], "0 for a cohort of 12"),
    (lambda made: 7, "int; must be a matrix"),
]


@pytest.mark.slow_but_one_in(14)
@pytest.mark.parametrize(("form", "complaint"), WRONG, ids=range(len(WRONG)))
def test_updates_that_do_not_fit_are_one_error_and_cost_nothing(tmp_path, form, complaint):
    private = level(tmp_path, sampling="fixed")
    steps = private.rounds()
    next(steps).release(rows(private._step))
    step = next(steps)
    refused(ConfigError, complaint, lambda: step.release(form(rows(step))))
    assert len(Ledger.read(private.ledger).releases) == 1
    step.release(rows(step))  # the same round, put right
    assert [one.round for one in Ledger.read(private.ledger).releases] == [0, 1]
    assert len(diagnostics_file(private.ledger).read_text().splitlines()) == 2


ONE = {"a": torch.ones(2), "b": torch.zeros(2)}


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([ONE, {"b": torch.zeros(2), "a": torch.ones(2)}] * 3, "tensor 0 is 'b', after one where it is 'a'"),
        ([[np.ones((2, 2)), np.zeros(3)]] * 6, "a list of arrays.*dictionary of arrays by name"),
        ([ONE, {"a": torch.ones(2)}] * 3, "dictionaries of 1 tensors"),
    ],
)
def test_first_updates_of_different_forms_are_one_error(updates, words):
    step = next(level(clients=6, cohort=6, sampling="all").rounds())
    refused(ConfigError, words, step.release, updates)
    assert step.release([ONE] * 6).keys() == ONE.keys()


def test_a_release_without_a_step_names_the_step():
    refused(ConfigError, r"step\.release\(updates\)", lambda: level().release([]))


def test_an_error_in_the_callers_generator_costs_nothing(tmp_path):
    private = level(tmp_path)

    def broken(step):
        yield from rows(step)[:3]
        raise ZeroDivisionError

    for step in private.rounds():
        refused(ZeroDivisionError, "", step.release, broken(step))
        step.release(rows(step))
    assert releases(level()) != []
    assert len(Ledger.read(private.ledger).releases) == 3


def test_what_makes_the_updates_cannot_release_the_step_too(tmp_path):
    """Two releases with noise of their own had one line between them."""
    private = level(tmp_path)
    step = next(private.rounds())

    def updates():
        step.release(rows(step))
        yield from rows(step)

    refused(RunError, "is over, or another round has begun", lambda: step.release(updates()))
    step.release(rows(step))
    assert len(Ledger.read(private.ledger).releases) == 1


def test_of_two_threads_one_releases_a_step(tmp_path, monkeypatch):
    """Both passed the check, and one line stood for two releases with noise of their own."""
    private, found, checked = level(tmp_path), [], ClientLevel._require_open_step
    step = next(private.rounds())
    monkeypatch.setattr(ClientLevel, "_require_open_step", lambda *given: [checked(*given), time.sleep(0.05)])

    def release():
        with suppress(RunError):
            found.append(step.release(rows(step)))

    threads = [threading.Thread(target=release) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == len(Ledger.read(private.ledger).releases) == 1


def test_no_round_begins_while_one_is_released(tmp_path):
    """The next step had the number of the round without a charge yet, and one line stood for both releases."""
    private = level(tmp_path)
    loop = private.rounds()
    step = next(loop)

    def updates():
        refused(RunError, "a round is being released", next, private.rounds())
        refused(RunError, "a round is being released", next, loop)
        yield from rows(step)

    step.release(updates())
    assert len(Ledger.read(private.ledger).releases) == 1
    assert len(releases(private)) == 2


def test_a_round_is_released_once_and_inside_the_loop(tmp_path):
    private, old = level(tmp_path), []
    for step in private.rounds():
        step.release(rows(step))
        refused(RunError, r"was released already. Release inside the loop", step.release, rows(step))
        for before in old:
            refused(RunError, "was released already", before.release, rows(before))
        old.append(step)
    refused(RunError, "was released already", lambda: step.release(rows(step)))
    assert len(Ledger.read(private.ledger).releases) == 3
    assert list(private.rounds()) == []


@pytest.mark.parametrize("budget", [None, 8.0, 0.25])
def test_a_loop_that_ends_by_break_states_its_plan_or_its_budget(tmp_path, budget):
    plan = {"rounds": 4, "delta": 60**-1.1} | ({} if budget is None else {"epsilon": budget})
    private = level(tmp_path, **plan)
    for step in private.rounds():
        step.release(rows(step))
        break
    assert _after(private, 1) < 0.25 < _after(private, 4) < 8.0
    stated = private.guarantee()
    assert stated.epsilon == min(_after(private, 4), budget or 8.0)
    assert any("it holds for any stopping rule" in note for note in stated.notes)
    assert Ledger.read(private.ledger).if_fixed_in_advance(private.delta).epsilon == _after(private, 1)
    if budget is None:
        releases(level(tmp_path, **plan))
        assert level(tmp_path, **plan).guarantee().epsilon == _after(private, 4)


def test_a_loop_of_integers_of_unknown_size_states_rounds_like_its_first(tmp_path):
    private = level(tmp_path, rounds=4, noise="discrete-gaussian")
    step = next(private.rounds())
    step.release(rows(step))
    assert not Ledger.read(private.ledger).header.plan.largest_charges
    assert private.guarantee().epsilon == _after(private, 4)


def test_a_skipped_round_releases_and_costs_nothing(tmp_path):
    private, skipped = level(tmp_path, rounds=4), []
    for step in private.rounds():
        if step.round in (1, 3):
            skipped.append(step)
        else:
            step.release(rows(step))
    assert Ledger.read(private.ledger).if_fixed_in_advance(private.delta).epsilon == _after(private, 2)
    assert private.guarantee().epsilon == _after(private, 4)  # which rounds were skipped may follow from results
    assert [type(entry) for entry in Ledger.read(private.ledger).entries] == [Release, Aborted, Release, Aborted]
    assert {one.reason for one in Ledger.read(private.ledger).entries if isinstance(one, Aborted)} == {SKIPPED}
    for step in skipped:
        refused(RunError, "is over, or another round has begun", step.release, rows(step))


def _after(private, count):
    release = Ledger.read(private.ledger).releases[0]
    return guarantee(Composed.of([release.mechanism] * count), delta=private.delta).epsilon


def test_a_loop_that_is_left_goes_on_with_the_same_round(tmp_path):
    private = level(tmp_path)
    step = next(private.rounds())
    again = next(private.rounds())
    assert again.round == step.round == 0
    refused(RunError, "another round has begun", lambda: step.release(rows(step)))
    again.release(rows(again))


def test_a_loop_that_is_left_keeps_its_cohort():
    """A caller who leaves until a cohort suits would have another sampling than the charged one."""
    private = level(randomness="secure", dimension=D)
    cohorts = [next(private.rounds()).cohort for _ in range(10)]
    assert all(one is cohorts[0] for one in cohorts)
    private._step.release(rows(private._step))
    assert next(private.rounds()).cohort is not cohorts[0]


@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
def test_refused_updates_leave_no_form_behind(noise):
    """After a first update of 30 numbers, those of 40 were refused for ever."""
    private = level(noise=noise, sampling="all")
    step = next(private.rounds())
    refused(ConfigError, "after vectors of 30", lambda: step.release([torch.zeros(30), *rows(step)[1:]]))
    assert step.release(rows(step)).shape == (D,)


def test_a_first_round_beyond_the_budget_is_refused_each_time():
    """The second call released it: the noise of integers was known by then, and its budget not compared again."""
    private = level(noise="discrete-gaussian", epsilon=0.01)
    step = next(private.rounds())
    for _ in range(2):
        refused(ConfigError, "not even one round fits", step.release, rows(step))
    assert not Ledger.read(private.ledger).entries


def test_an_empty_cohort_is_released_and_charged(tmp_path):
    """Otherwise a round without a charge would tell that nobody was drawn."""
    sizes = []
    private = level(tmp_path, cohort=1, rounds=12, seed=1, dimension=D)
    for step in private.rounds():
        sizes.append(len(step.cohort))
        found = step.release(rows(step) if sizes[-1] else [])
        assert found.shape == (D,)
        assert float(found.norm()) > 1
    assert 0 in sizes
    assert len(Ledger.read(private.ledger).releases) == 12


def test_an_empty_first_cohort_needs_a_dimension():
    private = level(cohort=1, seed=1)
    step = next(private.rounds())
    assert len(step.cohort) == 0  # of this seed
    refused(ConfigError, r"Give dimension= to dpfed\.ClientLevel", step.release, [])
    assert step.release(torch.zeros(0, D)).shape == (D,)
