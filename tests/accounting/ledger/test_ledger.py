"""The ledger: what it refuses to believe, and what it says from the file alone."""

import hashlib
import json
import os
from dataclasses import replace

import pytest
from reference.shorthand import fixed, poisson
from refusals import refused

from accounting import Aborted, Header, Ledger, LocalRelease, Release, Steps
from accounting.errors import EditedLedger, LedgerError, LedgerVersionError, TruncatedLedger
from accounting.ledger.hash_chain import chained_line

HEADER = Header(unit="client", clients=6000, randomness="simulated", about={"method": "dp-fedavg"})
POISSON = poisson(100 / 6000, 1.4)


def release(number: int, mechanism=POISSON, noise_std=1.4) -> Release:
    return Release(
        round=number,
        mechanism=mechanism,
        clip_norm=1.0,
        noise_std=noise_std,
        noise_placement="server",
        detail={"dimension": 10, "divided_by": 100.0},
    )


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "ledger.jsonl", HEADER)
    for round in range(3):
        book.record(release(round))
    return book


def test_what_is_read_is_what_was_recorded(ledger):
    again = Ledger.read(ledger.path)
    assert again.header == HEADER
    assert again.releases == ledger.releases
    stated = again.guarantee(1e-5)
    assert (stated.unit, stated.adjacency, stated.sampling) == ("client", "add-remove", "poisson")


def test_an_aborted_round_is_on_record_and_costs_nothing(ledger):
    before = ledger.guarantee(1e-5).epsilon
    ledger.record(Aborted(round=3, reason="3 of 10 uploads came, 7 are needed"))
    again = Ledger.read(ledger.path)
    assert again.entries[-1] == Aborted(round=3, reason="3 of 10 uploads came, 7 are needed")
    assert len(again.releases) == 3
    assert again.guarantee(1e-5).epsilon == before


def test_every_line_names_what_an_epsilon_must_name(ledger):
    header, line = (json.loads(text) for text in ledger.path.read_text().splitlines()[:2])
    assert header["unit"] == "client"
    assert header["randomness"] == "simulated"
    assert line["mechanism"]["mechanism"] == {"kind": "gaussian", "noise_multiplier": 1.4, "adjacency": "add-remove"}
    assert line["mechanism"]["sampling"] == {"name": "poisson", "probability": 100 / 6000}
    assert line["sensitivity_in_clips"] == 1.0
    assert (line["noise_std"], line["noise_placement"], line["clip_norm"]) == (1.4, "server", 1.0)


def test_two_adjacencies_in_one_ledger_have_no_epsilon(ledger):
    ledger.record(release(3, fixed(10, 100, 2.0), noise_std=2.0))
    refused(ValueError, "one adjacency", ledger.guarantee, 1e-5)


def test_a_truncated_last_line_is_named_and_resume_drops_it(ledger):
    whole = ledger.path.read_bytes()
    for cut in (1, 10, 200):
        ledger.path.write_bytes(whole[:-cut])
        refused(TruncatedLedger, "line 4", Ledger.read, ledger.path)
        resumed = Ledger.resume(ledger.path)
        assert len(resumed.releases) == 2
        resumed.record(release(2))
        assert ledger.path.read_bytes() == whole


def test_an_empty_or_headless_file_is_truncated(tmp_path):
    (tmp_path / "l").write_bytes(b"")
    refused(TruncatedLedger, "empty", Ledger.read, tmp_path / "l")
    (tmp_path / "l").write_bytes(b'{"kind":"head')
    refused(TruncatedLedger, "", Ledger.resume, tmp_path / "l")


EDITS = {
    "other noise": lambda one, two, three: [one.replace("1.4", "9.9"), two, three],
    "a line less": lambda one, two, three: [two, three],
    "two lines exchanged": lambda one, two, three: [two, one, three],
    "a line twice": lambda one, two, three: [one, one, two, three],
    "no JSON": lambda one, two, three: [one, "release", three],
    "no object": lambda one, two, three: [one, "[1]", three],
    "deep nesting": lambda one, two, three: [one, "[" * 100_000, three],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_file_is_refused_and_the_line_named(ledger, edit):
    header, *lines = ledger.path.read_text().splitlines()
    ledger.path.write_text("\n".join([header, *edit(*lines)]) + "\n")
    refused(EditedLedger, r"line [234]", Ledger.read, ledger.path)


def test_any_single_byte_change_is_refused(ledger):
    content = ledger.path.read_bytes()
    for position in range(0, len(content) - 1, 7):
        changed = bytearray(content)
        changed[position] ^= 0x01
        ledger.path.write_bytes(bytes(changed))
        refused(LedgerError, "", Ledger.read, ledger.path)


def test_an_unknown_version_is_refused_by_its_name(ledger):
    text = ledger.path.read_text().replace('"version":1', '"version":2')
    ledger.path.write_text(text)
    refused(LedgerVersionError, "version 2", Ledger.read, ledger.path)


def test_an_existing_file_is_never_overwritten(ledger):
    before = ledger.path.read_bytes()
    refused(LedgerError, "already exists", Ledger.create, ledger.path, HEADER)
    assert ledger.path.read_bytes() == before


def test_a_missing_file_and_a_missing_folder(tmp_path):
    refused(LedgerError, "cannot be read", Ledger.read, tmp_path / "none")
    refused(LedgerError, "Nothing was released", Ledger.create, tmp_path / "no" / "folder", HEADER)


def test_the_line_is_synced_before_record_returns(ledger, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    ledger.record(release(3))
    assert synced == [ledger.path.stat().st_size]


def test_a_new_ledger_and_its_place_in_the_folder_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    path = Ledger.create(tmp_path / "l", HEADER).path
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


def test_a_line_depends_on_what_is_said_and_not_on_its_order():
    said = {"b": 1.5, "a": {"d": [1, 2], "c": None}}
    line, chain = chained_line(said, "before")
    assert line == b'{"chain":"' + chain.encode() + b'","a":{"c":null,"d":[1,2]},"b":1.5}\n'
    assert chain == hashlib.sha256(b'before{"a":{"c":null,"d":[1,2]},"b":1.5}').hexdigest()
    refused(ValueError, "not JSON compliant", chained_line, {"a": float("nan")}, "before")


def test_releases_of_another_unit_have_no_place(tmp_path):
    of_records = Header(unit="record", clients=10, randomness="simulated")
    local = LocalRelease(
        round=0, steps=(Steps(mechanism=POISSON, count=3, clients=(1,)),), clip_norm=1.0, noise_std=2.0
    )
    for header, entry, words in ((HEADER, local, "a local release"), (of_records, release(0), "a release of all")):
        book = Ledger.create(tmp_path / header.unit, header)
        refused(LedgerError, f"{words}.* is not allowed in a ledger of unit '{header.unit}'", book.record, entry)
        assert book.entries == Ledger.read(book.path).entries == []
        line, _ = chained_line(entry.to_dict(), book._chain)
        book.path.write_bytes(book.path.read_bytes() + line)
        refused(EditedLedger, "is not allowed", Ledger.read, book.path)
    book = Ledger.create(tmp_path / "whose", of_records)
    book.record(local)
    assert book.if_fixed_in_advance(1e-5).notes == (
        "epsilon is that of the client with the largest epsilon, which made 3 steps",
    )


@pytest.mark.parametrize("line", [1, 2, 57, 120])
@pytest.mark.parametrize("where", [0, 0.3, 0.7, 1])
def test_the_first_bad_line_is_named_wherever_a_bit_flips(tmp_path, line, where):
    book = Ledger.create(tmp_path / "l", HEADER)
    book.record_all(release(round) for round in range(119))
    lines = book.path.read_bytes().splitlines(keepends=True)
    position = round(where * (len(lines[line - 1]) - 2))
    changed = bytearray(lines[line - 1])
    changed[position] ^= 0x04
    lines[line - 1] = bytes(changed)
    lines[100:110] = []  # what is wrong further down is not named
    book.path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match=f"line {min(line, 101)}[:,]") if line > 1 else pytest.raises(LedgerError):
        Ledger.read(book.path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round", -1), ("round", 1.5), ("round", True), ("round", "0"), ("clip_norm", "1"), ("clip_norm", -1.0),
        ("noise_std", None), ("noise_placement", 3), ("detail", [["a", 1]]), ("detail", None), ("mechanism", None),
        ("mechanism", {"kind": "composed", "parts": [[POISSON.to_dict(), 1]]}), ("kind", "released"), ("kind", None),
        ("kind", []),
    ],
)  # fmt: skip
def test_a_line_with_a_right_hash_and_a_wrong_value_is_refused(tmp_path, field, value):
    book = Ledger.create(tmp_path / "l", HEADER)
    line, _ = chained_line({**release(0).to_dict(), field: value}, book._chain)
    with open(book.path, "ab") as file:
        file.write(line)
    refused(EditedLedger, "line 2", Ledger.read, book.path)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"1e999", b"-1e999"])
def test_numbers_that_are_none_are_refused(tmp_path, text):
    book = Ledger.create(tmp_path / "l", HEADER)
    content = json.dumps(release(0).to_dict(), sort_keys=True, separators=(",", ":")).encode()
    content = content.replace(b'"dimension":10', b'"dimension":' + text)
    chain = hashlib.sha256(book._chain.encode() + content).hexdigest()
    book.path.write_bytes(book.path.read_bytes() + b'{"chain":"' + chain.encode() + b'",' + content[1:] + b"\n")
    refused(EditedLedger, "line 2: not a valid ledger line", Ledger.read, book.path)


@pytest.mark.parametrize(("field", "value"), [("unit", "user"), ("clients", 0), ("randomness", 1), ("about", "x")])
def test_a_header_with_a_right_hash_and_a_wrong_value_is_refused(tmp_path, field, value):
    (tmp_path / "l").write_bytes(chained_line({**HEADER.to_dict(), field: value}, "")[0])
    refused(EditedLedger, "line 1", Ledger.read, tmp_path / "l")


def test_a_round_in_which_nobody_took_a_step_is_on_record(tmp_path):
    book = Ledger.create(tmp_path / "l", Header(unit="record", clients=10, randomness="simulated"))
    nobody = LocalRelease(round=0, steps=(), clip_norm=1.0, noise_std=2.0)
    none_of_them = replace(nobody, round=1, steps=(Steps(mechanism=POISSON, count=1, clients=()),))
    last_one = replace(nobody, round=2, steps=(Steps(mechanism=POISSON, count=1, clients=(9,)),))
    book.record_all([nobody, none_of_them, last_one])
    assert Ledger.read(book.path).entries == [nobody, none_of_them, last_one]
    with pytest.raises(LedgerError, match="client 10 of 10 clients"):
        book.record(replace(nobody, round=3, steps=(Steps(mechanism=POISSON, count=1, clients=(10,)),)))
    with pytest.raises(LedgerError, match="client 12 of 10 clients"):
        book.record(
            replace(none_of_them, round=3, steps=(*last_one.steps, replace(last_one.steps[0], clients=(1, 12))))
        )


@pytest.mark.parametrize("field", ["kind", "mechanism", "clip_norm", "detail"])
def test_a_line_with_a_right_hash_that_lacks_something_is_refused(tmp_path, field):
    book = Ledger.create(tmp_path / "l", HEADER)
    record = release(0).to_dict()
    del record[field]
    with open(book.path, "ab") as file:
        file.write(chained_line(record, book._chain)[0])
    refused(EditedLedger, f"line 2: this version does not support the entry .'{field}'", Ledger.read, book.path)


def test_a_line_that_cannot_be_cut_off_is_an_error(ledger, monkeypatch):
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])

    def refuse(*_):
        raise PermissionError("not ours")

    monkeypatch.setattr("accounting.ledger.regular_file.truncate_file", refuse)
    refused(LedgerError, r"incomplete last line cannot be removed \(not ours\)", Ledger.resume, ledger.path)
