"""Schemes of one's own: an honest one, and liars of every kind with what must be said of them."""

import dataclasses
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dpfed.compress import Floats, Indices, SymbolField, counter
from dpfed.compress.fields import FieldBytes
from dpfed.config import own_code


@contextmanager
def fresh_names():
    """Whatever is registered inside is forgotten afterwards."""
    names = {kind: dict(names) for kind, names in own_code._KNOWN.items()}
    files = dict(own_code._LOADED)
    try:
        yield
    finally:
        for kept, before in ((own_code._KNOWN, names), (own_code._LOADED, files)):
            kept.clear()
            kept.update(before)


class Honest:
    """Three levels: the largest entry times -1, 0 or 1, at random."""

    unbiased = True

    def bits(self, dimension):
        return {"scale": Floats(count=1, signed=False), "trits": SymbolField(alphabet=3, count=dimension)}

    def encode(self, x, seeds):
        scale = x.abs().amax(dim=1, keepdim=True)
        share = x.abs() / torch.where(scale > 0, scale, 1.0)
        up = counter.coins(share, seeds, "honest")
        return {"scale": scale, "trits": 1 + up.long() * torch.where(x < 0, -1, 1)}

    def decode(self, sent):
        return sent["scale"] * (sent["trits"].float() - 1)


class TooManySymbols(Honest):
    """Four symbols in a field of three."""

    def encode(self, x, seeds):
        return super().encode(x, seeds) | {"trits": (x > 0).long() * 3}


@dataclass(frozen=True, kw_only=True)
class Longer:
    """A field that writes more bytes than it says."""

    count: int
    most_bytes: int

    @property
    def dtype(self):
        return np.dtype("<f4")

    def write(self, values):
        return FieldBytes(content=values.astype(self.dtype).tobytes(), coded=False)

    def read(self, reader):
        return np.frombuffer(reader.take(4 * self.count, "floats"), dtype=self.dtype)


class UnderstatedBits(Honest):
    unbiased = False

    def bits(self, dimension):
        return {"values": Longer(count=dimension, most_bytes=dimension)}

    def encode(self, x, seeds):
        return {"values": x}

    def decode(self, sent):
        return sent["values"]


@dataclass(frozen=True, kw_only=True)
class Lenient(Longer):
    """A field that makes up what is not there."""

    def read(self, reader):
        content = reader.content[reader.at : reader.at + 4 * self.count]
        reader.at += len(content)
        return np.frombuffer(content.ljust(4 * self.count, b"\0"), dtype=self.dtype)


class ReadsWhatIsNotThere(UnderstatedBits):
    def bits(self, dimension):
        return {"values": Lenient(count=dimension, most_bytes=4 * dimension)}


@dataclass(frozen=True, kw_only=True)
class Overrun(Longer):
    """A field that takes its neighbour's bytes."""

    def read(self, reader):
        values = struct.unpack_from(f"<{self.count}f", reader.content, reader.at + 4)
        reader.at += 4 * self.count
        return np.array(values, dtype=self.dtype)


class ReadsBeyond(UnderstatedBits):
    def bits(self, dimension):
        return {"values": Overrun(count=dimension, most_bytes=4 * dimension)}


class LosesSigns(UnderstatedBits):
    """Bytes hold less than the tensor that is decoded in the same process."""

    def bits(self, dimension):
        return {"values": Rounded(count=dimension, most_bytes=2 * dimension)}


@dataclass(frozen=True, kw_only=True)
class Rounded(Longer):
    def write(self, values):
        return FieldBytes(content=values.astype("<f2").tobytes(), coded=False)

    def read(self, reader):
        return np.frombuffer(reader.take(2 * self.count, "halves"), dtype="<f2").astype("<f4")


_LAST = []


class Remembers(Honest):
    """Decodes what it was given last, not what was sent."""

    def encode(self, x, seeds):
        _LAST[:] = [x]
        return super().encode(x, seeds)

    def decode(self, sent):
        return _LAST[0] if len(_LAST[0]) == len(sent) else super().decode(sent)


class SharesAScale(Honest):
    """One scale for the whole batch: a client's payload depends on the others."""

    unbiased = False

    def encode(self, x, seeds):
        scale = x.abs().max()
        return {
            "scale": scale.expand(len(x), 1),
            "trits": 1 + counter.coins(x.abs() / scale.clamp_min(1e-30), seeds, "honest").long() * x.sign().long(),
        }


class DecodesTheBatch(Honest):
    def decode(self, sent):
        return super().decode(sent) - super().decode(sent).mean() * 0.1


class DrawsAnywhere(Honest):
    """From torch's own generator."""

    def encode(self, x, seeds):
        scale = x.abs().amax(dim=1, keepdim=True)
        up = torch.rand_like(x) * scale < x.abs()
        return {"scale": scale, "trits": 1 + up.long() * torch.where(x < 0, -1, 1)}


class Biased(Honest):
    """Rounds to the nearest level, and claims that chance decides."""

    def encode(self, x, seeds):
        scale = x.abs().amax(dim=1, keepdim=True)
        return {"scale": scale, "trits": 1 + (x / torch.where(scale > 0, scale, 1.0)).round().long()}


class DividesByZero(Honest):
    """Zeros, or an entry alone, become NaN."""

    def encode(self, x, seeds):
        scale = x.abs().amax(dim=1, keepdim=True)
        return {"scale": scale, "trits": 1 + counter.coins(x.abs() / scale, seeds, "honest").long() * x.sign().long()}

    def decode(self, sent):
        return sent["scale"] / sent["scale"] * super().decode(sent)


class SquaresOverflow(Honest):
    """A norm in float32: infinite for entries of 1e20."""

    unbiased = False

    def encode(self, x, seeds):
        norm = x.square().sum(dim=1, keepdim=True).sqrt()
        return {"scale": norm, "trits": 1 + x.sign().long()}

    def decode(self, sent):
        return sent["scale"].square() * (sent["trits"].float() - 1)


@dataclass(frozen=True, kw_only=True)
class TakesNan:
    """The whole protocol, without the check that a user's small one gets."""

    name: ClassVar[str] = "liar"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def layout(self, dimension):
        return {"values": Floats(count=dimension)}

    def encode(self, x, *, seed=0):
        from dpfed.compress.payload import Payloads

        return Payloads.of(self, x.shape[1], values=x.nan_to_num(0.0))

    def decode(self, payloads):
        from dpfed.compress.payload import batch

        return batch(payloads, self)["values"].float()

    def mean(self, payloads):
        return self.decode(payloads).mean(dim=0)


class UnsortedIndices(Honest):
    unbiased = False

    def bits(self, dimension):
        return {
            "where": Indices(size=dimension, count=1 + dimension // 50),
            "values": Floats(count=1 + dimension // 50),
        }

    def encode(self, x, seeds):
        where = x.abs().topk(1 + x.shape[1] // 50, dim=1).indices
        return {"where": where, "values": x.gather(1, where)}

    def decode(self, sent):
        rows = torch.zeros(len(sent), sent.dimension)
        return rows.scatter_(1, sent["where"], sent["values"])


LIARS = {
    "more symbols than stated": ("bits", "3 symbols are from 0 to 2", TooManySymbols),
    "more bytes than stated": ("bits", "its layout states at most 257", UnderstatedBits),
    "indices that no parser takes": ("bits", "distinct coordinates below 257, sorted", UnsortedIndices),
    "bytes hold less than the tensor": ("inverse", "parsed bytes differ in values", LosesSigns),
    "decodes what was encoded last": ("inverse", "decodes to another update", Remembers),
    "makes up what was cut": ("reading", "truncated is read as a payload", ReadsWhatIsNotThere),
    "reads its neighbour's bytes": ("reading", "raises error: unpack_from requires a buffer", ReadsBeyond),
    "a scale of the batch": ("batch", "sends another payload alone", SharesAScale),
    "decodes with the batch": ("batch", "decodes to another update alone", DecodesTheBatch),
    "draws from torch": ("seed", "other payloads the second time", DrawsAnywhere),
    "rounds to nearest": ("unbiased", "claims to be unbiased", Biased),
    "zero over zero": ("edges", "zeros: decodes to", DividesByZero),
    "squares that overflow": ("edges", "huge: is refused, so one client could end a round", SquaresOverflow),
    "encodes nan": ("edges", "nan: is encoded", TakesNan),
}
"""Name -> what finds it, words of the finding, the class."""

assert all(dataclasses.is_dataclass(scheme) or hasattr(scheme, "bits") for _, _, scheme in LIARS.values())
