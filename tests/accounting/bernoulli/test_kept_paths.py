"""Paths on disk: what is read is what was computed; what is damaged or of another question is computed anew."""

import json
import math

import numpy as np
import pytest

from accounting import disk_cache
from accounting.bernoulli import certificate
from accounting.bernoulli.certificate import Path
from accounting.bernoulli.growth import Coordinates

AT = Coordinates(coins=20, floor=0.15, largest_distance=0.05, move=0.05)
FOUND = Path(variances=np.array([0.1, 0.2, 1 / 3]), rates=np.array([math.inf, 0.1 + 0.2, 0.25]), move=0.05)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path))
    return tmp_path / "coins"


def asked(answer=FOUND, **question):
    """What comes back, and how often it was computed."""
    calls = []

    def compute():
        calls.append(1)
        return answer

    given = {"at": AT, "zeta": 1e-9, "squared_norm": 4.0, **question}
    return certificate.cached_path(given["at"], given["zeta"], given["squared_norm"], compute), len(calls)


def test_the_second_time_it_is_read_and_equal_to_the_last_bit(folder):
    assert asked()[1] == 1
    read, calls = asked(answer=None)
    assert calls == 0
    assert np.array_equal(read.variances, FOUND.variances)
    assert np.array_equal(read.rates, FOUND.rates)
    assert read.move == FOUND.move
    assert len(list(folder.iterdir())) == 1


def test_that_there_is_no_certificate_is_kept_too():
    assert asked(answer=None) == (None, 1)
    assert asked() == (None, 0)


OTHER = [
    {"zeta": 1e-10},
    {"squared_norm": 8.0},
    *[
        {"at": Coordinates(**{"coins": 20, "floor": 0.15, "largest_distance": 0.05, "move": 0.05, **changed})}
        for changed in (
            {"coins": 21},
            {"floor": 0.16},
            {"largest_distance": 0.06},
            {"largest_distance": None},
            {"move": 0.06},
            {"fisher": True},
            {"reference": 0.5},
        )
    ],
]


@pytest.mark.parametrize("question", OTHER)
def test_every_part_of_the_question_counts(question):
    asked()
    assert asked(**question)[1] == 1


def test_other_code_answers_anew(monkeypatch):
    asked()
    monkeypatch.setattr(certificate, "_code_hash", lambda: "other")
    assert asked()[1] == 1


def lower_rates(text):
    entry = json.loads(text)
    entry["answer"]["rates"][1] /= 2
    return json.dumps(entry)


def without_path(text):
    return json.dumps(json.loads(text) | {"answer": None})


@pytest.mark.parametrize(
    "damage",
    [
        lower_rates,
        without_path,
        lambda text: text[:-9],
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: "null",
        lambda text: '"\\ud800"',
    ],
)
def test_a_damaged_entry_is_computed_anew_and_mended(folder, damage):
    asked()
    (entry,) = folder.iterdir()
    entry.write_text(damage(entry.read_text()))
    found, calls = asked()
    assert calls == 1
    assert np.array_equal(found.rates, FOUND.rates)
    assert asked()[1] == 0


def test_bytes_that_are_no_text_are_computed_anew(folder):
    asked()
    (entry,) = folder.iterdir()
    entry.write_bytes(b"\xff\xfe\x00")
    assert asked()[1] == 1


def test_where_nothing_can_be_written_it_is_computed(folder, monkeypatch):
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv(disk_cache.VARIABLE, str(folder.parent / "file"))
    assert asked()[1] == asked()[1] == 1


def test_the_user_may_switch_it_off(folder, monkeypatch):
    monkeypatch.setenv(disk_cache.VARIABLE, "")
    assert asked()[1] == asked()[1] == 1
    assert not folder.exists()


def test_by_default_it_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv(disk_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked()
    assert (tmp_path / "cache" / "dpfed" / "coins").is_dir()
