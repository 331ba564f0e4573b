"""NVFlare: what filters send is what the server reads; the ledger says what was drawn, also when clients fail."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused

pytest.importorskip("nvflare", reason="nvflare is not installed: make test-nvflare")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from accounting import Ledger
from accounting.gaussian import smallest_epsilon
from dpfed import ClientLevel
from dpfed.audit.run import audit_run
from dpfed.engines.nvflare.client_level_controller import ClientLevelFedAvg
from dpfed.engines.nvflare.update_filters import META, ClipUpdate, CompressUpdate, KeepTerms, update_in_result
from dpfed.engines.round_terms import RoundTerms
from dpfed.errors import ConfigError, RunError, WireError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "nvflare_job"
PAGE = (ROOT / "docs" / "nvflare.md").read_text(encoding="utf-8")
NAMES = ["site-1", "site-2", "site-3", "site-4"]
START = {"layer.weight": np.ones((3, 4), dtype=np.float32), "steps": np.array(7), "layer.bias": np.zeros(4, np.float32)}
PLAN = {"clients": 4, "cohort": 2, "clip_norm": 1.0, "rounds": 3, "noise_multiplier": 0.8, "delta": 1e-3}
TERMS = RoundTerms(round=1, client=2, clip_norm=1.0, dimension=16, kept=16, seed=0, scheme="dense", options="{}")


def context(name="site-3"):
    found = FLContext()
    found.set_prop(ReservedKey.IDENTITY_NAME, name, private=False, sticky=True)
    return found


def task(terms=TERMS):
    public = {name: value for name, value in vars(terms).items() if name != "client"}
    asked = FLModel(params=dict(START), params_type=ParamsType.FULL, meta={META: {**public, "clients": NAMES}})
    return FLModelUtils.to_shareable(asked)


def filtered(sent, terms=TERMS, name="site-3", end=None):
    """What leaves a client whose training moved every weight by 1, as the server gets it."""
    here = context(name)
    KeepTerms().process(task(terms), here)
    end = {key: value + 1 if value.dtype.kind == "f" else value for key, value in START.items()} if end is None else end
    result = DXO(DataKind.WEIGHTS, data=end, meta={"metrics": {"loss": 0.1}}).to_shareable()
    return FLModelUtils.from_shareable(sent().process(result, here))


def test_clipped_at_the_client():
    model = filtered(ClipUpdate)
    assert (model.params_type, set(model.params), model.metrics) == (ParamsType.DIFF, set(START) - {"steps"}, None)
    assert "metrics" not in model.meta
    row = update_in_result(model.params, "DIFF", START, TERMS)
    assert float(row.norm()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(row, torch.full((16,), 0.25), rtol=1e-5, atol=0)


@pytest.mark.parametrize("scheme", ["dense", "qsgd", "drive"])
@pytest.mark.parametrize("kept", [16, 8])
def test_compressed_at_the_client(scheme, kept):
    terms = replace(TERMS, scheme=scheme, kept=kept)
    model = filtered(CompressUpdate, terms)
    assert set(model.params) == {META}
    assert model.params[META].dtype == np.uint8
    assert model.params[META].tobytes() == terms.encode(torch.ones(16))
    row = update_in_result(model.params, "DIFF", START, terms)
    assert 0 < int((row != 0).sum()) <= kept


def test_training_in_place_is_an_update():
    here, sent = context(), task()
    KeepTerms().process(sent, here)
    model = FLModelUtils.from_shareable(sent)
    model.params["layer.weight"] += 0.1
    result = CompressUpdate().process(FLModelUtils.to_shareable(model), here)
    row = update_in_result(FLModelUtils.from_shareable(result).params, "DIFF", START, TERMS)
    torch.testing.assert_close(row, torch.tensor([0.1] * 12 + [0.0] * 4))


def test_whole_arrays_are_read_where_they_were_asked_for():
    ends = {name: value + 0.1 if value.dtype.kind == "f" else value for name, value in START.items()}
    torch.testing.assert_close(update_in_result(ends, "FULL", START, TERMS), torch.full((16,), 0.1))
    refused(WireError, "were asked for", lambda: update_in_result(ends, "FULL", START, replace(TERMS, kept=8)))


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"layer.weight": np.ones((4, 3), np.float32), "layer.bias": np.zeros(4, np.float32)},
        {"layer.weight": np.full((3, 4), "x"), "layer.bias": np.zeros(4, np.float32)},
        {META: np.zeros(3, np.float32)},
        {META: np.zeros(3, np.uint8)},
        {META: np.zeros((2, 2), np.uint8)},
        {"layer.weight": object(), "layer.bias": None},
        [1, 2],
    ],
)
def test_what_cannot_be_read_is_refused(params):
    refused(WireError, "", update_in_result, params, "DIFF", START, TERMS)


def test_filters_refuse_what_they_are_not_for():
    with pytest.raises(ConfigError, match="KeepTerms"):
        ClipUpdate().process(DXO(DataKind.WEIGHTS, data=dict(START)).to_shareable(), context())
    with pytest.raises(ConfigError, match="ClientLevelFedAvg"):
        KeepTerms().process(DXO(DataKind.WEIGHTS, data=dict(START)).to_shareable(), context())
    refused(WireError, "none of the job's clients", lambda: KeepTerms().process(task(), context("site-9")))
    refused(ConfigError, "without epsilon and delta", KeepTerms, "node.jsonl", epsilon=1.0)
    refused(ConfigError, "without ledger", KeepTerms, epsilon=1.0, delta=1e-5)
    refused(ConfigError, "CompressUpdate", lambda: filtered(ClipUpdate, replace(TERMS, kept=8)))
    refused(WireError, "clip_norm", lambda: KeepTerms().process(task(replace(TERMS, clip_norm=-1.0)), context()))


class Server(ClientLevelFedAvg):
    """The controller with clients that are functions of this process in place of NVFlare's."""

    def __init__(self, answer, *, there=NAMES, **plan):
        super().__init__(**plan)
        self.answer, self.asked, self.saved, self.said = answer, [], [], []
        self.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in reversed(there)])
        self.abort_signal, self.fl_ctx = SimpleNamespace(triggered=False), FLContext()

    def load_model(self):
        return FLModel(params=dict(START), params_type=ParamsType.FULL)

    def save_model(self, model):
        self.saved.append((model.params, len(Ledger.read(self.ledger).releases)))

    def send_model_and_wait(self, *, task_name, data, targets, timeout):
        assert targets, "NVFlare takes no targets for all clients"
        self.asked.append(tuple(targets))
        found = []
        for name in targets:
            for model in self.answer(name, data):
                found.append(model)
                model.meta["client_name"] = name
        return list(reversed(found))

    def info(self, message):
        self.said.append(message)

    debug = warning = info


def trained(name, data):
    ends = {key: value + 5 if value.dtype.kind == "f" else value for key, value in data.params.items()}
    return [FLModel(params=ends, params_type=ParamsType.FULL)]


def no_arrays(name, data):
    return []


def infinite(name, data):
    ends = {key: np.full_like(value, np.inf if value.dtype.kind == "f" else 0) for key, value in data.params.items()}
    return [FLModel(params=ends, params_type=ParamsType.FULL)]


def twice(name, data):
    return trained(name, data) * 2


@pytest.mark.parametrize("answer", [trained, no_arrays, infinite, twice])
def test_the_ledger_is_that_of_a_loop_whatever_clients_do(tmp_path, answer):
    server = Server(answer, ledger=str(tmp_path / "ledger.jsonl"), **PLAN)
    server.run()
    entries = Ledger.read(server.ledger)
    alone = ClientLevel(**PLAN, ledger=tmp_path / "alone.jsonl", dimension=16)
    for step in alone.rounds():
        step.release(torch.zeros(len(step.cohort), 16))
    assert server.guarantee().epsilon == alone.guarantee().epsilon
    assert [one for _, one in server.saved] == [1, 2, 3], "charged, then saved"
    assert len(entries.releases) == 3
    assert (entries.header.clients, entries.header.randomness) == (4, "secure")
    assert server.saved[-1][0]["steps"] == 7
    assert audit_run(Path(server.ledger), confidence=1 - 1e-6).verdict == "pass"
    unread = [line for line in server.said if "by noise alone" in line]
    assert len(unread) == (len(server.asked) if answer in (no_arrays, twice) else 0)


def test_an_empty_cohort_asks_no_client(tmp_path):
    """Poisson cohorts of a half of one in the mean: some are empty, and are released all the same."""
    plan = PLAN | {"cohort": 1, "rounds": 30, "randomness": "simulated", "ledger": str(tmp_path / "ledger.jsonl")}
    server = Server(trained, **plan)
    server.run()
    assert len(server.asked) < 30
    assert len(Ledger.read(server.ledger).releases) == 30


def test_an_update_moves_the_model_by_the_clip_norm_at_most(tmp_path):
    """All four, no noise to speak of: the mean of updates that were clipped to norm 1 has norm 1."""
    plan = PLAN | {"cohort": 4, "sampling": "all", "rounds": 1, "noise_multiplier": 1e-3}
    server = Server(trained, ledger=str(tmp_path / "ledger.jsonl"), **plan)
    server.run()
    ((end, _),) = server.saved
    move = np.concatenate([(end[name] - START[name]).ravel() for name in ("layer.weight", "layer.bias")])
    np.testing.assert_allclose(move, np.full(16, 0.25), atol=0.03)


def test_epsilon_ends_the_job(tmp_path):
    plan = PLAN | {"rounds": 50, "epsilon": 6.0, "ledger": str(tmp_path / "ledger.jsonl")}
    server = Server(trained, **plan)
    server.run()
    assert 1 <= len(server.saved) < 50
    assert server.guarantee().epsilon <= 6.0


def test_refusals(tmp_path):
    plan = PLAN | {"ledger": str(tmp_path / "ledger.jsonl"), "patience": 1}
    refused(RunError, "3 clients are connected", lambda: Server(trained, there=NAMES[:3], **plan).run())
    refused(RunError, "5 clients for clients=4", lambda: Server(trained, there=[*NAMES, "site-5"], **plan).run())
    refused(ConfigError, "sampling='cyclic'", Server, trained, **plan | {"sampling": "cyclic"})
    refused(ConfigError, "patience=0", Server, trained, **plan | {"patience": 0})
    refused(ConfigError, "fedpm", Server, trained, **plan | {"compress": "fedpm"})
    refused(RunError, "no round has begun", lambda: Server(trained, **plan).guarantee())
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.slow
def test_the_example_in_nvflares_simulator(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "job.py", tmp_path], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ledger = tmp_path / "ledger.jsonl"
    stated = str(Ledger.read(ledger).guarantee(1e-3))
    assert done.stdout.splitlines()[-1] == stated
    assert len(Ledger.read(ledger).releases) == 3
    assert audit_run(ledger, confidence=1 - 1e-6).verdict == "pass"
    assert "by noise alone" not in done.stdout + done.stderr


def test_what_the_page_says_of_svt_privacy():
    """The filter's own account at its defaults, for two sizes of a network."""
    rows = re.findall(r"^\| ([\d,]+) \(.*\) \| ([\d.,]+) \| ([\d.,]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 2
    for cells in rows:
        weights, once, thrice = (float(cell.replace(",", "")) for cell in cells)
        sent = SVTPrivacy()
        for _ in range(3 if weights < 10_000 else 1):
            dxo = DXO(DataKind.WEIGHT_DIFF, data={"all": np.zeros(int(weights), np.float32)})
            spent = sent.process_dxo(dxo, dxo.to_shareable(), context()).meta["svt_privacy_budget"]["epsilon_total"]
            assert spent == pytest.approx(once)
            assert spent == pytest.approx(0.01 * weights + 0.1)
        assert sent.get_privacy_spent() * (1 if weights < 10_000 else 3) == pytest.approx(thrice)


def alive(workspace):
    """Ids of processes of a proof-of-concept workspace."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if str(workspace) in line]


def port_is_taken():
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", 8002)) == 0


@pytest.mark.slow
def test_the_lines_of_the_page_run_the_example_in_processes(tmp_path):
    """A server and two clients of NVFlare's proof of concept, started, given the job and stopped as the page says."""
    if port_is_taken():
        pytest.skip("port 8002, which NVFlare's proof of concept takes, is in use")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    said, workspace = run_the_page(tmp_path)
    ledger = Ledger.read(tmp_path / "poc-run" / "ledger.jsonl")
    assert (ledger.header.clients, len(ledger.releases)) == (2, 3)
    assert f"from the ledger alone {str(ledger.guarantee(1e-3)).split()[1]}" in said
    logged = "".join(path.read_text() for path in workspace.rglob("server/poc_console.log"))
    assert "dpfed: round 2" in logged
    assert "by noise alone" not in logged


def run_the_page(tmp_path):
    """Run the lines of the page in a folder with its example; return their output and NVFlare's workspace."""
    (lines,) = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert lines.startswith("source .venv-nvflare/bin/activate\n")
    return run_lines(tmp_path, lines.partition("\n")[2])


def run_lines(tmp_path, lines):
    """Run lines of a shell in a folder, and stop NVFlare; return their output and NVFlare's workspace."""
    workspace = tmp_path / "workspace"
    here = os.environ | {
        "HOME": str(tmp_path),
        "NVFLARE_POC_WORKSPACE": str(workspace),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shell = {"cwd": tmp_path, "env": here, "capture_output": True, "text": True}
    try:
        done = subprocess.run(["bash", "-ec", lines], timeout=900, **shell)
    finally:
        subprocess.run(["nvflare", "poc", "stop"], timeout=120, check=False, **shell)
        end = time.monotonic() + 60
        while alive(workspace) and time.monotonic() < end:
            time.sleep(1)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert not alive(workspace), "poc stop ends every process"
    assert "COMPLETED" in done.stdout + done.stderr
    return done.stdout, workspace


@pytest.mark.slow
def test_two_sites_in_processes_keep_ledgers_and_one_refuses(tmp_path):
    """Budgets for three rounds of noise 4, and for one: site-2 answers the first round alone."""
    if port_is_taken():
        pytest.skip("port 8002, which NVFlare's proof of concept takes, is in use")
    shutil.copytree(ROOT / "examples" / "nvflare_job", tmp_path / "examples" / "nvflare_job")
    budgets = {f"site-{2 - (n == 3)}": smallest_epsilon(0.99e-5, mu=n**0.5 / 4) * 1.05 for n in (3, 1)}
    terms = f'KeepTerms(ledger=f"{tmp_path}/{{site}}/node.jsonl", epsilon={budgets}[site], delta=1e-5)'
    job = tmp_path / "examples" / "nvflare_job" / "job.py"
    text = job.read_text().replace("cohort=2 if clients > 2 else 1", 'cohort=clients, sampling="all"')
    job.write_text(text.replace("KeepTerms(), site", f"{terms}, site").replace("=0.8", "=4.0"))
    run_the_page(tmp_path)
    assert len(Ledger.read(tmp_path / "poc-run" / "ledger.jsonl").releases) == 3
    answered = [[one.round for one in Ledger.read(tmp_path / site / "node.jsonl").releases] for site in budgets]
    assert answered == [[0, 1, 2], [0]]
    stored = {path.name for site in budgets for path in (tmp_path / site).glob("*.upload")}
    assert len(stored) == 1, "one run, named by the server's ledger"


KILLED = """    mark = Path({place!r})
    if received is not None and received.current_round == 1 and number == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if received is None:"""
SUBMIT = "nvflare job wait $(nvflare job submit -j poc-run/private-digits | sed -n 's/^job_id: //p')"


@pytest.mark.slow
def test_a_site_killed_between_its_line_and_its_upload_is_charged_once(tmp_path):
    """NVFlare ends the job of a site that dies in round 2; the job that is submitted again goes on with its ledgers."""
    if port_is_taken():
        pytest.skip("port 8002, which NVFlare's proof of concept takes, is in use")
    shutil.copytree(ROOT / "examples" / "nvflare_job", tmp_path / "examples" / "nvflare_job")
    job, client = (tmp_path / "examples" / "nvflare_job" / f"{name}.py" for name in ("job", "client"))
    terms = f'KeepTerms(ledger=f"{tmp_path}/{{site}}/node.jsonl", epsilon=3.0, delta=1e-5)'
    text = job.read_text().replace("cohort=2 if clients > 2 else 1", 'cohort=clients, sampling="all", patience=60')
    job.write_text(text.replace("KeepTerms(), site", f"{terms}, site").replace("=0.8", "=4.0"))
    dying = client.read_text().replace("    if received is None:", KILLED.format(place=str(tmp_path / "killed")))
    client.write_text(dying.replace("import sys\n", "import os\nimport signal\nimport sys\nfrom pathlib import Path\n"))
    lines = ["nvflare poc prepare -n 2", "nvflare poc start"]
    lines += [f"python {job} poc-run --clients 2 --export", f"{SUBMIT} || echo ended", "nvflare poc stop"]
    run_lines(tmp_path, "\n".join([*lines, "echo COMPLETED"]))

    def rounds(path):
        return [one.round for one in Ledger.read(tmp_path / path).releases]

    sites = [f"site-{number}/node.jsonl" for number in (1, 2)]
    assert (tmp_path / "killed").exists()
    assert (rounds("poc-run/ledger.jsonl"), rounds(sites[0])) == ([0], [0, 1])
    assert rounds(sites[1]) in ([0], [0, 1]), "the end of the job may be earlier than its second round"
    run_lines(tmp_path, "\n".join(["nvflare poc start", SUBMIT, "nvflare poc stop"]))
    assert (rounds("poc-run/ledger.jsonl"), *map(rounds, sites)) == ([0, 1, 2], [0, 1, 2], [0, 1, 2])
