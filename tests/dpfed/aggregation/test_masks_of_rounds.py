"""No mask is ever used twice: seeds of pairs and of single clients are new in every round."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.aggregation import client, cryptography, messages, protocol
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.sums import SecureSums
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerState

SEEDS = Seeds(root=0)
CLIENTS, ROUNDS, SIZE = 6, 3, 100
PAIRS = CLIENTS * (CLIENTS - 1) // 2
KINDS = pytest.mark.parametrize("kind", ["masked", "protocol"])


@pytest.fixture
def seen(monkeypatch):
    """`seen(kind)`: for every round the seeds that were expanded, and the rows of zeros as they were after masking."""

    def rounds(kind):
        seeds, rows = [], []

        class Watched(cryptography.MaskStream):
            def __init__(self, seed, *arguments, **more):
                seeds[-1].append(seed)
                super().__init__(seed, *arguments, **more)

        def apply(words, given):
            cryptography.apply_masks(words, given)
            rows[-1].extend(row.tobytes() for row in words)

        sums = SecureSums(kind=kind, bits=16, neighbours=None, threshold=0.6, tolerance=None, seeds=SEEDS)
        with monkeypatch.context() as patch:
            patch.setattr(cryptography, "MaskStream", Watched)
            patch.setattr(client, "apply_masks", apply)
            patch.setattr(protocol, "apply_masks", apply)
            for number in range(ROUNDS):
                seeds.append([])
                rows.append([])
                who = np.arange(CLIENTS)
                state = ServerState(round=number, broadcast=torch.zeros(SIZE), clip_norm=1.0)
                one = sums.open(Task(state=state, cohort=who, participants=who), size=SIZE, dtype=torch.int64)
                one.add(who, torch.zeros(CLIENTS, SIZE, dtype=torch.int64))
                assert not bool(one.close().total.any())
                del rows[-1][CLIENTS:]  # the sum, from which masks come off again
        return seeds, rows

    return rounds


def reused(seeds, rows):
    """What is wrong: seeds of one round that are another's too, fewer seeds than clients and pairs, rows that agree."""
    found = []
    used = Counter(seed for of_round in seeds for seed in set(of_round))
    if any(count > 1 for count in used.values()):
        found.append("a seed in two rounds")
    if any(len(set(of_round)) != CLIENTS + PAIRS for of_round in seeds):
        found.append("a seed for two clients or pairs")
    everything = [row for of_round in rows for row in of_round]
    if len(everything) != ROUNDS * CLIENTS or len(set(everything)) < len(everything):
        found.append("two masks are one")
    words = np.array([np.frombuffer(row, dtype=np.uint16) for row in everything])
    alike = max(float((words[i] == words[j]).mean()) for i in range(len(words)) for j in range(i))
    if alike > 0.1:  # words of 16 bits agree by chance with 2^-16: ten of a hundred with 10^-34
        found.append("words agree")
    return found


@KINDS
def test_every_round_and_client_has_masks_of_its_own(seen, kind):
    assert reused(*seen(kind)) == []


def fixed_bytes(size=32):
    return b"\x07" * size


class FixedKey:
    """X25519 keys that are the same in every round, in the order of the clients."""

    def __init__(self):
        self._made = 0

    def generate(self):
        self._made += 1
        return X25519PrivateKey.from_private_bytes(bytes([self._made % (2 * CLIENTS)]) * 32)

    from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)


def test_one_secret_for_all_rounds_is_found(seen, monkeypatch):
    """The planted fault of `masked`."""
    monkeypatch.setattr(protocol, "secrets", SimpleNamespace(token_bytes=fixed_bytes))
    assert "a seed in two rounds" in reused(*seen("masked"))


def test_pairs_whose_secret_forgets_who_they_are_are_found(seen, monkeypatch):
    monkeypatch.setattr(protocol, "pack_ids", lambda one, two: bytes(16))
    assert "a seed for two clients or pairs" in reused(*seen("masked"))


def test_one_mask_of_its_own_for_all_rounds_is_found(seen, monkeypatch):
    """The planted fault of `protocol`: a client's own seed, which pairs' fresh keys would hide from a look at rows."""
    monkeypatch.setattr(client, "secrets", SimpleNamespace(token_bytes=fixed_bytes))
    assert "a seed in two rounds" in reused(*seen("protocol"))


def test_old_keys_under_an_old_session_are_found(seen, monkeypatch):
    """One without the other changes the pairs' seeds all the same; own seeds are new in both cases."""
    monkeypatch.setattr(client, "X25519PrivateKey", FixedKey())
    assert reused(*seen("protocol")) == []
    monkeypatch.setattr(client, "X25519PrivateKey", FixedKey())
    plain = messages.Agreement.__init__

    def fixed(self, **terms):
        plain(self, **{**terms, "session": fixed_bytes(16)})

    monkeypatch.setattr(messages.Agreement, "__init__", fixed)
    assert "a seed in two rounds" in reused(*seen("protocol"))
