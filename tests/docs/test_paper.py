"""The document of the five theorems, pyOpenSci's checks and the archives are made by their commands."""

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from refusals import refused
from scripts import script

ROOT = Path(__file__).parents[2]


def test_the_five_theorems_are_what_their_pages_and_tests_say(monkeypatch):
    theorems = script("paper/theorems.py")
    assert (ROOT / "paper" / "theorems.md").read_text() == theorems.document() + "\n"
    assert len(re.findall(r"^## \d\. ", theorems.document(), re.MULTILINE)) == 5
    monkeypatch.setattr(theorems, "PARTS", ((*theorems.PARTS[0][:3], {"compose/test_adaptive.py": ["nothing"]}),))
    refused(SystemExit, "has no test_nothing", theorems.document)
    refused(SystemExit, r"must have '\*\*No theorem'", theorems.extract, "theory.md", "**No theorem", "## 5.")


@pytest.mark.slow
def test_the_checks_of_pyopensci_pass_but_the_owners(capsys):
    checks = script("paper/pyopensci.py")
    assert checks.main() == 0
    assert capsys.readouterr().out.count("owner ") == 3


@pytest.mark.slow
def test_archives_have_the_packages_and_what_they_read_and_no_test(tmp_path):
    pytest.importorskip("hatchling")
    wheel, source = script("tests/installed.py").built(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {"dpfed/report/references.bib", "dpfed/report/pack.toml", "accounting/py.typed"} <= set(names)
    with tarfile.open(source) as archive:
        inside = {one.partition("/")[2] for one in archive.getnames()}
    assert {one for one in names if one.startswith(("dpfed/", "accounting/"))} <= inside
    assert not [one for one in (*names, *inside) if one.startswith("tests/")]
