"""Model cards and registry entries: valid by the registry's own schema, rounded safely, and honest about gaps."""

import json
import re
import string
from dataclasses import replace
from pathlib import Path

import bundles
import jsonschema
import pytest
from run_folders import PRIVATE, run_folder, summary

from accounting import Gaussian, Header, Ledger, PoissonSampling, subsample
from dpfed.cli import status
from dpfed.records.summary import read_finished
from dpfed.report.ledger_text import ledger_text
from dpfed.report.privacy_text import privacy_statement
from dpfed.report.registry_entry import QUESTIONS, StatementAnswers, ask_questions, model_card, registry_entry, to_yaml

SCHEMA = json.loads((Path(__file__).parent / "deployments-schema.json").read_text())
ANSWERS = """
name = "Next word of nurses"
curators = ["A hospital", "Another"]
authors = ["Ada"]
description = "Says \\"hello\\"; \\\\ and: more"
intended_use = "Typing"
region = "Bavaria"
sector = "Healthcare"
publication_date = 2026-01-31
data_domain = "Nurses' keyboards"
tuning = "None on private data"
justification = "Agreed with them"
sources = "a paper"
license = "apache-2.0"
"""


@pytest.fixture
def folder(tmp_path):
    return run_folder(tmp_path / "run", **(PRIVATE | {"dataset": "mnist", "model": "mlp", "epsilon": 1.00001}))


def validated(entry):
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(entry)
    return entry


def read_yaml(text):
    """What our YAML says, read without our writer: block mappings of quoted words, and lists of them."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines()]

    def block(at, depth):
        found = [] if lines[at][1].startswith("- ") else {}
        while at < len(lines) and lines[at][0] >= depth:
            line = lines[at][1]
            if isinstance(found, list):
                found.append(json.loads(line[2:]))
                at += 1
                continue
            key, _, value = line.partition(":")
            assert set(key) <= set(string.ascii_letters + "_")
            if value.strip():
                found[key], at = json.loads(value), at + 1
            else:
                found[key], at = block(at + 1, lines[at + 1][0])
        return found, at

    return block(0, 0)[0]


def test_an_entry_without_answers_is_valid_and_marked(folder):
    entry = validated(registry_entry(folder, read_finished(folder), StatementAnswers()))
    assert json.dumps(entry).count("TODO: ") == len(QUESTIONS) - len({"sector", "publication_date", "license"})
    assert (entry["status"], entry["url_slug"]) == ("Draft", "dp-fedavg-on-mnist")
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 1.0001


def test_answers_fill_every_gap_and_the_file_says_what_the_entry_does(folder, tmp_path, capsys):
    (tmp_path / "about.toml").write_text(ANSWERS)
    files = {name: tmp_path / name for name in ("entry.yaml", "card.md")}
    given = ["--registry", str(files["entry.yaml"]), "--card", str(files["card.md"])]
    assert status(["report", str(folder), *given, "--about", str(tmp_path / "about.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    entry = validated(read_yaml(files["entry.yaml"].read_text()))
    assert "TODO" not in json.dumps(entry)
    assert entry["deployment"]["basic"]["description"] == 'Says "hello"; \\ and: more'
    assert entry["deployment"]["basic"]["publication_date"] == "2026-01-31"
    assert entry["url_slug"] == "next-word-of-nurses"
    card = files["card.md"].read_text()
    assert card.startswith('---\nlibrary_name: "pytorch"\n')
    for words in (
        "# Next word of nurses",
        "epsilon at most 1.0001",
        "- **For whom.** One client",
        'license: "apache-2.0"',
    ):
        assert words in card, words
    assert "\n- **Against whom.**" in card
    assert card.count("[More Information Needed]") == 2  # risks, energy: nobody was asked


@pytest.mark.parametrize(
    ("summary", "model"),
    [
        ({"noise_placement": "uploads"}, "Local"),
        ({"unit": "record", "noise_placement": "local steps", "adjacency": "add-remove"}, "Local"),
        ({"aggregation": "protocol", "noise_placement": "clients"}, "Federated"),
        ({"aggregation": "masked", "noise_placement": "server"}, "Central"),
    ],
)
def test_who_is_trusted(tmp_path, summary, model):
    folder = run_folder(tmp_path / "run", **(PRIVATE | summary))
    entry = validated(registry_entry(folder, read_finished(folder), StatementAnswers()))
    assert entry["deployment"]["deployment_model"]["model_name"] == model


def test_the_epsilon_of_an_entry_has_no_other_runs_of_the_project(tmp_path):
    project = {"project_ledger": "p.jsonl", "project_epsilon": 3.0, "project_delta": 1e-3}
    for more, words in (({}, ""), (project, " Epsilon at most 3 at delta 0.001 for all runs of p.jsonl.")):
        folder = run_folder(tmp_path / f"run{len(more)}", **(PRIVATE | more))
        entry = validated(registry_entry(folder, read_finished(folder), StatementAnswers()))
        assert f'Other releases about the same clients are not included.{words}"' in json.dumps(entry)


@pytest.mark.parametrize(
    ("arguments", "about", "code", "words"),
    [
        (["{run}", "{run}", "--card", "{here}/card.md"], "", 2, "one run; 2 folders"),
        (["{run}", "--about", "{here}/about.toml"], "", 2, "--about without --card"),
        (["{run}", "--card", "{here}/card.md", "--about", "{here}/about.toml"], "curator = ['A']", 2, "curators"),
        (["{run}", "--card", "{here}/card.md", "--about", "{here}/about.toml"], "authors = 'Ada'", 2, "list of names"),
        (["{run}", "--card", "{here}/card.md", "--about", "{here}/about.toml"], "sector = 'Law'", 2, "Healthcare"),
        (
            ["{run}", "--card", "{here}/card.md", "--about", "{here}/about.toml"],
            "publication_date = 'soon'",
            2,
            "a date",
        ),
        (["{run}", "--card", "{here}/card.md", "--about", "{here}/none.toml"], "", 2, "cannot be read"),
        (["{run}", "--card", "{here}/none/card.md"], "", 1, "cannot be written"),
        (["{plain}", "--registry", "{here}/entry.yaml"], "", 1, "is not private"),
    ],
)
def test_what_cannot_be_stated(folder, tmp_path, capsys, arguments, about, code, words):
    (tmp_path / "about.toml").write_text(about)
    names = {"run": folder, "plain": run_folder(tmp_path / "plain"), "here": tmp_path}
    assert status(["report", *(one.format(**names) for one in arguments)]) == code
    assert words in capsys.readouterr().err


def test_the_writer_quotes_what_yaml_would_read_otherwise():
    words = ["yes", "1", "a: b", "- c", "# d", "'", '"', "\\n", "\n", "é", "null", ""]
    assert read_yaml(to_yaml({"list": words, "table": {"inner": {"x": words[2]}}, "n": 1.5})) == {
        "list": words, "table": {"inner": {"x": words[2]}}, "n": 1.5,
    }  # fmt: skip
    assert not re.search(r"^\s*- yes$", to_yaml({"list": words}), re.MULTILINE)


def test_what_a_run_cannot_know_is_asked_for():
    """Once for each key that has no answer; again after an answer that is none; Enter and Ctrl-D leave a mark."""
    typed, asked, said = iter(["", "A hospital, a trust", "Law", "Healthcare", "yesterday", "2026-01-31"]), [], []

    def read(question):
        asked.append(question.partition(",")[0])
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    given = StatementAnswers(answers={key: "known" for key in QUESTIONS if key not in ("name", "curators", "sector")})
    given = StatementAnswers(
        answers={key: value for key, value in given.answers.items() if key not in ("publication_date", "license")}
    )
    found = ask_questions(given, read=read, say=said.append)
    assert asked == ["name", "curators", "sector", "sector", "publication_date", "publication_date", "license"]
    assert found.answers["curators"] == ["A hospital", "a trust"]
    assert (found.answers["sector"], found.answers["publication_date"]) == ("Healthcare", "2026-01-31")
    assert found.missing == ("name", "license")
    assert len(said) == 2


def test_the_version_is_that_of_the_run_not_that_of_its_reader(folder, capsys):
    header = Header(unit="client", clients=6000, randomness="secure", about={"package": "dpfed 0.2.1"})
    Ledger.create(folder / "ledger.jsonl", header)
    run = read_finished(folder)
    assert "Trained with:** dpfed 0.2.1, method" in model_card(run, StatementAnswers())
    assert "Implemented with dpfed 0.2.1." in json.dumps(registry_entry(folder, run, StatementAnswers()))
    assert status(["cite", str(folder)]) == 0
    assert "version = {0.2.1}" in capsys.readouterr().out


def test_nobody_is_asked_in_a_pipe(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    assert status(["report", str(folder), "--card", str(tmp_path / "card.md")]) == 0
    assert "not answered and marked" in capsys.readouterr().out


def test_names_with_braces_and_tags_are_text_in_a_card(folder, tmp_path):
    summary = folder / "summary.json"
    found = json.loads(summary.read_text())
    summary.write_text(json.dumps(found | {"dataset": "a{b}{}<script>c</script>"}))
    run = read_finished(folder)
    card = model_card(run, StatementAnswers())
    assert "on a{b}{}&lt;script>c&lt;/script>\n" in card
    assert "<script" not in card
    assert "a{b}{}" in json.dumps(registry_entry(folder, run, StatementAnswers()))
    assert "<https://example.org>" in model_card(run, StatementAnswers(answers={"sources": "<https://example.org>"}))


def test_a_registry_entry_states_the_conditions_of_its_epsilon(tmp_path):
    folder = run_folder(tmp_path / "run", **(PRIVATE | {"notes": ["epsilon holds if interruptions were accidents"]}))
    entry = registry_entry(folder, read_finished(folder), StatementAnswers())
    assert "interruptions were accidents" in entry["deployment"]["privacy_loss"]["privacy_parameters_details"]


def test_a_sentence_states_the_conditions_of_the_run():
    """Rounds that were repeated, or had no result, may not depend on results: the sentence said nothing of it."""
    again = "40 rounds were charged again: epsilon holds if the interruptions did not depend on results"
    words = privacy_statement(summary(**PRIVATE, interrupted_charges=40, notes=["a large epsilon", again]))
    assert words.endswith(f"interrupted after their charge. Condition: {again}.")


@pytest.fixture
def pack(tmp_path):
    noise = subsample(Gaussian(noise_multiplier=1.3, adjacency="add-remove"), PoissonSampling(probability=0.1))
    folder = bundles.written(tmp_path / "run", noise, 3)
    (folder / "metrics.jsonl").write_text("")
    line = {
        "round": 3,
        "epsilon": json.loads((folder / "summary.json").read_text())["epsilon"],
        "uplink_megabytes": 1.0,
    }
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_a_pack_is_a_bundle_whose_answers_stand_where_it_says(pack, tmp_path, capsys):
    assert status(["report", str(pack), "--pack", str(tmp_path / "pack"), "--json"]) == 0
    assert "tuning" in json.loads(capsys.readouterr().out)["missing"]
    assert status(["verify", str(tmp_path / "pack")]) == 0
    found = json.loads((tmp_path / "pack" / "pack.json").read_text())
    answers = {one["question"]: one for section in found["sections"] for one in section["answers"]}
    assert answers["Tuning by hand, and whether private data were used for it"]["answer"] == ""
    assert answers["12.5 Consent, and its withdrawal"]["places"] == []
    assert answers["Epsilon and delta"]["answer"].startswith("epsilon: 1.")
    for one in answers.values():
        for place in one["places"]:
            name, _, line = place.partition(":")
            assert not line or (tmp_path / "pack" / name).read_text().splitlines()[int(line) - 1]
    registry = [one for one in found["sections"][-1]["answers"] if one["answer"]]
    assert len(registry) > 15
    assert all(
        one["places"] == ["every run"] or all(re.search(r":\d+$", place) for place in one["places"]) for one in registry
    )
    assert all(one["places"] for one in registry)
    place = answers["privacy_loss.privacy_parameters.epsilon"]["places"][0].partition(":")[2]
    assert '"epsilon": 1.' in (tmp_path / "pack" / "summary.json").read_text().splitlines()[int(place) - 1]
    place = answers["Sensitivity"]["places"][0].partition(":")[2]
    assert '"clip_norm": 0.5' in (tmp_path / "pack" / "summary.json").read_text().splitlines()[int(place) - 1]


@pytest.mark.parametrize("text", ["[]", "{", "5", "[" * 100_000], ids=["list", "cut", "number", "deep"])
def test_an_audit_file_that_is_none_is_one_error(pack, tmp_path, capsys, text):
    (pack / "audit.json").write_text(text)
    assert status(["report", str(pack), "--pack", str(tmp_path / "pack")]) == 1
    assert "audit.json" in capsys.readouterr().err


def test_an_audit_of_fewer_rounds_is_no_answer(pack, tmp_path):
    """It stays beside a run that was prolonged after its audit."""
    head = json.loads((pack / "summary.json").read_text())["ledger_head"]
    for audited, answer in ((head, "By `dpfed audit`; a pass is no proof. verdict: pass"), ("0" * 64, "")):
        (pack / "audit.json").write_text(json.dumps({"verdict": "pass", "ledger_head": audited}, indent=2))
        assert status(["report", str(pack), "--pack", str(tmp_path / "pack"), "--json"]) == 0
        found = json.loads((tmp_path / "pack" / "pack.json").read_text())
        (one,) = (a for s in found["sections"] for a in s["answers"] if a["question"].startswith("12.3.2"))
        assert one["answer"] == answer


def test_a_pack_states_the_condition_of_a_projects_epsilon(pack, tmp_path):
    values = {"project_ledger": "p", "project_epsilon": 3.0, "project_delta": 1e-5, "project_condition": "if so"}
    text = (pack / "summary.json").read_text()
    (pack / "summary.json").write_text(json.dumps(json.loads(text) | values, indent=2))
    assert status(["report", str(pack), "--pack", str(tmp_path / "pack"), "--json"]) == 0
    found = json.loads((tmp_path / "pack" / "pack.json").read_text())
    answers = [a["answer"] for s in found["sections"] for a in s["answers"] if "project_epsilon: 3" in a["answer"]]
    assert len(answers) == 2
    assert all("project_condition: if so" in answer for answer in answers)


def test_rounds_with_gaps_are_not_said_to_be_all_rounds(pack):
    """The page's text of releases in rounds 1, 2, 3, and 6."""
    assert ledger_text(pack / "ledger.jsonl").lines[0].startswith("Rounds 1 to 3: ")
    (release, *_) = Ledger.read(pack / "ledger.jsonl").releases
    ledger = Ledger.create(pack / "gap.jsonl", Header(unit="client", clients=600, randomness="secure"))
    ledger.record_all([replace(release, round=number) for number in (0, 1, 2, 5)])
    assert ledger_text(pack / "gap.jsonl").lines[0].startswith("4 entries in rounds 1 to 6: ")


def test_a_pack_that_was_changed_is_refused(pack, tmp_path):
    assert status(["report", str(pack), "--pack", str(pack), "--json"]) == 0
    assert status(["verify", str(pack)]) == 0
    text = (pack / "pack.json").read_text()
    found = json.loads(text)
    found["registry_entry"]["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = 0.5
    (pack / "pack.json").write_text(json.dumps(found))
    assert status(["verify", str(pack)]) == 1
    (pack / "pack.json").write_text(text)
    (pack / "metrics.jsonl").write_text((pack / "metrics.jsonl").read_text().replace("1.0", "2.0"))
    assert status(["verify", str(pack)]) == 1
