"""Next-character prediction in Shakespeare's plays; a client is a role, the alphabet LEAF's 80 characters.

The plays are read from plain text, or from LEAF's JSON. Nothing is downloaded.

Files of samples by client: LEAF's JSON, and the HDF5 files of TensorFlow Federated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import LARGEST_ARRAYS, read_input, require_input
from dpfed.data.arrays import array_of
from dpfed.data.client_data import from_clients
from dpfed.data.dataset import Classes, Dataset, Numbers
from dpfed.data.files import reading
from dpfed.errors import DataError

_User = TypeVar("_User")
_LEAF = 'a file of LEAF: "users", and "user_data" of each with lists "x" and "y"'


def from_leaf(train: str | Path, test: str | Path, *, classes: Classes, name: str = "leaf") -> Dataset:
    """Return the data set in JSON files written by LEAF's preprocess.sh: a file or a folder of files for each half.

    Each file has "users", and for each user "user_data" with lists "x" and "y". Clients are the users of the training
    half, in the order of the files. classes: as in `from_clients`. Raises DataError.
    """
    held, tested = leaf_users(Path(train), _user_arrays), leaf_users(Path(test), _user_arrays)
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def from_hdf5(
    train: str | Path, test: str | Path, *, inputs: str, label: str, classes: Classes, name: str = "hdf5"
) -> Dataset:
    """Return the data set in two files of TensorFlow Federated's simulation data sets: examples/CLIENT/FEATURE.

    inputs, label: features, such as "pixels" and "label" of federated EMNIST. Clients are those of the training file,
    sorted by name. classes: as in `from_clients`. Needs h5py (`pip install 'dpfed[hdf5]'`). Raises DataError.
    """
    held, tested = _hdf5_clients(Path(train), inputs, label), _hdf5_clients(Path(test), inputs, label)
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def leaf_users(path: Path, read: Callable[[Any, str], _User], *, expected: str = _LEAF) -> list[_User]:
    """Return read(user, place) for each user in a file or a folder of LEAF, in order. Raise DataError."""
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    users: dict[str, _User] = {}
    for file in files:
        with reading(file, expected):
            content = json.loads(read_input(file, at_most=LARGEST_ARRAYS))
            for user in content["users"]:
                if str(user) in users:
                    raise ValueError(f"one of its users is in it twice, or in an earlier file of {path}, too")
                users[str(user)] = read(content["user_data"][user], f"{file}, user {len(users)}")
    if not users:
        raise DataError(f"{path}: {len(files)} .json files hold no user. Let LEAF's preprocess.sh write them.")
    return list(users.values())


def _user_arrays(user: Any, where: str) -> tuple[Numbers, Numbers]:
    inputs, labels = array_of(user["x"], where), array_of(user["y"], where)
    if inputs.dtype.kind not in "biuf":
        raise ValueError(
            "its samples are not numbers. Declare a vocabulary in advance and write numbers by it; one that is "
            "collected from all clients' samples would be a release"
        )
    return (inputs[:, None] if inputs.ndim == 1 else inputs), labels


def _hdf5_clients(path: Path, inputs: str, label: str) -> list[tuple[Numbers, Numbers]]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"{path}: needs h5py ({error}): pip install 'dpfed[hdf5]'.") from None
    with reading(path, f"examples/CLIENT/{inputs} and {label} in it. Name its features"):
        require_input(path, at_most=LARGEST_ARRAYS)
        with h5py.File(path, "r") as file:
            examples = file["examples"]
            return [(examples[client][inputs][()], examples[client][label][()]) for client in sorted(examples)]


def _join_samples(each: list[tuple[Numbers, Numbers]], where: str) -> tuple[Numbers, Numbers]:
    with reading(Path(where), "samples of one shape in the test half"):
        full = [one for one in each if len(one[0])]
        return np.concatenate([one[0] for one in full]), np.concatenate([one[1] for one in full])


WINDOW = 80
"""Number of characters before the predicted one."""

VOCABULARY = (
    "\n !\"&'(),-.0123456789:;>?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "[]" + "abcdefghijklmnopqrstuvwxyz" + "}"
)  # the 80 characters of LEAF (Caldas et al. 2018), in its order
_SPACE = VOCABULARY.index(" ")
_CODES = np.full(256, _SPACE, dtype=np.uint8)
for _code, _letter in enumerate(VOCABULARY):
    _CODES[ord(_letter)] = _code


def character_codes(text: str) -> NDArray[np.uint8]:
    """Return each character's position in VOCABULARY; characters that are not in it count as spaces."""
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    places: NDArray[np.uint8] = _CODES[np.minimum(points, len(_CODES) - 1)]
    return places


def text_windows(text: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return every run of WINDOW characters [n, WINDOW] and the next character [n]; none in a text of up to WINDOW."""
    places = character_codes(text)
    if len(places) <= WINDOW:
        return np.empty((0, WINDOW), dtype=np.uint8), np.empty(0, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(places, WINDOW)[:-1], places[WINDOW:]


_MOST_TEXT = 2**23  # Shakespeare's works have 5.5 million characters; a character becomes 320 bytes
_TRAIN_SHARE = 0.8

_Samples = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def load_shakespeare(root: Path) -> Dataset:
    """Return next-character prediction from ROOT/shakespeare/input.txt: speeches separated by empty lines, each after
    "ROLE:".

    inputs: [80], positions of characters in `VOCABULARY`; label: the next character; 80 classes. A client is a role
    with at least two lines. The first 80% of its lines are for training, the others for tests (McMahan et al. 2017).
    Each half becomes all its windows of 80 characters (LEAF), with line ends as spaces. Roles whose training lines
    are not longer than one window are not clients. A character is in up to 81 windows, so privacy of a record
    ([local.record]) protects one window, not a character or a line. Raises DataError.
    """
    path = _text_path(root)
    halves = [_train_and_test(lines) for lines in lines_by_role(root).values() if len(lines) > 1]
    clients = [(text_windows(train), text_windows(test)) for train, test in halves if len(train) > WINDOW]
    if not clients:
        raise DataError(f"{path}: no role has more than {WINDOW} characters to train on. Check its 'ROLE:' lines.")
    return _make_dataset("shakespeare", [train for train, _ in clients], [test for _, test in clients], path)


def load_shakespeare_leaf(root: Path) -> Dataset:
    """Return next-character prediction from ROOT/shakespeare/data/{train,test}/*.json, which LEAF writes with --sample
    or by default.

    A client is a user of the training files, in the order of the files. Raises DataError.
    """
    folder = root / "shakespeare" / "data"
    expected = "a file of LEAF's Shakespeare, which its preprocess.sh writes there; or set DPFED_DATA_DIR"
    train, test = (leaf_users(folder / half, _leaf_samples, expected=expected) for half in ("train", "test"))
    return _make_dataset("shakespeare-leaf", train, test, folder)


def lines_by_role(root: Path) -> dict[str, list[str]]:
    """Return the lines of each role in ROOT/shakespeare/input.txt, in order. A speech without a role belongs to the
    role of the speech before.

    Raises DataError.
    """
    path = _text_path(root)
    expected = (
        "a text in UTF-8 that has 'ROLE:' on a line before each speech and an empty line after it, in the folder of "
        "DPFED_DATA_DIR; LEAF's JSON is 'shakespeare-leaf'"
    )
    with reading(path, expected):
        text = read_input(path, at_most=_MOST_TEXT).decode("utf-8")
    spoken: dict[str, list[str]] = {}
    lines: list[str] | None = None
    speech_begins = True
    for line in text.splitlines():
        if speech_begins and line.endswith(":"):
            lines = spoken.setdefault(line[:-1], [])
        elif line.strip() and lines is not None:
            lines.append(line)
        speech_begins = not line.strip()
    return spoken


def _text_path(root: Path) -> Path:
    return root / "shakespeare" / "input.txt"


def _train_and_test(lines: list[str]) -> tuple[str, str]:
    first_test = int(_TRAIN_SHARE * len(lines))
    return _join_lines(lines[:first_test]), _join_lines(lines[first_test:])


def _join_lines(lines: Iterable[str]) -> str:
    return re.sub(r" {2,}", " ", " ".join(lines))


def _make_dataset(name: str, train: list[_Samples], test: list[_Samples], path: Path) -> Dataset:
    if not sum(len(labels) for _, labels in test):
        raise DataError(f"{path}: no text is left for tests. Use a longer text.")
    sizes = [len(labels) for _, labels in train]
    train_inputs, train_labels = _stack_samples(train)
    test_inputs, test_labels = _stack_samples(test)
    return Dataset(
        name=name,
        train_inputs=train_inputs,
        train_labels=train_labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=len(VOCABULARY),
        train_clients=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        natural_clients=len(sizes),
    )


def _stack_samples(parts: list[_Samples]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    inputs = np.empty((sum(len(labels) for _, labels in parts), WINDOW), dtype=np.float32)
    np.concatenate([seen for seen, _ in parts], out=inputs, casting="safe")
    return inputs, np.concatenate([labels for _, labels in parts]).astype(np.int64)


def _leaf_samples(user: Mapping[str, Any], _: str) -> _Samples:
    """Return inputs and labels from texts x of WINDOW characters and the next characters y."""
    seen, following = user["x"], user["y"]
    if len(seen) != len(following) or any(len(x) != WINDOW for x in seen) or any(len(y) != 1 for y in following):
        raise ValueError(f"x must hold texts of {WINDOW} characters and y one character for each")
    return character_codes("".join(seen)).reshape(-1, WINDOW), character_codes("".join(following))
