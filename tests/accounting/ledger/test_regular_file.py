"""Files of others: only regular ones are opened, nothing waits, nothing is read beyond what is allowed."""

import errno
import os
import socket
import threading

import pytest
from reference.bounded import bounded
from refusals import refused

from accounting import Header, Ledger
from accounting.errors import LedgerError
from accounting.ledger.project import ProjectLedger
from accounting.ledger.regular_file import open_input, open_output, read_input, read_text, require_input


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


ODD = {
    "fifo": _fifo,
    "folder": lambda path: path.mkdir(),
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to a fifo": lambda path: (_fifo(path.with_name("other")), path.symlink_to(path.with_name("other"))),
}


@pytest.fixture(params=sorted(ODD))
def odd(request, tmp_path):
    path = tmp_path / "file"
    ODD[request.param](path)
    return path


def test_what_is_no_regular_file_is_not_opened(odd):
    with bounded(seconds=60):
        for use in (open_input, lambda path: read_input(path, at_most=10), lambda path: require_input(path, at_most=1)):
            with pytest.raises(OSError):  # noqa: PT011 (errno differs)
                use(odd)
        with pytest.raises(OSError):  # noqa: PT011
            open_output(odd, os.O_TRUNC)


def test_a_fifo_with_a_reader_is_not_written_to(tmp_path):
    path = tmp_path / "file"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with bounded(seconds=60), pytest.raises(OSError, match="is a FIFO"):
        open_output(path, os.O_APPEND)
    os.close(reader)


def test_nothing_is_read_beyond_what_is_allowed(tmp_path):
    path = tmp_path / "file"
    path.write_text("äöü")
    assert read_text(path, at_most=6) == "äöü"
    refused(OSError, "has 6 bytes; the limit is 5", read_input, path, at_most=5)
    with path.open("wb") as file:
        file.truncate(2**42)
    with bounded(), pytest.raises(OSError, match="the limit is 1,000"):
        read_input(path, at_most=1000)


def test_links_to_regular_files_are_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_input(tmp_path / "link", at_most=3) == b"abc"


def test_descriptors_are_closed_where_files_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError):  # noqa: PT011
            open_input(tmp_path / "folder")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("use", [Ledger.read, Ledger.so_far, Ledger.resume, ProjectLedger.open])
def test_ledgers_that_are_no_files_are_one_error(odd, use):
    with bounded(seconds=60), pytest.raises(LedgerError):
        use(odd)


def test_a_full_disk_leaves_no_begun_ledger(tmp_path, monkeypatch):
    """A project or a node with half a header could not be made again."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    header = Header(unit="client", clients=10, randomness="secure")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(LedgerError, "No space left", Ledger.create, tmp_path / "l.jsonl", header)
    Ledger.create(tmp_path / "l.jsonl", header)


def test_the_alarm_of_these_tests_rings(tmp_path):
    os.mkfifo(tmp_path / "file")
    release = threading.Timer(8, lambda: os.close(os.open(tmp_path / "file", os.O_RDWR)))
    release.daemon = True
    release.start()
    with pytest.raises(BaseException, match=r"^$") as raised, bounded(seconds=1):
        open(tmp_path / "file", "rb").close()
    release.cancel()
    assert type(raised.value).__name__ == "Waited"
