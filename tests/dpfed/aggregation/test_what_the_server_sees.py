"""What the server receives is uniform, what it holds is nothing of one client, and what comes late stays hidden."""

import gc
import itertools
import types

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from reference.secure_rounds import SecureRound
from scipy.stats import chisquare

import dpfed.aggregation.client
from dpfed.aggregation import cryptography
from dpfed.aggregation.client import Client
from dpfed.aggregation.cryptography import MaskStream, SeededMask, apply_masks, combine_shares
from dpfed.aggregation.messages import MessageKind, agree_on_terms, read_table
from dpfed.aggregation.protocol import MaskedSum
from dpfed.compress.fixed_point import unpack_row
from dpfed.errors import WireError

FALSE_ALARM = 1e-9  # of one test of uniformity: keys are fresh, so nothing is seeded
BITS, SIZE = 4, 20_000


def received(round_, client):
    """The row that the server gets of this client, modulo 2^b."""
    rows = read_table(
        round_.said["upload"][client], MessageKind.UPLOAD, round_.terms.session, most=1, width=SIZE * BITS // 8
    )
    return unpack_row(rows[client], SIZE, BITS)


def uploads(**changes):
    round_ = SecureRound(size=SIZE, bits=BITS, rows=np.zeros((4, SIZE), np.uint32) + 5, **changes).run_to("upload")
    round_.speak("upload")
    return round_


def uniform(values):
    return chisquare(np.bincount(values & ((1 << BITS) - 1), minlength=1 << BITS)).pvalue > FALSE_ALARM


def without_own_mask(round_, client):
    """The row as it is when the server has learnt the client's own seed, in the last step."""
    row = received(round_, client)[None].copy()
    apply_masks(row, [SeededMask(round_.client[client]._own_seed, minus=0)])
    return row[0]


def looks_uniform(*rounds, seen=received):
    """Every row, and every sum and difference of two, of one round or of several."""
    rows = [seen(round_, client) for round_ in rounds for client in round_.client]
    pairs = [word for one, two in itertools.combinations(rows, 2) for word in (one - two, one + two)]
    return all(uniform(row) for row in rows + pairs)


def left_of_a_late_row(round_, late):
    """What remains of a late row when the server has done with it all that it may: taken off the shared masks."""
    shares = round_.server._shares[late]
    key = X25519PrivateKey.from_private_bytes(
        combine_shares(dict(list(shares.items())[: round_.terms.shares_needed(late)]))
    )
    row = received(round_, late)[None].copy()
    for near in round_.terms.graph.neighbours(late):
        theirs = round_.server._keys[near][32:]
        seed = cryptography.mask_seed(key, theirs, round_.terms.session, late, near)
        apply_masks(row, [SeededMask(seed, minus=0) if late < near else SeededMask(seed, plus=0)])
    return row[0]


def after_a_late_row():
    round_ = SecureRound(size=SIZE, bits=BITS, rows=np.zeros((4, SIZE), np.uint32) + 5, dropped=(6,)).run_to("unmask")
    round_.speak("unmask")
    round_.deliver("unmask")
    return round_


@pytest.mark.parametrize("neighbours", [None, 2])
def test_rows_are_uniform_alone_and_in_pairs(neighbours):
    rounds = uploads(neighbours=neighbours), uploads(neighbours=neighbours)
    assert looks_uniform(*rounds)
    assert looks_uniform(*rounds, seen=without_own_mask)


def test_fault_the_same_keys_in_two_rounds(monkeypatch):
    count = itertools.count()
    fixed = [bytes([place]) * 32 for place in range(24)]

    class Repeating:
        generate = staticmethod(lambda: X25519PrivateKey.from_private_bytes(fixed[next(count) % 8]))
        from_private_bytes = X25519PrivateKey.from_private_bytes

    monkeypatch.setattr(dpfed.aggregation.client, "X25519PrivateKey", Repeating)
    monkeypatch.setattr(dpfed.aggregation.client.secrets, "token_bytes", lambda size: bytes(size))
    one, two = uploads(), uploads()
    assert looks_uniform(one)
    assert not looks_uniform(one, two)


def test_fault_one_seed_for_everything(monkeypatch):
    monkeypatch.setattr(dpfed.aggregation.client, "mask_seed", lambda *_: bytes(32))
    assert not looks_uniform(uploads(), seen=without_own_mask)


def test_a_late_row_is_refused_and_stays_uniform():
    round_ = after_a_late_row()
    before = round_.server._total.copy()
    with pytest.raises(WireError, match="UPLOAD message arrived after the close of its step"):
        round_.server.receive(round_.said["upload"][6])
    np.testing.assert_array_equal(before, round_.server._total)
    left = left_of_a_late_row(round_, 6)
    assert uniform(left)
    own = np.empty(SIZE, left.dtype)
    MaskStream(round_.client[6]._own_seed, own.dtype).fill_buffer(own)
    np.testing.assert_array_equal((left - own) & ((1 << BITS) - 1), 5)  # the test took off what the server can take off
    assert round_.server.close().included_clients.tolist() == [0, 3, 9]


def test_fault_no_mask_of_its_own(monkeypatch):
    whole = Client._masks
    monkeypatch.setattr(Client, "_masks", lambda self: whole(self)[1:])
    left = left_of_a_late_row(after_a_late_row(), 6)
    assert not uniform(left)
    np.testing.assert_array_equal(left & ((1 << BITS) - 1), 5)


def memory(root):
    """Everything that can be reached from an object, code and types aside."""
    seen, todo = {}, [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
            continue
        seen[id(one)] = one
        todo += gc.get_referents(one)
    return list(seen.values())


def leaks(server, secrets):
    """Names of the secrets whose bytes are anywhere in the server's memory."""
    content = []
    for one in memory(server):
        assert not isinstance(one, X25519PrivateKey)
        if isinstance(one, bytes | bytearray | memoryview):
            content.append(bytes(one))
        elif isinstance(one, np.ndarray):
            content.append(one.tobytes())
        elif isinstance(one, int):
            content.append(one.to_bytes(80, signed=True))
    return {name for name, secret in secrets.items() if any(secret in some for some in content)}


def forbidden(round_):
    """Every row, every sum of some of the rows, every secret and every seed."""
    found = {}
    for count in range(1, len(round_.ids) + 1):
        for places in itertools.combinations(range(len(round_.ids)), count):
            found[f"rows {places}"] = round_.rows[list(places)].sum(axis=0, dtype=np.uint32).tobytes()
    for one, client in round_.client.items():
        found[f"own seed {one}"] = client._own_seed
        found[f"mask key {one}"] = client._mask_key.private_bytes_raw()
        found[f"cipher key {one}"] = client._cipher_key.private_bytes_raw()
        for near, theirs in client._keys.items():
            found[f"channel {one} {near}"] = client._channels[near]
            found[f"seed {one} {near}"] = cryptography.mask_seed(
                client._mask_key, theirs[32:], round_.terms.session, one, near
            )
    return found


@pytest.mark.parametrize("dropped", [(), (6,)])
def test_the_server_holds_no_row_no_partial_sum_and_no_secret_before_it_closes(dropped):
    round_ = SecureRound(bits=32, dropped=dropped).run_to("upload")
    round_.speak("upload")
    secrets = forbidden(round_)
    assert len(secrets) == 15 + 12 + 12 + 12
    for one, message in round_.said["upload"].items():
        if one not in dropped:
            round_.server.receive(message)
            assert not leaks(round_.server, secrets)
    round_.told["upload"] = round_.server.close_step()
    for message in round_.speak("unmask").values():
        round_.server.receive(message)
        assert not leaks(round_.server, secrets)
    total = round_.server.close().total
    places = [place for place, one in enumerate(round_.ids) if one not in dropped]
    np.testing.assert_array_equal(total, round_.rows[places].sum(axis=0, dtype=np.uint32))


@pytest.mark.parametrize("what", ["rows (0,)", "rows (0, 1)", "own seed 3", "mask key 6", "seed 0 9"])
def test_fault_a_server_that_keeps_what_it_must_not(what):
    round_ = SecureRound(bits=32).run_to("unmask")
    secret = forbidden(round_)[what]
    round_.server._shares[0][0] = [{"kept": (b"before" + secret,)}]
    assert leaks(round_.server, forbidden(round_)) >= {what}
    round_.server._shares[0][0] = np.frombuffer(secret, np.uint8)
    assert leaks(round_.server, forbidden(round_)) >= {what}


def test_uploads_are_not_kept():
    round_ = SecureRound(bits=32).run_to("unmask")
    uploaded = {str(one): bytes(message[-32:]) for one, message in round_.said["upload"].items()}
    assert not leaks(round_.server, uploaded)


@pytest.mark.parametrize("neighbours", [None, 4])
def test_the_running_sum_of_masks_alone_is_uniform_too(neighbours):
    ids, rows = np.arange(8), np.zeros((8, SIZE), np.uint32) + 5
    agreement = agree_on_terms(ids, size=SIZE, bits=BITS, threshold=0.6, neighbours=neighbours, graph_seed=0)
    running = MaskedSum(agreement, dropouts={})
    for start in range(0, 8, 2):
        running.add(ids[start : start + 2], rows[start : start + 2])
        assert uniform(running._total)
    assert set(running.close().total) == {8}
