"""Bytes from a stranger: accepted or a WireError, never anything else, and refusing changes nothing."""

import contextlib
import pickle
import random
import struct
import tracemalloc

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from reference.secure_rounds import BEFORE, SecureRound
from refusals import refused

from dpfed.aggregation import cryptography
from dpfed.aggregation.messages import MessageKind, Reveal, read_table, sent_beside_row, write_table
from dpfed.compress.fixed_point import packed_bytes
from dpfed.errors import SecureSumAborted, WireError

STEPS = pytest.mark.parametrize("step", list(BEFORE))
HEADER = 33


def tampered(message, generator):
    """Truncated, extended, flipped, with another count, another id, another party, repeated in itself."""
    content = bytearray(message)
    change = generator.randrange(7)
    if change == 0:
        return bytes(content[: generator.randrange(len(content))])
    if change == 1:
        return bytes(content) + generator.randbytes(generator.randrange(1, 200))
    if change == 2:
        for _ in range(generator.randrange(1, 4)):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    if change == 3:
        struct.pack_into("<I", content, 29, generator.choice([0, 1, 2, 1 << 20, (1 << 32) - 1]))
    if change == 4:
        struct.pack_into("<Q", content, HEADER, generator.choice([0, 3, 6, 9, 12, (1 << 64) - 1]))
    if change == 5:
        struct.pack_into("<Q", content, 21, generator.choice([0, 3, 6, 9, 12, (1 << 64) - 1]))
    if change == 6:
        content += content[HEADER:]
        struct.pack_into("<I", content, 29, 2 * struct.unpack_from("<I", message, 29)[0])
    return bytes(content)


@STEPS
def test_the_server_accepts_or_refuses_and_stays_as_it_was(step):
    generator, accepted = random.Random(step), 0
    round_ = SecureRound(dropped=(9,)).run_to(step)
    messages = list(round_.speak(step).values())
    for _ in range(1500):
        message = tampered(generator.choice(messages), generator)
        before = pickle.dumps(round_.server.__dict__)
        try:
            round_.server.receive(message)
            accepted += 1
            round_.server.__dict__ = pickle.loads(before)
        except WireError as error:
            assert 10 < len(str(error)) < 500
            assert pickle.dumps(round_.server.__dict__) == before
    assert accepted < 750


@STEPS
def test_a_client_goes_on_or_refuses(step):
    if step == "advertise":
        return  # nothing is said to it before
    generator = random.Random(step)
    said_before = list(BEFORE)[BEFORE[step] - 1]
    for _ in range(100):
        round_ = SecureRound(clients=3).run_to(step)
        client = round_.client[3]
        act = {"share": client.share, "upload": client.store_shares, "unmask": client.unmask}[step]
        with contextlib.suppress(WireError, SecureSumAborted):
            act(tampered(round_.told[said_before][3], generator))


@STEPS
def test_the_whole_round_ends_in_a_total_or_an_error_of_the_family(step):
    for seed in range(40):
        generator = random.Random(seed)
        round_ = SecureRound(clients=3).run_to(step)
        messages = round_.speak(step)
        with contextlib.suppress(WireError, SecureSumAborted):
            messages[3] = tampered(messages[3], generator)
            for name in list(BEFORE)[BEFORE[step] :]:
                if name != step:
                    round_.speak(name)
                round_.deliver(name)
            round_.server.close()


@pytest.mark.parametrize("count", [5, 1 << 20, (1 << 32) - 1])
def test_a_forged_count_takes_no_memory(count):
    round_ = SecureRound().run_to("share")
    message = bytearray(round_.speak("share")[3])
    struct.pack_into("<I", message, 29, count)
    tracemalloc.start()
    refused(WireError, f"claims {count} rows", round_.server.receive, bytes(message))
    assert tracemalloc.get_traced_memory()[1] < 1 << 17
    tracemalloc.stop()


@STEPS
def test_nothing_counts_twice(step):
    round_ = SecureRound().run_to(step)
    message = round_.speak(step)[3]
    round_.server.receive(message)
    refused(WireError, "twice", round_.server.receive, message)


@STEPS
def test_nothing_before_or_after_its_step(step):
    early = SecureRound().run_to(step)
    messages = {name: SecureRound().run_to(name).speak(name)[3] for name in BEFORE if name != step}
    for message in messages.values():
        refused(WireError, "", early.server.receive, message)
    if step == "unmask":
        refused(WireError, "has no answer", early.server.close_step)
        early.close()
        refused(WireError, "over", early.server.receive, messages["upload"])
    refused(WireError, "closed at step", early.server.close)


def test_a_client_says_everything_once():
    round_ = SecureRound().run_to("unmask")
    client = round_.client[3]
    client.unmask(round_.told["upload"][3])
    for again in (
        client.advertise,
        lambda: client.share(round_.told["advertise"][3]),
        lambda: client.upload(round_.rows[0]),
        lambda: client.unmask(round_.told["upload"][3]),
    ):
        refused(WireError, "refused", again)


def request(round_, rows):
    return write_table(MessageKind.REQUEST, round_.terms.session, 3, rows)


def test_both_shares_of_one_client_cannot_be_asked_for():
    round_ = SecureRound(dropped=(9,)).run_to("unmask")
    honest = round_.told["upload"][3]
    rows = read_table(honest, MessageKind.REQUEST, round_.terms.session, most=4)
    entry = struct.pack("<Q", 9)
    both = honest[:29] + struct.pack("<I", 5) + honest[HEADER:] + entry + bytes([Reveal.OWN_MASK])
    refused(WireError, "claims 5 rows", round_.client[3].unmask, both)
    other = SecureRound(dropped=(9,)).run_to("unmask")
    ours = other.told["upload"][3]
    instead = ours[:HEADER] + ours[HEADER + 9 :] + entry + bytes([Reveal.OWN_MASK])  # of client 0 nothing, of 9 both
    refused(WireError, "names client 9 after 9", other.client[3].unmask, instead)
    assert {one: content[0] for one, content in rows.items()} == {0: 0, 3: 0, 6: 0, 9: 1}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({0: b"\0", 3: b"\1", 6: b"\0", 9: b"\0"}, "without it"),
        ({0: b"\0", 3: b"\0", 6: b"\0", 8: b"\0"}, "unknown"),
        ({0: b"\2", 3: b"\0", 6: b"\0", 9: b"\0"}, "secret 2"),
    ],
    ids=["excluded", "unknown", "third"],
)
def test_requests_that_cannot_be(rows, why):
    round_ = SecureRound().run_to("unmask")
    refused(WireError, why, lambda: round_.client[3].unmask(request(round_, rows)))


def test_a_client_reveals_nothing_for_too_few_survivors():
    round_ = SecureRound().run_to("unmask")
    with pytest.raises(SecureSumAborted, match="2 answered, 3 are needed"):
        round_.client[3].unmask(request(round_, {0: b"\1", 3: b"\0", 6: b"\0", 9: b"\1"}))


def test_a_reply_with_the_other_secret_is_refused():
    round_ = SecureRound(dropped=(9,)).run_to("unmask")
    reply = bytearray(round_.speak("unmask")[3])
    for place in range(4):
        wrong = bytearray(reply)
        wrong[HEADER + 75 * place + 8] ^= 1
        refused(WireError, "not asked for", round_.server.receive, bytes(wrong))
    round_.server.receive(bytes(reply))


@pytest.mark.parametrize("owner", [0, 9], ids=["own mask", "mask key"])
def test_a_wrong_share_gives_no_total(owner):
    round_ = SecureRound(dropped=(9,)).run_to("unmask")
    replies = round_.speak("unmask")
    wrong = bytearray(replies[0])
    wrong[HEADER + 75 * (0 if owner == 0 else 3) + 40] ^= 1
    replies[0] = bytes(wrong)
    round_.deliver("unmask")
    refused(WireError, "wrong share", round_.server.close)


def test_shares_of_another_round_are_refused():
    old, new = (SecureRound().run_to("upload") for _ in range(2))
    message = old.told["share"][3]
    refused(WireError, "another round", new.client[3].store_shares, message)
    new = SecureRound().run_to("upload")
    relabelled = message[:5] + new.terms.session + message[21:]
    refused(WireError, "do not open", new.client[3].store_shares, relabelled)


def test_shares_for_another_client_are_refused():
    round_ = SecureRound().run_to("upload")
    refused(WireError, "for another client", round_.client[3].store_shares, round_.told["share"][0])
    round_ = SecureRound().run_to("upload")
    theirs = read_table(round_.told["share"][0], MessageKind.FORWARD, round_.terms.session, most=3)
    swapped = write_table(MessageKind.FORWARD, round_.terms.session, 3, {0: theirs[6], 6: theirs[6], 9: theirs[9]})
    refused(WireError, "do not open", round_.client[3].store_shares, swapped)


def test_another_key_or_direction_does_not_open():
    one, two, three = (X25519PrivateKey.generate() for _ in range(3))
    public = {key: key.public_key().public_bytes_raw() for key in (one, two, three)}
    sealed = cryptography.encrypt(b"shares", cryptography.exchange_keys(one, public[two]), b"s" * 16, 4, 5)
    assert cryptography.decrypt(sealed, cryptography.exchange_keys(two, public[one]), b"s" * 16, 4, 5) == b"shares"
    for own, other, session, sender, receiver in [
        (three, one, b"s" * 16, 4, 5),
        (two, three, b"s" * 16, 4, 5),
        (two, one, b"t" * 16, 4, 5),
        (two, one, b"s" * 16, 5, 4),
        (two, one, b"s" * 16, 4, 6),
    ]:
        with pytest.raises(WireError, match="do not open"):
            cryptography.decrypt(sealed, cryptography.exchange_keys(own, public[other]), session, sender, receiver)


def test_both_ends_find_the_same_seed_and_nobody_else():
    one, two, three = (X25519PrivateKey.generate() for _ in range(3))
    public = {key: key.public_key().public_bytes_raw() for key in (one, two, three)}
    seed = cryptography.mask_seed(one, public[two], b"s" * 16, 4, 5)
    assert seed == cryptography.mask_seed(two, public[one], b"s" * 16, 5, 4)
    assert (
        len(
            {
                seed,
                cryptography.mask_seed(three, public[one], b"s" * 16, 4, 5),
                cryptography.mask_seed(one, public[two], b"t" * 16, 4, 5),
            }
        )
        == 3
    )


def test_public_keys_that_lie():
    round_ = SecureRound().run_to("share")
    rows = {
        one: bytes(content)
        for one, content in read_table(
            round_.told["advertise"][3], MessageKind.KEYS, round_.terms.session, most=3
        ).items()
    }
    for wrong, why in [
        (rows | {0: rows[6]}, "are equal"),
        (rows | {0: bytes(32) + rows[0][32:]}, "no private key"),
        (rows | {3: rows[0]} | {}, "claims 4 rows"),
        ({0: rows[0]}, "2 answered, 3 are needed"),
    ]:
        fresh = SecureRound().run_to("share")
        with pytest.raises((WireError, SecureSumAborted), match=why):
            fresh.client[3].share(write_table(MessageKind.KEYS, fresh.terms.session, 3, wrong))


@pytest.mark.parametrize(("clients", "neighbours"), [(4, None), (9, 4)])
def test_what_a_client_sends_beside_its_row(clients, neighbours):
    round_ = SecureRound(clients=clients, neighbours=neighbours).run_to("unmask")
    round_.speak("unmask")
    sent = sum(len(round_.said[step][3]) for step in BEFORE)
    assert sent - packed_bytes(8, 17) == sent_beside_row(neighbours or clients - 1)
