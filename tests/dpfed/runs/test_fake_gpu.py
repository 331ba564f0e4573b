"""Runs on a fake GPU (`reference.fake_gpu`): nothing meets a tensor of another device, and results are the CPU's."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from joblib.externals.loky import get_reusable_executor
from reference import fake_gpu as fake
from reference.compressors import SETTINGS, make
from reference.fake_gpu import fake_gpu
from refusals import refused
from torch import nn

import dpfed.compress
from dpfed import randomness
from dpfed.aggregation import ranks
from dpfed.aggregation.ranks import Ranks
from dpfed.clients.plan import default_budget
from dpfed.compress.rotation import tf32
from dpfed.errors import ConfigError, RunError
from dpfed.mechanisms.integers import IntegerNoise
from dpfed.methods import catalogue
from dpfed.models.flat import FlatModel
from dpfed.round import Method, run_round
from dpfed.runs.book import LedgerBook
from dpfed.runs.evaluate import evaluate
from dpfed.runs.folder import RunFolder
from dpfed.runs.loop import run
from dpfed.runs.training import clients_trained_together, device_of, gpu_description
from dpfed.seeds import Seeds
from dpfed.sources import InProcessClients
from dpfed.stages import wires
from dpfed.stages.project import RandomSharedMask
from dpfed.sweep.jobs import worker_pool

from ...rounds import Book, preset, watched_round
from .test_devices import experiment_of


def after(name, device, *settings):
    experiment, book = experiment_of(name, device, *settings), Book()
    state, _ = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=book)
    assert str(state.broadcast.device) == device
    return state.broadcast.cpu()


def test_tensors_of_two_devices_do_not_meet():
    with fake_gpu() as gpu:
        there = torch.ones(3, device=gpu)
        refused(RuntimeError, "cuda:0 and on the CPU", lambda: there + torch.ones(3))
        refused(TypeError, "numpy", there.numpy)
        assert (2 * there).cpu().tolist() == [2, 2, 2]


@pytest.mark.parametrize(("budget", "together"), [(10**9, 400), (10**7, 250), (10**4, 100)])
def test_the_whole_cohort_is_one_group_on_a_gpu_if_memory_allows(budget, together):
    """The memory holds 16 vectors of the model for each client; a hundred clients of a small model are the least."""
    config = preset("dp-fedavg-digits", "federation.cohort=400")
    model = mock.Mock(size=10**7 // (4 * 16 * 250))
    with mock.patch("dpfed.runs.training.default_budget", return_value=budget):
        assert clients_trained_together(config, model, torch.device("cuda")) == together
        assert clients_trained_together(config, model, torch.device("cpu")) == 100


def test_a_group_without_memory_is_halved(monkeypatch):
    """Memory holds the updates of three clients: groups of 9, 4, then 2; the same state up to the order of the sum."""
    tried, empty = [], torch.empty

    def short_of_memory(*shape, **more):
        if len(shape) == 2 and shape[1] == 2410:
            tried.append(shape[0])
            if shape[0] > 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return empty(*shape, **more)

    with fake_gpu():
        whole = after("dp-fedavg", "cuda:0", "local.strategy=loop")
        monkeypatch.setattr("dpfed.clients.side_by_side.torch.empty", short_of_memory)
        halved = after("dp-fedavg", "cuda:0", "local.strategy=loop")
    torch.testing.assert_close(halved, whole, rtol=1e-5, atol=1e-6)
    assert tried == [9, 4, 2, 2, 2, 2, 1]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_scheme_codes_on_a_gpu_as_on_the_cpu(setting):
    rows, scheme = torch.randn(3, 400, generator=torch.Generator().manual_seed(0)), make(setting)
    here = scheme.decode(scheme.encode(rows, seed=7))
    with fake_gpu() as gpu:
        made = scheme.encode(rows.to(gpu), seed=7)
        there = scheme.decode(made)
        assert there.device == gpu
        received = [dpfed.compress.from_bytes(one.to_bytes(), dimension=400) for one in made]
        torch.testing.assert_close(there.cpu(), here)
        torch.testing.assert_close(scheme.decode(received), here)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp-fedavg", ("privacy.noise=discrete-gaussian", "federation.sampling=fixed", "privacy.adjacency=zero-out")),
        ("dp-fedavg", ("privacy.bands=2", "federation.sampling=cyclic")),
    ],
    ids=["integers", "banded"],
)
def test_every_kind_of_noise_is_added_on_a_gpu(name, settings):
    with fake_gpu():
        assert after(name, "cuda:0", "local.strategy=loop", *settings).isfinite().all()


def round_of(name, device, *settings):
    experiment = experiment_of(name, device, "local.strategy=loop", *settings)
    source = InProcessClients(seeds=experiment.seeds)
    return run_round(experiment.start, experiment.method, source, seeds=experiment.seeds, ledger=None)


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize("name", sorted(catalogue.tables_of_methods()))
def test_only_what_is_sent_leaves_a_gpu_and_is_counted_beside_in_bytes(name, monkeypatch):
    """A model of 30,010 weights: floats that leave are samples of sums, at most 2^14; packed symbols take at most what
    uploads take uncoded. Bytes and entropies are those of a CPU, where uploads are coded at once."""
    monkeypatch.setattr(wires, "counting_processes", lambda: ThreadPoolExecutor(1))
    wide = ("model.hidden=[400]", "data.public=16") if name.startswith("fed-smp-topk") else ("model.hidden=[400]",)
    here = round_of(name, "cpu", *wide).whole_record()
    with fake_gpu():
        fake.COPIES.clear()
        done = round_of(name, "cuda:0", *wide)
        there = done.whole_record()
    packed = [size for kind, size in fake.COPIES if kind in (torch.uint8, torch.int64)]
    announced = {30_010} if name in ("fedpm", "fedmask") else set()  # the public probabilities, once a group
    assert {size for kind, size in fake.COPIES if kind.is_floating_point and size > 1 << 14} == announced
    bytes_of_entry = 1 if name in ("fedsparsify", "qsgd") else 0.5
    assert sum(packed) <= done.record.participants * (30_010 * bytes_of_entry + 8)
    if name not in ("fedmrn", "fedpm"):  # their masks are drawn otherwise than on a CPU
        assert (there.uplink_bytes, there.mask_entropy) == (here.uplink_bytes, here.mask_entropy)


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_integers_are_rounded_and_summed_on_a_gpu(kind):
    """Entries that 8 bits leave open, about 1% of 32,768 a client, and the words that are sent are all that leaves."""
    shares = ("federation.sampling=fixed", "privacy.noise=discrete-gaussian", "privacy.placement=clients")
    with fake_gpu():
        fake.COPIES.clear()
        round_of("dp-fedavg", "cuda:0", "model.hidden=[400]", f"aggregation.kind={kind}", *shares)
    sent = {8 * 32_768} if kind == "masked" else set()
    assert {size for _, size in fake.COPIES if size > 1 << 14} == sent


def test_draws_of_integer_shares_start_before_a_gpu_trains(monkeypatch):
    """Threads draw noise and rounding while clients train; the sum is that of draws made in the order of clients."""
    shares = ("federation.sampling=fixed", "privacy.noise=skellam", "privacy.placement=clients")
    started, threads, train, draw = [], [], Method.updates, IntegerNoise._draw_noise

    def trained(self, ids, now, *given, **more):
        started.append(set(now.ahead))
        return train(self, ids, now, *given, **more)

    def drawn(self, *given):
        threads.append(threading.current_thread())
        return draw(self, *given)

    here = round_of("dp-fedavg", "cpu", *shares).state.broadcast
    monkeypatch.setattr(IntegerNoise, "_draw_noise", drawn)
    monkeypatch.setattr(Method, "updates", trained)
    with fake_gpu():
        there = round_of("dp-fedavg", "cuda:0", *shares).state.broadcast
    assert started == [{"noise.share", "fixed-point.rounding"}]
    assert len(threads) == 8
    assert threading.main_thread() not in threads
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-6)


def test_draws_ahead_are_those_of_their_clients_in_any_order_and_wait_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(randomness, "_NUMBERS_AHEAD", 30)
    made = []

    def draw(client):
        made.append(client)
        return np.full(10, client)

    ahead = randomness.DrawnAhead(draw, np.arange(8), 10)
    assert len(ahead._started) == 3
    assert [ahead(client)[0] for client in (1, 0, 7, 99, 7, 2, 3)] == [1, 0, 7, 99, 7, 2, 3]
    assert len(ahead._started) <= 3 + 2


@pytest.mark.slow
def test_integers_of_private_records_stay_on_a_gpu():
    records = ("local.record.clip_norm=1", "local.record.noise=discrete-gaussian", "local.record.noise_multiplier=1")
    with fake_gpu():
        fake.COPIES.clear()
        round_of("fedavg", "cuda:0", "model.hidden=[400]", "federation.cohort=1", *records)
    assert fake.COPIES
    assert max(size for _, size in fake.COPIES) < 1 << 14


@pytest.mark.slow
def test_other_processes_count_bytes():
    """Exercise the processes of a real run, which share no memory with this one."""
    with fake_gpu():
        there = round_of("eden", "cuda:0").whole_record()
    assert there.uplink_bytes == round_of("eden", "cpu").record.uplink_bytes
    get_reusable_executor().shutdown()


def test_clients_side_by_side_do_not_follow_free_memory():
    budgets = []
    for free in (1 << 30, 70 << 30):
        with fake_gpu(free=free):
            budgets.append(default_budget(torch.device("cuda", 0)))
    assert budgets == [20 << 30] * 2


@contextmanager
def precision(name):
    """torch.backends.cuda.matmul.fp32_precision, the switch of torch since 2.9."""
    products = torch.backends.cuda.matmul
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("torch before 2.9 has the older switches")
    before, products.fp32_precision = products.fp32_precision, name
    try:
        yield
    finally:
        products.fp32_precision = before


def switches():
    cudnn = torch.backends.cudnn
    return [one.fp32_precision for one in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]


@pytest.mark.parametrize(("wanted", "inside"), [(True, "tf32"), (False, "ieee")])
def test_tf32_works_whichever_switch_the_process_has_used(wanted, inside):
    for name in ("tf32", "ieee"):
        with precision(name):
            before = switches()
            with tf32(wanted, torch.device("cuda")):
                assert switches() == [inside] * 3
            assert switches() == before
            with tf32(wanted, torch.device("cpu")):
                assert switches() == before


def test_rotations_are_never_in_tf32(monkeypatch):
    seen, product = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *given: seen.append(switches()) or product(*given))
    with precision("tf32"), fake_gpu() as gpu:
        make("drive").encode(torch.ones(1, 400, device=gpu), seed=1)
    assert seen
    assert all(one == ["ieee"] * 3 for one in seen)


@pytest.mark.parametrize(("place", "taken"), [("0", [0]), ("1", [])])
def test_a_rank_takes_its_own_gpu_where_there_is_one(place, taken, monkeypatch):
    chosen = []
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", place)):
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(ranks.distributed, name, lambda *given: None)
    for name in ("get_rank", "get_world_size"):
        monkeypatch.setattr(ranks.distributed, name, lambda: 2)
    with fake_gpu(), ranks.ranks_from_environment():
        assert chosen == taken


def test_a_sweep_on_the_cpu_has_a_worker_a_core_beside_a_gpu():
    with (
        fake_gpu(),
        mock.patch("joblib.cpu_count", return_value=6),
        mock.patch("dpfed.sweep.jobs.get_reusable_executor"),
    ):
        with worker_pool(None, ["cpu", "cpu"]) as pool:
            assert pool.count == 6
        with worker_pool(None, ["cpu", "auto"]) as pool:
            assert pool.count == 1


@pytest.mark.parametrize("name", ["meta", "mps", "mps:0", "xpu", "cuda:x", "gpu", ""])
def test_other_devices_are_refused_by_name(name):
    refused(ConfigError, rf"run.device='{name}': .*'auto', 'cpu', 'cuda' or 'cuda:N'", device_of, name, Ranks())


def test_a_network_made_on_a_gpu_starts_from_its_seed_on_the_cpu():
    with fake_gpu() as gpu:
        model = FlatModel(lambda: nn.Linear(3, 2, device=gpu))
        weights = model.initial(5)
    assert weights.device.type == "cpu"
    assert weights.equal(FlatModel(lambda: nn.Linear(3, 2)).initial(5))


def test_a_part_of_a_gpu_for_each_of_flowers_nodes():
    share = pytest.importorskip("dpfed.engines.flower.simulation").gpu_share
    assert share({"CPU": 16.0, "GPU": 1.0}) == 0.0625
    assert share({"CPU": 7.0, "GPU": 2.0}) == 0.2857
    assert share({"CPU": 2.0, "GPU": 8.0}) == 1.0
    assert share({"CPU": 4.0}) == 0.0


def test_files_are_written_beside_the_next_round_and_before_its_charge(tmp_path, monkeypatch):
    """On a CPU at once; on a GPU a checkpoint may be late, but before the next line of the ledger."""
    events, begun = [], threading.Event()
    save, record, updates = RunFolder.save_checkpoint, LedgerBook.record, Method.updates

    def slow_save(self, saved):
        if threading.current_thread() is not threading.main_thread():
            begun.wait(60 if saved.state.round == 1 else 0)
        save(self, saved)
        events.append(f"saved {saved.state.round}")

    def trained(self, *given, **more):
        events.append(f"trains {given[1].number + 1}")
        if given[1].number == 1:
            begun.set()
        return updates(self, *given, **more)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slow_save)
    monkeypatch.setattr(
        LedgerBook, "record", lambda self, one: (events.append(f"charged {one.round + 1}"), record(self, one))
    )
    monkeypatch.setattr(Method, "updates", trained)
    lines = []
    plain = run(experiment_of("dp-fedavg", "cpu", "local.strategy=loop"), tmp_path / "cpu")
    assert events == ["trains 1", "charged 1", "saved 1", "trains 2", "charged 2", "saved 2"]
    events.clear()
    begun.clear()
    with fake_gpu():
        beside = run(
            experiment_of("dp-fedavg", "cuda:0", "local.strategy=loop"), tmp_path / "gpu", on_round=lines.append
        )
    assert events == ["trains 1", "charged 1", "trains 2", "saved 1", "charged 2", "saved 2"]
    assert [one["round"] for one in lines] == [1, 2]
    for file in ("ledger.jsonl", "metrics.jsonl", "diagnostics.jsonl"):
        there, here = ((tmp_path / name / file).read_text().splitlines() for name in ("gpu", "cpu"))
        assert len(there) == len(here)
    assert beside.summary["epsilon"] == plain.summary["epsilon"]
    assert (beside.summary["device"], plain.summary["device"]) == ("cuda:0", "cpu")
    assert beside.summary["gpu"].startswith("Fake H100, ")
    assert gpu_description(torch.device("cpu")) is None


def test_a_checkpoint_that_cannot_be_written_stops_the_charge(tmp_path, monkeypatch):
    """The error of the other thread ends the run before the next round is charged, and no line is written after it."""

    def full(self, saved):
        raise RunError("checkpoint.safetensors: cannot be written (No space left on device).")

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)
    with fake_gpu(), pytest.raises(RunError, match="No space left"):
        run(experiment_of("dp-fedavg", "cuda:0", "local.strategy=loop"), tmp_path / "run")
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_public_coordinates_are_those_of_a_cpu():
    choice, seeds = RandomSharedMask(size=1000, kept=400), Seeds(root=3)
    with fake_gpu() as gpu:
        there = [choice.for_round(torch.zeros(1000, device=gpu), number, seeds).indices for number in (0, 1, 5, 2)]
    assert [one.device for one in there] == [gpu] * 4
    for number, one in zip((0, 1, 5, 2), there, strict=True):
        assert one.cpu().equal(choice.for_round(torch.zeros(1000), number, seeds).indices)


def test_a_model_is_evaluated_in_float32(monkeypatch):
    seen, forward = [], FlatModel.forward
    monkeypatch.setattr(FlatModel, "forward", lambda *given: seen.append(switches()) or forward(*given))
    experiment = experiment_of("fedavg", "cpu")
    seen.clear()
    with precision("tf32"), fake_gpu() as gpu:
        weights, half = experiment.start.broadcast.to(gpu), torch.zeros(5, 1, 8, 8, device=gpu)
        evaluate(experiment.model, weights, half, torch.zeros(5, dtype=torch.int64, device=gpu))
    assert seen == [["ieee"] * 3]
