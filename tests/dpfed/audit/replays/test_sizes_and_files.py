"""Replay audits of other people's code: sizes, removal, coupled draws, files, NaN values, sizes of noise, messages."""

# ruff: noqa: NPY002 - users' code draws from numpy's global generator, and a replay must follow it

import json
import os
import random
import time

import numpy as np
import pytest
import torch

import dpfed
from dpfed.audit import Pair, mechanism, replay
from dpfed.audit.replays import noise_size
from dpfed.audit.replays.noise_size import unchanged_coordinates
from dpfed.errors import DpfedError

from .strangers import StrangersLoop

torch.set_num_threads(1)
CLIENTS = [np.random.default_rng(i).normal(size=(12, 3)) for i in range(12)]
VECTORS = [np.random.default_rng(i).normal(size=3) for i in range(8)]
LAST = [Pair((11,), "removed")]


def clip(row):
    return row / max(1.0, float(np.linalg.norm(row)))


def noised(scale=1.0, **options):
    return mechanism(lambda t: t + np.random.normal(scale=scale, size=3), sensitivity=1.0, **options)


def rows_of(own):
    return [clip(one.sum(axis=0)) for one in own]


def called(train, clients=CLIENTS):
    return lambda data, out: train(data(clients))


# ---- sizes and removal


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(
    ("train", "change"),
    [
        (lambda own: noised(100 / len(own))(sum(rows_of(own))), "removed"),
        (lambda own: noised()(sum(rows_of(own))) / len(own), "removed"),
        (lambda own: noised(1 + 1e-3 * sum(map(len, own)))(sum(rows_of(own))), "zeroed"),
        (lambda own: [noised()(sum(rows_of(own))) for _ in range(len(own))], "removed"),
    ],
)
def test_code_that_depends_on_numbers_fails_by_default(train, change):
    found = replay(called(train))
    assert found.verdict == "fail"
    assert found.failed.pair.change == change


def test_nan_rows_that_become_large_are_found_and_others_are_a_row_of_their_own():
    def rows(own):
        return [np.where(np.isnan(row := one.sum(axis=0)), 1e6, clip(row)) for one in own]

    nan = [Pair((0,), "nan")]
    kept = replay(called(lambda own: noised()(sum(rows(own)))), nan)
    assert (kept.verdict, kept.failed.pair.change) == ("fail", "nan")
    plain = replay(called(lambda own: noised()(sum(rows_of(own)))), [Pair((0, 1), "far"), *nan])
    assert plain.verdict == "pass"
    assert [one.outcome for one in plain.evidence.pairs if one.pair.change == "nan"] == ["not finite"]
    assert "NaN or huge values" in plain.as_text()


def test_only_the_last_clients_of_a_list_are_removed():
    assert len(Pair((10, 11), "removed").changed(CLIENTS)) == 10
    assert [*Pair((3,), "removed").changed(dict(enumerate(VECTORS)))] == [0, 1, 2, 4, 5, 6, 7]
    assert Pair((7,), "removed").changed(np.stack(VECTORS)).shape == (7, 3)
    found = replay(called(lambda own: noised()(sum(rows_of(own)))), [Pair((3,), "removed")])
    assert found.evidence.pairs[0].outcome == "refused"


# ---- draws


def sampled(draw, divisor=lambda own: 12):
    def train(data, out):
        own, model = data(CLIENTS), np.zeros(3)
        for _ in range(4):
            chosen = draw(data, own)
            rows = [clip(one.sum(axis=0) - model) for one, here in zip(own, chosen, strict=True) if here]
            model = model + noised()(np.sum(rows, axis=0) if rows else np.zeros(3)) / divisor(own)
        return model

    return train


def one_by_one(rng):
    return lambda data, own: [rng.random() < 0.5 for _ in own]


def permuted(data, own):
    return np.isin(np.arange(len(own)), np.random.permutation(len(own))[:6])


def test_marked_draws_are_coupled_and_their_divisor_is_found():
    coins = lambda data, own: data.coins(own, 0.5)  # noqa: E731
    assert replay(sampled(coins), LAST).verdict == "pass"
    assert replay(sampled(coins, divisor=len), LAST).verdict == "fail"
    rates = replay(sampled(lambda data, own: data.coins(own, 6 / len(own))), LAST)
    assert rates.failed.first_difference.value == "rate of data.coins"


def test_draws_by_place_neither_pass_with_a_fault_nor_fail_without():
    assert replay(sampled(one_by_one(random)), LAST).verdict != "fail"
    found = replay(sampled(one_by_one(random), divisor=len), LAST)
    assert found.verdict == "inconclusive"
    assert "could not tell" in found.as_text()
    assert "data.coins" in found.as_text()


def test_every_way_to_call_a_draw_is_followed():
    def train(own):
        random.sample(population=range(5), k=2)
        np.random.choice(np.array(5))
        np.random.default_rng(1).choice(np.array(5))
        torch.randperm(n=5)
        return noised()(sum(rows_of(own)))

    assert replay(called(train), [Pair((0, 1), "far")]).verdict == "pass"


@pytest.mark.slow
def test_draws_by_place_of_another_generator_do_neither():
    rng = np.random.default_rng(3)
    assert replay(sampled(one_by_one(rng)), LAST).verdict != "fail"
    assert replay(sampled(one_by_one(rng), divisor=len), LAST).verdict != "pass"


def test_batches_of_fixed_size_are_named_first():
    found = replay(sampled(permuted))
    assert found.verdict == "pass"
    assert found.as_text().startswith("removal not tested: batches are of fixed size")
    assert "removed" not in {one.pair.change for one in found.evidence.pairs}


def test_a_public_number_is_stated_with_the_neighbours_that_were_tested():
    divided = called(lambda own: noised()(sum(rows_of(own))) / len(own))
    found = replay(divided, [Pair((0, 1), "far"), Pair((0,), "zeroed")], n_is_public=True)
    assert found.verdict_in_full == "pass for zero-out"
    assert "number of clients is declared public" in found.as_text()


@pytest.mark.slow
def test_a_public_number_leaves_sizes_and_sensitivity_to_be_tested():
    sizes = called(lambda own: noised(1 + 1e-3 * sum(map(len, own)))(sum(rows_of(own))))
    assert replay(sizes, n_is_public=True).verdict == "fail"
    double = called(
        lambda own: (
            mechanism(lambda t: t + np.random.normal(size=3), sensitivity=2.0, adjacency="replace-one")(
                sum(rows_of(own))
            )
            / len(own)
        )
    )
    assert replay(double, n_is_public=True).verdict_in_full == "pass for replace-one"
    single = called(lambda own: noised(adjacency="replace-one")(sum(rows_of(own))))
    assert replay(single).verdict == "fail"  # a replaced client moves the sum by 2


# ---- files


def order(own):
    return sorted(range(2), key=lambda i: float(own[i].mean()))


def digit(own):
    return int(abs(own[0].sum()) * 1e3) % 8


def named(name, text=lambda own: str(float(own[0].mean()) / 3)):
    def write(own, out):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text(own))

    return write


def with_mode(own, out):
    (out / "e").touch()
    (out / "e").chmod(0o600 + digit(own))


OF_ANY_NAME = ("losses.txt", "monkey.csv", "a.checkpoint.bin", "x.head", "summary.json")
WRITTEN = {
    "losses.csv": named("losses.csv"),
    "keys": named("a.json", lambda own: json.dumps(dict.fromkeys(order(own), 1))),
    "white space": named("a.json", lambda own: "{}" + " " * order(own)[0]),
    "in a folder that is no run": named("a/diagnostics.jsonl", lambda own: f'{{"loss": {own[0].sum()}}}\n'),
    "link": lambda own, out: (out / "c").symlink_to(f"d{digit(own)}"),
    "folder": lambda own, out: (out / f"b{digit(own)}").mkdir(),
    "mode": with_mode,
}
FIRST_TWO = [Pair((0,), "far"), Pair((1,), "far")]


@pytest.mark.parametrize(
    "write",
    [*WRITTEN.values(), *(pytest.param(named(name), marks=pytest.mark.slow) for name in OF_ANY_NAME)],
    ids=[*WRITTEN, *OF_ANY_NAME],
)
def test_all_files_are_compared_whatever_their_names_with_order_space_links_and_modes(write):
    def train(data, out):
        own = data(CLIENTS)
        write(own, out)
        return noised()(sum(rows_of(own)))

    assert replay(train, FIRST_TWO).verdict == "fail"


@pytest.mark.parametrize("value", [lambda own: dict.fromkeys(order(own), 1), lambda own: {order(own)[0]}])
def test_order_and_sets_of_a_result_are_compared(value):
    def train(own):
        noised()(sum(rows_of(own)))
        return value(own)

    assert replay(called(train), FIRST_TWO).verdict == "fail"


def test_a_run_in_a_folder_lists_the_operators_files_and_does_not_pass_add_remove_with_a_public_number():
    """The ledger has add-remove, and of a public number only pairs of as many clients are tried."""

    def call(data, out):
        dpfed.run("dp-fedavg-digits", {"federation.rounds": 1}, out=out / "runs" / "one", progress=False)

    found = replay(call, [Pair((0, 1, 2), "far")], n_is_public=True)
    assert found.verdict == "inconclusive"
    assert "runs/one/diagnostics.jsonl" in found.skipped_files
    assert "runs/one/diagnostics.jsonl" in found.as_text()
    assert found.to_dict()["skipped_files"] == list(found.skipped_files)


# ---- sizes of noise


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda t: t + np.random.normal(size=t.shape), ""),
        (lambda t: t + np.random.laplace(scale=0.5**0.5, size=t.shape), ""),
        (lambda t: t + np.random.normal(scale=1.2, size=t.shape), ""),
        (lambda t: t + np.random.normal(scale=0.99, size=t.shape), "noise is short"),
        (lambda t: t + np.random.normal(size=t.shape) * (np.arange(80) != 7), "no noise to"),
        (lambda t: t + np.random.normal(size=t.shape) * (np.arange(80) > 9), "no noise to 10"),
        (lambda t: t + np.random.default_rng(5).normal(size=t.shape), "consecutive calls"),
        (lambda t: t + np.random.normal(size=t.shape) * (1.1 - 0.3 * (np.arange(80) < 5)), "short in 5"),
        (lambda t: t + np.random.normal(), "noise of its coordinates"),
        (lambda t: t + np.tile(np.random.normal(size=40), 2), "noise of its coordinates"),
    ],
)
def test_a_stated_size_of_noise_is_tested(f, words):
    """False alarms: 1e-9 a test. A standard deviation 1% short is 10 standard errors."""

    def train(own):
        total = np.tile(np.sum(rows_of(own), axis=0), 27)[:80]
        return mechanism(f, sensitivity=6.0, std=1.0)(total)

    found = replay(called(train), [Pair((0, 1), "far")])
    assert found.verdict == ("fail" if words else "pass"), found.as_text()
    assert words in found.as_text()


def test_a_slow_mechanism_ends_at_the_time_limit(monkeypatch):
    """A loop without end is killed; calls that are only slow are tested with fewer values."""
    monkeypatch.setattr(noise_size, "_SECONDS", 0.3)
    hung = noise_size.NoiseSize(f=lambda: time.sleep(600), given=np.zeros(3), std=1.0)
    assert "more than 0 s" in hung.tested()
    monkeypatch.setattr(noise_size, "_SECONDS", 60.0)
    monkeypatch.setattr(noise_size, "_PART", 0.0)

    def slow():
        time.sleep(0.002)
        return np.random.normal(size=600)

    assert noise_size.NoiseSize(f=slow, given=np.zeros(600), std=1.0).tested() == ""
    assert "short" in noise_size.NoiseSize(f=slow, given=np.zeros(600), std=1.2).tested()


def test_whole_numbers_of_a_long_vector_are_not_called_silent():
    """In 13 calls, 0.27 of 40,000 coordinates have no noise on average: a false alarm in one run of four."""
    drawn, given = np.random.default_rng(0), np.ones(40_000)
    test = noise_size.NoiseSize(f=lambda: given + np.rint(drawn.normal(size=40_000)), given=given, std=1.0)
    assert [test._result() for _ in range(12)] == [""] * 12


def test_a_size_may_be_a_function_of_the_call():
    def train(own):
        def scaled(total, scale):
            return total + np.random.normal(scale=scale, size=60)

        f = mechanism(scaled, sensitivity=1.0, std=lambda total, scale: scale)
        return [f(np.pad(sum(rows_of(own)), (0, 57)), scale) for scale in (1.0, 2.0)]

    assert replay(called(train), LAST).verdict == "pass"


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("seed", range(20))
def test_noise_in_all_coordinates_is_never_said_to_miss_one(seed):
    """Normal noise, of float32 far below the values, and on a grid; silent coordinates are found in three calls."""
    draws = np.random.default_rng(seed)
    for dtype, grid, size in ((np.float64, 0, 30), (np.float32, 0, 3000), (np.float64, 0.25, 300)):
        sound, broken = unchanged_coordinates(), unchanged_coordinates()
        values = (10 ** draws.uniform(-3, 3) * draws.normal(size=size)).astype(dtype)
        for _ in range(5):
            noise = draws.normal(size=size)
            noise = np.round(noise / grid) * grid if grid else noise
            assert sound("f", None, values, (values + noise).astype(dtype)) == []
            noise[4] = 0
            seen = broken("f", None, values, (values + noise).astype(dtype))
        assert grid or seen == [4], dtype


@pytest.mark.parametrize("where", [slice(None), slice(1)])
def test_noise_that_is_not_a_number_in_one_run_only_is_found(where):
    def f(total):
        noise = np.random.normal(size=3)
        noise[where] *= np.nan if total[0] < 0 else 1.0
        return total + noise

    own = [np.full((1, 3), 9.0), np.zeros((1, 3))]
    found = replay(called(lambda own: mechanism(f, sensitivity=1.0)(sum(rows_of(own))), own), [Pair((0,), "far")])
    assert "its noise differs" in found.as_text()


# ---- messages


def test_a_finding_names_line_round_and_next_step():
    def train(data, out):
        for _ in range(2):
            noisy = noised(name="noise")(sum(one.sum(axis=0) for one in data(CLIENTS)))
        return noisy

    text = replay(train, 3).as_text()
    assert "round 1: noise: its input moves" in text
    assert f"({os.path.basename(__file__)}:" in text
    assert "Clip each client's row" in text


def test_deleted_noise_is_not_said_to_be_a_difference_of_runs():
    found = replay(called(lambda own: mechanism(lambda t: t + 0, sensitivity=1.0)(sum(rows_of(own)))))
    assert "Two runs" not in found.as_text()
    assert "adds no noise" in str(found)
    assert str(found) == repr(found)


def test_an_error_of_the_first_run_shows_the_callers_lines():
    def train(data, out):
        return [one["missing"] for one in [{}]]

    with pytest.raises(DpfedError, match=r"KeyError: 'missing'") as caught:
        replay(train)
    assert "in train" in str(caught.value)
    assert "audit.py" not in str(caught.value)


# ---- sound code


@pytest.mark.parametrize("seed", [pytest.param(i, marks=[] if i < 1 else pytest.mark.slow) for i in range(80)])
def test_sound_loops_drawn_by_a_seed_raise_no_alarm(seed):
    """Loops with any sampler, generator, clip and log: quick pairs, with removal and sizes.

    A rate of alarms of 4% would show in one of 80 loops with probability 0.96.
    """
    loop = StrangersLoop(seed)
    last = loop.clients - 1
    quick = [Pair((), "same data"), Pair((0, last), "far"), Pair((last,), "very many"), Pair((last,), "removed")]
    found = replay(loop, quick)
    assert found.verdict != "fail", f"{loop.name}: {found.as_text()}"
    if loop.coupled:
        assert found.verdict == "pass", f"{loop.name}: {found.as_text()}"


def test_a_draw_from_another_range_is_uncoupled_at_an_equal_state():
    """Loop 142: a permutation of 12 places here uses as many random words as one of 13."""
    found = replay(StrangersLoop(142), [Pair((12,), "removed")])
    assert found.verdict == "inconclusive"
    assert "could not tell" in found.as_text()


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("draw", ["Generator", "numpy", "random", "torch"])
def test_the_ranges_of_draws_are_followed(draw):
    """One draw from 16 and one from 15 places leave equal states: the trail alone tells them apart."""

    def train(own):
        rng, n = np.random.default_rng(1), len(own)
        at = {
            "Generator": lambda: rng.integers(n),
            "numpy": lambda: np.random.randint(n),
            "random": lambda: random.randrange(n),
            "torch": lambda: torch.randint(n, (1,)).item(),
        }[draw]()
        return noised()(sum(rows_of(own)) if at % 2 else -sum(rows_of(own)))

    assert replay(called(train), LAST, seed=1).verdict != "fail"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_all_default_pairs_of_sound_loops_raise_no_alarm(seed):
    loop = StrangersLoop(seed)
    found = replay(loop, to_the_end=True)
    assert found.verdict != "fail", f"{loop.name}: {found.as_text()}"
