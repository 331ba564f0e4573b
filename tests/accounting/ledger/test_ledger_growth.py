"""A ledger of many records: written together, read, stated, and read while it grows."""

import multiprocessing
import os
from dataclasses import replace

import pytest
from reference.shorthand import poisson, release
from refusals import refused

from accounting import Aborted, Composed, Header, Ledger, guarantee
from accounting.errors import EditedLedger, LedgerError, TruncatedLedger
from accounting.ledger import regular_file

HEADER = Header(unit="client", clients=1000, randomness="simulated")
QUIET, LOUD = poisson(0.01, 20.0), poisson(0.01, 10.0)


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "l", HEADER)


def test_a_batch_is_the_same_file_as_its_records_one_by_one(tmp_path):
    entries = [release(0), release(1, LOUD), Aborted(round=2, reason="too few"), release(3), release(4)]
    one, all_ = (Ledger.create(tmp_path / name, HEADER) for name in ("one", "all"))
    for entry in entries:
        one.record(entry)
    all_.record_all(entries[:2])
    all_.record_all([])
    all_.record_all(entries[2:])
    assert one.path.read_bytes() == all_.path.read_bytes()
    assert Ledger.read(all_.path).entries == all_.entries == entries


def test_a_batch_that_does_not_fit_leaves_nothing(ledger, monkeypatch):
    ledger.record(release(0))
    before, real, calls = ledger.path.read_bytes(), os.write, iter([True, False])

    def half(descriptor, data):
        if next(calls):
            return real(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    refused(LedgerError, "round 1 cannot be recorded", ledger.record_all, (release(round) for round in range(1, 50)))
    monkeypatch.undo()
    assert ledger.path.read_bytes() == before
    assert len(ledger.entries) == 1
    ledger.record_all(release(round) for round in range(1, 50))
    assert [one.round for one in Ledger.read(ledger.path).releases] == list(range(50))


def test_equal_records_share_their_parts_and_unequal_ones_do_not(ledger):
    written = [release(0), release(1), release(2, LOUD), replace(release(3, LOUD), detail={"run": "b"}), release(4)]
    ledger.record_all(written)
    read = Ledger.read(ledger.path).entries
    assert read == written
    assert read[0].mechanism is read[1].mechanism
    assert read[0].mechanism is not read[2].mechanism


def test_epsilon_of_thousands_of_records_is_that_of_their_composition(ledger):
    ledger.record_all(release(round, LOUD if round % 100 == 0 else QUIET) for round in range(2000))
    stated = Ledger.read(ledger.path).guarantee(1e-5, with_lower_bound=False)
    mixture = Composed(parts=((LOUD, 20), (QUIET, 1980)))
    assert stated.epsilon == guarantee(mixture, delta=1e-5, with_lower_bound=False).epsilon


def test_a_second_writer_is_refused(ledger):
    other = Ledger.resume(ledger.path)
    other.record(release(0))
    refused(LedgerError, "another process writes to it", lambda: ledger.record(release(0, LOUD)))
    assert Ledger.read(ledger.path).entries == [release(0)]


def test_a_file_that_became_shorter_is_refused(ledger):
    ledger.record_all([release(0), release(1)])
    regular_file.truncate_file(ledger.path, ledger.path.read_bytes().index(b"\n", 300) + 1)
    refused(EditedLedger, "shorter than at the last read", ledger.catch_up)


def test_a_line_without_an_end_is_not_read_into_memory(ledger, monkeypatch):
    with open(ledger.path, "ab") as file:
        file.write(b"[" * 2000)
    monkeypatch.setattr("accounting.ledger.file.LONGEST_LINE", 1000)
    refused(EditedLedger, "more than 1000 bytes", Ledger.resume, ledger.path)


def test_so_far_leaves_an_unfinished_line_where_it_is(ledger):
    ledger.record(release(0))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"chain":"12')
    assert Ledger.so_far(ledger.path).entries == [release(0)]
    assert ledger.path.read_bytes() == whole + b'{"chain":"12'
    ledger.path.write_bytes(whole[:20])
    refused(TruncatedLedger, "line 1", Ledger.so_far, ledger.path)


def write_slowly(path, rounds):
    """Every line in pieces, as a busy disk might."""
    real = os.write
    os.write = lambda descriptor, data: real(descriptor, data[:37])
    ledger = Ledger.resume(path)
    for round in range(rounds):
        ledger.record(release(round))


def test_readers_see_a_whole_prefix_while_a_writer_appends(ledger):
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=write_slowly, args=(ledger.path, 300))
    writer.start()
    seen = [0]
    while writer.is_alive():
        entries = Ledger.so_far(ledger.path).entries
        assert entries == [release(round) for round in range(len(entries))]
        seen.append(len(entries))
    writer.join()
    assert writer.exitcode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert Ledger.read(ledger.path).entries == [release(round) for round in range(300)]


def test_to_look_takes_over_what_others_wrote_but_for_an_unfinished_line(ledger):
    other = Ledger.so_far(ledger.path)
    ledger.record_all([release(0), release(1)])
    with open(ledger.path, "ab") as file:
        file.write(b'{"chain":"')
    other.refresh()
    assert other.entries == [release(0), release(1)]
    other.refresh()
    assert len(other.entries) == 2
    assert other.catch_up() == []
    assert Ledger.read(ledger.path).entries == other.entries
