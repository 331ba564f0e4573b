"""Parsers of ledgers and of what is kept beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from fuzz.parser import Parser, folder, written

from accounting import Aborted, Gaussian, Header, Ledger, LocalRelease, PoissonSampling, Release, Steps, Subsampled
from accounting.ledger import backups, regular_file
from accounting.ledger.hash_chain import chained_line as sealed_line
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import BernoulliAggregate
from accounting.mechanisms.integers import DiscreteGaussian
from dpfed.cli import ledger_signature

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
    ledger = Ledger.so_far(written(content, "ledger.jsonl"))
    json.dumps([entry.to_dict() for entry in ledger.entries], allow_nan=False)
    Ledger.resume(ledger.path)


def _project(content: bytes) -> None:
    project = ProjectLedger.open(written(content, "project.jsonl"))
    assert 0 < project.terms.delta < 1


def _head(content: bytes) -> None:
    found = backups.read_head(written(content, "l.jsonl.head").with_name("l.jsonl"))
    assert found is None or len(bytes.fromhex(found)) == 32


def _key(content: bytes) -> None:
    found = regular_file.read_key(written(content, "population.key"))
    assert found is None or len(found) == 32


@cache
def signed() -> tuple[Ledger, Path]:
    """A ledger of one line, and a public key that has signed it."""
    ledger = Ledger.so_far(written(_chained(_ledger_seeds()[1]), "signed.jsonl"))
    private = folder() / "operator.pem"
    public = ledger_signature.generate_key_pair(private)
    ledger_signature.sign(ledger, private)
    return ledger, public


def _signature_seeds() -> list[bytes]:
    return [ledger_signature.signature_path(signed()[0].path).read_bytes()]


def _signature(content: bytes) -> None:
    ledger, public = signed()
    written(content, "signed.jsonl.sig")
    assert ledger_signature.verified_head(ledger, public).head == ledger.head


PARSERS: dict[str, Parser] = {
    "ledger": Parser(seeds=_ledger_seeds, parse=_ledger, sealed=_chained),
    "project": Parser(seeds=_ledger_seeds, parse=_project, sealed=_chained),
    "head": Parser(seeds=lambda: [b"0123456789abcdef" * 4 + b"\n"], parse=_head),
    "key": Parser(seeds=lambda: [b"0123456789abcdef" * 4 + b"\n"], parse=_key),
    "signature": Parser(seeds=_signature_seeds, parse=_signature),
}
