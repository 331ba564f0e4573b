"""Encode: every row is encoded by a scheme of `dpfed.compress`, in bytes if there is a wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.messages import ProtocolStep
from dpfed.compress import from_bytes
from dpfed.compress.levels import Dense
from dpfed.compress.payload import Payload, Payloads, Scheme, encode_with_feedback, largest_entry, most_bytes
from dpfed.compress.rotation import one_thread
from dpfed.errors import WireError
from dpfed.seeds import Seeds
from dpfed.stages.clip import largest_magnitudes
from dpfed.stages.stage import Round, Stage, Tally, require_room_for_memory, rows_of_clients
from dpfed.stages.wires import count_payloads_beside, scheme_of_round

NOT_SENT, ZEROS = b"\x00", b"\x01"
"""Messages for a row that is not finite, and for a row of zeros (of a client without samples)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encode(Stage):
    """Encoding: rows are encoded, written to bytes and decoded; the sum of decoded rows needs no decoding.

    `read` decodes the bytes of `messages`. In one process `client` decodes the payloads directly, with equal results,
    since bytes are lossless. Bytes are then written only to count them, and not if their number is fixed beforehand.

    A row of zeros arrives as zeros whatever the scheme's encoding of zeros: a client without samples sends no update.

    seed_purpose: clients' seeds are `seeds.integer(seed_purpose, round, client)`, or one for the round if the scheme
                  has a `shared_seed`
    dense:        entries [k] that are sent outside the scheme as float32 (statistics and scales of normalisation
                  layers)
    scheme_of:    function from the round to its scheme, if it changes (FedSparsify's sparsity); `scheme` is that of
                  round 0
    model:        True: reference + row is sent, the client's model, not its move (FedSparsify)
    majority:     True: an entry that is nonzero in fewer than half of the models becomes 0 (FedSparsify's local
                  variant)
    sizes_secret: True: a payload's length would reveal private data, so it is counted with its largest possible length
    feedback:     number of clients with error feedback (`dpfed.compress.payload.encode_with_feedback`). Their errors
                  are the memory of this stage: memory["errors"], [feedback, k]. A client that sends no payload keeps
                  its error. An error beyond the scheme's largest entry is forgotten: with schemes whose error is longer
                  than the update it grows without end
    """

    scheme: Scheme
    seeds: Seeds
    seed_purpose: str = "code"
    scheme_of: Callable[[int], Scheme] | None = None
    dense: Tensor | None = None
    model: bool = False
    majority: bool = False
    sizes_secret: bool = False
    feedback: int | None = None

    def fixed_bits(self, size: int) -> int | None:
        if not self.sizes_secret:
            return None
        exempt = 0 if self.dense is None else len(self.dense)
        return 8 * (most_bytes(self.scheme, size - exempt) + (most_bytes(Dense(), exempt) if exempt else 0))

    @property
    def lossless(self) -> bool:
        """True if rows arrive unchanged."""
        as_it_is = type(self.scheme) is Dense and self.scheme.bits == 32
        return as_it_is and self.dense is None and self.feedback is None and not (self.model or self.majority)

    @property
    def remembers_clients(self) -> bool:
        return self.feedback is not None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.lossless:
            return self._send_unchanged(rows, now)
        with one_thread():
            wrong, comes = self._wrong_and_sent(rows)
            made = self._encode(rows, wrong, comes, ids, now)
            size = 0 if self.sizes_secret else _count_bytes(made, comes, now.tally)
            rows = self._arrived_rows(self._decode_rows(made, comes), comes, ids, now)
        self._count_rows(size + int((~comes).sum()), int(wrong.sum()), now)
        return rows

    def _send_unchanged(self, rows: Tensor, now: Round) -> Tensor:
        """Return rows of floats unchanged, since their bytes are lossless."""
        wrong, comes = self._wrong_and_sent(rows)
        sent = int(comes.sum())
        size = 0 if self.sizes_secret else sent * most_bytes(self.scheme, rows.shape[1])
        self._count_rows(size + len(rows) - sent, int(wrong.sum()), now)
        return rows if sent == len(rows) else torch.where(comes[:, None], rows, 0.0)

    def server(self, total: Tensor, now: Round) -> Tensor:
        if not self.majority or not now.votes:
            return total
        return torch.where(2 * now.votes[0] < now.uploads, -now.uploads * now.reference, total)

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        """Return a payload for each row, exempt entries first; the message is one byte for a row that cannot be sent
        or is zero."""
        with one_thread():
            wrong, comes = self._wrong_and_sent(rows)
            made = self._encode(rows, wrong, comes, ids, now)
            verdicts = zip(comes.tolist(), wrong.tolist(), strict=True)
            return [
                b"".join(part[place].to_bytes() for part in made) if sent else (NOT_SENT if lost else ZEROS)
                for place, (sent, lost) in enumerate(verdicts)
            ]

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        came = [place for place, message in enumerate(messages) if message not in (NOT_SENT, ZEROS)]
        rows = torch.zeros(len(messages), len(now.reference), device=now.reference.device)
        if came:
            with one_thread():
                decoded = self._decode_messages([messages[place] for place in came], now)
                comes = torch.zeros(len(messages), dtype=torch.bool, device=rows.device)
                comes[came] = True
                rows = self._arrived_rows(decoded, comes, ids, now)
        self._count_rows(sum(map(len, messages)), sum(message == NOT_SENT for message in messages), now)
        return rows

    def _count_rows(self, size: int, not_finite: int, now: Round) -> None:
        now.tally.not_finite += not_finite
        if not self.sizes_secret:
            now.tally.add_traffic(size)

    @cached_property
    def _largest_entry(self) -> float:
        """Largest entry that the scheme encodes. Larger updates have diverged and count as zero, like those with
        NaN."""
        return largest_entry(self.scheme)

    def _round_scheme(self, number: int) -> Scheme:
        if self.scheme_of is not None:
            return self.scheme_of(number)
        return scheme_of_round(self.scheme, self.seeds, self.seed_purpose, number)

    def _wrong_and_sent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks [c] of rows that cannot be sent, and of rows that are sent: the other rows except zeros or, for
        models, all others."""
        largest = largest_magnitudes(rows)
        fits = largest <= self._largest_entry
        return ~fits, fits if self.model else fits & (largest > 0)

    def _encode(self, rows: Tensor, wrong: Tensor, comes: Tensor, ids: NDArray[np.int64], now: Round) -> list[Payloads]:
        """Return the payloads of the scheme, preceded by those of exempt entries if there are any."""
        if bool(wrong.any()):
            rows = torch.where(wrong[:, None], 0.0, rows)
        rows = rows + now.reference if self.model else rows
        scheme = self._round_scheme(now.number)
        seeds = [self.seeds.integer(self.seed_purpose, now.number, int(client)) for client in ids]
        if self.dense is None:
            return [self._payloads(scheme, rows, comes, ids, seeds, now)]
        rest = torch.cat([rows[:, place] for place in _slices_without(self.dense, rows.shape[1])], dim=1)
        return [
            Dense().encode(rows[:, self.dense], seed=seeds),
            self._payloads(scheme, rest, comes, ids, seeds, now),
        ]

    def _payloads(
        self, scheme: Scheme, rows: Tensor, comes: Tensor, ids: NDArray[np.int64], seeds: list[int], now: Round
    ) -> Payloads:
        if self.feedback is None:
            return scheme.encode(rows, seed=seeds)
        require_room_for_memory("method.error_feedback", self.feedback, rows.shape[1])
        errors = rows_of_clients(now.memory, "errors", clients=self.feedback, like=rows)
        places = torch.from_numpy(ids).to(rows.device)
        carried = errors[places]
        carried[~(largest_magnitudes(rows + carried) <= self._largest_entry)] = 0.0
        payloads, error = encode_with_feedback(scheme, rows, carried, seed=seeds)
        errors[places[comes]] = error[comes]
        return payloads

    def _arrived_rows(self, decoded: Tensor, comes: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return rows [c, k] of all clients from the rows that arrived, with zeros for the other clients."""
        if self.majority:
            late = [now.task.dropouts.get(client) is ProtocolStep.LATE for client in ids.tolist()]  # not in the sum
            in_time = ~torch.tensor(late, dtype=torch.bool, device=comes.device)
            votes = (decoded[in_time[comes]] != 0).sum(dim=0)
            now.votes[:] = [now.votes[0] + votes] if now.votes else [votes]
        moves = decoded - now.reference if self.model else decoded
        if bool(comes.all()):
            return moves
        rows = moves.new_zeros(len(comes), len(now.reference))
        rows[comes] = moves
        return rows

    def _decode_messages(self, messages: list[bytes], now: Round) -> Tensor:
        origin, scheme = now.reference, self._round_scheme(now.number)
        if self.dense is None:
            return _decode_messages(scheme, messages, len(origin)).to(origin.device)
        end, exempt = most_bytes(Dense(), len(self.dense)), len(self.dense)
        entries = _decode_messages(Dense(), [message[:end] for message in messages], exempt)
        rest = _decode_messages(scheme, [message[end:] for message in messages], len(origin) - exempt)
        return self._insert_exempt(rest.to(origin.device), entries)

    def _decode_rows(self, made: list[Payloads], comes: Tensor) -> Tensor:
        """Return the decoded rows of clients that send a message."""
        *exempt, rest = (_select_payloads(part, comes) for part in made)
        rows = rest.scheme.decode(rest) if len(rest) else torch.zeros(0, rest.dimension, device=comes.device)
        return self._insert_exempt(rows, exempt[0].fields["values"]) if exempt else rows

    def _insert_exempt(self, rest: Tensor, exempt: Tensor) -> Tensor:
        """Return rows [c, k] of the entries that the scheme encodes, and the exempt ones."""
        assert self.dense is not None
        whole = rest.new_empty(len(rest), rest.shape[1] + len(self.dense))
        whole[:, self.dense] = exempt.to(whole)
        places = _slices_without(self.dense, whole.shape[1])
        parts = torch.split(rest, [place.stop - place.start for place in places], dim=1)
        for place, part in zip(places, parts, strict=True):
            whole[:, place] = part
        return whole


def _count_bytes(made: list[Payloads], comes: Tensor, tally: Tally) -> int:
    """Return the total length in bytes of the messages of clients that send one; on a GPU without the fields that other
    processes count for the tally."""
    if comes.device.type == "cpu":
        return sum(part[place].byte_count() for place in comes.nonzero()[:, 0].tolist() for part in made)
    total = 0
    for part in made:
        size, counts = count_payloads_beside(_select_payloads(part, comes))
        total, tally.counts = total + size, tally.counts + counts
    return total


def _slices_without(exempt: Tensor, size: int) -> list[slice]:
    """Return the entries that the scheme encodes, as slices between exempt entries: faster than by index."""
    edges = torch.cat([exempt.new_tensor([-1]), exempt.sort().values, exempt.new_tensor([size])])
    wide = (edges.diff() > 1).nonzero()[:, 0]
    return [
        slice(before + 1, after) for before, after in zip(edges[wide].tolist(), edges[wide + 1].tolist(), strict=True)
    ]


def _select_payloads(payloads: Payloads, chosen: Tensor) -> Payloads:
    return payloads if bool(chosen.all()) else payloads[chosen]


def _decode_messages(scheme: Scheme, messages: list[bytes], size: int) -> Tensor:
    """Return rows [c, size], decoded from payloads of the given scheme."""
    received: list[Payload] = [from_bytes(message, dimension=size) for message in messages]
    rows = scheme.decode(received)
    if not bool(largest_magnitudes(rows).isfinite().all()):
        raise WireError(f"a payload of {scheme.name} that decodes to NaN or infinity; drop the client's message.")
    return rows
