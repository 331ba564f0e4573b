"""Where marks stand in a chart, read back from the picture by its own ticks; ticks and units at their edges."""

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.report.chart import Chart, Mark, Series, svg
from dpfed.report.ticks import label, linear, logarithmic
from dpfed.report.units import duration, percent, significant, size


def chart(points, **how):
    marks = [Mark(x=x, y=y, words=f"<{x:g}>") for x, y in points]
    return Chart(title="T & t", xlabel="x", series=[Series(name="s", marks=marks)], **how)


def text_places(picture, anchor):
    found = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)" text-anchor="{anchor}">([-\d.,]+)</text>', picture)
    return [(float(x), float(y), float(words.replace(",", ""))) for x, y, words in found]


@pytest.mark.parametrize("points", [[(1, 20.0), (30, 85.0), (60, 91.0)], [(2, -1.0), (7, 3.5)]])
def test_marks_stand_where_the_ticks_say(points):
    """An independent reading: two ticks of each axis say what a pixel is."""
    picture = str(svg(chart(points)))
    (x0, _, a0), (x1, _, a1) = text_places(picture, "middle")[:2]
    (_, y0, b0), (_, y1, b1) = text_places(picture, "end")[:2]
    marks = json.loads(html.unescape(re.search(r'data-marks="([^"]*)"', picture)[1]))
    for (across, up, _, words), (x, y) in zip(marks, points, strict=True):
        assert a0 + (across - x0) * (a1 - a0) / (x1 - x0) == pytest.approx(x, abs=0.05 * abs(a1 - a0))
        assert b0 + (up + 4 - y0) * (b1 - b0) / (y1 - y0) == pytest.approx(y, abs=0.05 * abs(b1 - b0))
        assert words == f"<{x:g}>"
    assert "<1>" not in picture


def test_what_is_drawn_is_bounded_and_what_is_not_there_is_nothing():
    assert svg(chart([])) == ""
    many = str(svg(chart([(i, i % 7) for i in range(10_000)])))
    assert len(many) < 60_000
    assert "9999" in many
    across = Chart(title="t", xlabel="x", series=[Series(name="s", across=True, marks=[Mark(x=0, y=1, words="w")])])
    assert "H" in svg(across)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_hold_the_data_and_are_few(low, width):
    scale = linear(low, low + width)
    room = 1e-6 * max(abs(low), width)
    assert scale.low <= low + room
    assert scale.high >= low + width - room
    assert 2 <= len(scale.ticks) <= 9


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e6))
def test_logarithmic_places_are_inside(low, ratio):
    scale = logarithmic(low, low * ratio)
    assert 0 <= scale.place(low) <= scale.place(low * ratio) <= 1
    assert all(0 <= scale.place(tick) <= 1 for tick in scale.ticks)


def test_units_at_their_edges():
    assert [size(n) for n in (0, 999, 1000, 3884, 999_499, 999_500, 15_147_600)] == [
        "0 bytes", "999 bytes", "1.00 kB", "3.88 kB", "999 kB", "1.00 MB", "15.1 MB",
    ]  # fmt: skip
    assert [duration(s) for s in (9.23, 59.94, 75, 3600, 90000)] == [
        "9.2 s",
        "59.9 s",
        "1 min 15 s",
        "1 h 0 min",
        "1 d 1 h",
    ]
    assert [significant(x) for x in (0, 12.8929, 0.00234, 1234.5, 1e7)] == ["0", "12.9", "0.00234", "1,234", "1e+07"]
    assert (percent(0.8885), percent(None)) == ("88.85%", "–")
    assert [label(x) for x in (0, 0.1, 20, 5000, 1e-9)] == ["0", "0.1", "20", "5,000", "1e-09"]
