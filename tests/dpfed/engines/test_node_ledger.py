"""A node's own ledger: what it charges and refuses, and what a killed, copied or restored node does.

`test_flower_node_ledger.py` has two nodes of Flower.
"""

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
from refusals import refused

import dpfed
from accounting import DiscreteGaussian, Gaussian, Ledger, PoissonSampling, guarantee, subsample
from accounting.errors import BudgetSpent, InvalidParameter, LedgerError
from accounting.gaussian import smallest_epsilon
from accounting.ledger import backups, regular_file
from accounting.mechanisms import CappedPoissonSampling, Composed, CorrelatedRounds, FixedSizeSampling
from dpfed.engines.node_ledger import NodeLedger, RecordNoise, ServerPlan
from dpfed.engines.round_terms import checked_terms
from dpfed.errors import ConfigError, WireError

NOISE = Gaussian(noise_multiplier=4.0, adjacency="add-remove")
DRAWN = subsample(NOISE, PoissonSampling(probability=0.1))
PLAN = ServerPlan.of("run a", 100, DRAWN)
DELTA = 1e-5
LEDGERS = "node.jsonl", "node.jsonl.records"
RECORDS = {"records": 1000, "batch_size": 500, "steps": 5, "noise_multiplier": 8.0, "delta": DELTA}


def ledger(folder, epsilon=3.0, **more):
    return NodeLedger(folder / "node.jsonl", epsilon=epsilon, delta=DELTA, **more)


def answer(node, plan, number, upload=b"update"):
    return node.admit(plan, number, clip_norm=1.0) or node.keep(plan, number, upload)


def answered(node, plan, rounds):
    """Number of rounds until the node refuses."""
    for number in range(rounds):
        try:
            answer(node, plan, number)
        except BudgetSpent:
            return number
    return rounds


def test_rounds_are_charged_without_amplification_until_the_budget_is_spent(tmp_path):
    """Compare with the closed form: n rounds of noise 4 are one Gaussian of mu = sqrt(n) / 4."""
    node = ledger(tmp_path)
    most = next(n for n in range(1, 100) if smallest_epsilon(0.99 * DELTA, mu=(n + 1) ** 0.5 / 4) > 3.0)
    assert most - 1 <= answered(node, PLAN, 100) <= most
    assert node.report()["client"]["spent_epsilon"] <= 3.0
    assert "on the server's word" in str(node)


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_that_is_lost_beside_its_head_is_not_begun_anew(tmp_path, name):
    """A new one had the whole budget again, for every server but the one that knew a line of the old."""
    more = {} if name == "node.jsonl" else {"records": RecordNoise.poisson(**RECORDS, epsilon=1.5)}
    answer(ledger(tmp_path, **more), PLAN, 0)
    (tmp_path / name).unlink()
    refused(LedgerError, "would forget", ledger, tmp_path, **more)


def test_one_ledger_for_all_servers(tmp_path):
    alone = answered(ledger(tmp_path / "a"), PLAN, 100)
    node = ledger(tmp_path / "b")
    assert answered(node, PLAN, 4) == 4
    other = ServerPlan.of("run b", 100, subsample(NOISE, PoissonSampling(probability=0.5)))
    assert answered(ledger(tmp_path / "b"), other, 100) == alone - 4
    assert node.report()["runs"] == {"run a": 4, "run b": alone - 4}


def test_a_server_of_less_noise_is_bought_whole_or_refused_before_its_first_round(tmp_path):
    node = ledger(tmp_path)
    answer(node, PLAN, 0)
    louder = Gaussian(noise_multiplier=3.0, adjacency="add-remove")
    refused(BudgetSpent, "plan fewer rounds", lambda: answer(node, ServerPlan.of("run c", 50, louder), 0))
    bought = ServerPlan.of("run d", 2, louder)
    assert answered(node, bought, 2) == 2
    together = Composed(parts=((NOISE, 1), (louder, 2)))
    assert guarantee(together, delta=DELTA).epsilon <= 3.0
    assert node.report()["client"]["spent_epsilon"] <= 3.0


@pytest.mark.parametrize(
    "mechanism",
    [
        subsample(Gaussian(noise_multiplier=8.0, adjacency="zero-out"), FixedSizeSampling(cohort=2, clients=9)),
        subsample(Gaussian(noise_multiplier=8.0, adjacency="replace-one"), PoissonSampling(probability=0.1)),
        subsample(
            Gaussian(noise_multiplier=8.0, adjacency="zero-out"),
            CappedPoissonSampling(probability=0.1, cap=3, clients=9),
        ),
    ],
    ids=["fixed", "replace-one", "cap"],
)
def test_a_plan_without_later_refusals_is_charged_whole_or_refused_before_round_1(tmp_path, mechanism):
    """Two clip norms over noise 8: as many rounds as of noise 4 under add-remove."""
    most = answered(ledger(tmp_path / "a"), PLAN, 100)
    node = ledger(tmp_path / "b")
    refused(BudgetSpent, "Round 1 was not answered", answer, node, ServerPlan.of("too long", most + 1, mechanism), 0)
    assert node.report()["runs"] == {}
    plan = ServerPlan.of("fits", most, mechanism)
    assert answered(node, plan, most) == most
    assert node.report()["runs"] == {"fits": most}
    assert node.report()["client"]["units_left"] == 0


def test_records_are_charged_for_every_upload_and_never_added(tmp_path):
    records = RecordNoise.poisson(**RECORDS, epsilon=1.5)
    node = ledger(tmp_path, epsilon=50.0, records=records)
    uploads = answered(node, PLAN, 100)
    step = subsample(Gaussian(noise_multiplier=8.0, adjacency="add-remove"), PoissonSampling(probability=0.5))
    spent = [guarantee(Composed(parts=((step, 5 * n),)), delta=DELTA).epsilon for n in (uploads, uploads + 1)]
    assert spent[0] <= 1.5 < spent[1]
    found = node.report()
    assert found["records"]["uploads_left"] == 0
    assert found["records"]["spent_epsilon"] == pytest.approx(spent[0])
    charged = Ledger.read(tmp_path / "node.jsonl.records").if_fixed_in_advance(DELTA)
    assert charged.unit == "record"
    assert charged.epsilon == pytest.approx(spent[0])
    assert found["client"]["spent_epsilon"] == pytest.approx(smallest_epsilon(DELTA, mu=uploads**0.5 / 4), rel=1e-6)
    refused(LedgerError, "other noise", lambda: ledger(tmp_path, epsilon=50.0, records=replace(records, steps=6)))
    refused(LedgerError, "promised", ledger, tmp_path, epsilon=60.0, records=records)
    refused(LedgerError, "budget of a record", ledger, tmp_path, epsilon=50.0)
    refused(LedgerError, "budget of a client", NodeLedger, tmp_path / "node.jsonl", records=records)


def test_a_symbolic_link_names_the_ledger_of_records_too(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "node.jsonl").symlink_to(tmp_path / "node.jsonl")
    records = RecordNoise.poisson(**RECORDS, epsilon=4.0)
    answer(ledger(tmp_path, records=records), PLAN, 0)
    assert ledger(tmp_path / "there", records=records).report()["records"]["uploads"] == 1


def test_a_ledger_of_records_alone(tmp_path):
    """Charges and refuses uploads as beside a client's budget; an app that protects clients is refused."""
    node = NodeLedger(tmp_path / "node.jsonl", records=RecordNoise.poisson(**RECORDS, epsilon=1.5))
    plan = ServerPlan(run="run a", rounds=100, release="", whole_plan=False)
    both = ledger(tmp_path / "both", epsilon=50.0, records=node.records)
    assert answered(node, plan, 100) == answered(both, PLAN, 100)
    assert node.report()["records"] == both.report()["records"]
    assert "client" not in node.report()
    assert "0 uploads left" in str(node)
    refused(LedgerError, "budget of a record", ledger, tmp_path)


def test_a_round_that_is_asked_again_gets_the_stored_upload(tmp_path):
    node = ledger(tmp_path, records=RecordNoise.poisson(**RECORDS | {"batch_size": 1000}, epsilon=4.0))
    assert [answer(node, PLAN, number, b"first") for number in (0, 0)] == [b"first", b"first"]
    assert answer(ledger(tmp_path, records=node.records), PLAN, 0, b"second") == b"first"
    answer(node, PLAN, 1)
    refused(BudgetSpent, "is over", answer, node, PLAN, 0)
    assert node.report()["records"]["uploads"] == 2


def test_an_upload_that_a_restored_ledger_lacks_is_charged_again(tmp_path):
    """The newest copies of both ledgers come back, the stored upload does not: another one left under its charge."""
    records = RecordNoise.poisson(**RECORDS, epsilon=4.0)
    node = ledger(tmp_path / "node", records=records)
    answer(node, PLAN, 0, b"first")
    copies = [backups.backup(tmp_path / "node" / name, tmp_path / "copy") for name in LEDGERS]
    shutil.rmtree(tmp_path / "node")
    (tmp_path / "node").mkdir()
    for name, copy in zip(LEDGERS, copies, strict=True):
        backups.restore(copy.path, tmp_path / "node" / name, last_head=copy.head)
    node = ledger(tmp_path / "node", records=records)
    assert [answer(node, PLAN, 0, upload) for upload in (b"second", b"third")] == [b"second", b"second"]
    assert node.report()["records"]["uploads"] == 2
    assert node.report()["runs"] == {"run a": 1}, "an honest server releases one sum of this number"


def test_of_two_processes_that_answer_one_charge_only_the_first_upload_is_sent(tmp_path):
    """Both are admitted before either has stored its upload; the noise of each is drawn anew."""
    records = RecordNoise.poisson(**RECORDS, epsilon=4.0)
    one, two = (ledger(tmp_path, records=records) for _ in range(2))
    assert [node.admit(PLAN, 0, clip_norm=1.0) for node in (one, two)] == [None, None]
    assert [one.keep(PLAN, 0, b"first"), two.keep(PLAN, 0, b"second")] == [b"first", b"first"]
    assert [node.admit(PLAN, number, clip_norm=1.0) for node, number in ((one, 1), (two, 2))] == [None, None]
    two.keep(PLAN, 2, b"later")
    refused(BudgetSpent, "is over", one.keep, PLAN, 1, b"late")
    assert answer(one, PLAN, 2) == b"later", "no older upload takes the place of the stored one"
    assert one.report()["records"]["uploads"] == 3


@pytest.mark.parametrize("given", [{"epsilon": 1.0}, {"delta": DELTA}, {}], ids=str)
def test_a_ledger_that_would_charge_nothing_is_refused(tmp_path, given):
    refused(ConfigError, "would charge nothing", NodeLedger, tmp_path / "node.jsonl", **given)


def test_noise_of_no_records_is_refused():
    refused(InvalidParameter, "records=0", RecordNoise.poisson, **RECORDS | {"records": 0}, epsilon=1.0)


def test_a_copied_or_restored_node_refuses(tmp_path):
    records = RecordNoise.poisson(**RECORDS | {"batch_size": 1000}, epsilon=4.0)
    node = ledger(tmp_path / "node", records=records)
    answer(node, PLAN, 0)
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    answer(node, PLAN, 1)
    seen = replace(PLAN, head=node.head)
    answer(node, seen, 2)
    refused(LedgerError, "copied, or restored", lambda: answer(ledger(tmp_path / "copy", records=records), seen, 2))
    for name in LEDGERS:  # older lines beside the newest head
        lines = (tmp_path / "node" / name).read_text()
        shutil.copy(tmp_path / "copy" / name, tmp_path / "node" / name)
        with pytest.raises(LedgerError):
            answer(ledger(tmp_path / "node", records=records), PLAN, 3)
        (tmp_path / "node" / name).write_text(lines)
    answer(ledger(tmp_path / "node", records=records), PLAN, 3)


def run_node(folder, plan, rounds, kill_at=None):
    """Answer rounds in a forked process, each upload with a fresh number, sent by a line on the wire.

    The process kills itself before or after its file operation number kill_at.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        done, names = 0, ("create", "append", "replace_content")

        def counted(name, real):
            def operation(*given, **more):
                nonlocal done
                if kill_at == (done, "before"):
                    os.kill(os.getpid(), signal.SIGKILL)
                real(*given, **more)
                if kill_at == (done, "after"):
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

            return operation

        for name in names:
            setattr(regular_file, name, counted(name, getattr(regular_file, name)))
        node = ledger(folder, records=RecordNoise.poisson(**RECORDS | {"batch_size": 1000}, epsilon=4.0))
        for number in range(rounds):
            try:
                upload = answer(node, plan, number, os.urandom(8).hex().encode())
            except BudgetSpent:  # a later round was answered, so this one is over
                continue
            with (folder / "wire").open("a") as wire:
                wire.write(f"{number} {upload.decode()}\n")
        os._exit(0)
    except BaseException:
        os._exit(2)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_killed_at_every_operation_a_node_loses_and_doubles_nothing(tmp_path, whole):
    """After a restart each round has one upload, one line of records and one client-level line."""
    plan, kills = replace(PLAN, rounds=3, whole_plan=whole), 0
    for place in range(60):
        for when in ("before", "after"):
            folder = tmp_path / f"{place}-{when}"
            folder.mkdir()
            died = run_node(folder, plan, 2, (place, when))
            kills += died != 0
            sent = (folder / "wire").read_text().splitlines() if (folder / "wire").exists() else []
            lines = (folder / "node.jsonl.records").read_text().splitlines()[1:] if sent else []
            assert len(lines) >= len(sent), "an upload left before its line"
            for _ in range(2):  # the server asks for both rounds again; a round that is over is refused
                assert run_node(folder, plan, 2) == 0
            wire = {tuple(line.split()) for line in (folder / "wire").read_text().splitlines()}
            assert len(wire) == len({number for number, _ in wire}) == 2, (place, when, wire)
            node = ledger(folder, records=RecordNoise.poisson(**RECORDS | {"batch_size": 1000}, epsilon=4.0))
            assert node.report()["records"]["uploads"] == 2
            assert node.report()["runs"] == {"run a": 3 if whole else 2}
        if died == 0:
            break
    assert kills >= 12


def test_declarations(tmp_path):
    assert ServerPlan.read(PLAN.to_json()) == PLAN
    assert json.loads(PLAN.release)["kind"] == "gaussian"
    for text in ("", "{}", "[]", json.dumps({"run": "a"})):
        refused(WireError, "no declaration", ServerPlan.read, text)
    refused(WireError, "cannot be read", lambda: ledger(tmp_path).admit(replace(PLAN, release="{}"), 0, clip_norm=1.0))
    with pytest.raises(WireError, match="without sampling"):
        ledger(tmp_path).admit(replace(PLAN, release=json.dumps(DRAWN.to_dict())), 0, clip_norm=1.0)
    refused(BudgetSpent, "of a plan", ledger(tmp_path).admit, replace(PLAN, whole_plan=True), 100, clip_norm=1.0)
    refused(WireError, "simulated", lambda: ledger(tmp_path).admit(replace(PLAN, run=""), 0, clip_norm=1.0))
    correlated = subsample(NOISE, CorrelatedRounds(coefficients=(1.0, 0.5), separation=1, participations=3))
    refused(WireError, "correlated", ledger(tmp_path).admit, ServerPlan.of("c", 3, correlated), 0, clip_norm=1.0)
    discrete = DiscreteGaussian(dimension=8, l2_bound=10.0, share_variance=400.0, adjacency="zero-out")
    fixed = ServerPlan.of("d", 3, subsample(discrete, FixedSizeSampling(cohort=2, clients=9)))
    assert fixed.mechanism().adjacency == "replace-one"


def test_a_loop_declares_what_it_charges(tmp_path):
    private = dpfed.ClientLevel(
        clients=10, cohort=3, clip_norm=1.0, rounds=2, noise_multiplier=4.0, dimension=5, ledger=tmp_path / "l.jsonl"
    )
    plan = ServerPlan.of(private.run, private.rounds_planned, private.mechanism)
    assert plan.run == Ledger.read(private.ledger).identity
    answer(ledger(tmp_path), plan, 0)
    loops = [
        dpfed.ClientLevel(clients=10, cohort=3, clip_norm=1.0, rounds=2, noise_multiplier=4.0, randomness=drawn)
        for drawn in ("secure", "secure", "simulated")
    ]
    assert len({one.run for one in loops}) == 3, "equal plans are different runs"
    assert loops[2].run == "", "of simulated noise no node can tell"
    terms = {"round": 0, "client": 0, "clip_norm": 1.0, "dimension": 5, "kept": 5, "seed": 0, "scheme": "dense"}
    assert checked_terms({**terms, "options": "{}", "arrays": "", "plan": plan.to_json()}).plan == plan.to_json()
