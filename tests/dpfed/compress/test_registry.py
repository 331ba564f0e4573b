"""get, from_bytes, names: options are checked, and so are bytes."""

import pytest
import torch
from refusals import refused

import dpfed.compress
from dpfed.compress.payload import FrameHeader, write_frame
from dpfed.errors import ConfigError, WireError


def message(x=((1.0, -2.0),), **options):
    return dpfed.compress.get("dense", **options).encode(torch.tensor(x))[0].to_bytes()


def test_a_payload_does_not_change_with_x():
    x = torch.ones(1, 3)
    payloads = dpfed.compress.get("dense").encode(x)
    x += 1
    assert float(payloads[0].fields["values"][0]) == 1


def test_payloads_are_a_sequence():
    payloads = dpfed.compress.get("dense").encode(torch.arange(8.0).reshape(4, 2))
    assert len(payloads) == 4
    assert list(payloads[1:3]) == [payloads[1], payloads[2]]
    assert payloads[-1] == payloads[3] != payloads[0]


def test_half_precision():
    scheme = dpfed.compress.get("dense", bits=16)
    decoded = scheme.decode([dpfed.compress.from_bytes(message([[1.0, 1 / 3]], bits=16))])
    torch.testing.assert_close(decoded, torch.tensor([[1.0, 1 / 3]]), rtol=2**-11, atol=0)
    refused(ConfigError, "client 1 ", scheme.encode, torch.tensor([[1.0], [7e4]]))


@pytest.mark.parametrize(
    "x",
    [torch.ones(3), torch.ones(0, 3), torch.ones(3, 0), torch.ones(2, 2, dtype=torch.int64), [[1.0]]],
    ids=["one dimension", "no clients", "no coordinates", "integers", "a list"],
)
def test_refused_shapes(x):
    refused(ConfigError, r"\[clients, d\]", lambda: dpfed.compress.get("dense").encode(x))


def frame(name="dense", options=None, dimension=1, content=b"\0\0\0\0"):
    return write_frame(FrameHeader(name=name, options=options or {}, dimension=dimension, seed=0), content)


FORGED = {
    "empty": b"",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "an unknown scheme": frame(name="zstd"),
    "an unknown option": frame(options={"level": 3}),
    "an option out of range": frame(options={"bits": 8}),
    "an option of another type": frame(options={"bits": "16"}),
    "an option that is the default": frame(options={"bits": 32}),
    "too little content": frame(dimension=2),
    "content left over": frame(content=bytes(5)),
    "a huge d": frame(dimension=(1 << 32) - 1),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_forged_messages(forged):
    refused(WireError, "", dpfed.compress.from_bytes, forged)


@pytest.mark.parametrize("options", [b"[1]", b'{"bits": 16}', b'{"bits":[]}', b"[" * 200, b"\xff", b'{"bits":16'])
def test_forged_options(options, monkeypatch):
    monkeypatch.setattr("dpfed.compress.payload._options_to_bytes", lambda _: options)
    forged = frame(options={})
    monkeypatch.undo()
    refused(WireError, "", dpfed.compress.from_bytes, forged)


def test_another_version():
    forged = bytearray(frame())
    forged[4] = 1
    import zlib

    forged[-4:] = zlib.crc32(forged[:-4]).to_bytes(4, "little")
    refused(WireError, "version 1", dpfed.compress.from_bytes, bytes(forged))


def test_the_expected_dimension():
    assert dpfed.compress.from_bytes(message(), dimension=2).dimension == 2
    refused(WireError, "expected d=3", lambda: dpfed.compress.from_bytes(message(), dimension=3))


def test_decoding_checks_what_it_is_given():
    dense, half = dpfed.compress.get("dense"), dpfed.compress.get("dense", bits=16)
    payloads = dense.encode(torch.ones(2, 3))
    refused(WireError, "this decoder is", half.decode, payloads)
    refused(WireError, "payload 1 is for d=2", lambda: dense.decode([payloads[0], dense.encode(torch.ones(1, 2))[0]]))
    for nothing in ([], payloads[:0]):
        refused(WireError, "no payload", dense.decode, nothing)
