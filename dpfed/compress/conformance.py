"""Tests of a scheme's claims by `dpfed.compress.check`.

    bits      no payload is longer than the layout allows (`most_bytes`), and the content fits the layout
    inverse   decode(from_bytes(to_bytes(p))) equals decode(p) bitwise, also with another object and in another order
    reading   truncated, longer or changed bytes give a WireError or another payload, and no other error
    batch     a client's payload, and its decoded update, depend on its own row and seed only, not on other clients
    seed      the same row and seed give the same payload, whatever torch's own generators have drawn
    edges     zeros, one entry, one coordinate, denormal entries, and entries of 1e20 (or the scheme's `largest_entry`)
              are encoded; NaN and infinity are refused
    unbiased  if unbiasedness is claimed: the mean of many decoded payloads is x

All but the last are exact: a scheme that obeys the protocol never fails them. The last is a test in six directions,
none of them a single entry, by Student's t over means of blocks, which are close to normal. An unbiased scheme fails it
with probability about 1e-6. A scheme whose clients must share the round's seed declares `one_seed = True`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from dpfed.compress.payload import (
    FrameHeader,
    Payload,
    Payloads,
    Scheme,
    frame_header,
    header_bytes,
    largest_entry,
    most_bytes,
    parse,
    wire_options,
    write_frame,
)
from dpfed.config.own_code import error_text
from dpfed.errors import ConfigError, DpfedError, WireError

Subject = Literal["bits", "inverse", "reading", "batch", "seed", "edges", "unbiased"]

FALSE_ALARM = 1e-6
"""Probability of a false alarm of the test of unbiasedness, over all its directions."""

DIMENSION = 257
"""Dimension of the updates that are encoded if no updates are given: a prime."""

_CLIENTS = 5
_BLOCKS, _A_BLOCK = 32, 128
_ODD = 0x9E3779B97F4A7C15  # spreads small numbers over 64 bits
_ROUNDING = 1e-4  # of ||x||: sums of float32, and random numbers of 24 bits


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one test; `detail` states the observation."""

    subject: Subject
    passed: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Findings of all tests of one scheme."""

    scheme: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(one.passed for one in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if not one.passed)

    def __str__(self) -> str:
        lines = [f"{'passed' if one.passed else 'FAILED'}  {one.subject}: {one.detail}" for one in self.findings]
        return "\n".join([f"{self.scheme}: {'passed' if self.passed else 'FAILED'}", *lines])

    def to_dict(self) -> dict[str, object]:
        return {"scheme": self.scheme, "passed": self.passed, "findings": list(map(dataclasses.asdict, self.findings))}


class _ClaimBroken(Exception):
    """Failure of a test, with its description."""


def check(scheme: Scheme, *, updates: Tensor | None = None, statistics: bool = True) -> Conformance:
    """Run the tests of a scheme that the docstring of this module lists. Takes about a second.

    updates:    [5, d], updates to encode if the scheme does not accept every update (but probabilities, say); `edges`
                is then not run, since the scheme may not accept its updates
    statistics: True: unbiasedness is tested; all other tests take some hundredths of a second

    Claim: a scheme that obeys the protocol fails with probability at most 1e-6. The converse does not hold: faults that
    no test covers are not found, such as a decoder that looks up what the same process has encoded. Raises ConfigError
    for updates of another shape.
    """
    x = _default_updates() if updates is None else updates
    if x.dim() != 2 or len(x) != _CLIENTS:
        raise ConfigError(f"updates {list(x.shape)}: must be [{_CLIENTS}, d], a row for each client.")
    trials: list[tuple[Subject, Callable[[Scheme, Tensor], str]]] = [
        ("bits", _test_bits),
        ("inverse", _test_inverse),
        ("reading", _test_reading),
        ("batch", _test_batch),
        ("seed", _test_seed),
        *([("edges", _test_edges)] if updates is None else []),  # type: ignore[list-item]
        *([("unbiased", _test_unbiased)] if statistics and scheme.unbiased else []),  # type: ignore[list-item]
    ]
    return Conformance(scheme=_scheme_text(scheme), findings=tuple(_run_test(*trial, scheme, x) for trial in trials))


def _run_test(subject: Subject, trial: Callable[[Scheme, Tensor], str], scheme: Scheme, x: Tensor) -> Finding:
    try:
        return Finding(subject=subject, passed=True, detail=trial(scheme, x))
    except _ClaimBroken as found:
        return Finding(subject=subject, passed=False, detail=str(found))
    except DpfedError as error:
        return Finding(subject=subject, passed=False, detail=f"refused: {error}")
    except Exception as error:  # a custom scheme may raise any exception
        return Finding(subject=subject, passed=False, detail=f"raises {error_text(error)}")


def _test_bits(scheme: Scheme, x: Tensor) -> str:
    longest, layout = 0, scheme.layout(x.shape[1])
    for rows in (x, x * 0, x.sign(), x * x.abs(), x * (x.abs() > x.abs().amax(dim=1, keepdim=True) / 2)):
        for payload in scheme.encode(rows, seed=_client_seeds(scheme)):
            for name, part in layout.items():
                content, written = payload.fields[name], part.write(payload.fields[name]).content
                if len(content) != part.count:
                    raise _ClaimBroken(f"{name} has {len(content)} values, its layout states {part.count}.")
                if len(written) > part.most_bytes:
                    raise _ClaimBroken(
                        f"{name} takes {len(written)} bytes, its layout states at most {part.most_bytes}."
                    )
            longest = max(longest, len(payload.to_bytes()))
            if payload.size().bits != 8 * len(payload.to_bytes()) or payload.byte_count() != len(payload.to_bytes()):
                raise _ClaimBroken(f"states {payload.size().bits} bits and sends {8 * len(payload.to_bytes())}.")
    return f"at most {longest} bytes for {x.shape[1]} coordinates; {most_bytes(scheme, x.shape[1])} are stated."


def _test_inverse(scheme: Scheme, x: Tensor) -> str:
    payloads = scheme.encode(x, seed=_client_seeds(scheme))
    decoded = _decode(scheme, payloads, x.shape)
    messages = [payload.to_bytes() for payload in payloads]
    scheme.encode(-2 * x if bool((x < 0).any()) else 1 - x, seed=[seed // 2 for seed in _client_seeds(scheme)])
    other = _second_scheme(scheme)
    parsed = [_parse(scheme, message, x.shape[1]) for message in messages]
    for place, (payload, back) in enumerate(zip(payloads, parsed, strict=True)):
        if back != payload:
            names = [name for name, kept in payload.fields.items() if not np.array_equal(kept, back.fields[name])]
            raise _ClaimBroken(f"client {place}: parsed bytes differ in {', '.join(names) or 'options or seed'}.")
    for how, rows in (("after bytes", scheme), ("by another object", other)):
        if not torch.equal(_decode(rows, list(reversed(parsed)), x.shape).flip(0), decoded):
            raise _ClaimBroken(f"a payload decodes to another update {how} than before it was sent.")
    return f"{len(x)} payloads decode to equal updates after bytes, by another object, in another order."


def _test_reading(scheme: Scheme, x: Tensor) -> str:
    tried = 0
    for message, whole in _damaged_messages(scheme, x):
        tried += 1
        try:
            payload = _parse(scheme, message, x.shape[1])
        except WireError:
            continue
        if len(message) != whole:
            how = "truncated" if len(message) < whole else "one byte longer"
            raise _ClaimBroken(f"a message of {whole} bytes that is {how} is read as a payload: it must be refused.")
        try:
            rows = scheme.decode([payload])
        except WireError:
            continue
        if rows.shape != (1, x.shape[1]):
            raise _ClaimBroken(f"damaged content decodes to {list(rows.shape)}, not [1, {x.shape[1]}].")
    return f"{tried} damaged messages are refused, or read as other payloads of their length."


def _damaged_messages(scheme: Scheme, x: Tensor) -> Iterator[tuple[bytes, int]]:
    """Yield (frame, length of the undamaged message): frames with a correct checksum around content that is truncated,
    longer, or changed in one byte."""
    draws = np.random.default_rng(1)
    for payload in scheme.encode(x, seed=_client_seeds(scheme)):
        (header, content), whole = _split_message(scheme, payload), len(payload.to_bytes())
        cuts = {0, len(content) // 2, *draws.integers(0, len(content), 8), len(content) - 1}
        for cut in sorted(int(one) for one in cuts if 0 <= one < len(content)):
            yield write_frame(header, content[:cut]), whole
        yield write_frame(header, content + b"\0"), whole
        for place in draws.integers(0, len(content), 12):
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(draws.integers(8))
            yield write_frame(header, bytes(flipped)), whole


def _test_batch(scheme: Scheme, x: Tensor) -> str:
    seeds = _client_seeds(scheme)
    payloads = scheme.encode(x, seed=seeds)
    decoded = _decode(scheme, payloads, x.shape)
    places = [3, 0, 4, 2, 1]
    moved = scheme.encode(x[places], seed=[seeds[place] for place in places])
    for place in range(len(x)):
        alone = scheme.encode(x[place : place + 1], seed=[seeds[place]])
        if alone[0] != payloads[place] or moved[places.index(place)] != payloads[place]:
            raise _ClaimBroken(
                f"client {place} sends another payload alone, or at another position, than among the others."
            )
        if not torch.equal(_decode(scheme, [payloads[place]], (1, x.shape[1]))[0], decoded[place]):
            raise _ClaimBroken(f"client {place}'s payload decodes to another update alone than among the others.")
    return "encoding a client alone, at another position, or among other clients gives one payload."


def _test_seed(scheme: Scheme, x: Tensor) -> str:
    first = list(scheme.encode(x, seed=_client_seeds(scheme)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        before = torch.get_rng_state()
        again = list(scheme.encode(x, seed=_client_seeds(scheme)))
        drew = not torch.equal(before, torch.get_rng_state())
    if again != first:
        raise _ClaimBroken("the same rows and seeds give other payloads the second time: draw from the seeds alone.")
    if drew:
        raise _ClaimBroken("draws from torch's own generator: draw from the seeds (`dpfed.compress.counter`).")
    return "the same rows and seeds give the same payloads."


def _test_edges(scheme: Scheme, x: Tensor) -> str:
    for name, rows in _edge_updates(x.shape[1], largest_entry(scheme)).items():
        try:
            (payload,) = scheme.encode(rows, seed=[7])
        except ConfigError as error:
            raise _ClaimBroken(f"{name}: is refused, so one client could end a round: {error}") from None
        arrived = scheme.decode([_parse(scheme, payload.to_bytes(), rows.shape[1])])
        if arrived.shape != rows.shape or not bool(arrived.isfinite().all()):
            wrong = int((~arrived.isfinite()).sum())
            raise _ClaimBroken(f"{name}: decodes to {list(arrived.shape)} with {wrong} entries that are not finite.")
    for name in ("nan", "infinity"):
        rows = x[:1].clone()
        rows[0, -1] = float(name)
        try:
            scheme.encode(rows, seed=[7])
        except ConfigError:
            continue
        raise _ClaimBroken(f"{name}: is encoded; an update with such an entry must be refused (ConfigError).")
    return f"edge cases are encoded, with entries up to {largest_entry(scheme):g}; NaN and infinity are refused."


def _edge_updates(dimension: int, largest: float) -> dict[str, Tensor]:
    one = torch.zeros(1, dimension)
    one[0, dimension // 2] = 1.0
    signs = torch.where(torch.arange(dimension) % 3 == 0, -1.0, 1.0)[None]
    return {
        "zeros": torch.zeros(1, dimension),
        "one entry": one,
        "one coordinate": torch.tensor([[0.5]]),
        "denormal": 1e-40 * signs,
        "huge": largest * signs,
    }


def _test_unbiased(scheme: Scheme, x: Tensor) -> str:
    """Test that y_n = <decoded_n - x, u> has mean zero for six unit vectors u, by means of blocks of 128 payloads."""
    row = x[0].double()
    directions = _directions(row)
    means = torch.stack([_mean_errors(scheme, x[0], block) @ directions.T for block in range(_BLOCKS)])
    spread = means.std(dim=0) / math.sqrt(_BLOCKS)
    cut = -float(stdtrit(_BLOCKS - 1, FALSE_ALARM / len(directions) / 2))
    allowed = cut * spread + _ROUNDING * float(row.norm())
    excess = means.mean(dim=0).abs()
    worst = int((excess / allowed).argmax())
    sizes = f"{float(excess[worst] / row.norm()):.2g} of ||x||, beyond {float(allowed[worst] / row.norm()):.2g}"
    if bool((excess > allowed).any()):
        raise _ClaimBroken(f"claims to be unbiased: the mean of decoded payloads misses x by {sizes}.")
    largest = float((allowed / row.norm()).max())
    return f"no bias in {len(directions)} directions; a bias of {largest:.2g} of ||x|| would have been found."


def _mean_errors(scheme: Scheme, row: Tensor, block: int) -> Tensor:
    """Return the mean error [d] of a block of payloads of one row."""
    count = _A_BLOCK // 8 if _needs_one_seed(scheme) else _A_BLOCK  # encoding one at a time is eight times as slow
    seeds = [(1 + block * count + place) * _ODD % (1 << 64) for place in range(count)]
    rows = row.expand(count, -1).contiguous()
    if not _needs_one_seed(scheme):
        decoded = scheme.decode(scheme.encode(rows, seed=seeds))
    else:
        drawn = [(_set_seed(scheme, seed), seed) for seed in seeds]
        decoded = torch.cat([one.decode(one.encode(rows[:1], seed=[seed])) for one, seed in drawn])
    return decoded.double().mean(dim=0) - row.double()


def _client_seeds(scheme: Scheme) -> list[int]:
    """Return one seed for each client; all equal if the scheme's clients must share a seed."""
    return [7] * _CLIENTS if getattr(scheme, "one_seed", False) else [3, -9, 2**63, 5, 11]


def _needs_one_seed(scheme: Scheme) -> bool:
    return getattr(scheme, "one_seed", False) or getattr(scheme, "shared_seed", None) is not None


def _set_seed(scheme: Scheme, seed: int) -> Scheme:
    if getattr(scheme, "shared_seed", None) is None:
        return scheme
    return dataclasses.replace(scheme, shared_seed=seed >> 1)  # type: ignore[type-var]


def _directions(row: Tensor) -> Tensor:
    """Return unit vectors [6, d]: along x, all entries equal, the signs of the larger and of the smaller half of x's
    entries, random signs. Single entries are not used: they may be sent too rarely for means that are close to
    normal."""
    larger = row.abs() > row.abs().median()
    coins = torch.where(torch.rand(2, len(row), generator=torch.Generator().manual_seed(5)) < 0.5, -1.0, 1.0).double()
    halves = torch.stack([row.sign() * larger, row.sign() * ~larger])
    rows = torch.cat([row[None], torch.ones_like(row)[None], halves, coins])
    return torch.nn.functional.normalize(rows, dim=1)


def _default_updates() -> Tensor:
    """Return five rows: normal, heavy-tailed, a few large entries, all entries equal, and one twenty times as long as a
    normal one.
    """
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(_CLIENTS, DIMENSION, generator=draws)
    x[1] = x[1] ** 3
    x[2, ::7] *= 20
    x[3] = 0.25
    x[4] *= 20
    return x


def _decode(scheme: Scheme, payloads: Payloads | list[Payload], shape: tuple[int, ...]) -> Tensor:
    rows = scheme.decode(payloads)
    if rows.shape != shape or rows.dtype != torch.float32:
        raise _ClaimBroken(f"decode gives {rows.dtype} {list(rows.shape)}; must be float32 {list(shape)}.")
    if not bool(rows.isfinite().all()):
        raise _ClaimBroken("an encoded update decodes to NaN or infinity.")
    return rows


def _second_scheme(scheme: Scheme) -> Scheme:
    """Return another object with the same options, as a receiver constructs it."""
    # mypy does not know that schemes are dataclasses, since a Protocol cannot state it.
    return dataclasses.replace(scheme)  # type: ignore[type-var]


def _parse(scheme: Scheme, message: bytes, dimension: int) -> Payload:
    return parse(message, lambda name, options: _second_scheme(scheme), dimension=dimension)


def _split_message(scheme: Scheme, payload: Payload) -> tuple[FrameHeader, bytes]:
    header = frame_header(scheme, payload.dimension, payload.seed)
    return header, payload.to_bytes()[header_bytes(scheme, payload.dimension) - 4 : -4]


def _scheme_text(scheme: Scheme) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in wire_options(scheme).items())
    return f"{scheme.name} with {options}" if options else scheme.name
