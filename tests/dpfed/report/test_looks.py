"""No two rows of a figure look alike; variants of a method share its colour; a row looks the same in every figure."""

import numpy as np
import pytest

from dpfed.report.figures.experiment import Curve, Point, plot_curves, plot_over_axis
from dpfed.report.figures.figure import distinct_looks, given_or_distinct_looks, inline_svg

BLOCKS = ["as published", "Poisson", "tight", "epsilon 3.24"]
FED_SMP = ["FedAvg", *(f"{method}, {block}" for block in BLOCKS for method in ("DP-FedAvg", "top-k", "rand-k"))]


def different(looks):
    """Points without a line between them are told apart by colour and marker alone."""
    return len({(look.colour, look.marker) for look in looks.values()}) == len(looks)


@pytest.mark.parametrize("count", [1, 7, 8, 14, 15, 35])
def test_no_two_alike_in_order(count):
    looks = distinct_looks([f"row {i}" for i in range(count)])
    assert len(looks) == count
    assert different(looks)
    assert len({(look.colour, str(look.style)) for look in looks.values()}) == count


def test_up_to_seven_rows_have_a_colour_each():
    assert len({look.colour for look in distinct_looks(["A", "B, x", "B, y", "C"]).values()}) == 4


def test_variants_have_the_colour_of_their_method_and_the_style_of_their_kind():
    looks = distinct_looks(FED_SMP)
    assert different(looks)
    assert len({look.colour for look in looks.values()}) == 4
    for block in BLOCKS:
        assert len({str(looks[f"{method}, {block}"].style) for method in ("DP-FedAvg", "top-k", "rand-k")}) == 1
    assert different(distinct_looks([*FED_SMP, "DP-FedAvg"]))


def test_a_row_keeps_its_look_where_others_are_missing_and_at_a_point_of_its_axes():
    looks = distinct_looks(FED_SMP)
    assert given_or_distinct_looks(FED_SMP[5:8], looks)[FED_SMP[6]] == looks[FED_SMP[6]]
    assert given_or_distinct_looks(["top-k, tight, keep 0.1"], looks) == {
        "top-k, tight, keep 0.1": looks["top-k, tight"]
    }


def test_points_of_one_row_get_looks_of_their_own():
    names = ["top-k, tight, keep 0.1", "top-k, tight, keep 0.2", "FedAvg"]
    assert different(given_or_distinct_looks(names, distinct_looks(FED_SMP)))


@pytest.mark.parametrize("name", ["a $\\foo$ b", "$5 or $6", "_hidden", "x $ y"])
def test_a_name_is_never_mathematics_and_always_in_the_legend(name, tmp_path):
    rounds = np.array([1, 2])
    curves = [
        Curve(name=one, rounds=rounds, megabytes=rounds.astype(float), accuracies=np.array([[10.0, 20.0]]))
        for one in (name, "other")
    ]
    group = inline_svg(plot_curves(curves, tmp_path / "curves.png"))
    assert [entry.name for entry in group.legend] == [name, "other"]
    points = [Point(name=name, x=x, mean=1.0, std=0.0) for x in (name, "b")]
    plot_over_axis(points, tmp_path / "axis.png", xlabel=name, ylabel="accuracy")
