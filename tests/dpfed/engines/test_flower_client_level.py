"""A Flower app made private by a wrapper: driven in process, by a grid whose nodes are functions of this one."""

import json
import math
import warnings
from functools import partial
from inspect import signature

import numpy as np
import pytest
from refusals import refused

from accounting import AccountingError, Ledger, Plan, budget
from accounting.errors import BudgetSpent
from dpfed.errors import ConfigError, RunError, WireError
from dpfed.stages.clip import Clip

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what flwr's own imports use
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Strategy
    from flwr.supercore.task_identity import TaskIdentity

    from dpfed.engines.flower.client_level_strategy import ClientLevelStrategy
    from dpfed.engines.flower.client_mod import client_mod, node_mod
    from dpfed.engines.node_ledger import NodeLedger

SILENT = {"noise_multiplier": 1e-4, "delta": 1e-5, "randomness": "simulated"}
"""Next to no noise, so that the arithmetic shows."""


class Nodes:
    """A grid of nodes, one function (start, node) -> end each."""

    def __init__(self, count, train, *, mods=(), faults=None):
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.ids = [1000 - 7 * k for k in range(count)]
        self.train, self.mods, self.faults = train, mods, faults or {}
        self.asked, self.bytes, self.kinds = [], [], []

    def get_node_ids(self):
        return list(self.ids)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.kinds.append([one.metadata.message_type for one in messages])
        self.asked.append([one.metadata.dst_node_id for one in messages])
        return [reply for message in messages for reply in self._replies(message)]

    def _replies(self, message):
        node = message.metadata.dst_node_id
        try:
            good = self._good(message, node)
        except (WireError, ConfigError) as error:
            good = Message(Error(code=1, reason=str(error)), reply_to=message)
        return self.faults[node](good, message) if node in self.faults else [good]

    def _good(self, message, node):
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})

        def app(received, _):
            start = received.content["arrays"]
            end = {name: Array(np.asarray(self.train(array.numpy(), name, node))) for name, array in start.items()}
            metrics = MetricRecord({"num-examples": node, "train_loss": 0.5})
            return Message(RecordDict({"arrays": ArrayRecord(end), "metrics": metrics}), reply_to=received)

        for mod in self.mods:
            app = partial(_through, mod, app)
        reply = app(message, context)
        if "dpfed" in reply.content.config_records:
            self.bytes.append(len(reply.content["dpfed"]["payload"]))
        return reply


def _through(mod, app, message, context):
    return mod(message, context, app)


def model():
    return ArrayRecord(
        {
            "w": Array(np.full((3, 4), 0.5, dtype=np.float32)),
            "steps": Array(np.array(7, dtype=np.int64)),
            "b": Array(np.zeros(4, dtype=np.float32)),
        }
    )


def by(amount):
    """Every floating-point array moves by this, on every node."""
    return lambda array, name, node: (array + amount).astype(array.dtype) if name != "steps" else array + 1


def wrapped(inner=None, **plan):
    plan = {"clients": 10, "cohort": 5, "clip_norm": 1.0, "rounds": 3, "patience": 0.01, **SILENT, **plan}
    return ClientLevelStrategy(inner or FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1), **plan)


def one_round(strategy, grid, start=None, number=1):
    start = start or model()
    replies = grid.send_and_receive(strategy.configure_train(number, start, ConfigRecord(), grid))
    return strategy.aggregate_train(number, replies)


def vector(arrays):
    return np.concatenate([arrays[name].numpy().ravel() for name in ("w", "b")])


def test_a_round_is_the_clipped_sum_over_the_planned_cohort():
    """16 entries that each move by 1 are 4 long: clipped to 1, each moves by 1/4, whoever reports how many examples."""
    grid = Nodes(10, by(1.0))
    arrays, metrics = one_round(wrapped(sampling="fixed"), grid)
    np.testing.assert_allclose(vector(arrays) - vector(model()), 0.25, atol=1e-3)
    assert metrics is None
    assert arrays["steps"].numpy() == 7
    assert len(grid.asked[0]) == 5


def test_a_short_update_is_not_clipped():
    arrays, _ = one_round(wrapped(sampling="all", cohort=10), Nodes(10, by(0.01)))
    np.testing.assert_allclose(vector(arrays) - vector(model()), 0.01, atol=1e-3)


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM, FedAdam, FedProx, FedMedian])
def test_the_wrapped_strategy_gets_the_mean_as_its_one_reply(inner):
    kind = {"proximal_mu": 0.1} if inner is FedProx else {}
    alone, grid = inner(min_available_nodes=1, min_train_nodes=1, **kind), Nodes(10, by(1.0))
    strategy = wrapped(inner(min_available_nodes=1, min_train_nodes=1, **kind), sampling="fixed")
    arrays, _ = one_round(strategy, grid)
    if inner is FedAdam:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        (message, *_) = alone.configure_train(1, model(), ConfigRecord(), grid)
        mean = {name: Array(np.asarray(by(0.25)(array.numpy(), name, 0))) for name, array in model().items()}
        mean["steps"] = model()["steps"]
        content = RecordDict({"arrays": ArrayRecord(mean), "metrics": MetricRecord({"num-examples": 1})})
        expected = vector(alone.aggregate_train(1, [Message(content, reply_to=message)])[0])
    else:
        expected = vector(model()) + 0.25
    np.testing.assert_allclose(vector(arrays), expected, atol=2e-3)


def with_array(name, array):
    """A reply with another array of this name."""

    def fault(good, message):
        good.content["arrays"] = ArrayRecord({**good.content["arrays"], name: array})
        return [good]

    return fault


def other_arrays(good, message):
    good.content["arrays"] = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})
    return [good]


RIGHT = {"dtype": "float32", "shape": (3, 4), "stype": "numpy.ndarray"}
FAULTS = {
    "failed": lambda good, message: [Message(Error(code=0, reason="lost"), reply_to=message)],
    "twice": lambda good, message: [good, good],
    "nothing": lambda good, message: [],
    "other arrays": other_arrays,
    "forged": with_array("w", Array(**RIGHT, data=b"\x93NUMPY junk")),
    "another shape than it says": with_array("w", Array(**RIGHT, data=Array(np.zeros((30, 40), np.float32)).data)),
    "not a number": with_array("b", Array(np.full(4, np.nan, dtype=np.float32))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_read_counts_as_zeros_and_the_divisor_stays(fault, tmp_path):
    ids = Nodes(10, by(1.0)).ids
    grid = Nodes(10, by(1.0), faults=dict.fromkeys(ids[:2], FAULTS[fault]))
    strategy = wrapped(sampling="all", cohort=10, ledger=tmp_path / "l.jsonl")
    arrays, _ = one_round(strategy, grid)
    np.testing.assert_allclose(vector(arrays) - vector(model()), 0.25 * 8 / 10, atol=1e-3)
    assert len(Ledger.read(tmp_path / "l.jsonl").releases) == 1


def test_an_empty_cohort_is_released_like_any_other(tmp_path):
    """Poisson sampling of one in ten of ten nodes: a third of all rounds ask nobody, and are charged."""
    ledger = tmp_path / "l.jsonl"
    strategy = wrapped(clients=10, cohort=1, rounds=6, ledger=ledger)
    grid = Nodes(10, by(1.0))
    for number in range(1, 7):
        arrays, _ = one_round(strategy, grid, number=number)
        assert arrays is not None
    assert [] in grid.asked
    assert len(Ledger.read(ledger).releases) == 6


def test_the_ledger_is_on_the_disk_before_the_wrapped_strategy_sees_the_mean(tmp_path):
    seen = []

    class Looking(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.append(len(Ledger.read(tmp_path / "l.jsonl").releases))
            return super().aggregate_train(server_round, replies)

    strategy = wrapped(Looking(min_available_nodes=1, min_train_nodes=1), ledger=tmp_path / "l.jsonl")
    one_round(strategy, Nodes(10, by(1.0)))
    assert seen == [1]


def test_the_whole_run_through_flowers_own_loop_spends_what_the_account_says(tmp_path):
    """`start` as Flower calls it, integer noise from the operating system, epsilon from the ledger's file alone."""
    ledger, plan = tmp_path / "l.jsonl", {"noise_multiplier": 1.0, "delta": 1e-3, "randomness": "secure"}
    strategy = wrapped(ledger=ledger, **plan)
    grid = Nodes(10, by(1.0))
    result = strategy.start(grid, model(), num_rounds=5)
    assert len(Ledger.read(ledger).releases) == 3  # as planned; two more rounds ask nobody
    assert [len(asked) for asked, kind in zip(grid.asked, grid.kinds, strict=True) if "evaluate" in kind] == []
    assert not result.train_metrics_clientapp
    near = budget.epsilon(Plan(clients=10, cohort=5, delta=1e-3), noise_multiplier=1.0, rounds=3)
    assert strategy.guarantee().epsilon == pytest.approx(near, rel=0.02)
    assert strategy.guarantee().epsilon == Ledger.read(ledger).guarantee(1e-3).epsilon


def test_it_stops_before_the_budget_is_exceeded(tmp_path):
    plan = {"noise_multiplier": 1.0, "delta": 1e-3, "epsilon": 4.0, "rounds": 50, "randomness": "simulated"}
    strategy = wrapped(ledger=tmp_path / "l.jsonl", sampling="all", cohort=10, **plan)
    start, made = model(), []
    grid = Nodes(10, by(1.0))
    for number in range(1, 51):
        arrays, _ = one_round(strategy, grid, start, number)
        made.append(arrays)
        if arrays is None:
            break
    spent = strategy.guarantee().epsilon
    more = budget.epsilon(
        Plan(clients=10, cohort=10, sampling="all", delta=1e-3), noise_multiplier=1.0, rounds=len(made)
    )
    assert made[-1] is None
    assert spent <= 4.0 < more


@pytest.mark.skipif(
    "should_stop" not in signature(Strategy.start).parameters, reason="Flower has should_stop from 1.43 on"
)
@pytest.mark.parametrize(("epsilon", "wanted", "last"), [(4.0, None, None), (400.0, 2, 2), (400.0, None, 6)])
def test_flower_ends_where_no_private_round_is_left(tmp_path, epsilon, wanted, last):
    """After the last affordable round, after that of the app's own predicate, or after the planned rounds."""
    plan = {"noise_multiplier": 1.0, "delta": 1e-3, "epsilon": epsilon, "rounds": 6, "randomness": "simulated"}
    strategy = wrapped(ledger=tmp_path / "l.jsonl", sampling="all", cohort=10, **plan)
    grid = Nodes(10, by(1.0))
    own = None if wanted is None else lambda number, result: number == wanted
    strategy.start(grid, model(), num_rounds=9, should_stop=own)
    trained = [len(asked) for asked, kind in zip(grid.asked, grid.kinds, strict=True) if "train" in kind]
    released = len(Ledger.read(tmp_path / "l.jsonl").releases)
    assert trained == [10] * released
    assert len(grid.asked) == 2 * released, "no round of Flower's follows"
    assert 1 <= released < 6 if last is None else released == last
    assert strategy.guarantee().epsilon <= epsilon


@pytest.mark.slow
def test_cohorts_are_drawn_by_the_sampler_that_is_charged():
    """400 coins of 1/2: within 5 standard deviations, false alarm 7e-6 with those of nodes (seeded: none)."""
    strategy, grid = wrapped(rounds=40), Nodes(10, by(0.0))
    for number in range(1, 41):
        one_round(strategy, grid, number=number)
    sizes = [len(asked) for asked in grid.asked]
    assert abs(sum(sizes) - 200) < 5 * math.sqrt(400 / 4)
    assert len(set(sizes)) > 3
    by_node = [sum(node in asked for asked in grid.asked) for node in grid.ids]
    assert max(abs(count - 20) for count in by_node) < 5 * math.sqrt(40 / 4)


@pytest.mark.parametrize(
    ("plan", "period"),
    [
        ({"sampling": "balls-and-bins", "lanes": 2, "cohort": 2, "clients": 8, "adjacency": "add-remove"}, 4),
        ({"sampling": "balls-and-bins", "lanes": 2, "lane_secrecy": "secret", "cohort": 2, "clients": 8}, 4),
        ({"sampling": "min-separation", "separation": 3, "cohort": 2}, 5),
        ({"sampling": "cyclic", "cohort": 2, "clients": 8, "adjacency": "add-remove"}, 4),
    ],
)
def test_nodes_take_part_by_a_schedule(plan, period, tmp_path):
    """Under add-remove a node's lane follows from its id: of a node less the others' rounds stay."""
    from dpfed.audit.run import audit_run

    def rounds_of(grid, name):
        options = {"clients": 8} | plan | {"ledger": tmp_path / name, "rounds": 8, "noise_multiplier": 2.0}
        if options.get("adjacency") == "add-remove":
            options["clients"] = grid.ids
        else:
            options["clients"] = len(grid.ids)
        strategy = wrapped(**options)
        for number in range(1, 9):
            one_round(strategy, grid, number=number)
        assert strategy.guarantee().epsilon > 0
        return {node: [t for t, asked in enumerate(grid.asked) if node in asked] for node in grid.ids}

    count = plan.get("clients", 10)
    grid, fewer = Nodes(count, by(0.01)), Nodes(count - 1, by(0.01))
    found = rounds_of(grid, "l.jsonl")
    for rounds in found.values():
        if plan["sampling"] != "min-separation":
            assert all(sum(t // period == epoch for t in rounds) == 1 for epoch in range(8 // period))
    assert not [one for one in audit_run(tmp_path / "l.jsonl", confidence=1 - 1e-6).checks if one.passed is False]
    if plan.get("adjacency") == "add-remove":
        assert all(found[node] == rounds for node, rounds in rounds_of(fewer, "m.jsonl").items())


def test_nodes_are_not_more_than_the_cap():
    grid = Nodes(10, by(0.01))
    strategy = wrapped(cohort=5, cohort_cap=5, rounds=12)
    for number in range(1, 13):
        one_round(strategy, grid, number=number)
    assert max(map(len, grid.asked)) == 5


def test_schedules_that_a_strategy_cannot_keep_are_refused():
    refused(ConfigError, "dpfed deploy", wrapped, sampling="balls-and-bins", randomness="secure")
    strategy = wrapped(sampling="cyclic", adjacency="add-remove", cohort=2)  # 10 nodes, whoever they are
    refused(ConfigError, "list of their names", lambda: one_round(strategy, Nodes(10, by(0.01))))


def test_the_population_is_that_of_the_first_round():
    strategy, grid = wrapped(sampling="all", cohort=10), Nodes(10, by(1.0))
    one_round(strategy, grid)
    grid.ids = [*grid.ids[:-1], 5, 6, 7]
    one_round(strategy, grid, number=2)
    assert not {5, 6, 7} & set(grid.asked[1])
    refused(RunError, "8 nodes after", lambda: one_round(wrapped(), Nodes(8, by(1.0))))
    refused(RunError, "12 nodes for clients=10", lambda: one_round(wrapped(), Nodes(12, by(1.0))))


def test_evaluation_of_clients_only_where_it_is_asked_for():
    grid = Nodes(10, by(1.0))
    assert wrapped().configure_evaluate(1, model(), ConfigRecord(), grid) == []
    asked = wrapped(evaluate_on_clients=True).configure_evaluate(1, model(), ConfigRecord(), grid)
    assert len(list(asked)) == 10


@pytest.mark.parametrize("scheme", ["dense", "drive", "qsgd", "topk"])
def test_compressed_updates_come_as_bytes(scheme):
    """All nodes send the same update; the schemes' own tests say how near a decoded one is."""
    options = {"topk": {"keep": 1.0}, "qsgd": {"levels": 255}}.get(scheme, {})
    strategy = wrapped(sampling="all", cohort=10, compress=scheme, options=options)
    grid = Nodes(10, by(0.05), mods=[client_mod])
    arrays, _ = one_round(strategy, grid)
    assert len(grid.bytes) == 10
    moved = vector(arrays) - vector(model())
    assert moved.mean() == pytest.approx(0.05, rel=0.2)


def test_a_shared_mask_sends_and_noises_the_kept_coordinates_alone():
    """4 of 16 coordinates, times 4, clipped to 1: each moves by 1/2, the others not at all, without noise."""
    strategy, grid = wrapped(sampling="all", cohort=10, keep=0.25), Nodes(10, by(1.0), mods=[client_mod])
    start, hit = model(), np.zeros(16)
    for number in (1, 2, 3):
        arrays, _ = one_round(strategy, grid, start, number)
        moved = vector(arrays) - vector(start)
        kept = moved != 0
        hit += kept
        assert kept.sum() == 4
        np.testing.assert_allclose(moved[kept], 0.5, atol=1e-3)
    assert (hit > 0).sum() > 4  # another mask every round
    dense = Nodes(10, by(1.0), mods=[client_mod])
    one_round(wrapped(sampling="all", cohort=10), dense)
    assert grid.bytes[0] == dense.bytes[0] - 12 * 4


def test_a_mod_that_is_missing_counts_as_zeros_and_is_said():
    arrays, _ = one_round(wrapped(sampling="all", cohort=10, keep=0.5), Nodes(10, by(1.0)))
    np.testing.assert_allclose(vector(arrays), vector(model()), atol=1e-3)


def test_a_node_clips_by_itself_and_keeps_its_metrics():
    replies = []
    grid = Nodes(10, by(100.0), mods=[client_mod])
    strategy = wrapped(sampling="all", cohort=10)
    messages = list(strategy.configure_train(1, model(), ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    assert all(list(reply.content) == ["dpfed"] for reply in replies)
    terms = strategy._opened.terms
    updates = [terms[k].decode(reply.content["dpfed"]["payload"]) for k, reply in enumerate(replies)]
    assert max(float(one.norm()) for one in updates) <= 1.0 + 1e-6


def test_a_node_with_a_ledger_refuses_and_the_divisor_stays(tmp_path):
    """Two nodes move by the clip norm; one pays for two rounds of noise 0.05 (epsilon 521), not three (747)."""
    ledger = NodeLedger(tmp_path / "node.jsonl", epsilon=630.0, delta=1e-5)
    guarded, refusals = node_mod(ledger), []

    def mod(message, context, call_next):
        if message.metadata.dst_node_id != 993:
            return client_mod(message, context, call_next)
        try:
            return guarded(message, context, call_next)
        except BudgetSpent as error:  # Flower reports any exception
            refusals.append(str(error))
            raise ConfigError("refused") from None

    secure = {"noise_multiplier": 0.05, "randomness": "secure"}
    strategy, moves = wrapped(clients=2, cohort=2, sampling="all", rounds=3, **secure), []
    for number in (1, 2, 3):
        arrays, _ = one_round(strategy, Nodes(2, by(1.0), mods=[mod]), number=number)
        moves.append(np.linalg.norm(vector(arrays) - vector(model())))
    np.testing.assert_allclose(moves, [1.0, 1.0, 0.5], atol=0.2)
    assert len(refusals) == 1
    assert "It was not released" in refusals[0]
    assert strategy._heads == {1: ledger.head} or strategy._heads == {0: ledger.head}
    assert ledger.report()["client"]["units_left"] == 0


def test_a_mod_wants_its_server_and_possible_terms():
    grid = Nodes(1, by(1.0), mods=[client_mod])
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    (message,) = FedAvg(min_available_nodes=1, min_train_nodes=1).configure_train(1, model(), ConfigRecord(), grid)
    refused(ConfigError, "without the record 'dpfed'", grid._good, message, 1000)
    strategy = wrapped(clients=1, cohort=1, sampling="all", delta=1e-5)
    (message,) = strategy.configure_train(1, model(), ConfigRecord(), grid)
    refused(ConfigError, "--node-config", lambda: Nodes(1, by(1.0), mods=[node_mod()])._good(message, 1000))
    for name, value in (("clip_norm", math.nan), ("kept", 99), ("dimension", 3), ("round", -1), ("scheme", 5)):
        record = ConfigRecord({**message.content["dpfed"], name: value})
        message.content["dpfed"], kept = record, message.content["dpfed"]
        refused((WireError, ConfigError), "", grid._good, message, 1000)
        message.content["dpfed"] = kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_at": "clients"}, "dpfed deploy"),
        ({"compress": "fedpm"}, "not updates"),
        ({"compress": "zip"}, "compressor 'zip'"),
        ({"inner": FedAvg(min_available_nodes=11)}, "wait for ever"),
        ({"inner": FedAvg(fraction_train=0.0)}, "trains no node"),
        ({"inner": "fedavg"}, "must be a flwr"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(settings, words):
    refused(ConfigError, words, wrapped, **settings)


def test_an_impossible_plan_is_refused_before_a_node_is_asked():
    grid = Nodes(10, by(1.0))
    refused((ConfigError, AccountingError), "", wrapped(cohort=11).configure_train, 1, model(), ConfigRecord(), grid)
    refused(RunError, "no round has begun", lambda: wrapped().guarantee())


def test_a_ledger_is_gone_on_with(tmp_path):
    ledger, grid = tmp_path / "l.jsonl", Nodes(10, by(1.0))
    one_round(wrapped(ledger=ledger), grid)
    again = wrapped(ledger=ledger)
    for number in (1, 2):
        one_round(again, grid, number=number)
    assert [entry.round for entry in Ledger.read(ledger).releases] == [0, 1, 2]
    assert one_round(again, grid, number=3) == (None, None)
    assert json.loads(ledger.read_text().splitlines()[0])["clients"] == 10


def shift_in_noise(rounds=12):
    """How far one node of four moves the model when it sends an update 400 clip norms long instead of none, in
    standard deviations of the noise, which is one clip norm on the sum. Two worlds, noise of their own; the difference
    of the means of n rounds deviates by sqrt(2 / n)."""
    scores = {}
    for world, amount in (("nothing", 0.0), ("far beyond the clip norm", 100.0)):
        plan = {"clients": 4, "cohort": 4, "sampling": "all", "adjacency": "zero-out", "rounds": rounds}
        strategy = wrapped(**plan, noise_multiplier=1.0, seed=len(world))
        grid = Nodes(4, lambda array, name, node, amount=amount: by(amount * (node == 1000))(array, name, node))
        moves = [vector(one_round(strategy, grid, number=k)[0]) - vector(model()) for k in range(1, rounds + 1)]
        scores[world] = np.mean([move.sum() for move in moves])  # 4 times the mean, along ones / 4
    return scores["far beyond the clip norm"] - scores["nothing"]


def test_one_node_moves_the_model_by_no_more_than_is_charged():
    """Limit 1 + 5 sqrt(2 / 12) = 3.05: false alarm 3e-7 (seeded: none)."""
    assert shift_in_noise() < 1 + 5 * math.sqrt(2 / 12)


def test_a_server_that_does_not_clip_is_found(monkeypatch):
    monkeypatch.setattr(Clip, "client", lambda self, rows, ids, now: rows)
    assert shift_in_noise() > 300


def test_flowers_own_strategy_charges_our_accountant_and_stops_at_its_budget(tmp_path):
    """No-amplification is the reading that Flower's wrapper takes; ten nodes of ten, noise multiplier 1."""
    types = pytest.importorskip("flwr.supercore.privacy_accounting", reason="flwr has no accounting")
    from flwr.serverapp.exception import PrivacyBudgetExhausted
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Fixed

    from dpfed.engines.flower.accountant import FlowerAccountant

    config = types.PrivacyConfig(
        target_delta=1e-3,
        population_size=10,
        neighboring_relation=types.NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=types.SamplingMethod.NO_AMPLIFICATION,
        max_epsilon=6.0,
    )
    ledger, grid = tmp_path / "l.jsonl", Nodes(10, by(1.0))
    equal = Nodes._good  # nodes report how many examples they have; Flower's accounting wants them equal
    grid._good = lambda message, node: _one_example(equal(grid, message, node))
    accountant = FlowerAccountant(config, ledger=ledger)
    strategy = Fixed(FedAvg(min_available_nodes=1, min_train_nodes=1), 1.0, 1.0, 10, accountant=accountant)
    start = ArrayRecord({"w": Array(np.zeros((4, 4), dtype=np.float32))})
    plan = Plan(clients=10, cohort=10, sampling="all", delta=1e-3)
    affordable = budget.rounds(plan, epsilon=6.0, noise_multiplier=1.0)
    for number in range(1, affordable + 1):
        one_round(strategy, grid, start, number)
    refused(PrivacyBudgetExhausted, "", one_round, strategy, grid, start, affordable + 1)
    assert Ledger.read(ledger).guarantee(1e-3).epsilon <= 6.0
    assert len(Ledger.read(ledger).releases) == affordable > 0


def _one_example(reply):
    reply.content["metrics"] = MetricRecord({"num-examples": 1})
    return reply
