"""Shakespeare: roles become clients, lines become windows, from plain text and from LEAF's JSON."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from dpfed.data import load
from dpfed.data.shakespeare import VOCABULARY, character_codes, text_windows
from dpfed.errors import DataError

REAL = os.environ.get("DPFED_DATA_DIR")


def decoded(row: np.ndarray) -> str:
    return "".join(VOCABULARY[int(code)] for code in row)


def write_text(root: Path, text: str) -> Path:
    path = root / "shakespeare" / "input.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def line(letter: str, length: int = 50) -> str:
    return letter * length


PLAY = "\n".join((
    "HAMLET:", line("a"), "Note this colon:", line("b"), "", "OPHELIA:", line("x", 20), line("y", 20), "",
    "HAMLET:", line("c"), "", line("d", 90), "", "GHOST:", line("z", 300),
))  # fmt: skip


def test_the_vocabulary_is_leafs_eighty_characters() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert list(VOCABULARY) == sorted(VOCABULARY)  # LEAF's is in the order of ASCII
    assert decoded(character_codes("Ay, 3é\U0001f600$!")) == "Ay, 3   !"


def test_windows_are_every_eighty_characters_and_the_next() -> None:
    text = "".join(VOCABULARY[i % 60 + 1] for i in range(85))
    seen, following = text_windows(text)
    assert [decoded(row) for row in seen] == [text[i : i + 80] for i in range(5)]
    assert decoded(following) == text[80:]
    assert len(text_windows(text[:80])[1]) == len(text_windows("")[1]) == 0


def test_roles_with_two_lines_are_clients_and_their_last_fifth_is_for_tests(tmp_path: Path) -> None:
    write_text(tmp_path, PLAY)
    data = load("shakespeare", tmp_path)
    # Hamlet has five lines, Ophelia's one training line is too short for a window, the ghost has one line only.
    training = " ".join([line("a"), "Note this colon:", line("b"), line("c")])
    assert data.natural_clients == 1
    assert data.train_clients is not None
    assert data.train_clients.tolist() == [0] * (len(training) - 80)
    assert data.train_inputs.shape == (len(training) - 80, 80)
    assert data.train_inputs.dtype == np.float32
    assert decoded(data.train_inputs[1]) == training[1:81]
    assert decoded(data.train_labels) == training[80:]
    assert decoded(data.test_labels) == line("d", 10)
    assert data.classes == 80


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "no role"), ("words " * 100, "no role"), ("A:\n" + line("a", 200), "no role"), ("\x00" * 500, "no role")],
)
def test_a_text_without_roles_is_one_error(tmp_path: Path, text: str, complaint: str) -> None:
    write_text(tmp_path, text)
    refused(DataError, complaint, load, "shakespeare", tmp_path)


def test_a_text_that_leaves_nothing_for_tests_is_one_error(tmp_path: Path) -> None:
    write_text(tmp_path, f"A:\n{line('a', 200)}\nb")
    refused(DataError, "no text is left for tests", load, "shakespeare", tmp_path)


def test_files_that_are_not_text_or_too_long_or_missing_are_one_error(tmp_path: Path) -> None:
    refused(DataError, r"input.txt: cannot be read .No such file.*shakespeare-leaf", load, "shakespeare", tmp_path)
    path = write_text(tmp_path, "")
    path.write_bytes(b"A:\n\xff\xfe")
    refused(DataError, r"can.t decode.*UTF-8", load, "shakespeare", tmp_path)
    with path.open("wb") as file:
        file.truncate(2**40)
    refused(DataError, "the limit is 8,388,608", load, "shakespeare", tmp_path)


def write_leaf(root: Path, half: str, users: dict[str, str], name: str = "all_data.json") -> Path:
    """Users' texts as LEAF cuts them."""
    cut = {
        user: {"x": [text[i : i + 80] for i in range(len(text) - 80)], "y": list(text[80:])}
        for user, text in users.items()
    }
    content = {"users": list(cut), "num_samples": [len(one["y"]) for one in cut.values()], "user_data": cut}
    path = root / "shakespeare" / "data" / half / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_leafs_files_give_the_same_samples_as_their_text(tmp_path: Path) -> None:
    texts = {"HAMLET": "To be or not to be. " * 6, "GHOST": "Remember me; " * 8}
    write_leaf(tmp_path, "train", {"HAMLET": texts["HAMLET"]}, "a.json")
    write_leaf(tmp_path, "train", {"GHOST": texts["GHOST"]}, "b.json")
    write_leaf(tmp_path, "test", texts)
    data = load("shakespeare-leaf", tmp_path)
    parts = [text_windows(text) for text in texts.values()]
    np.testing.assert_array_equal(data.train_inputs, np.concatenate([seen for seen, _ in parts]))
    np.testing.assert_array_equal(data.train_labels, np.concatenate([following for _, following in parts]))
    np.testing.assert_array_equal(data.test_inputs, data.train_inputs)
    assert data.train_clients is not None
    assert data.train_clients.tolist() == [0] * 40 + [1] * 24
    assert data.natural_clients == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"users": ["A"]}',
        '{"users": ["A"], "user_data": {}}',
        '{"users": ["A"], "user_data": {"A": {"x": ["short"], "y": ["a"]}}}',
        json.dumps({"users": ["A"], "user_data": {"A": {"x": ["x" * 80], "y": ["ab"]}}}),
        json.dumps({"users": ["A"], "user_data": {"A": {"x": ["x" * 80], "y": []}}}),
        json.dumps({"users": ["A"], "user_data": {"A": {"x": [["x"] * 80], "y": ["a"]}}}),
        json.dumps({"users": [["A"]], "user_data": {"A": {}}}),
        "[" * 100_000,
        '{"users": [' + "9" * 5000 + "]}",
    ],
    ids=range(13),
)
def test_hostile_json_is_one_error(tmp_path: Path, content: str) -> None:
    path = write_leaf(tmp_path, "train", {})
    path.write_text(content)
    with pytest.raises(DataError, match=r"cannot be read.*Expected a file of LEAF's Shakespeare") as raised:
        load("shakespeare-leaf", tmp_path)
    assert str(path) in str(raised.value)


def test_missing_or_double_users_are_one_error(tmp_path: Path) -> None:
    refused(DataError, r"train: 0 \.json files hold no user", load, "shakespeare-leaf", tmp_path)
    write_leaf(tmp_path, "train", {})
    refused(DataError, "hold no user", load, "shakespeare-leaf", tmp_path)
    write_leaf(tmp_path, "train", {"A": "a" * 100}, "a.json")
    write_leaf(tmp_path, "train", {"A": "a" * 100}, "b.json")
    refused(DataError, r"b\.json: .*one of its users is in .* earlier file", load, "shakespeare-leaf", tmp_path)


@pytest.mark.skipif(not REAL, reason="DPFED_DATA_DIR is not set: the real text is not here")
def test_the_real_text_has_its_roles() -> None:
    if not (Path(REAL or "") / "shakespeare" / "input.txt").is_file():
        pytest.skip("DPFED_DATA_DIR has no shakespeare/input.txt")
    data = load("shakespeare")
    assert (data.natural_clients, len(data.train_labels), len(data.test_labels)) == (243, 796_566, 189_827)
    assert decoded(data.train_inputs[0]).startswith("Before we proceed any further, hear me speak. You are all")
