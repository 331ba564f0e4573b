"""Panels of a figure in a page: where marks stand, read back by the ticks; colours of the page; units."""

import re

import numpy as np
import pytest

from dpfed.records.round import MetricsLine
from dpfed.report.figures.experiment import Curve, plot_curves, plot_run
from dpfed.report.figures.figure import add_tooltips, figure, inline_svg
from dpfed.report.page import code_marked
from dpfed.report.privacy_text import duration_text, percent_text, significant_text, size_text

pytestmark = pytest.mark.drawn

NAMES = list(enumerate("abcdefgh"))


def drawn(points, **axes_settings):
    with figure(None) as axes:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, label="s")
        add_tooltips(axes, x, y, [f"<{one:g}>" for one in x])
        axes.set(xlabel="x", ylabel="T & t", **axes_settings)
        return inline_svg(axes.figure)


def ticks(picture, anchor):
    """(x, y, number) of the labels of an axis."""
    found = re.findall(rf'text-anchor: {anchor}" x="([\d.]+)" y="([\d.]+)">([-−\d.,]+)</text>', picture)
    return [(float(x), float(y), float(words.replace(",", "").replace("−", "-"))) for x, y, words in found]


@pytest.mark.parametrize("points", [[(1, 20.0), (30, 85.0), (60, 91.0)], [(2, -1.0), (7, 3.5)]])
def test_marks_stand_where_the_ticks_say(points):
    """An independent reading: two ticks of each axis give the number at a pixel."""
    picture = str(drawn(points).panels[0].picture)
    (x0, _, a0), (x1, _, a1) = ticks(picture, "middle")[:2]
    (_, y0, b0), (_, y1, b1) = ticks(picture, "end")[:2]
    marks = re.findall(r'<circle class="mark" cx="([\d.]+)" cy="([\d.]+)" r="6"><title>([^<]*)</title>', picture)
    for (across, up, words), (x, y) in zip(marks, points, strict=True):
        assert a0 + (float(across) - x0) * (a1 - a0) / (x1 - x0) == pytest.approx(x, abs=0.05 * abs(a1 - a0))
        assert b0 + (float(up) + 3.8 - y0) * (b1 - b0) / (y1 - y0) == pytest.approx(y, abs=0.05 * abs(b1 - b0))
        assert words == f"&lt;{x:g}&gt;"
    assert 'aria-label="T &amp; t, over x"' in picture


def test_every_colour_of_a_picture_follows_the_page(tmp_path):
    lines = [
        MetricsLine(round=i, scores={"test_accuracy": 0.1 * i}, epsilon=0.2 * i, uplink_megabytes=i)
        for i in range(1, 9)
    ]
    group = inline_svg(plot_run("a", lines))
    assert [panel.caption for panel in group.panels] == [
        "Test accuracy, %, over rounds",
        "Test accuracy, %, over uplink of all clients, MB",
        "Epsilon spent (upper bound), over rounds",
    ]
    at, scores = np.arange(1, 9), np.arange(8.0)
    curves = [Curve(name=name, rounds=at, megabytes=0.1 * at, accuracies=scores[None] + k) for k, name in NAMES]
    several = inline_svg(plot_curves(curves))
    assert [entry.name for entry in several.legend] == [name for _, name in NAMES]
    for one in (*group.panels, *several.panels):
        assert "var(--c0)" in one.picture
    for one in (*group.panels, *several.panels, *several.legend):
        assert not re.search(r"#[0-9a-fA-F]{6}\b|https?:|<script|<style", one.picture)


@pytest.mark.parametrize("sent", [[0.0, 0.0], [0.0, 2.0]])
def test_rounds_before_the_first_upload_have_no_place_on_the_axis_of_uplink(sent):
    lines = [
        MetricsLine(round=i, scores={"test_accuracy": 0.1}, uplink_megabytes=one) for i, one in enumerate(sent, start=1)
    ]
    curve = Curve(name="a", rounds=np.array([1, 2]), megabytes=np.array(sent), accuracies=np.ones((2, 2)))
    for drawing in (plot_run("a", lines), plot_curves([curve])):
        marks = [str(panel.picture).count('class="mark"') for panel in inline_svg(drawing).panels]
        assert marks == [2] + [1] * any(sent)


def test_marks_are_bounded_and_a_panel_without_data_is_left_out():
    many = str(drawn([(i, i % 7) for i in range(10_000)]).panels[0].picture)
    assert len(many) < 200_000
    assert many.count('class="mark"') <= 301
    assert "&lt;9999&gt;" in many
    with figure(None, columns=2) as (left, right):
        left.plot([1, 2], [3, 4])
        right.text(0.5, 0.5, "nothing")
        assert len(inline_svg(left.figure).panels) == 1


def test_a_page_leaves_the_file_for_print_as_it_is(tmp_path):
    for name in ("with", "without"):
        with figure(tmp_path / f"{name}.png", columns=2, beside=1.0) as (left, right):
            left.plot([1, 2], [3, 4], label="a")
            right.plot([1, 2], [4, 3], label="b")
            left.set_title("t")
            right.legend()
            left.figure.legend(loc="outside right upper")
            if name == "with":
                inline_svg(left.figure)
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_units_at_their_edges():
    assert [size_text(n) for n in (0, 999, 1000, 3884, 999_499, 999_500, 15_147_600)] == [
        "0 bytes", "999 bytes", "1.00 kB", "3.88 kB", "999 kB", "1.00 MB", "15.1 MB",
    ]  # fmt: skip
    assert [duration_text(s) for s in (9.23, 59.94, 75, 3600, 90000)] == [
        "9.2 s",
        "59.9 s",
        "1 min 15 s",
        "1 h 0 min",
        "1 d 1 h",
    ]
    assert [significant_text(x) for x in (0, 12.8929, 0.00234, 1234.5, 1e7)] == [
        "0",
        "12.9",
        "0.00234",
        "1,234",
        "1e+07",
    ]
    assert (percent_text(0.8885), percent_text(None)) == ("88.85%", "–")


def test_words_between_backticks_are_code_and_nothing_else_is():
    assert code_marked("`dpfed audit` <b> finds") == "<code>dpfed audit</code> &lt;b&gt; finds"
    assert code_marked("a lone ` stays") == "a lone ` stays"
    assert code_marked("`<x>`") == "<code>&lt;x&gt;</code>"
