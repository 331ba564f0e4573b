"""Folders of tables: Parquet, what `datasets` writes, images, clients in a column; and files .npz."""

import io
import json
import struct
import zlib
from datetime import datetime
from decimal import Decimal

import numpy as np
import pytest
from refusals import refused

from dpfed import data
from dpfed.config.tables import parse
from dpfed.data.dataset import Columns
from dpfed.errors import ConfigError, DataError
from dpfed.runs import loop
from dpfed.runs.experiment import build

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
load_columns = pytest.importorskip("dpfed.data.columns").load_columns

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(60, 3))
LABELS = RNG.integers(0, 4, 60)
WARDS = [f"ward {i % 7}" for i in range(60)]


def table(rows=slice(None), **more):
    columns = {"x": list(POINTS[rows]), "a": POINTS[rows, 0], "b": POINTS[rows, 1], "y": LABELS[rows]}
    return pa.table({**columns, "who": WARDS[rows], **more})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    parquet.write_table(table(slice(0, 20)), tmp_path / "set" / "data" / "train-00000-of-00002.parquet")
    parquet.write_table(table(slice(20, 50)), tmp_path / "set" / "data" / "train-00001-of-00002.parquet")
    parquet.write_table(table(slice(50, 60)), tmp_path / "set" / "data" / "test-00000-of-00001.parquet")
    return tmp_path / "set"


def test_parquet_files_are_the_halves(folder):
    made = load_columns(folder, Columns(inputs=("x",), label="y", client="who"), classes=4)
    np.testing.assert_array_equal(made.train_inputs, POINTS[:50].astype(np.float32))
    np.testing.assert_array_equal(made.train_labels, LABELS[:50])
    np.testing.assert_array_equal(made.test_labels, LABELS[50:])
    assert [WARDS.index(f"ward {i}") for i in range(7)] == [int(np.argmax(made.train_clients == i)) for i in range(7)]
    assert made.natural_clients == 7


@pytest.mark.parametrize("copy", ["data/.ipynb_checkpoints/train-checkpoint.parquet", "train/cache-0123.parquet"])
def test_copies_that_tools_leave_are_no_samples(folder, copy):
    """Each record was there twice, with twice the privacy loss that is charged for a record."""
    (folder / copy).parent.mkdir()
    parquet.write_table(table(slice(0, 20)), folder / copy)
    assert len(load_columns(folder, Columns(inputs=("x",), label="y"), classes=4).train_labels) == 50


def test_a_file_is_in_one_half(folder):
    """A client's file train/testbed.parquet was in the test half, too, whose scores are published without noise."""
    (folder / "train").mkdir()
    parquet.write_table(table(slice(0, 20)), folder / "train" / "testbed.parquet")
    made = load_columns(folder, Columns(inputs=("x",), label="y"), classes=4)
    assert (len(made.train_labels), len(made.test_labels)) == (70, 10)


def test_samples_in_two_formats_are_refused(folder):
    (folder / "train.csv").write_text("a,y\n0.5,1\n")
    with pytest.raises(DataError, match=r"train half has .csv, .parquet files"):
        load_columns(folder, Columns(inputs=("a",), label="y"), classes=4)


def test_columns_stand_side_by_side_and_fractions_are_targets(folder):
    made = load_columns(folder, Columns(inputs=("b", "a"), label="a"))
    np.testing.assert_array_equal(made.train_inputs, POINTS[:50, [1, 0]].astype(np.float32))
    assert made.classes is None
    np.testing.assert_array_equal(made.test_labels, POINTS[50:, 0].astype(np.float32))


def test_what_datasets_writes(tmp_path):
    """A DatasetDict on disk: Arrow streams in train and test, the classes' names in the schema's metadata."""
    features = {"y": {"names": ["cat", "dog", "cow", "pig"], "_type": "ClassLabel"}, "x": {"_type": "Array2D"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for split, rows in (("train", slice(0, 50)), ("test", slice(50, 60))):
        nested = [[list(row[:2]), list(row[1:])] for row in POINTS[rows]]
        made = table(rows, image=nested).replace_schema_metadata(about)
        (tmp_path / split).mkdir()
        with pa.ipc.new_stream(str(tmp_path / split / "data-00000-of-00001.arrow"), made.schema) as stream:
            stream.write_table(made, max_chunksize=13)
    found = load_columns(tmp_path, Columns(inputs=("image",), label="y"))
    assert found.classes == 4
    assert found.input_shape == (2, 2)
    np.testing.assert_array_equal(found.train_inputs[:, 1, 1], POINTS[:50, 2].astype(np.float32))
    with pytest.raises(DataError, match=r"declares 4 classes, data\.classes is 5"):
        load_columns(tmp_path, Columns(inputs=("image",), label="y"), classes=5)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_images_are_their_bytes_over_255(tmp_path, mode, channels):
    from PIL import Image

    pixels = RNG.integers(0, 256, (6, 5, 4, channels), dtype=np.uint8)
    rows = []
    for one in pixels:
        kept = io.BytesIO()
        Image.fromarray(one if channels == 3 else one[:, :, 0], mode).save(kept, format="PNG")
        rows.append({"bytes": kept.getvalue(), "path": None})
    for split in ("train", "test"):
        parquet.write_table(pa.table({"image": rows, "label": [0, 1, 0, 1, 0, 1]}), tmp_path / f"{split}.parquet")
    made = load_columns(tmp_path, Columns(inputs=("image",), label="label"), classes=2)
    np.testing.assert_allclose(made.train_inputs, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    header = struct.pack(">II5B", 20_000, 20_000, 8, 0, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I4s", 13, b"IHDR")
        + header
        + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    )
    for contents in ([b"GIF89a, or something else"] * 6, [bomb] * 6, ["text"] * 6):
        rows = [{"bytes": content, "path": None} for content in contents]
        parquet.write_table(pa.table({"image": rows, "label": [0, 1, 0, 1, 0, 1]}), tmp_path / "train.parquet")
        with pytest.raises(DataError, match="an image cannot be read"):
            load_columns(tmp_path, Columns(inputs=("image",), label="label"), classes=2)


def test_labels_of_any_type_of_text_and_metadata_of_any_depth_are_read(tmp_path):
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": pa.array(["a", "b", "a"], pa.string_view())})
    table = table.replace_schema_metadata({b"huggingface": b"[" * 100_000})
    for split in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{split}.parquet")
    made = load_columns(tmp_path, Columns(inputs=("x",), label="y"), classes=("a", "b"))
    assert made.train_labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "values", [[Decimal("1.5")] * 3, [[Decimal(2), Decimal(3)]] * 3, [datetime(2020, 1, 1)] * 3], ids=repr
)
@pytest.mark.parametrize("column", ["x", "y"])
def test_columns_of_decimals_and_dates_are_refused_by_name(tmp_path, values, column):
    for split in ("train", "test"):
        parquet.write_table(
            pa.table({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]} | {column: values}), tmp_path / f"{split}.parquet"
        )
    with pytest.raises(DataError, match=f"column '{column}': is of (decimal128|timestamp).*must be of numbers"):
        load_columns(tmp_path, Columns(inputs=("x",), label="y"), classes=2)


@pytest.mark.parametrize(
    ("columns", "classes", "words"),
    [
        (Columns(inputs=("x",), label="z"), 4, "has no column z; its columns are x, a, b, y, who"),
        (Columns(inputs=("x",), label="y"), None, r"Set data\.classes = N"),
        (Columns(inputs=("x",), label="y"), 2, "not among the 2 declared classes"),
        (Columns(inputs=("who",), label="y"), 4, "has text, and inputs must be numbers"),
        (Columns(inputs=("x",), label="a"), 4, r"targets and not classes. Remove data\.classes"),
    ],
    ids=str,
)
def test_one_error_for_columns_that_cannot_be_used(folder, columns, classes, words):
    with pytest.raises(DataError, match=words) as error:
        load_columns(folder, columns, classes=classes)
    assert "ward" not in str(error.value)


def test_files_that_are_missing_damaged_or_uneven(folder):
    columns = Columns(inputs=("x",), label="y")
    test = folder / "data" / "test-00000-of-00001.parquet"
    test.write_bytes(test.read_bytes()[:-100])
    refused(DataError, "cannot be read", load_columns, folder, columns, classes=4)
    test.unlink()
    refused(DataError, "has no test half", load_columns, folder, columns, classes=4)
    parquet.write_table(table(slice(0, 2), x=[[1.0], [1.0, 2.0]]), test)
    refused(DataError, "different shapes", load_columns, folder, columns, classes=4)
    parquet.write_table(table(slice(0, 2), x=[[1.0, None, 2.0], [1.0, 2.0, 3.0]]), test)
    refused(DataError, "has gaps", load_columns, folder, columns, classes=4)


def test_a_run_on_a_folder_of_tables(folder, tmp_path):
    tables = {
        "data": {
            "name": f"{folder}/",
            "inputs": ["x"],
            "label": "y",
            "client": "who",
            "classes": 4,
            "partition": "natural",
        },
        "model": {"name": "mlp", "hidden": [4]},
        "federation": {"clients": 7, "cohort": 3, "rounds": 1},
        "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 5},
        "method": {"name": "dp-fedavg"},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0},
    }
    done = loop.run(build(parse(tables, source="test")), tmp_path / "run")
    assert done.summary["epsilon"] > 0
    refused(ConfigError, r"Name its columns: data\.inputs, data\.label", data.load, f"{folder}/")
    tables["data"] = {"name": "digits", "label": "y"}
    refused(ConfigError, r"data\.label", lambda: build(parse(tables, source="test")))


def test_an_npz_file(tmp_path):
    arrays = {"train_inputs": POINTS[:50], "train_labels": LABELS[:50], "test_inputs": POINTS[50:]}
    arrays |= {"test_labels": LABELS[50:], "train_clients": np.arange(50) % 5}
    np.savez_compressed(tmp_path / "mine.npz", **arrays, classes=4)
    made = data.load("mine.npz", tmp_path)
    assert (made.classes, made.natural_clients, made.input_shape) == (4, 5, (3,))
    np.testing.assert_array_equal(made.test_labels, LABELS[50:])
    np.savez(tmp_path / "mine.npz", **arrays)
    refused(DataError, "the number of classes is not declared", data.load, "mine.npz", tmp_path)
    np.savez(tmp_path / "mine.npz", **{**arrays, "test_labels": np.array([object()] * 10)})
    refused(DataError, "numbers only and no objects", data.load, "mine.npz", tmp_path)
    (tmp_path / "mine.npz").write_bytes((tmp_path / "mine.npz").read_bytes()[:300])
    refused(DataError, "cannot be read as ", data.load, "mine.npz", tmp_path)
