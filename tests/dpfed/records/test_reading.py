"""JSON-lines files of strangers: lines of bounded length, read one after the other."""

import json
import tracemalloc

import pytest
from refusals import refused

from dpfed.records import reading
from dpfed.records.reading import InvalidRecord, Unavailable, read_lines
from dpfed.records.round import MetricsLine

LINE = {"round": 1, "seconds": 0.5, "uplink_megabytes": 1.0}


def written(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_lines_are_read_in_their_order(tmp_path):
    found = read_lines(written(tmp_path / "metrics.jsonl", LINE, LINE | {"round": 2}), MetricsLine)
    assert [one.round for one in found] == [1, 2]


def test_an_unfinished_line_is_left_out_while_a_run_writes(tmp_path):
    path = written(tmp_path / "metrics.jsonl", LINE)
    path.write_text(path.read_text() + '{"round": 2')
    assert len(read_lines(path, MetricsLine, running=True)) == 1
    refused(Unavailable, r"metrics\.jsonl, line 2: was not written to its end", read_lines, path, MetricsLine)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("running", [False, True])
def test_a_line_without_end_is_refused_at_its_limit(tmp_path, monkeypatch, end, running):
    """64 MB in one line: no more than the limit of a line is in memory."""
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 16)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1, "seconds": [' + "[]," * (1 << 24) + "0]}" + end)
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match=r"metrics\.jsonl, line 1: has more than 65,535 bytes"):
            read_lines(path, MetricsLine, running=running)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_text_or_no_object_is_refused_by_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\xff\n")
    refused(Unavailable, "is not text", read_lines, path, MetricsLine)
    path.write_bytes(b"[]\n")
    refused(InvalidRecord, "line 1: is not a JSON object", read_lines, path, MetricsLine)
