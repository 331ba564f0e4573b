"""Text, gaps and scales of a table as public declarations: numbers by hand, refusals, card and ledger."""

import json
import tomllib

import numpy as np
import pytest

from dpfed.cli import status
from dpfed.config.tables import parse
from dpfed.data import from_clients
from dpfed.data.dataset import Columns
from dpfed.errors import ConfigError, DataError
from dpfed.runs.experiment import build
from dpfed.runs.training import CustomObjects

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
csv = pytest.importorskip("pyarrow.csv")
of_tables = pytest.importorskip("dpfed.data.columns").of_tables

ROWS = {"age": [20, 95, 60], "sex": ["m", None, "x"], "pressure": [None, 100.0, 240.0], "sick": [0, 1, 1]}
DECLARED = {
    "vocabulary": {"sex": ("f", "m")},
    "fill": {"pressure": 120.0},
    "range": {"age": (20.0, 90.0), "pressure": (100.0, 200.0)},
}


def made(rows=ROWS, **changed):
    columns = Columns(inputs=("age", "sex", "pressure"), label="sick", **{**DECLARED, **changed})
    return of_tables(pa.table(rows), pa.table(ROWS), columns, classes=2, where="here", name="table")


def test_the_numbers_are_those_of_the_declarations():
    expected = [[0, 0, 1, 0.2, 1], [1, 0, 0, 0, 0], [4 / 7, 0, 0, 1, 0]]
    np.testing.assert_allclose(made().train_inputs, np.array(expected, np.float32))


def test_whole_numbers_that_floats_cannot_represent_are_rounded():
    """The error of pyarrow's exact conversion would contain the number of a sample."""
    assert made(ROWS | {"age": [2**60 + 1, 95, 20]}).train_inputs[:, 0].tolist() == [1, 1, 0]


def test_a_row_depends_on_itself_alone():
    """The numbers of a record are equal whatever other records there are: nothing is measured over the table."""
    for place in range(3):
        alone = made({name: column[place : place + 1] for name, column in ROWS.items()})
        np.testing.assert_array_equal(alone.train_inputs[0], made().train_inputs[place])


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"vocabulary": {}}, DataError, "data.vocabulary.sex"),
        ({"fill": {}}, DataError, "data.fill.pressure"),
        ({"fill": {"sex": 1.0}, "vocabulary": {}}, DataError, "are for numbers"),
        ({"range": {"age": (90.0, 20.0)}}, ConfigError, "the smaller one first"),
        ({"range": {"weight": (0.0, 1.0)}}, ConfigError, "Declare one of these columns"),
        ({"fill": {"pressure": float("nan")}}, ConfigError, "must be a finite number"),
        ({"vocabulary": {"sex": ("m", "m")}}, ConfigError, "different texts"),
        ({"fill": {"sex": 1.0, "pressure": 1.0}}, ConfigError, "a row of zeros"),
    ],
)
def test_what_declares_nothing_usable_is_refused(changed, error, words):
    with pytest.raises(error, match=words):
        made(**changed)


TOML = """
method.name = "fedavg"
model = { name = "mlp", hidden = [4] }
federation = { clients = 2, cohort = 2, sampling = "all", rounds = 1 }
local = { learning_rate = 0.5, batch_size = 8, steps = 1, record = { epsilon = 3.0, clip_norm = 1.0 } }
data.name = "train.csv"
data.inputs = ["age", "sex", "pressure"]
data.label = "sick"
data.client = "hospital"
data.partition = "natural"
data.classes = 2
data.vocabulary = { sex = ["f", "m"] }
data.fill = { pressure = 120 }
data.range = { age = [0, 100], pressure = [60, 240] }
"""


def write_hospitals(folder, rows=40):
    rng = np.random.default_rng(0)
    for half in ("train", "test"):
        lines = [
            f"{rng.choice(['north', 'south'])},{rng.integers(20, 90)},{rng.choice(['f', 'm', ''])},"
            f"{rng.choice(['', '118', '150.5'])},{rng.integers(2)}"
            for _ in range(rows)
        ]
        (folder / f"{half}.csv").write_text("\n".join(["hospital,age,sex,pressure,sick", *lines]) + "\n")
    (folder / "hospitals.toml").write_text(TOML)


def test_a_table_in_memory_states_its_declarations_as_a_file_does(tmp_path, monkeypatch):
    """They are public by assumption; a run of `from_clients(..., fill=)` did not say so."""
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    tables = tomllib.loads(TOML)
    train, test = (csv.read_csv(tmp_path / f"{half}.csv") for half in ("train", "test"))
    declared = {
        name: tables["data"][name] for name in ("client", "inputs", "label", "classes", "vocabulary", "fill", "range")
    }
    given = from_clients(train, test, **declared)
    own = {**tables, "data": {"name": "own", "partition": "natural"}}
    notes = [
        build(parse(tables, source="test")).not_protected,
        build(parse(own, source="test"), own=CustomObjects(data=given)).not_protected,
    ]
    assert notes[0] == notes[1]
    assert "gaps of pressure are 120" in notes[0][0]


@pytest.mark.slow
def test_a_hospitals_seven_steps(tmp_path, monkeypatch, capsys):
    """Table, plan, page, training for release, audit, card, statement, ledger: as docs/tutorials/hospitals.md says."""
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = ["--unit", "record", "--clients", "2", "--records", "17", "--batch-size", "8", "--local-steps", "1"]
    plan += ["--rounds", "1", "--mechanism", "discrete-gaussian", "--dimension", "34", "--epsilon", "3"]
    assert status(["budget", *plan, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert status(["plan", *plan, "--static", "plan.html"]) == 0
    assert "17 records each" in (tmp_path / "plan.html").read_text()
    assert status(["run", "hospitals.toml", "--release", "--out", "ward"]) == 0
    assert "gradients a round: about" in capsys.readouterr().err
    assert status(["audit", "ward", "--effort", "quick", "--set", "confidence=0.999999"]) == 0  # its noise is fresh
    capsys.readouterr()
    assert status(["report", "ward", "--card", "ward/card.md"]) == 0
    assert status(["report", "ward", "--sentence"]) == 0
    assert "for one record, add-remove neighbours" in capsys.readouterr().out
    assert status(["ledger", "verify", "ward/ledger.jsonl"]) == 0
    summary = json.loads((tmp_path / "ward" / "summary.json").read_text())
    assert summary["epsilon"] <= 3
    assert summary["unit"] == "record"
    assert planned["epsilon"] <= 3
    for page in ("report.html", "card.md"):
        assert "gaps of pressure are 120" in (tmp_path / "ward" / page).read_text(), page
    config = tmp_path / "ward" / "config.toml"
    config.write_text(config.read_text().replace("pressure = 120", "pressure = 121"))
    assert status(["audit", "ward", "--effort", "quick"]) == 1  # the ledger binds the declarations
