"""`dpfed cite`: entries of what a run used and of nothing else, for every built-in method, sampler and data set."""

import json
import re
from importlib.resources import files

import pytest
from bundles import written

from accounting import Gaussian, PoissonSampling, subsample
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES
from dpfed.cli import status
from dpfed.cli.cite import cited_entries
from dpfed.data import DATASETS
from dpfed.methods.catalogue import METHODS

ENTRIES = files("dpfed.report").joinpath("references.bib").read_text()
KEYS = re.findall(r"^@\w+\{(\w+),", ENTRIES, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    mechanism = subsample(Gaussian(noise_multiplier=1.3, adjacency="add-remove"), PoissonSampling(probability=0.1))
    found = written(tmp_path_factory.mktemp("cite") / "run", mechanism, 3)
    (found / "metrics.jsonl").write_text("")
    return found


def changed(folder, **values):
    summary = json.loads((folder / "summary.json").read_text()) | values
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_run_is_cited_by_what_it_used(folder, capsys):
    changed(folder, method="fed-smp-randk", dataset="cifar-10", accountant="pld", sampling="poisson")
    assert status(["cite", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["entries"]) == ["dpfed", "hu2024", "doroshenko2022", "zhu2022", "krizhevsky2009"]
    assert found["without_entry"] == []
    changed(folder, method="mine", dataset="mnist", accountant="rdp", sampling="fixed", noise="skellam")
    assert status(["cite", str(folder)]) == 0
    printed = capsys.readouterr().out
    keys = ["dpfed", "mironov2017", "wang2019", "canonne2020", "agarwal2021", "lecun1998"]
    assert re.findall(r"^@\w+\{(\w+),", printed, re.MULTILINE) == keys
    assert "% no entry for method=mine: add its source" in printed
    assert "keywords" not in printed


def test_every_built_in_method_sampler_and_data_set_has_an_entry():
    for key, names in {"method": METHODS, "dataset": ["digits", *DATASETS], "sampling": SAMPLING_CLASSES}.items():
        lacking = [one for one in names if f"{key}={one}" in cited_entries({key: one})[1]]
        assert set(lacking) <= {"custom"}, key


def test_settings_of_the_configuration_are_cited_only_if_they_are_set():
    plain = {"method": "fedavg", "dataset": "digits", "sampling": "all"}
    both = plain | {"privacy.adaptive": {"quantile": 0.5}, "server.rule": "adam", "aggregation.neighbours": 0}
    assert set(cited_entries(both)[0]) - set(cited_entries(plain)[0]) == {"andrew2021", "reddi2021"}


def test_entries_are_well_formed():
    assert len(KEYS) == len(set(KEYS)) == ENTRIES.count("\n@")
    blocks = ENTRIES.split("\n@")[1:]
    assert all(one.count("{") == one.count("}") for one in blocks)
    assert all(field in one for one in blocks for field in ("title = {", "author = {", "year = {", "keywords = {"))
    every = dict.fromkeys(re.findall(r"[\w.]+(?==)", " ".join(re.findall(r"keywords = \{(.*?)\}", ENTRIES))))
    assert set(every) <= {
        "method",
        "dataset",
        "sampling",
        "adjacency",
        "accountant",
        "noise",
        "aggregation",
        "server.rule",
    }
