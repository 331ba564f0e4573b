"""A scheme of one's own gets bytes, bounds and messages from what it says its bits are."""

import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from reference.own_schemes import Honest, TakesNan
from refusals import refused

from dpfed import compress
from dpfed.compress import Floats, Indices, SymbolField, counter
from dpfed.compress.payload import FrameHeader, write_frame
from dpfed.config import own_code
from dpfed.errors import ConfigError, WireError

pytestmark = pytest.mark.slow_but_one_in(3)

X = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))


@compress.register("kept-for-pickle")
class Kept(Honest):
    pass


own_code.forget_file(__file__)  # other tests see none of it


def test_it_is_a_scheme_like_ours():
    scheme = compress.register("honest")(Honest)()
    payloads = scheme.encode(X, seed=7)
    message = payloads[0].to_bytes()
    assert len(message) <= 23 + len("honest") + 4 + 1 + 8
    assert compress.from_bytes(message) == payloads[0]
    assert torch.equal(scheme.decode([compress.from_bytes(message)]), scheme.decode(payloads)[:1])
    torch.testing.assert_close(scheme.mean(payloads), scheme.decode(payloads).mean(dim=0))
    assert compress.get("honest") == scheme
    assert "honest" in compress.names()
    assert (scheme.linear, scheme.unbiased) == (False, True)


def test_its_expectation_is_the_update():
    scheme = compress.register("honest")(Honest)()
    rows = X[:1].expand(20_000, -1)
    mean = scheme.mean(scheme.encode(rows, seed=3))
    largest = float(X[0].abs().max())
    assert float((mean - X[0]).abs().max()) < 5 * largest / 20_000**0.5  # 40 entries: fails with 2e-5


def test_options_travel_and_are_checked():
    @compress.register("scaled")
    class Scaled:
        factor: float = 2.0

        def bits(self, dimension):
            return {"values": Floats(count=dimension)}

        def encode(self, x, seeds):
            return {"values": x * self.factor}

        def decode(self, sent):
            return sent["values"] / self.factor

    message = compress.get("scaled", factor=4.0).encode(X, seed=1)[0].to_bytes()
    assert compress.from_bytes(message).scheme == Scaled(factor=4.0)
    refused(ConfigError, "must be a number", compress.get, "scaled", factor="two")
    refused(ConfigError, r"not one of its options \(factor\)", compress.get, "scaled", factors=2.0)


def test_seeds_are_sent_where_it_says_so():
    @compress.register("seeded")
    class Seeded:
        sends_seed = True

        def bits(self, dimension):
            return {"scale": Floats(count=1)}

        def encode(self, x, seeds):
            return {"scale": (x * counter.rademacher(seeds, "seeded", x.shape[1])).mean(dim=1)}

        def decode(self, sent):
            return sent["scale"] * counter.rademacher(sent.seeds, "seeded", sent.dimension)

    scheme = Seeded()
    payloads = scheme.encode(X, seed=[5, -6, 2**64 - 1])
    assert [payload.seed for payload in payloads] == [5, 2**64 - 6, 2**64 - 1]
    assert torch.equal(
        scheme.decode([compress.from_bytes(one.to_bytes()) for one in payloads]), scheme.decode(payloads)
    )
    assert compress.check(scheme).passed


def test_it_can_be_pickled():
    assert pickle.loads(pickle.dumps(Kept())) == Kept()


def fields_of(**fields):
    """A scheme with these bits that encodes as it is told."""

    class Told:
        answer: ClassVar = None

        def bits(self, dimension):
            return fields

        def encode(self, x, seeds):
            return Told.answer(x)

        def decode(self, sent):
            return torch.zeros(len(sent), sent.dimension)

    scheme = compress.register("told")(Told)()
    return Told, scheme


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        (SymbolField(alphabet=3, count=2), torch.full((3, 2), 3), "hold 3 to 3; 3 symbols are from 0 to 2"),
        (SymbolField(alphabet=3, count=2), torch.full((3, 2), -1), "hold -1 to -1"),
        (SymbolField(alphabet=3, count=2), torch.ones(3, 2), "must be whole numbers of an integer type"),
        (SymbolField(alphabet=3, count=2), torch.ones(3, 3, dtype=torch.int64), r"must be a tensor \[3, 2\]"),
        (SymbolField(alphabet=3, count=2), [1, 2], r"are list; must be a tensor \[3, 2\]"),
        (SymbolField(alphabet=3, count=3), torch.zeros(9, dtype=torch.int64), r"must be a tensor \[3, 3\]"),
        (Floats(count=1), torch.full((3,), float("nan")), "hold NaN or more than"),
        (Floats(count=1, half=True), torch.full((3,), 1e5), "more than ±65504"),
        (Floats(count=1, signed=False), torch.full((3,), -1.0), "a number below zero"),
        (Indices(size=40, count=2), torch.tensor([[1, 1]] * 3), "must be distinct coordinates below 40, sorted"),
        (Indices(size=40, count=2), torch.tensor([[1, 40]] * 3), "must be distinct coordinates below 40, sorted"),
    ],
)
def test_content_that_the_wire_would_not_carry_is_refused(part, values, words):
    told, scheme = fields_of(content=part)
    told.answer = lambda x: {"content": values}
    refused(ConfigError, words, scheme.encode, X, seed=1)


def test_fields_that_are_not_its_bits_are_refused():
    told, scheme = fields_of(content=Floats(count=1))
    told.answer = lambda x: {"other": x[:, 0]}
    refused(ConfigError, "encode gives other; its bits are content", scheme.encode, X, seed=1)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (None, "must be a dictionary of names and fields"),
        ({"a": 3}, "must be a dictionary of names and fields"),
        ({"seeds": Floats(count=1)}, "a field must not be called"),
        ({"a": Floats(count=10**9)}, "at most 64 per coordinate"),
    ],
)
def test_bits_that_are_none_are_refused(layout, words):
    class Odd(Honest):
        def bits(self, dimension):
            return layout

    refused(ConfigError, words, lambda: compress.register("odd")(Odd)().encode(X, seed=1))


def test_bits_that_fail_are_one_error_with_their_line():
    class Fails(Honest):
        def bits(self, dimension):
            return {"a": Floats(count=dimension // 0)}

    with pytest.raises(ConfigError, match=r"its bits of d=40 fail: ZeroDivisionError.*own_scheme\.py, line"):
        compress.register("fails")(Fails)().encode(X, seed=1)


def test_a_strangers_content_in_its_decoder_is_a_wire_error():
    class Looks(Honest):
        def decode(self, sent):
            return {0: None}[int(sent["trits"][0, 0])]

    scheme = compress.register("looks")(Looks)()
    refused(WireError, "its decode cannot take: KeyError", lambda: scheme.decode(scheme.encode(X.abs() * 1000, seed=1)))
    refused(WireError, "decode gives NoneType", lambda: scheme.decode(scheme.encode(-torch.ones(1, 40), seed=1)))


def test_a_strangers_options_are_a_wire_error():
    @compress.register("picky")
    class Picky(Honest):
        levels: int = 3

        def __post_init__(self):
            {3: 1, 4: 1}[self.levels]

    content = Picky().encode(X, seed=1)[0].to_bytes()
    for options in ({"levels": 9}, {"levels": "3"}, {"bits": 3}):
        header = FrameHeader(name="picky", options=options, dimension=40, seed=0)
        refused(WireError, "an invalid scheme", compress.from_bytes, write_frame(header, content[29:-4]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "is int; must be a class"),
        (type("Half", (), {"encode": len}), "Half has no bits, decode"),
        (type("Whole", (), {"layout": len}), "Whole has no encode, decode, mean"),
        (dataclass(type("Open", (Honest,), {})), "is a mutable dataclass"),
    ],
)
def test_a_class_that_is_no_scheme_is_refused(given, words):
    refused(ConfigError, words, lambda: compress.register("odd")(given))


def test_the_whole_protocol_is_taken_as_it_is():
    scheme = compress.register("whole")(TakesNan)
    assert scheme().name == "whole"
    assert torch.equal(scheme().decode(scheme().encode(X)), X)


def test_names():
    refused(ConfigError, "is the name of an existing", lambda: compress.register("qsgd")(Honest))
    for name in ("", "a b", "ünter", "x" * 65, 3):
        refused(ConfigError, "64 letters", compress.register(name), Honest)
    compress.register("twice")(Honest)
    refused(ConfigError, "registered twice, first by", lambda: compress.register("twice")(Honest))
