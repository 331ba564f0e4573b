"""Parsers of what clients send: uploads, masks, messages of a secure sum."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from fuzz.parser import Parser
from reference.compressors import SETTINGS, make

import dpfed.compress
from dpfed.aggregation.messages import WIDTHS, MessageKind, read_table, write_table
from dpfed.compress.mask_schemes import mask_from_bytes, mask_to_bytes

D = 24
SESSION = b"0123456789abcdef"


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


PARSERS: dict[str, Parser] = {
    "payload": Parser(seeds=_payload_seeds, parse=_payload, sealed=_with_crc),
    "mask": Parser(seeds=_mask_seeds, parse=_mask),
    "secure-sum": Parser(seeds=_table_seeds, parse=_table),
}
