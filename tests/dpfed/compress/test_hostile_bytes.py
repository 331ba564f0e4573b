"""Bytes from a stranger: a payload or a WireError, never anything else, never much memory."""

import contextlib
import math
import random
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from reference.compressors import SETTINGS, make

import dpfed.compress
from dpfed.compress.payload import FrameHeader, write_frame
from dpfed.errors import ConfigError, WireError

pytestmark = pytest.mark.slow_but_one_in(3)

ALL = pytest.mark.parametrize("setting", SETTINGS)


def message(setting, dimension=24):
    x = torch.randn(1, dimension, generator=torch.Generator().manual_seed(dimension)) ** 3
    return make(setting).encode(x, seed=1)[0].to_bytes()


def sealed(frame):
    """The frame with the checksum it should have: what a forger sends."""
    return bytes(frame) + zlib.crc32(frame).to_bytes(4, "little")


def refused(content):
    with pytest.raises(WireError) as caught:
        dpfed.compress.from_bytes(content)
    assert type(caught.value) is WireError
    assert 10 < len(str(caught.value)) < 500


def harmless(content, decoders):
    """Refused, or a payload that is what it says and that the right decoder makes finite numbers of."""
    try:
        payload = dpfed.compress.from_bytes(content, dimension=24)
    except WireError:
        return False
    assert payload.dimension == 24
    for decoder in decoders:
        try:
            decoded = decoder.decode([payload])
        except WireError:
            continue
        assert decoded.shape == (1, 24)
        assert torch.isfinite(decoded).all()
        assert torch.isfinite(decoder.mean([payload] * 3)).all()
    return True


@ALL
def test_every_flipped_bit_is_noticed(setting):
    content = bytearray(message(setting))
    for at in range(len(content)):
        for bit in range(8):
            content[at] ^= 1 << bit
            refused(bytes(content))
            content[at] ^= 1 << bit


@ALL
def test_every_truncation_is_noticed(setting):
    content = message(setting)
    for length in range(len(content)):
        refused(content[:length])
        if length < len(content) - 4:
            refused(sealed(content[:length]))
    refused(content + b"\0")
    refused(sealed(content[:-4] + b"\0"))
    refused(content + content)


@pytest.mark.slow_but_one_in(8)
@ALL
def test_every_forged_byte_is_harmless(setting):
    """With the checksum made right: any one byte set to anything."""
    frame, decoders = bytearray(message(setting)[:-4]), [make(setting)]
    chosen = random.Random(1)
    passed = 0
    for at, true in enumerate(bytes(frame)):
        for value in {0, 255, true ^ 1, true ^ 128, chosen.randrange(256)} - {true}:
            frame[at] = value
            passed += harmless(sealed(frame), decoders)
        frame[at] = true
    assert passed, "none was read: the test forges nothing"


FORGED = {
    "keep": (1e-300, 1e300, math.nan), "k": (10**18, 10**60, -1, None), "levels": (10**9, 1 << 14),
    "bucket": (10**30, 1, 0, None), "bound": (10**200, math.inf, 1e-320, "l3"), "clip": (1e-308,),
    "sparsity": (1 - 1e-16, 1.0, 1e-320), "block": (1 << 62, 64, 1), "rounds": (10**9,), "scale": ("?",),
    "bits": (1e-320, 0.999999999, 64), "alpha": (1e308, -1), "noise": ("",), "projections": (10**12, 1 << 16),
    "shared_seed": (10**40, -1), "name": ("x",), "indices": (3,),
}  # fmt: skip
OPTIONS = [{name: value} for name, values in FORGED.items() for value in values]
OPTIONS += [{"k": 2**24, "digest": ""}, {"k": 2, "digest": "x" * 150}]


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("name", dpfed.compress.names())
@pytest.mark.parametrize("dimension", [1, 24, (1 << 24) - 1, (1 << 32) - 1])
def test_forged_options_take_little_memory(name, dimension):
    """Any option, with a little content: refused or read, in memory bounded by the message's and d's length."""
    tracemalloc.start()
    try:
        for options in OPTIONS:
            for content in (b"", bytes(4), bytes(64)):
                header = FrameHeader(name=name, options=options, dimension=dimension, seed=0)
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(WireError):
                    dpfed.compress.from_bytes(write_frame(header, content))
                assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()


def bomb(dimension):
    """All trits the same: they cost no words, and a few dozen bytes claim d of them."""
    counts = dimension.to_bytes(4, "little")[: (dimension.bit_length() + 7) // 8]
    content = np.float32(1).tobytes() + b"\1" + counts + bytes(len(counts)) + bytes(4)
    return write_frame(FrameHeader(name="terngrad", options={}, dimension=dimension, seed=0), content)


def peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_decompression_bomb_takes_what_d_takes():
    """A claim of d symbols: memory in proportion to the d that was expected, and none for another d."""
    assert peak(lambda: dpfed.compress.from_bytes(bomb(100_000), dimension=100_000)) < 40 * 100_000
    assert peak(lambda: refused(bomb((1 << 32) - 1))) < 100_000
    with pytest.raises(WireError, match="expected d=10"):
        dpfed.compress.from_bytes(bomb(1 << 24), dimension=10)


@ALL
def test_honest_messages_take_what_d_takes(setting):
    content = message(setting, 30_000)
    assert peak(lambda: dpfed.compress.from_bytes(content)) < 60 * 30_000


def test_not_bytes():
    for wrong in (None, "text", 3, [1]):
        refused(wrong)


def test_directions_of_a_forged_message_have_a_bounded_number_of_entries():
    """65,536 projections in 2^24 dimensions, 262 kB: refused before any direction is drawn."""
    options = {"projections": 1 << 16}
    forged = write_frame(FrameHeader(name="fedscalar", options=options, dimension=1 << 24, seed=0), bytes(4 << 16))
    with pytest.raises(WireError, match="projections=65536 of d=16777216"):
        dpfed.compress.from_bytes(forged)
    with pytest.raises(ConfigError, match="Use fewer projections"):
        dpfed.compress.get("fedscalar", projections=1 << 16).layout(1 << 24)
