"""Bytes from strangers: every parser reads them or refuses them as documented, in bounded time and memory.

`experiments/fuzz` does this for hours, guided by coverage; here are the seeds, a few thousand mutations, and every
input that ever broke a parser.
"""

import gzip
import random
import struct
import tracemalloc

import pytest
from fuzz.parsers import PARSERS, Parser, clean_up
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow_but_one_in(3)

NAMED = pytest.mark.parametrize("name", list(PARSERS))
RARE = {"mask-file", "cifar", "payload", "shakespeare", "summary", "metrics", "diagnostics", "sweep"}
"""Parsers that take milliseconds."""

TOKENS = [
    b"",
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 3000,
    b"9" * 5000,
    b"\xff" * 4,
    b"\x00" * 8,
    b'{"a":1}',
    b"a." * 3000,
]


def empty_mat() -> bytes:
    """A MATLAB array of 0 x (2^31 - 1) x (2^31 - 1) x (2^31 - 1) bytes."""
    huge = 2**31 - 1
    content = bytearray(PARSERS["mat-deflated"].seeds()[1])
    struct.pack_into("<4i", content, content.index(struct.pack("<II", 5, 16)) + 8, 0, huge, huge, huge)
    return PARSERS["mat-deflated"].sealed(bytes(content))


def mask_of_nothing() -> bytes:
    """A mask over a network of samples without a pixel."""
    return PARSERS["mask-file"].seeds()[0].replace(b"[1, 2, 2]", b"[0, 2, 2]")


BROKE = {
    "mask-file": [mask_of_nothing()],
    "mat-deflated": [empty_mat()],
    "config": [b"a = " + b"[" * 3000, b"a = " + b"9" * 5000, b"\xff"],
    "experiment": [b"a = " + b"[" * 3000, b"a = " + b"9" * 5000, b"a." * 3000 + b"a = 1"],
    "idx": [b"\0\0\x08\x03" + b"\0" * 4 + b"\xff" * 8],
    "idx-gz": [gzip.compress(b"\0\0\x08\x03" + b"\0" * 4 + b"\xff" * 8)],
    "setting": [b"federation.rounds=" + b"[" * 3000, b"federation.rounds=" + b"9" * 5000],
}
"""What a parser once answered with an error of another family."""


@pytest.fixture(autouse=True, scope="module")
def _clean():
    yield
    clean_up()


def mutated(seed: bytes, generator: random.Random) -> bytes:
    """A few bytes flipped, cut out, repeated, or replaced by a token."""
    content = bytearray(seed)
    for _ in range(generator.randrange(1, 5)):
        start = generator.randrange(len(content) + 1)
        end = min(len(content), start + generator.choice([1, 1, 2, 4, 8, 40]))
        match generator.randrange(5):
            case 0:
                content[start:end] = bytes(generator.randrange(256) for _ in range(end - start))
            case 1:
                content[start:end] = b""
            case 2:
                content[start:start] = content[start:end]
            case 3:
                content[start:end] = generator.choice(TOKENS)
            case 4:
                del content[start:]
    return bytes(content)


def sealed(parser: Parser, content: bytes) -> bytes:
    return content if parser.sealed is None else parser.sealed(content)


@NAMED
def test_a_seed_is_read(name):
    parser = PARSERS[name]
    assert any(parser.accepts(sealed(parser, seed)) for seed in parser.seeds())


@pytest.mark.parametrize(("name", "which"), [(name, which) for name in BROKE for which in range(len(BROKE[name]))])
def test_what_once_broke_a_parser_is_answered_as_documented(name, which):
    PARSERS[name].accepts(BROKE[name][which])


@NAMED
def test_mutations_of_seeds_are_read_or_refused(name):
    parser, generator = PARSERS[name], random.Random(name)
    seeds = parser.seeds()
    read = 0
    tracemalloc.start()
    for attempt in range(60 if name in RARE else 250):
        content = mutated(generator.choice(seeds), generator)
        read += parser.accepts(sealed(parser, content) if attempt % 4 else content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert read < (60 if name in RARE else 250)


@pytest.mark.slow_but_one_in(5)
@NAMED
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(content=st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_are_read_or_refused(name, content):
    parser = PARSERS[name]
    parser.accepts(content)
    parser.accepts(sealed(parser, content))


def test_a_parser_that_lets_an_error_through_would_be_noticed():
    broken = Parser(seeds=lambda: [b"1"], parse=lambda content: int(content))
    with pytest.raises(ValueError, match="invalid literal"):
        broken.accepts(b"x")
