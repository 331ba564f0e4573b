"""Data of clients as people have them: torch data sets, frames, Hugging Face, partitioners, LEAF, HDF5."""

import io
import json

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from dpfed.data import from_arrays, from_clients, from_hdf5, from_leaf, load
from dpfed.data.dataset import Columns
from dpfed.errors import DataError

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 60)
WHOLE = TensorDataset(torch.tensor(X), torch.tensor(Y))
TEST = (X[:10], Y[:10])


def parts(make):
    return [make(slice(10 * i, 10 * i + 10)) for i in range(6)]


OBJECTS = {
    "TensorDataset": parts(lambda rows: TensorDataset(torch.tensor(X[rows]), torch.tensor(Y[rows]))),
    "Subset": parts(lambda rows: Subset(WHOLE, range(rows.start, rows.stop))),
    "DataLoader": parts(lambda rows: DataLoader(Subset(WHOLE, range(rows.start, rows.stop)), batch_size=4)),
    "shuffled DataLoader": parts(lambda rows: DataLoader(Subset(WHOLE, range(rows.start, rows.stop)), shuffle=True)),
    "ConcatDataset": parts(
        lambda rows: ConcatDataset([Subset(WHOLE, [rows.start]), Subset(WHOLE, range(rows.start + 1, rows.stop))])
    ),
    "pairs": parts(lambda rows: (X[rows], Y[rows])),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_data_sets_of_torch(kind):
    made = from_clients(OBJECTS[kind], OBJECTS[kind][0], classes=3)
    np.testing.assert_array_equal(made.train_inputs, X)
    np.testing.assert_array_equal(made.train_labels, Y)
    np.testing.assert_array_equal(made.train_clients, np.repeat(np.arange(6), 10))
    assert repr(made) == "Dataset('own', 60 + 10 samples [3], 3 classes, 6 clients)"


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (3, "clients are int; must be a list"),
        ([], "there is no client"),
        ([{"a": X, "labels": Y}, (X, Y)], r"some samples have the parts \['a'\], others not"),
        ([([[1], [2, 3]], [0, 1])], "is not an array of numbers"),
    ],
)
def test_clients_of_no_form_are_one_error(clients, words):
    refused(DataError, words, from_clients, clients, TEST, classes=3)


def test_a_client_without_samples_counts():
    made = from_clients([TensorDataset(torch.zeros(0, 3), torch.zeros(0)), (X, Y)], TEST, classes=3)
    assert made.natural_clients == 2
    assert set(made.train_clients) == {1}


NAMES = ["cat", "dog", "cow"]
COLUMNS = {
    "a": X[:, 0], "b": X[:, 1], "flag": X[:, 2] > 0, "y": Y, "animal": [NAMES[y] for y in Y],
    "who": [f"ward {i // 10}" for i in range(60)],
}  # fmt: skip


def frames():
    yield "pyarrow", lambda: pytest.importorskip("pyarrow").table(COLUMNS)
    yield "pandas", lambda: pytest.importorskip("pandas").DataFrame(COLUMNS)
    yield "categories", lambda: pytest.importorskip("pandas").DataFrame(COLUMNS).astype({"animal": "category"})
    yield "polars", lambda: pytest.importorskip("polars").DataFrame(COLUMNS)


@pytest.mark.parametrize(("kind", "make"), list(frames()))
def test_frames_with_a_column_of_clients(kind, make):
    frame = make()
    made = from_clients(frame, frame[:10], classes=NAMES, client="who", inputs=["a", "b", "flag"], label="animal")
    np.testing.assert_array_equal(made.train_labels, Y)
    np.testing.assert_array_equal(made.train_inputs[:, :2], X[:, :2])
    np.testing.assert_array_equal(made.train_inputs[:, 2], X[:, 2] > 0)
    np.testing.assert_array_equal(made.train_clients, np.repeat(np.arange(6), 10))
    assert made.classes == 3


def test_labels_that_are_truth_values_have_two_classes():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(COLUMNS)
    made = from_clients(frame, frame[:10], classes=None, client="who", inputs=["a", "b"], label="flag")
    assert made.classes == 2
    np.testing.assert_array_equal(made.train_labels, X[:, 2] > 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": ["animal"]}, r"column 'animal': has text.*Declare its values in advance"),
        ({"inputs": ["gaps"]}, r"column 'gaps': has gaps.*Declare the number"),
        ({"label": "animal", "classes": 3}, r"column 'animal': has text.*classes by name"),
        ({"label": "animal", "classes": ["cat", "dog"]}, "not among the 2 declared classes"),
        ({"label": "y", "classes": NAMES}, "Declare their number"),
        ({"inputs": ["c"]}, "has no column c; its columns are"),
        ({"client": None}, "client= is missing"),
        ({"client": "gaps"}, "some samples have no client"),
        ({"inputs": "a"}, "a list of column names"),
    ],
)
def test_columns_that_are_refused_are_named(change, words):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({**COLUMNS, "gaps": [None, *X[1:, 0]]})
    given = {"classes": 3, "client": "who", "inputs": ["a"], "label": "y", **change}
    refused(DataError, words, from_clients, frame, frame[:10], **given)


class HuggingFace:
    """Stand-in for the used part of `datasets.Dataset`: features, with_format("arrow"), slices."""

    features = None

    def __init__(self, table):
        self.table = table

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, rows):
        return self.table


def images():
    pa, image = pytest.importorskip("pyarrow"), pytest.importorskip("PIL.Image")
    content = []
    for value in range(6):
        file = io.BytesIO()
        image.fromarray(np.full((4, 4, 3), 40 * value, np.uint8)).save(file, "PNG")
        content.append({"bytes": file.getvalue(), "path": None})
    about = {"info": {"features": {"y": {"names": NAMES, "_type": "ClassLabel"}}}}
    table = pa.table({"image": content, "y": [0, 1, 2, 0, 1, 2], "who": list("aabbcc")})
    return HuggingFace(table.replace_schema_metadata({"huggingface": json.dumps(about)}))


def test_a_hugging_face_data_set_with_images_and_clients():
    made = from_clients(images(), images(), classes=None, client="who", inputs=["image"], label="y")
    assert (made.input_shape, made.classes, made.natural_clients) == ((3, 4, 4), 3, 3)
    assert made.train_inputs[2, 0, 0, 0] == pytest.approx(80 / 255)


def test_a_partitioner():
    class Partitioner:
        num_partitions = 2

        def load_partition(self, number):
            return images()

    made = from_clients(Partitioner(), images(), classes=None, inputs=["image"], label="y")
    assert (made.natural_clients, len(made.train_labels)) == (2, 12)


def test_a_csv_file_and_the_one_beside_it(tmp_path):
    pd = pytest.importorskip("pandas")
    pd.DataFrame(COLUMNS).to_csv(tmp_path / "train-all.csv", index=False)
    pd.DataFrame(COLUMNS)[:10].to_csv(tmp_path / "test-all.csv", index=False)
    columns = Columns(inputs=("a", "flag"), label="animal", client="who")
    made = load("train-all.csv", tmp_path, classes=NAMES, columns=columns)
    assert (made.natural_clients, len(made.test_labels), made.classes) == (6, 10, 3)
    (tmp_path / "test-all.csv").unlink()
    with pytest.raises(DataError, match=r"needs its test half test-all\.csv beside it"):
        load("train-all.csv", tmp_path, classes=NAMES, columns=columns)


def test_text_one_hot_and_truth_values_as_labels():
    text = from_arrays((X, np.array(NAMES)[Y]), (X[:10], np.array(NAMES)[Y[:10]]), classes=NAMES)
    one_hot = from_arrays((X, np.eye(3)[Y]), (X[:10], np.eye(3)[Y[:10]]), classes=3)
    np.testing.assert_array_equal(text.train_labels, Y)
    np.testing.assert_array_equal(one_hot.train_labels, Y)
    flags = from_arrays((X, Y > 0), (TEST[0], Y[:10] > 0), classes=2)
    np.testing.assert_array_equal(flags.train_labels, Y > 0)
    with pytest.raises(DataError, match="not among the 2 declared classes"):
        from_arrays((X, np.array(NAMES)[Y]), (X, np.array(NAMES)[Y]), classes=["cat", "dog"])
    with pytest.raises(DataError, match="a list of distinct names"):
        from_arrays((X, np.array(NAMES)[Y]), (X, np.array(NAMES)[Y]), classes=["cat", "cat"])


def test_names_of_clients_in_npz(tmp_path):
    owners = np.array([f"ward {i // 10}" for i in range(60)])
    arrays = {"train_inputs": X, "train_labels": Y, "test_inputs": X, "test_labels": Y, "train_clients": owners}
    np.savez(tmp_path / "mine.npz", **arrays, classes=3)
    np.testing.assert_array_equal(load("mine.npz", tmp_path).train_clients, np.repeat(np.arange(6), 10))


def test_json_files_of_leaf(tmp_path):
    for half in ("train", "test"):
        users = {
            f"u{i}": {"x": X[10 * i : 10 * i + 10].tolist(), "y": Y[10 * i : 10 * i + 10].tolist()} for i in range(6)
        }
        (tmp_path / half).mkdir()
        content = {"users": list(users), "num_samples": [10] * 6, "user_data": users}
        (tmp_path / half / "all_data.json").write_text(json.dumps(content))
    made = from_leaf(tmp_path / "train", tmp_path / "test", classes=3)
    np.testing.assert_allclose(made.train_inputs, X)
    np.testing.assert_array_equal(made.train_clients, np.repeat(np.arange(6), 10))
    (tmp_path / "train" / "all_data.json").write_text('{"users": ["a"], "user_data": {"a": {"x": ["text"], "y": [0]}}}')
    refused(DataError, "vocabulary", from_leaf, tmp_path / "train", tmp_path / "test", classes=3)
    (tmp_path / "train" / "all_data.json").write_text("[]")
    refused(DataError, "Expected a file of LEAF", from_leaf, tmp_path / "train", tmp_path / "test", classes=3)


def test_hdf5_files_of_tensorflow_federated(tmp_path):
    h5py = pytest.importorskip("h5py")
    for half in ("train", "test"):
        with h5py.File(tmp_path / f"{half}.h5", "w") as file:
            for i in range(6):
                file[f"examples/f{i}/pixels"] = X[10 * i : 10 * i + 10]
                file[f"examples/f{i}/label"] = Y[10 * i : 10 * i + 10].astype(np.int32)
    files = tmp_path / "train.h5", tmp_path / "test.h5"
    made = from_hdf5(*files, inputs="pixels", label="label", classes=3)
    np.testing.assert_array_equal(made.train_inputs, X)
    np.testing.assert_array_equal(made.train_clients, np.repeat(np.arange(6), 10))
    refused(DataError, "examples/CLIENT/snippets", from_hdf5, *files, inputs="snippets", label="label", classes=3)
