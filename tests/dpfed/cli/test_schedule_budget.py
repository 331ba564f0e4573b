"""`dpfed budget --sampling` with schedules over rounds."""

import json

import pytest

from accounting.budget import certificates, certified_noise
from dpfed.cli import status
from dpfed.cli.budget import budget
from dpfed.errors import ConfigError
from dpfed.planner.question import Question


def printed(capsys, compare=False, **options):
    budget(options=Question(clients=6000, noise_multiplier=1.4, **options), compare=compare, json=True)
    return json.loads(capsys.readouterr().out)


def test_participations_give_the_cohort(capsys):
    found = printed(capsys, rounds=180, sampling="balls-and-bins", participations=3)
    assert found["epsilon"] <= 0.5738 * 1.005
    assert (found["cohort"], found["participations"], found["sampling"]) == (100, 3, "balls-and-bins")
    assert found["sampling_probability"] == pytest.approx(1 / 60)


def test_words_of_every_schedule(capsys):
    for options, words in (
        ({"sampling": "balls-and-bins"}, "one secret round of every 6"),
        ({"sampling": "allocation", "participations": 1}, "in 1 secret rounds of 6"),
        ({"sampling": "min-separation", "separation": 5}, "at most once in 5 rounds"),
        ({"sampling": "cyclic"}, "every 6th round"),
    ):
        budget(options=Question(clients=600, cohort=100, rounds=6, noise_multiplier=1.4, **options))
        assert words in " ".join(capsys.readouterr().out.split())


def test_rounds_that_participations_do_not_divide():
    options = Question(clients=6000, rounds=181, noise_multiplier=1.4, sampling="balls-and-bins", participations=3)
    with pytest.raises(ConfigError, match="multiple"):
        budget(options=options)


@pytest.mark.parametrize(("sampling", "due"), [("balls-and-bins", 10), ("allocation", 10)])
def test_rounds_that_no_whole_cohort_gives(sampling, due):
    """One of 7 rounds for each of 10 clients: 7 of 10 were accounted (2.1122, not 2.5089, at delta 1e-5)."""
    options = Question(clients=10, rounds=7, noise_multiplier=1.0, sampling=sampling, participations=1)
    with pytest.raises(ConfigError, match=f"cohorts, of 1, these are {due} rounds"):
        options.plan()
    assert options.with_options(cohort=1).plan().cohort == 1


def test_correlated_noise_with_a_separation_alone_is_a_public_order(capsys):
    of = {"rounds": 180, "separation": 60, "participations": 3}
    for options, error in (({"noise": "blt", "buffers": 2}, 4.650), ({"noise": "banded", "bands": 60}, 4.502)):
        found = printed(capsys, **of, **options)
        assert (found["sampling"], found["noise"], found["participations"]) == ("cyclic", options["noise"], 3)
        independent = printed(capsys, rounds=180, sampling="cyclic", cohort=100)
        assert found["epsilon"] > independent["epsilon"]  # the fresh noise is as large, and a client shows more
        assert found["prefix_error_in_clips"] < 1.4 * error


@pytest.mark.slow
def test_compare_advises(capsys):
    found = printed(capsys, cohort=2000, rounds=6, delta=1e-4, compare=True)["advice"]
    assert [one["prefix_error_in_clips"] for one in found] == sorted(one["prefix_error_in_clips"] for one in found)
    assert {one["sampling"] for one in found} == {"poisson", "balls-and-bins", "cyclic"}


@pytest.mark.parametrize("name", ["--cohort-cap", "--slots"])
def test_a_cap_by_both_of_its_names(capsys, name):
    plan = ["--clients", "6000", "--cohort", "100", "--rounds", "180", "--noise-multiplier", "1.4"]
    plan += ["--adjacency", "zero-out", name, "130"]
    assert status(["budget", *plan, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sampling"], found["cohort_cap"], found["accountant"]) == ("poisson", 130, "pld")
    assert found["epsilon"] == pytest.approx(0.6626, abs=6e-5)
    assert status(["budget", *plan]) == 0
    assert "at most 130 take part, the others left out by lot" in " ".join(capsys.readouterr().out.split())


def test_a_certificate_is_printed_beside_the_bound(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DPFED_CACHE_DIR", str(tmp_path))
    made = certificates.cached_or_new_certificate
    monkeypatch.setattr(certificates, "cached_or_new_certificate", lambda claim: made(claim, samples=50_000))
    plan = ["budget", "--clients", "6000", "--cohort", "400", "--rounds", "30", "--delta", "1e-3"]
    plan += ["--noise-multiplier", "1.2", "--sampling", "min-separation", "--separation", "12"]
    assert status([*plan, "--certificate", "sampled", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one = found["certificate"]
    assert found["lower_bound"] < one["epsilon"] < one["deterministic"] == found["epsilon"]
    assert (one["failure"], one["samples"], len(one["seed"])) == (one["tries"] * 1e-12, 50_000, 64)
    assert status([*plan, "--certificate", "sampled"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"wrong with probability {one['failure']:.0e}" in text
    assert status([*plan, "--certificate", "sampled", "--compare"]) == 2
    assert "a certificate is for one epsilon" in capsys.readouterr().err


def test_noise_of_a_certified_epsilon_in_secret_lanes(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DPFED_CACHE_DIR", str(tmp_path))
    made = certified_noise.cached_or_new_certified_noise
    monkeypatch.setattr(
        certified_noise, "cached_or_new_certified_noise", lambda plan, **asked: made(plan, samples=20_000, **asked)
    )
    plan = ["budget", "--clients", "600", "--cohort", "50", "--rounds", "24", "--delta", "1e-3", "--epsilon", "1.5"]
    plan += ["--sampling", "balls-and-bins", "--noise", "banded", "--lanes", "4", "--secret-lanes"]
    assert status([*plan, "--json"]) == 0
    sure = json.loads(capsys.readouterr().out)
    assert status([*plan, "--certificate", "sampled", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one = found["certificate"]
    assert one["epsilon"] == 1.5 < one["deterministic"] == found["epsilon"]
    assert found["prefix_error_in_clips"] < sure["prefix_error_in_clips"]
    assert (found["adjacency"], found["lower_bound"], found["secret_lanes"]) == ("add-remove", None, True)
    assert status([*plan, "--certificate", "sampled"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "4 secret lanes, drawn for the run" in text
    assert "epsilon 1.5 at delta 0.001, certified by 20,000 samples" in text
    assert status([*plan, "--certificate", "sampled", "--accountant", "pld"]) == 2
    assert "the search for noise uses --accountant best" in " ".join(capsys.readouterr().err.split())


SHUFFLED = ("budget", "--sampling", "shuffled", "--noise-multiplier", "1", "--delta", "1e-5", "--json")
IN_CLIENTS = ("--clients", "60000", "--cohort", "256", "--rounds", "2340")
IN_RECORDS = ("--unit", "record", "--records", "60000", "--batch-size", "256", "--rounds", "10")


@pytest.mark.parametrize("population", [IN_CLIENTS, IN_RECORDS], ids=["clients", "records"])
def test_shuffled_epochs_name_the_schedule_to_run(population, capsys):
    assert status([*SHUFFLED, *population]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(17.8566, abs=1e-4)
    assert found["adjacency"] == "zero-out"
    notes = " ".join(found["notes"])
    assert "not valid here" in notes
    assert "epsilon 1.0990" in notes
    assert "balls-and-bins instead, almost the same schedule: epsilon 1.0475" in notes


def test_shuffled_epochs_do_not_run(capsys):
    assert status(["run", "dp-fedavg-digits", "--set", "federation.sampling=shuffled"]) != 0
    assert "no runs: use balls-and-bins" in " ".join(capsys.readouterr().err.split())
