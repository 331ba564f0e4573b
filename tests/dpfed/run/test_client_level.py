"""`dpfed.ClientLevel`: what is released is what is charged, whoever trains; misuse is one error and costs nothing."""

import itertools
import json
import multiprocessing
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dpfed
from accounting import Aborted, Adjacency, Composed, Header, Ledger, Release, guarantee
from accounting.errors import AccountingError, LedgerError
from dpfed.compress.dense import Dense
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, RunError
from dpfed.methods import presets
from dpfed.participation.sampling import sampler
from dpfed.randomness import Secure, Simulated
from dpfed.run import loop as federation
from dpfed.run.client_level.book import diagnostics_of
from dpfed.run.client_level.private_loop import SKIPPED
from dpfed.run.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode
from dpfed.stages.gaussian_noise import GaussianNoise
from dpfed.stages.project import Project
from dpfed.stages.send_all import SendAll
from dpfed.stages.shared_mask import RandomSharedMask

PLAN = {"clients": 60, "cohort": 12, "clip_norm": 1.0, "rounds": 3, "noise_multiplier": 2.0, "randomness": "simulated"}
D = 40


def level(tmp_path=None, **changes):
    where = {} if tmp_path is None else {"ledger": tmp_path / "l.jsonl"}
    return dpfed.ClientLevel(**(PLAN | where | changes))


def rows(step, size=D):
    """Of each client always the same."""
    made = [torch.randn(size, generator=torch.Generator().manual_seed(int(one))) for one in step.cohort]
    return torch.stack(made) if made else torch.zeros(0, size)


def releases(private, updates=rows):
    return [step.release(updates(step)) for step in private.rounds()]


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
    experiment = build(preset(epsilon, randomness, noise))
    federation_table = experiment.config.federation
    private = dpfed.ClientLevel(
        clients=federation_table.clients,
        cohort=federation_table.cohort,
        rounds=federation_table.rounds,
        clip_norm=2.0,
        epsilon=epsilon,
        randomness=randomness,
        dimension=experiment.model.size,
    )
    assert private.noise_multiplier == experiment.goal.noise_multiplier
    assert private.delta == experiment.goal.delta


def preset(epsilon, randomness, noise):
    settings = [f"privacy.epsilon={epsilon}", f"run.randomness={randomness}", f"privacy.noise={noise}"]
    return parse(override(presets.tables("dp-fedavg-digits"), settings), source="test")


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


def test_a_stream_is_read_a_group_at_a_time():
    """Of 60 clients with a million numbers each, three are there at once; more would be 240 MB."""
    alive, most = weakref.WeakSet(), 0

    def stream(step):
        nonlocal most
        for _ in step.cohort:
            row = torch.ones(1 << 20)
            alive.add(row)
            most = max(most, len(alive))
            yield row
            del row

    for step in level(sampling="all", rounds=1).rounds():
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
    (lambda made: iter(made[1:]), "11 of them for a cohort of 12"),
    (lambda made: torch.cat([made, made[:1]]), "more of them for a cohort of 12"),
    (lambda made: iter([*made, made[0]]), "more of them for a cohort of 12"),
    (lambda made: itertools.repeat(made[0]), "more of them for a cohort of 12"),
    (lambda made: made[0], r"of shape \(40,\); must be \[clients of the cohort, d\]"),
    (lambda made: made.long(), r"torch\.int64; must be a tensor or an array of floating-point numbers"),
    (lambda made: made.bool(), "must be a tensor or an array of floating-point numbers"),
    (lambda made: made.numpy().astype(int), "must be a tensor or an array of floating-point numbers"),
    (lambda made: made.to(torch.complex64), "must be a tensor or an array of floating-point numbers"),
    (lambda made: [row.tolist() for row in made], "is list; must be a tensor or an array"),
    (lambda made: made[:, :30], "vectors of 30 numbers on cpu; this loop's are vectors of 40"),
    (lambda made: [*made[:11], made[11, :30]], "vectors of 30 numbers on cpu after vectors of 40"),
    (lambda made: [*made[:11], made[11].to("meta")], "on meta after vectors of 40 numbers on cpu"),
    (lambda made: [tensors(row) for row in made], "dictionaries of 2 tensors"),
    (lambda made: tensors(made[0]), "one dictionary; must be one for each client"),
    (lambda made: [{"count": torch.zeros(1, dtype=torch.int64)}] * 12, r"update\['count'\]: is torch.int64"),
    (lambda made: [{}] * 12, "a dictionary without numbers"),
    (lambda made: [made[0][None]] * 12, "must be a vector"),
    (lambda made: [], "0 of them for a cohort of 12"),
    (lambda made: 7, "int; must be a matrix"),
    (lambda made: None, "NoneType; must be a matrix"),
]


@pytest.mark.parametrize(("form", "complaint"), WRONG, ids=range(len(WRONG)))
@pytest.mark.slow_but_one_in(2)
def test_updates_that_do_not_fit_are_one_error_and_cost_nothing(tmp_path, form, complaint):
    private = level(tmp_path, sampling="fixed")
    steps = private.rounds()
    next(steps).release(rows(private._step))
    step = next(steps)
    with pytest.raises(ConfigError, match=complaint):
        step.release(form(rows(step)))
    assert len(Ledger.read(private.ledger).releases) == 1
    step.release(rows(step))  # the same round, put right
    assert [one.round for one in Ledger.read(private.ledger).releases] == [0, 1]
    assert len(diagnostics_of(private.ledger).read_text().splitlines()) == 2


def test_an_error_in_the_callers_generator_costs_nothing(tmp_path):
    private = level(tmp_path)

    def broken(step):
        yield from rows(step)[:3]
        raise ZeroDivisionError

    for step in private.rounds():
        with pytest.raises(ZeroDivisionError):
            step.release(broken(step))
        step.release(rows(step))
    assert releases(level()) != []
    assert len(Ledger.read(private.ledger).releases) == 3


def test_a_round_is_released_once_and_inside_the_loop(tmp_path):
    private, old = level(tmp_path), []
    for step in private.rounds():
        step.release(rows(step))
        with pytest.raises(RunError, match=r"was released already. Release inside the loop"):
            step.release(rows(step))
        for before in old:
            with pytest.raises(RunError, match="was released already"):
                before.release(rows(before))
        old.append(step)
    with pytest.raises(RunError, match="was released already"):
        step.release(rows(step))
    assert len(Ledger.read(private.ledger).releases) == 3
    assert list(private.rounds()) == []


def test_a_skipped_round_releases_and_costs_nothing(tmp_path):
    private, skipped = level(tmp_path, rounds=4), []
    for step in private.rounds():
        if step.round in (1, 3):
            skipped.append(step)
        else:
            step.release(rows(step))
    assert private.guarantee().epsilon == _after(private, 2)
    assert [type(entry) for entry in Ledger.read(private.ledger).entries] == [Release, Aborted, Release, Aborted]
    assert {one.reason for one in Ledger.read(private.ledger).entries if isinstance(one, Aborted)} == {SKIPPED}
    for step in skipped:
        with pytest.raises(RunError, match="is over, or another has begun"):
            step.release(rows(step))


def _after(private, count):
    release = Ledger.read(private.ledger).releases[0]
    return guarantee(Composed.of([release.mechanism] * count), delta=private.delta).epsilon


def test_a_loop_that_is_left_goes_on_with_the_same_round(tmp_path):
    private = level(tmp_path)
    step = next(private.rounds())
    again = next(private.rounds())
    assert again.round == step.round == 0
    with pytest.raises(RunError, match="another has begun"):
        step.release(rows(step))
    again.release(rows(again))


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
    with pytest.raises(ConfigError, match=r"Give dimension= to dpfed\.ClientLevel"):
        step.release([])
    assert step.release(torch.zeros(0, D)).shape == (D,)


def test_it_goes_on_with_its_ledger(tmp_path):
    whole = level(tmp_path / "whole", rounds=6)
    expected = releases(whole)
    found = []
    for _ in range(3):
        for step in level(tmp_path / "parts", rounds=6).rounds():
            found.append(step.release(rows(step)))
            if step.round % 2:
                break
    assert len(found) == 6
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    parts = level(tmp_path / "parts", rounds=6)
    assert parts.guarantee() == whole.guarantee()
    assert list(parts.rounds()) == []
    assert len(diagnostics_of(parts.ledger).read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"clients": 61}, "clients was 60, is 61"),
        ({"cohort": 13}, "cohort was 12, is 13"),
        ({"sampling": "fixed"}, "sampling was poisson, is fixed"),
        ({"clip_norm": 2.0}, "clip_norm was 1.0, is 2.0"),
        ({"noise_multiplier": 3.0}, "noise_multiplier was 2.0, is 3.0"),
        ({"epsilon": 3.0}, "epsilon was not given, is 3.0"),
        ({"delta": 1e-3}, "delta was not given, is 0.001"),
        ({"adjacency": "zero-out"}, "adjacency was not given, is zero-out"),
        ({"noise": "skellam"}, "noise was gaussian, is skellam"),
        ({"randomness": "secure"}, "randomness was simulated, is secure"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"clients": [f"c{i}" for i in range(60)]}, "the names of clients was none"),
    ],
    ids=range(12),
)
def test_a_ledger_of_another_plan_is_refused(tmp_path, change, complaint):
    releases(level(tmp_path, rounds=1))
    before = (tmp_path / "l.jsonl").read_bytes()
    with pytest.raises(RunError, match=complaint):
        level(tmp_path, **change)
    assert (tmp_path / "l.jsonl").read_bytes() == before


def test_a_key_that_is_gone_from_the_plan_is_seen_too(tmp_path):
    releases(level(tmp_path, rounds=1, delta=1e-3))
    with pytest.raises(RunError, match=r"delta was 0.001, is not given"):
        level(tmp_path)


def test_more_rounds_may_be_planned_unless_the_noise_is_calibrated_for_them(tmp_path):
    releases(level(tmp_path, rounds=2))
    assert len(releases(level(tmp_path, rounds=5))) == 3
    calibrated = {"epsilon": 3.0, "noise_multiplier": None}
    releases(level(tmp_path / "other", rounds=2, **calibrated))
    with pytest.raises(RunError, match="rounds was 2, is 5"):
        level(tmp_path / "other", rounds=5, **calibrated)


def test_clients_have_names(tmp_path):
    names = [f"ward {i}" for i in range(60)]
    for step in level(tmp_path, clients=names).rounds():
        assert step.names == tuple(f"ward {one}" for one in step.cohort)
        step.release(rows(step))
    assert "ward" not in (tmp_path / "l.jsonl").read_text()
    level(tmp_path, clients=names)
    with pytest.raises(RunError, match=r"the names of clients was .*, is "):
        level(tmp_path, clients=names[::-1])
    with pytest.raises(ConfigError, match="a name occurs twice"):
        level(clients=["a", "b", "a"], cohort=2)
    assert next(level().rounds()).names[0].isdecimal()


def test_a_ledger_that_was_cut_or_edited_is_refused(tmp_path):
    releases(level(tmp_path))
    ledger = tmp_path / "l.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    with pytest.raises(LedgerError, match="Lines were cut off"):
        level(tmp_path)
    ledger.write_text("".join(lines).replace('"noise_std":2.0', '"noise_std":3.0'))
    with pytest.raises(LedgerError):
        level(tmp_path)
    ledger.unlink()
    Ledger.create(ledger, Header(unit="client", clients=60, randomness="simulated"))
    with pytest.raises(LedgerError, match="has no line of hash"):
        level(tmp_path)
    (tmp_path / "l.jsonl.head").write_text(f"{Ledger.read(ledger).head}\n")
    with pytest.raises(RunError, match=r"is no ledger of a dpfed\.ClientLevel"):
        level(tmp_path)


class Killed(BaseException):
    """Stands for kill -9."""


def test_a_round_that_was_charged_and_interrupted_stays_charged_and_is_not_repeated(tmp_path, monkeypatch):
    private = level(tmp_path, rounds=4)
    steps = private.rounds()
    first = next(steps).release(rows(private._step))
    step = next(steps)
    with monkeypatch.context() as patch:
        patch.setattr("dpfed.run.client_level.book.LoopBook.note", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            step.release(rows(step))
    again = level(tmp_path, rounds=4)
    found = {step.round: step.release(rows(step)) for step in again.rounds()}
    assert list(found) == [2, 3]
    assert [one.round for one in Ledger.read(again.ledger).releases] == [0, 1, 2, 3]
    assert not any(torch.equal(first, one) for one in found.values())


def test_nothing_is_returned_that_the_ledger_does_not_hold(tmp_path, monkeypatch):
    private = level(tmp_path)
    for step in private.rounds():
        with monkeypatch.context() as patch:
            patch.setattr(
                "accounting.ledger.durable.append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
            )
            with pytest.raises(LedgerError, match="was not released"):
                step.release(rows(step))
        assert len(Ledger.read(private.ledger).releases) == step.round
        step.release(rows(step))


def test_a_line_that_was_written_in_half_is_cut_off(tmp_path):
    expected = releases(level())
    private = level(tmp_path)
    first = next(private.rounds()).release(rows(private._step))
    for file in (private.ledger, diagnostics_of(private.ledger)):
        with file.open("a") as half:
            half.write('{"round": 1, "chain": "')
    rest = releases(level(tmp_path))
    assert all(torch.equal(one, other) for one, other in zip([first, *rest], expected, strict=True))
    assert len(diagnostics_of(private.ledger).read_text().splitlines()) == 3


def test_killed_while_the_ledger_was_made(tmp_path):
    (tmp_path / "l.jsonl").write_text('{"chain":"')
    assert len(releases(level(tmp_path))) == 3


def _one_round(path):
    private = level(path)
    step = next(private.rounds())
    step.release(rows(step))


@pytest.mark.slow
def test_two_processes_on_one_ledger_cannot_both_go_on(tmp_path):
    mine = level(tmp_path)
    step = next(mine.rounds())
    process = multiprocessing.get_context("spawn").Process(target=_one_round, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with pytest.raises(RunError, match="another process has written to it meanwhile"):
        step.release(rows(step))
    assert len(Ledger.read(mine.ledger).releases) == 1


def test_two_loops_on_one_ledger_cannot_both_go_on(tmp_path):
    mine = level(tmp_path)
    step = next(mine.rounds())
    _one_round(tmp_path)
    with pytest.raises(RunError, match="another process has written to it meanwhile"):
        step.release(rows(step))
    assert len(Ledger.read(mine.ledger).releases) == 1


def test_the_loop_ends_with_its_budget(tmp_path):
    two = level(rounds=2)
    releases(two)
    budget = two.guarantee().epsilon * 1.0001
    private = level(tmp_path, rounds=50, epsilon=budget)
    assert len(releases(private)) == 2
    assert private.stopped_by == "budget"
    assert private.guarantee().epsilon <= budget
    assert list(level(tmp_path, rounds=50, epsilon=budget).rounds()) == []
    with pytest.raises(ConfigError, match="not even one round fits"):
        level(tmp_path / "new", epsilon=1e-3)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
@pytest.mark.parametrize("parts", [1, 2])
def test_epsilon_alone_is_spent_by_the_rounds(tmp_path, noise, parts):
    """All of them: no round is counted twice, with or without an interruption."""
    for part in range(parts):
        private = level(tmp_path, epsilon=2.0, noise_multiplier=None, rounds=8, noise=noise)
        for step in private.rounds():
            step.release(rows(step))
            if step.round == 3 and part < parts - 1:
                break
    assert len(Ledger.read(private.ledger).releases) == 8
    assert 1.999 < private.guarantee().epsilon <= 2.0
    assert private.stopped_by == "rounds"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"noise_multiplier": None}, "give noise_multiplier, or epsilon"),
        ({"cohort": 61}, "from 1 to"),
        ({"clients": 0, "cohort": 0}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 1.0}, "delta"),
        ({"sampling": "some"}, "sampling"),
        ({"noise": "laplace"}, "noise"),
        ({"randomness": "secret"}, "randomness"),
        ({"randomness": "secure", "noise": "gaussian"}, "secure"),
        ({"sampling": "fixed", "adjacency": "add-remove"}, "add-remove"),
        ({"dimension": 0}, "dimension"),
        ({"seed": -1}, "seed"),
        ({"clients": 1, "cohort": 1}, "delta"),
        ({"stages": lambda s: None}, "stages without dimension"),
    ],
    ids=range(17),
)
def test_a_plan_that_cannot_work_is_refused_and_leaves_nothing(tmp_path, change, complaint):
    with pytest.raises((ConfigError, AccountingError), match=complaint):
        level(tmp_path / "new", **change)
    assert not (tmp_path / "new").exists()


def test_secure_is_the_default_and_nothing_repeats():
    plan = {key: value for key, value in PLAN.items() if key != "randomness"}
    one, other = (dpfed.ClientLevel(**plan, dimension=D) for _ in range(2))
    assert Ledger.read(one.ledger).header.randomness == "secure"
    first, second = next(one.rounds()), next(other.rounds())
    assert first.cohort.tolist() != second.cohort.tolist()  # equal with probability below 1e-12
    assert not torch.equal(first.release(rows(first)), second.release(rows(second)))
    line = Ledger.read(one.ledger).releases[0]
    assert line.mechanism.to_dict()["mechanism"]["kind"] == "discrete-gaussian"


def test_guarantees_hold_before_anything_is_released():
    private = level()
    assert private.guarantee().epsilon == 0.0
    assert private.noise_multiplier == 2.0
    with pytest.raises(ConfigError, match="Give dimension="):
        level(noise="skellam").noise_multiplier  # noqa: B018


def test_diagnostics_tell_what_an_audit_needs(tmp_path):
    private = level(tmp_path)
    releases(private)
    lines = [json.loads(line) for line in diagnostics_of(private.ledger).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(line["noise"]["entries"] == D and line["divisor"] == 12 for line in lines)
    assert len({line["cohort"] for line in lines}) > 1
    assert '"cohort":' not in private.ledger.read_text().partition("\n")[2]


# Chains of one's own


def masked(kept, s):
    return Stages(Project(choice=RandomSharedMask(size=s.size, kept=kept)), *s.private(kept))


@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
def test_a_chain_of_ones_own(tiny_config, tmp_path, noise):
    """Fed-SMP's, as a run has it: the same lines."""
    config = tiny_config("method.name=fed-smp-randk", "method.k=90", f"privacy.noise={noise}")
    experiment = build(config)
    federation.run(experiment, tmp_path / "run")
    size = experiment.model.size
    private = level(tmp_path, noise=noise, dimension=size, stages=partial(masked, 90))
    weights = experiment.start.broadcast.clone()
    for step in private.rounds():
        moves = experiment.method.clients.train(weights, step.cohort, number=step.round, seeds=experiment.seeds)
        found = step.release(moves)
        assert int((found != 0).sum()) <= 90
        weights = weights + found
    assert Ledger.read(private.ledger).entries == Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    with pytest.raises(RunError, match="stages was own, is whole update"):
        level(tmp_path, noise=noise, dimension=size)


def noisy(s, **changes):
    how = {"noise_multiplier": 1.0, "adjacency": s.goal(s.size).mechanism.adjacency, "sampler": s.sampler,
           "randomness": s.randomness} | changes  # fmt: skip
    return GaussianNoise(**how)


def chain(s, *middle, **encode):
    return Stages(Project(choice=SendAll(size=s.size)), *middle, Encode(scheme=Dense(), seeds=s.seeds, **encode))


SEEDED = Simulated(seeds=Seeds(root=0))
UNSOUND = [
    (lambda s: chain(s, Clip(), noisy(s, sampler=sampler("poisson", clients=60, cohort=6))), "cohorts are drawn by"),
    (lambda s: chain(s, Clip(), noisy(s, sampler=sampler("all", clients=60, cohort=60))), "cohorts are drawn by"),
    (lambda s: chain(s, Clip(), noisy(s, randomness=Secure())), "draws secure randomness, the loop's is 'simulated'"),
    (lambda s: chain(s, Clip()), "no stage makes it private"),
    (lambda s: chain(s, noisy(s)), "right before"),
    (lambda s: chain(s, Clip(), noisy(s), noisy(s)), "one is charged"),
    (lambda s: chain(s, Clip(), noisy(s), feedback=60), "changes rows|remembered error"),
]


@pytest.mark.parametrize(("stages", "complaint"), UNSOUND, ids=range(len(UNSOUND)))
def test_a_chain_that_is_not_charged_for_what_it_does_is_refused(tmp_path, stages, complaint):
    """Planted faults: each would run, and state an epsilon that is not true."""
    with pytest.raises(ConfigError, match=complaint):
        level(tmp_path / "new", dimension=D, stages=stages)
    assert not (tmp_path / "new").exists()


def test_a_chain_with_its_own_noise_is_charged_for_that(tmp_path):
    private = level(tmp_path, dimension=D, stages=lambda s: chain(s, Clip(), noisy(s, noise_multiplier=0.7)))
    releases(private)
    assert {one.noise_std for one in Ledger.read(private.ledger).releases} == {0.7}
    plain = level(noise_multiplier=0.7)
    releases(plain)
    assert private.guarantee().epsilon == plain.guarantee().epsilon


def test_uploads_that_are_releases_are_charged_before_they_are_read(tmp_path):
    def seen(s):
        return chain(s, Clip(), noisy(s, placement="uploads", adjacency=Adjacency.ZERO_OUT))

    private = level(tmp_path, dimension=D, stages=seen, adjacency="zero-out")
    for step in private.rounds():
        if step.round == 1:
            with pytest.raises(ConfigError):
                step.release(rows(step)[1:])
            assert len(Ledger.read(private.ledger).releases) == 2
        step.release(rows(step))
    assert [one.round for one in Ledger.read(private.ledger).releases] == [0, 1, 2]


def test_numbers_of_numpy_are_taken_for_plans():
    private = level(clients=np.int64(60).item(), cohort=12)
    assert len(releases(private)) == 3
