"""Every parser of bytes that others wrote: seeds of its format, and one call that accepts them or refuses them.

A `Parser`'s `parse` raises nothing but the documented families (`accounting.errors`, `dpfed.errors`). `sealed` puts
right what a forger would put right (checksums, chains, compression), so that mutations reach what lies behind.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import tomli_w
import torch
from reference.compressors import SETTINGS, make
from safetensors.numpy import save
from scipy.io import savemat

import dpfed.compress
from accounting import Aborted, Gaussian, Header, Ledger, LocalRelease, PoissonSampling, Release, Steps, Subsampled
from accounting.errors import AccountingError
from accounting.ledger import kept_head, population_key
from accounting.ledger.hash_chain import sealed as sealed_line
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import BernoulliAggregate
from accounting.mechanisms.integers import DiscreteGaussian
from dpfed.aggregation.messages import WIDTHS, MessageKind, read_table, write_table
from dpfed.compress.mask_bytes import mask_from_bytes, mask_to_bytes
from dpfed.config import tables as config
from dpfed.data.arrays import load_arrays
from dpfed.data.cifar import load_cifar10
from dpfed.data.idx import read_idx
from dpfed.data.mat import read_mat
from dpfed.data.shakespeare import load_shakespeare, load_shakespeare_leaf
from dpfed.errors import DpfedError
from dpfed.methods import presets
from dpfed.models import mask_file
from dpfed.report.collection import collect, write_results
from dpfed.report.readings import readings_of
from dpfed.report.statistics import groups_of
from dpfed.report.statistics import write_table as write_statistics
from dpfed.run import checkpoint, ledger_signature
from dpfed.run.binding import Binding
from dpfed.server.state import ServerState
from dpfed.sweep.experiment_file import read_experiment
from dpfed.sweep.published import read_published

DOCUMENTED = (AccountingError, DpfedError)
"""The two families of errors. Whatever else a parser raises is a fault."""

D = 24
SESSION = b"0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Parser:
    """`parse` reads bytes; `seeds` are bytes that it accepts, before `sealed`."""

    seeds: Callable[[], list[bytes]]
    parse: Callable[[bytes], object]
    sealed: Callable[[bytes], bytes] | None = None

    def accepts(self, content: bytes) -> bool:
        """Whether the bytes are read; False where they are refused as documented."""
        try:
            self.parse(content)
        except DOCUMENTED as error:
            assert 10 < len(str(error)) < 20_000, "a message that says nothing, or too much"
            return False
        return True


@cache
def _folder() -> Path:
    fast = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="dpfed-fuzz-", dir=fast if fast.is_dir() else None))


def clean_up() -> None:
    """Remove what `parse` has written."""
    shutil.rmtree(_folder(), ignore_errors=True)
    _folder.cache_clear()
    _signed.cache_clear()


def _file(content: bytes, name: str) -> Path:
    path = _folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# Uploads


def _payload_seeds() -> list[bytes]:
    x = torch.randn(1, D, generator=torch.Generator().manual_seed(1)) ** 3
    return [make(setting).encode(x, seed=1)[0].to_bytes()[:-4] for setting in SETTINGS]


def _payload(content: bytes) -> None:
    payload = dpfed.compress.from_bytes(content, dimension=D)
    decoded = payload.scheme.decode([payload])
    assert decoded.shape == (1, D)
    assert torch.isfinite(decoded).all()


def _with_crc(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4, "little")


def _mask_seeds() -> list[bytes]:
    bits = np.arange(40) % 3 == 0
    return [mask_to_bytes(bits, _shares()), mask_to_bytes(~bits, _shares())]


def _shares() -> np.ndarray:
    return np.linspace(0, 1, 40, dtype=np.float32)


def _mask(content: bytes) -> None:
    assert len(mask_from_bytes(content, _shares())) == 40


# Secure sums


def _table_seeds() -> list[bytes]:
    return [
        bytes([kind]) + write_table(kind, SESSION, 3, {client: bytes(WIDTHS.get(kind, 12)) for client in range(4)})
        for kind in MessageKind
    ]


def _table(content: bytes) -> None:
    kind = MessageKind(content[0] % len(MessageKind)) if content else MessageKind.UPLOAD
    rows = read_table(content[1:], kind, SESSION, most=8, width=WIDTHS.get(kind, 12))
    assert list(rows) == sorted(rows)


# Ledgers

_SAMPLED = Subsampled(
    mechanism=Gaussian(noise_multiplier=1.2, adjacency="add-remove"), sampling=PoissonSampling(probability=0.05)
)
_COINS = BernoulliAggregate(dimension=50, floor=0.2, adjacency="zero-out", l2_clip=0.1, cohort=9, overflow=1e-9)
_INTEGERS = DiscreteGaussian(
    dimension=64, l2_bound=50.0, share_variance=400.0, shares=9, adjacency="zero-out", overflow=1e-9
)


def _ledger_seeds() -> list[bytes]:
    def release(number: int, mechanism: object) -> Release:
        one = Release(round=number, mechanism=mechanism, clip_norm=1.0, noise_std=2.0, noise_placement="server")
        return replace(one, detail={"run": "a"})

    steps = Steps(mechanism=_SAMPLED, count=3, clients=(0, 4, 7))
    local = LocalRelease(round=0, steps=(steps,), clip_norm=1.0, noise_std=2.0)
    files = [
        ("client", [release(0, _SAMPLED), release(1, _SAMPLED), Aborted(round=2, reason="too few")]),
        ("client", [release(0, _COINS), release(1, _INTEGERS)]),
        ("record", [local]),
    ]
    contents = []
    for unit, entries in files:
        about = {"project": {"epsilon": 3.0, "delta": 1e-5}} if unit == "client" else {}
        new = {"population": "0" * 64, "binding": {"start": "1" * 64}} if unit == "record" else {}
        header = Header(unit=unit, clients=10, randomness="simulated", about=about, **new)
        lines = [header.to_dict(), *(entry.to_dict() for entry in entries)]
        contents.append(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return contents


def _chained(content: bytes) -> bytes:
    """Every line that is an object gets the hash that it should have."""
    lines, chain = [], ""
    for line in content.split(b"\n"):
        try:
            record = json.loads(line)
            record.pop("chain", None)
            whole, chain = sealed_line(record, chain)
        except (ValueError, AttributeError, RecursionError):
            whole = line + b"\n"
        lines.append(whole)
    return b"".join(lines)[:-1]


def _ledger(content: bytes) -> None:
    ledger = Ledger.so_far(_file(content, "ledger.jsonl"))
    json.dumps([entry.to_dict() for entry in ledger.entries], allow_nan=False)
    Ledger.resume(ledger.path)


def _project(content: bytes) -> None:
    project = ProjectLedger.open(_file(content, "project.jsonl"))
    assert 0 < project.terms.delta < 1


def _head(content: bytes) -> None:
    found = kept_head.read(_file(content, "l.jsonl.head").with_name("l.jsonl"))
    assert found is None or len(bytes.fromhex(found)) == 32


def _key(content: bytes) -> None:
    found = population_key.read(_file(content, "population.key"))
    assert found is None or len(found) == 32


@cache
def _signed() -> tuple[Ledger, Path]:
    """A ledger of one line, and a public key that has signed it."""
    ledger = Ledger.so_far(_file(_chained(_ledger_seeds()[1]), "signed.jsonl"))
    private = _folder() / "operator.pem"
    public = ledger_signature.generate(private)
    ledger_signature.sign(ledger, private)
    return ledger, public


def _signature_seeds() -> list[bytes]:
    return [ledger_signature.path_of(_signed()[0].path).read_bytes()]


def _signature(content: bytes) -> None:
    ledger, public = _signed()
    _file(content, "signed.jsonl.sig")
    assert ledger_signature.verified(ledger, public).head == ledger.head


# Runs


def _state() -> ServerState:
    return ServerState(round=0, broadcast=torch.zeros(5), clip_norm=1.0)


_BINDING = Binding(configuration="a", population="b", start="c")


def _checkpoint_seeds() -> list[bytes]:
    saved = checkpoint.Checkpoint(
        state=replace(_state(), stages={"kept": torch.ones(2, 3)}), report={"metrics": {"round": 0}}
    )
    return [checkpoint.to_bytes(saved, binding=_BINDING)]


def _checkpoint(content: bytes) -> None:
    found = checkpoint.read(_file(content, "checkpoint.safetensors"), binding=_BINDING, start=_state())
    assert found.state.broadcast.shape == (5,)


def _saved_mask_seeds() -> list[bytes]:
    recipe = mask_file.Recipe(
        model="mlp", input_shape=(1, 2, 2), classes=2, options={"hidden": [3]}, seed=1, constant="kaiming",
        biases="masked", scale=1.0, spread=0.1,
    )  # fmt: skip
    network = recipe.build()
    return [mask_file.mask_file(recipe, network, torch.ones(len(network.initial), dtype=torch.bool))]


def _saved_mask(content: bytes) -> None:
    mask_file.load_mask(_file(content, "model.mask.safetensors"))


def _config_seeds() -> list[bytes]:
    return [tomli_w.dumps(presets.tables(name)).encode() for name in presets.names()[::9]]


def _config(content: bytes) -> None:
    config.parse(config.read_toml(_file(content, "config.toml")), source="config.toml")


def _setting(content: bytes) -> None:
    config.override({"data": {"name": "digits"}}, [content.decode(errors="replace")])


_EXPERIMENT = b"""title = "one"
x = "local.epochs"
[base.federation]
rounds = 3
[axes]
"local.epochs" = [1, 2]
[[row]]
name = "a"
preset = "dp-fedavg-digits"
[[row]]
name = "b"
set = {"privacy.noise_multiplier" = 1.5}
[profiles.small]
rows = ["a"]
note = "less"
"""


def _experiment(content: bytes) -> None:
    read_experiment(_file(content, "experiment.toml"))


# Data sets


def _idx_seeds() -> list[bytes]:
    return [struct.pack(">HBB3I", 0, 8, 3, 2, 3, 4) + bytes(range(24)), struct.pack(">HBB3I", 0, 8, 3, 0, 3, 4)]


def _idx(content: bytes) -> None:
    assert read_idx(_file(content, "images-idx3-ubyte"), axes=3).ndim == 3


def _zipped_idx(content: bytes) -> None:
    assert read_idx(_file(content, "images-idx3-ubyte.gz"), axes=3).ndim == 3


def _mat_seeds() -> list[bytes]:
    arrays = {"X": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.array([[1.0], [2.0]]), "text": "words"}
    contents = []
    for compressed in (False, True):
        buffer = io.BytesIO()
        savemat(buffer, arrays, do_compression=compressed)
        contents.append(buffer.getvalue())
    return contents


def _deflated_mat(content: bytes) -> bytes:
    """A file of one compressed element: the mutated bytes behind the header, deflated."""
    packed = zlib.compress(content[128:], 1)
    return _mat_seeds()[0][:128] + struct.pack("<II", 15, len(packed)) + packed


def _mat(content: bytes) -> None:
    assert set(read_mat(_file(content, "file.mat"), {"X", "y"})) == {"X", "y"}


def _one_mat_seeds() -> list[bytes]:
    contents = []
    for array in (np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.empty((0, 3, 4, 5), dtype=np.uint8)):
        buffer = io.BytesIO()
        savemat(buffer, {"X": array})
        contents.append(buffer.getvalue())
    return contents


def _one_mat(content: bytes) -> None:
    assert set(read_mat(_file(content, "file.mat"), {"X"})) == {"X"}


def _cifar_seeds() -> list[bytes]:
    return [bytes([3]) + bytes(3072), bytes(3073 * 2)]


def _cifar(content: bytes) -> None:
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        _file(_cifar_seeds()[0], f"cifar-10-batches-bin/{name}.bin")
    _file(content, "cifar-10-batches-bin/data_batch_3.bin")
    load_cifar10(_folder())


def _play(lines: int) -> bytes:
    speech = "All the world's a stage, and all the men and women merely players.\n" * lines
    return f"JAQUES:\n{speech}\nORLANDO:\n{speech}".encode()


def _shakespeare(content: bytes) -> None:
    _file(content, "shakespeare/input.txt")
    load_shakespeare(_folder())


def _leaf_seeds() -> list[bytes]:
    user = {"x": ["a" * 80, "b" * 80], "y": ["c", "d"]}
    return [json.dumps({"users": ["A", "B"], "num_samples": [2, 2], "user_data": {"A": user, "B": user}}).encode()]


def _leaf(content: bytes) -> None:
    _file(_leaf_seeds()[0], "shakespeare/data/test/a.json")
    _file(content, "shakespeare/data/train/a.json")
    load_shakespeare_leaf(_folder())


def _arrays() -> dict[str, np.ndarray]:
    labels = np.array([0, 1, 2], dtype=np.int64)
    inputs = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    return {"train_inputs": inputs, "train_labels": labels, "test_inputs": inputs, "test_labels": labels}


def _own_data_seeds() -> list[bytes]:
    halves = {name: array.astype(np.uint8) for name, array in _arrays().items()}
    owned = _arrays() | {"train_clients": np.array([5, -7, 5], dtype=np.int32)}
    return [save(_arrays()), save(owned, metadata={"classes": "4"}), save(halves, metadata={"classes": "3"})]


def _own_data(content: bytes) -> None:
    for classes in (4, None):
        found = load_arrays(_file(content, "mine.safetensors"), classes=classes)
        assert found.classes in (3, 4)
        assert 0 <= found.train_labels.min() <= found.train_labels.max() < found.classes


def _header(content: bytes) -> bytes:
    """The length that the header should have: up to the braces that end its tensors, and the spaces after them."""
    end = content.find(b"}}") + 2
    end += len(content[end:]) - len(content[end:].lstrip(b" "))
    return struct.pack("<Q", max(end - 8, 0)) + content[8:]


# Folders


_SUMMARY = {
    "method": "dp-fedavg", "dataset": "digits", "seed": 1, "rounds": 2, "seconds": 1.5, "epsilon": 1.0, "delta": 1e-5,
    "noise_multiplier": 1.1, "clients": 60, "cohort": 12, "unit": "client", "sampling": "poisson", "test_accuracy": 0.5,
    "adjacency": "add-remove", "accountant": "pld", "noise": "gaussian", "noise_placement": "server", "device": "cpu",
    "not_protected": ["nothing"], "lower_bound": None,
}  # fmt: skip
_METRICS = [{"round": 1, "test_accuracy": None, "epsilon": 0.5, "uplink_megabytes": 0.1}]
_METRICS += [{"round": 2, "test_accuracy": 0.5, "epsilon": 1.0, "uplink_megabytes": 0.2}]
_SWEEP = {
    "title": "t", "paper": "p", "profile": "smoke", "note": "", "quantities": ["epsilon", "rounds"], "x": "run.seed",
    "rows": ["a"], "runs": [{"row": "a", "at": {"run.seed": "1"}, "folder": "a/run"}], "command": "dpfed sweep",
    "published": [{"row": "a", "x": None, "quantity": "epsilon", "value": 1.0, "where": "table 1"}],
    "versions": {"dpfed": "0.1"}, "commit": None, "tuned": [{"row": "a"}],
}  # fmt: skip


def _run_folder(**changes: bytes) -> Path:
    contents = {
        "config": b"[run]\nseed = 1\n",
        "summary": json.dumps(_SUMMARY).encode(),
        "metrics": b"".join(json.dumps(line).encode() + b"\n" for line in _METRICS),
        "diagnostics": b'{"round": 1, "seconds": 0.5}\n',
    } | changes
    names = {"config": "config.toml", "summary": "summary.json"}
    for name, content in contents.items():
        _file(content, f"a/run/{names.get(name, f'{name}.jsonl')}")
    return _folder() / "a"


def _summary(content: bytes) -> None:
    _reported(_run_folder(summary=content))


def _metrics(content: bytes) -> None:
    _reported(_run_folder(metrics=content))


def _diagnostics(content: bytes) -> None:
    _reported(_run_folder(diagnostics=content))


def _reported(folder: Path) -> None:
    """All that a page takes from a run, but for the drawing."""
    found = collect([folder / "run"])
    write_statistics(found, folder / "table.csv")
    write_results(found.runs, folder / "results.csv")
    for group in groups_of(found):
        readings_of(group)


def _sweep(content: bytes) -> None:
    _run_folder()
    collect([_file(content, "sweep.json").parent])


def _published(content: bytes) -> None:
    read_published(_file(content, "published.csv"), read_experiment(_file(_EXPERIMENT, "experiment.toml")))


PARSERS: dict[str, Parser] = {
    "own-data": Parser(seeds=_own_data_seeds, parse=_own_data, sealed=_header),
    "summary": Parser(seeds=lambda: [json.dumps(_SUMMARY).encode()], parse=_summary),
    "metrics": Parser(seeds=lambda: [b"".join(json.dumps(line).encode() + b"\n" for line in _METRICS)], parse=_metrics),
    "diagnostics": Parser(seeds=lambda: [b'{"round": 1, "seconds": 0.5}\n'], parse=_diagnostics),
    "sweep": Parser(seeds=lambda: [json.dumps(_SWEEP).encode()], parse=_sweep),
    "published": Parser(
        seeds=lambda: [b"row,x,quantity,value,where\na,1,epsilon,1.5,table 1\nb,,test_accuracy,80,\n"],
        parse=_published,
    ),
    "payload": Parser(seeds=_payload_seeds, parse=_payload, sealed=_with_crc),
    "mask": Parser(seeds=_mask_seeds, parse=_mask),
    "secure-sum": Parser(seeds=_table_seeds, parse=_table),
    "ledger": Parser(seeds=_ledger_seeds, parse=_ledger, sealed=_chained),
    "project": Parser(seeds=_ledger_seeds, parse=_project, sealed=_chained),
    "head": Parser(seeds=lambda: [b"0123456789abcdef" * 4 + b"\n"], parse=_head),
    "key": Parser(seeds=lambda: [b"0123456789abcdef" * 4 + b"\n"], parse=_key),
    "signature": Parser(seeds=_signature_seeds, parse=_signature),
    "checkpoint": Parser(seeds=_checkpoint_seeds, parse=_checkpoint),
    "mask-file": Parser(seeds=_saved_mask_seeds, parse=_saved_mask),
    "config": Parser(seeds=_config_seeds, parse=_config),
    "setting": Parser(seeds=lambda: [b"federation.rounds=10", b"model.hidden=[8, 9]", b"a.b.c=.5"], parse=_setting),
    "experiment": Parser(seeds=lambda: [_EXPERIMENT], parse=_experiment),
    "idx": Parser(seeds=_idx_seeds, parse=_idx),
    "idx-gz": Parser(seeds=_idx_seeds, parse=_zipped_idx, sealed=lambda content: gzip.compress(content, 1)),
    "mat": Parser(seeds=_mat_seeds, parse=_mat),
    "mat-deflated": Parser(seeds=_one_mat_seeds, parse=_one_mat, sealed=_deflated_mat),
    "cifar": Parser(seeds=_cifar_seeds, parse=_cifar),
    "shakespeare": Parser(seeds=lambda: [_play(9), _play(3)], parse=_shakespeare),
    "leaf": Parser(seeds=_leaf_seeds, parse=_leaf),
}
