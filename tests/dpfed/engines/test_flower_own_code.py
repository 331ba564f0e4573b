"""A compressor and a method of one's own on Flower's nodes: named in a file they are what they are in one process."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accounting import Ledger
from dpfed.compress import Floats, register
from dpfed.config import own_code
from dpfed.config.tables import parse
from dpfed.errors import ConfigError, RunError
from dpfed.runs.experiment import build
from dpfed.stages import RandomSharedMask

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
pytest.importorskip("ray", reason="ray is not installed: make test-flower")

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_compressor.py"
SMALL = ("federation.rounds=2", "federation.clients=8", "federation.cohort=4", "run.randomness=simulated")
PRIVATE = ("privacy.clip_norm=2", "privacy.noise_multiplier=1")


def test_a_named_file_runs_on_the_nodes_too(tmp_path, flower):
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    dpfed = Path(sys.executable).with_name("dpfed")
    words = [dpfed, "run", "masked-levels-digits", "--load", "mine.py"]
    words += [word for setting in (*SMALL, *PRIVATE) for word in ("--set", setting)]
    environment = flower(tmp_path)
    for engine in ("in-process", "flower"):
        command = [*words, "--engine", engine, "--out", engine]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
    here, there = (Ledger.read(tmp_path / engine / "ledger.jsonl") for engine in ("in-process", "flower"))
    assert here.entries == there.entries
    assert there.header.to_dict()["binding"]["own_code"]
    model = "model.safetensors"
    assert (tmp_path / "in-process" / model).read_bytes() == (tmp_path / "flower" / model).read_bytes()


class Whole:
    """Every entry, as it is."""

    def bits(self, dimension):
        return {"x": Floats(count=dimension)}

    def encode(self, x, seeds):
        return {"x": x}

    def decode(self, sent):
        return sent["x"]


@pytest.fixture
def registered_here():
    from dpfed.methods import register as method

    register("whole-here")(Whole)
    method("method-here", scheme="whole-here", sparse="yes")(
        lambda s: s.updates(RandomSharedMask(size=s.size, kept=s.kept))
    )
    yield
    own_code.forget_file(__file__)


def test_what_only_this_program_registers_is_refused_before_nodes_start(tmp_path, tables, registered_here):
    from dpfed.engines.flower.simulation import simulate

    experiment = build(parse(tables("method-here", "method.keep=0.5"), source="test"))
    with pytest.raises(ConfigError, match=r"nodes are other processes.*--load FILE.py"):
        simulate(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_no_more_nodes_can_join_a_refused_one_is_not_waited_for(grid, tables):
    """All eight nodes of another configuration answer and are refused: an error at once, not after its patience."""
    from dpfed.engines.flower.directory import NodeDirectory

    nodes = grid(tables("fedavg", "federation.clients=8", "federation.cohort=4"))
    directory = NodeDirectory(nodes, clients=8, fingerprint="another", patience=1e6)
    with pytest.raises(RunError, match=r"no simulated node can be a client; node .* was refused"):
        directory.wait_for_nodes(more_may_join=False)
