"""Sparsifiers, which send k of d coordinates: the largest or random ones, separate for each client or shared.

Selection of the largest or smallest magnitudes, ties to the lower index: coordinates to send, weights to purge.

    scheme          which coordinates                    decoded               sent
    topk            the client's largest magnitudes      x there, 0 elsewhere  values, coordinates
    randk           random, from the client's seed       (d/k) x there         values, seed
    shared-randk    random, from the round's one seed    (d/k) x there         values, seed
    shared-topk     public ones, given                   x there               values
    fedsparsify     the largest of a client's model       x there, 0 elsewhere  values, coordinates

k is the option `k`, or the fraction `keep` of d. With `scaled`, random coordinates are unbiased, E decode = x, with
error E||decode - x||² = (d/k - 1) ||x||². In the mean of n clients it falls as 1/n only if their coordinates differ.
Shared schemes are linear: the sum of the clients' values decodes to the sum, so they work under secure aggregation (Hu,
Gong, Guo, "Federated Learning with Sparsified Model Perturbation", arXiv:2202.07178). topk is biased (Stich,
Cordonnier,
Jaggi, arXiv:1809.07599: use it with error feedback), and its coordinates depend on private data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.counter import client_seeds, random_subset
from dpfed.compress.fields import Floats, Indices
from dpfed.compress.payload import Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.errors import ConfigError, WireError

Sparsity = Callable[[int], float]
"""Fraction in [0, 1) of prunable entries that are zero after a given number of rounds, a function of the rounds."""

_NUMBERS_AT_ONCE = 1 << 22


def largest_indices(x: Tensor, kept: int) -> Tensor:
    """Return the coordinates of the `kept` largest |x| of each row of [c, d], sorted, int64 [c, kept], 1 <= kept <= d.

    Ties go to the lower index, which torch.topk does not guarantee: chosen are all entries above the kept-th largest
    magnitude, then the first entries equal to it. A selection, not a sort: linear in d.
    """
    if x.device.type == "cpu":  # numpy selects several times as fast as torch
        return torch.from_numpy(np.stack([_largest_magnitudes(row.abs().numpy(), kept) for row in x.detach()]))
    clients, dimension = x.shape
    chosen = torch.empty(clients, kept, dtype=torch.int64, device=x.device)
    rows = max(1, _NUMBERS_AT_ONCE // dimension)
    for first in range(0, clients, rows):
        magnitudes = x[first : first + rows].abs()
        threshold = magnitudes.topk(kept, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        above, equal = magnitudes > threshold, magnitudes == threshold
        room = kept - above.sum(dim=1, keepdim=True)
        mask = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
        chosen[first : first + rows] = mask.nonzero()[:, 1].view(-1, kept)
    return chosen


def _largest_magnitudes(magnitudes: NDArray[np.float32], kept: int) -> NDArray[np.int64]:
    """Return the places of the `kept` largest magnitudes of one row [d], int64 [kept]."""
    threshold = _kth_largest(magnitudes, kept)
    mask = magnitudes > threshold
    room = kept - int(np.count_nonzero(mask))
    mask[positions_of(magnitudes == threshold)[:room]] = True
    return positions_of(mask)


def _kth_largest(magnitudes: NDArray[np.float32], kept: int) -> np.float32:
    """Return the kept-th largest magnitude. Zeros are removed first, because numpy is ten times as slow if many numbers
    are equal, as in a pruned model."""
    positive = magnitudes > 0
    held = int(np.count_nonzero(positive))
    if held < kept:
        return np.float32(0.0)
    if held < len(magnitudes):
        magnitudes = magnitudes[positions_of(positive)]
    last = held - kept
    threshold: np.float32 = np.partition(magnitudes, last)[last]
    return threshold


def scatter_values(values: Tensor, indices: Tensor, dimension: int) -> Tensor:
    """Return [c, dimension] with the values [c, k] at indices [c, k], and zeros elsewhere."""
    return values.new_zeros(len(values), dimension).scatter_(1, indices, values)


def scatter_mean(values: Tensor, indices: Tensor, dimension: int) -> Tensor:
    """Return the mean over clients of `scatter_values`, [dimension], without building `scatter_values`."""
    total = values.new_zeros(dimension)
    return total.index_add_(0, indices.reshape(-1), values.reshape(-1)).div_(len(values))


def positions_of(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the sorted positions at which mask [n] is true, as np.flatnonzero, at up to three times its speed.

    If at most a tenth is true, numpy jumps from one true entry to the next, and a jump takes the time of ten entries.
    Here groups of eight entries with a true one are found first, then the true entries in these groups.
    """
    if 10 * np.count_nonzero(mask) > len(mask):
        return np.flatnonzero(mask)
    eights = np.packbits(mask)
    holding = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(np.unpackbits(eights[holding]).view(np.bool_))
    positions: NDArray[np.int64] = (holding[inside >> 3] << 3) + (inside & 7)
    return positions


def purged_count(entries: int, sparsity: float) -> int:
    """Return floor(sparsity · entries) in decimal arithmetic: 0.29 of 100 is 29. Raise ConfigError outside [0, 1)."""
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity={sparsity}: must be a fraction in [0, 1).")
    return math.floor(Fraction(repr(float(sparsity))) * entries)


def purge(models: Tensor, prunable: Tensor, sparsity: float) -> Tensor:
    """Return models [c, d] with the smallest magnitudes among the entries `prunable` [m] set to zero, in place.

    `purged_count` entries of each model are set. Of equal magnitudes the lower index is kept; NaN counts as the
    largest.
    """
    purged = purged_count(len(prunable), sparsity)
    if purged == 0:
        return models
    order = models[:, prunable].abs().sort(dim=1, descending=True, stable=True).indices
    return models.scatter_(1, prunable[order[:, len(prunable) - purged :]], 0.0)


def cubic_sparsity(number: int, *, final: float, rounds: int, initial: float = 0.0) -> float:
    """Return the sparsity of a round: s_f + (s_i - s_f) (1 - round / rounds)³ (Zhu and Gupta, arXiv:1710.01878).

    The sparsity is s_f from round `rounds` on. Raises ConfigError unless 0 <= s_i <= s_f < 1 and rounds >= 1.
    """
    if number <= 0:
        return initial
    if number >= rounds:
        return final
    return final + (initial - final) * (1 - number / rounds) ** 3


class _LargestCoordinates(Scheme, Protocol):
    """Base of the schemes that send each client's largest magnitudes and their coordinates; ties go to the lower
    index."""

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def kept(self, dimension: int) -> int:
        """Return the number of coordinates sent."""

    def layout(self, dimension: int) -> Layout:
        count = self.kept(dimension)
        return {"indices": Indices(size=dimension, count=count), "values": Floats(count=count)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        indices = largest_indices(x, self.kept(x.shape[1]))
        return Payloads.of(self, x.shape[1], indices=indices, values=x.gather(1, indices))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        return scatter_values(sent["values"], sent["indices"], sent.dimension)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        return scatter_mean(sent["values"], sent["indices"], sent.dimension)


@dataclass(frozen=True, kw_only=True)
class TopK(_LargestCoordinates):
    """The k coordinates of largest magnitude, with their values."""

    name: ClassVar[str] = "topk"

    keep: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        _check_kept(self.name, self.keep, self.k)

    def kept(self, dimension: int) -> int:
        return _kept_count(dimension, self.keep, self.k)


@dataclass(frozen=True, kw_only=True)
class FedSparsify(_LargestCoordinates):
    """Model with its floor(sparsity · d) smallest magnitudes set to zero; a bitmap and the other values are sent.

    Stripelis, Gupta, Ver Steeg, Ambite, "Federated Progressive Sparsification", arXiv:2204.12430: the smallest
    magnitudes of a model are purged, more of them every round (`cubic_sparsity`). The model itself is sent, not an
    update: the mean over clients of vectors with zeros is biased by design. Sparsity is a decimal fraction: 0.29 of
    100 is 29, whatever the nearest double to 0.29 is.
    """

    name: ClassVar[str] = "fedsparsify"

    sparsity: float = 0.97

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"sparsity={self.sparsity} of fedsparsify: must be a fraction in [0, 1).")

    def kept(self, dimension: int) -> int:
        return dimension - purged_count(dimension, self.sparsity)


@dataclass(frozen=True, kw_only=True)
class RandK(Scheme):
    """k coordinates drawn without replacement from each client's seed; values times d/k if `scaled`."""

    name: ClassVar[str] = "randk"
    linear: ClassVar[bool] = False

    keep: float = 0.01
    k: int | None = None
    scaled: bool = True

    def __post_init__(self) -> None:
        _check_kept(self.name, self.keep, self.k)

    @property
    def unbiased(self) -> bool:
        return self.scaled

    def layout(self, dimension: int) -> Layout:
        return {"values": Floats(count=_kept_count(dimension, self.keep, self.k))}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        values = x.gather(1, self._indices(seeds, x.shape[1]))
        return Payloads.of(self, x.shape[1], seeds=seeds, values=values)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        values = self._scale_values(sent["values"], sent.dimension)
        return scatter_values(values, self._indices(sent.seeds, sent.dimension), sent.dimension)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        values = self._scale_values(sent["values"], sent.dimension)
        return scatter_mean(values, self._indices(sent.seeds, sent.dimension), sent.dimension)

    def _scale_values(self, values: Tensor, dimension: int) -> Tensor:
        return values * (dimension / values.shape[-1]) if self.scaled else values

    def _indices(self, seeds: Tensor, dimension: int) -> Tensor:
        kept = _kept_count(dimension, self.keep, self.k)
        if seeds.device.type != "cpu":
            return random_subset(seeds, "randk", dimension, kept)
        return _last_subset(tuple(seeds.tolist()), dimension, kept)


@dataclass(frozen=True, kw_only=True)
class SharedRandK(RandK):
    """k random coordinates, equal for all clients, from the round's one public seed; values times d/k if `scaled`.

    `seed` of encode is that one integer (or a sequence of equal integers), not hashed per client.
    """

    name: ClassVar[str] = "shared-randk"
    linear: ClassVar[bool] = True
    one_seed: ClassVar[bool] = True

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds([seed] * len(x) if isinstance(seed, int | np.integer) else seed, len(x)).to(x.device)
        if bool((seeds != seeds[0]).any()):
            raise ConfigError("the clients' seeds of shared-randk differ: give the round's one seed to all of them.")
        indices = self._indices(seeds, x.shape[1])
        return Payloads.of(self, x.shape[1], seeds=seeds, values=x.index_select(1, indices))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        indices = self._indices(sent.seeds, sent.dimension)
        decoded = sent["values"].new_zeros(len(sent), sent.dimension)
        return decoded.index_copy_(1, indices, self._scale_values(sent["values"], sent.dimension))

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        indices = self._indices(sent.seeds, sent.dimension)
        mean = self._scale_values(sent["values"].mean(dim=0), sent.dimension)
        return mean.new_zeros(sent.dimension).index_copy_(0, indices, mean)

    def _indices(self, seeds: Tensor, dimension: int) -> Tensor:
        if bool((seeds != seeds[0]).any()):
            raise WireError("payloads of shared-randk with different seeds: all clients of a round must have one seed.")
        return random_subset(seeds[:1], "shared-randk", dimension, _kept_count(dimension, self.keep, self.k))[0]


@dataclass(frozen=True, kw_only=True)
class SharedTopK(Scheme):
    """Public coordinates, equal for all clients: `indices`, an integer tensor, from public data or a past round.

    The coordinates are not sent. The payload has their number `k` and `digest` (SHA-256 of the sorted int64, its
    first 8 bytes in hex), which are computed from `indices` and need not be given.
    """

    name: ClassVar[str] = "shared-topk"
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    k: int | None = None
    digest: str | None = None
    indices: Tensor | None = field(default=None, compare=False, repr=False, metadata={"wire": False})

    def __post_init__(self) -> None:
        if self.indices is None:
            if self.k is None or self.digest is None or self.k < 1:
                raise ConfigError("shared-topk: give its public coordinates, indices=<integer tensor [k]>.")
            return
        indices = _checked_indices(self.indices)
        digest = hashlib.sha256(indices.cpu().numpy().astype("<i8").tobytes()).hexdigest()[:16]
        if self.k not in (None, len(indices)) or self.digest not in (None, digest):
            raise ConfigError(
                f"shared-topk: k={self.k} and digest={self.digest} are not of the given indices "
                f"(k={len(indices)}, digest={digest}); leave them out."
            )
        object.__setattr__(self, "k", len(indices))
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "indices", indices)

    def layout(self, dimension: int) -> Layout:
        largest = -1 if self.indices is None else int(self.indices[-1])
        if self.k is None or max(self.k - 1, largest) >= dimension:
            raise ConfigError(f"shared-topk: {self.k} coordinates up to {largest} do not fit into d={dimension}.")
        return {"values": Floats(count=self.k)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        self.layout(x.shape[1])
        return Payloads.of(self, x.shape[1], values=x.index_select(1, self._indices(x.device)))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        values, dimension = self._sent_values(payloads)
        return values.new_zeros(len(values), dimension).index_copy_(1, self._indices(values.device), values)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        values, dimension = self._sent_values(payloads)
        return values.new_zeros(dimension).index_copy_(0, self._indices(values.device), values.mean(dim=0))

    def _sent_values(self, payloads: Sequence[Payload]) -> tuple[Tensor, int]:
        sent = batch(payloads, self)
        try:
            self.layout(sent.dimension)
        except ConfigError as error:
            raise WireError(str(error)) from None
        return sent["values"], sent.dimension

    def _indices(self, device: torch.device) -> Tensor:
        if self.indices is None:
            raise ConfigError(
                "shared-topk without its public coordinates cannot decode: give indices=<integer tensor>."
            )
        return self.indices.to(device)


@lru_cache(maxsize=1)
def _last_subset(seeds: tuple[int, ...], dimension: int, kept: int) -> Tensor:
    """Return the subsets, cached from the encoder to the decoder of a process; the tensor must not be written to."""
    return random_subset(torch.tensor(seeds, dtype=torch.int64), "randk", dimension, kept)


def _kept_count(dimension: int, keep: float, k: int | None) -> int:
    """Return k, or the fraction `keep` of d coordinates, at least one; raise ConfigError for more than d."""
    kept = k if k is not None else max(1, round(keep * dimension))
    if kept > dimension:
        raise ConfigError(f"k={kept}: must be at most d={dimension}, the number of coordinates.")
    return kept


def _check_kept(name: str, keep: float, k: int | None) -> None:
    if not 0 < keep <= 1:
        raise ConfigError(f"keep={keep} of {name}: must be a fraction in (0, 1].")
    if k is not None and k < 1:
        raise ConfigError(f"k={k} of {name}: must be at least 1; skip the round instead of sending nothing.")


def _checked_indices(indices: Tensor) -> Tensor:
    """Return the indices sorted, int64; raise ConfigError unless they are distinct coordinates."""
    integers = indices.dim() == 1 and not (indices.is_floating_point() or indices.is_complex())
    if not integers or indices.dtype == torch.bool or not len(indices):
        raise ConfigError(f"indices of shared-topk are {indices.dtype} {list(indices.shape)}: must be integers [k].")
    ordered = indices.to(torch.int64).sort().values
    if int(ordered[0]) < 0 or bool((ordered[1:] == ordered[:-1]).any()):
        raise ConfigError("indices of shared-topk: must be distinct and from 0 to d - 1.")
    return ordered
