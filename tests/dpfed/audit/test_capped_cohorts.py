"""Audits of runs whose cohorts have a cap: honest ones pass, faults are found, ledgers of earlier versions are read."""

import pytest

from accounting import CappedPoissonSampling, Ledger, PoissonSampling
from accounting.mechanisms import sampling_of
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import earlier_overflow, rarely_exceeded
from dpfed.audit.run import audit_run
from tests.dpfed.audit.run_folders import SURE, change_ledger, change_summary, copied, failed, records, run

CAP = ("federation.cohort_cap=12", "federation.rounds=6")
SHARES = (
    "privacy.noise=skellam", "privacy.placement=clients", "privacy.adjacency=zero-out", "privacy.accountant=best",
)  # fmt: skip


@pytest.fixture(scope="module")
def capped(tmp_path_factory):
    return run(tmp_path_factory.mktemp("capped") / "run", *CAP)


EARLIER_CAP = rarely_exceeded(12, 60, delta=1e-4)


@pytest.fixture(scope="module")
def of_shares(tmp_path_factory):
    settings = (*SHARES, f"federation.cohort_cap={EARLIER_CAP}", "federation.rounds=3")
    return run(tmp_path_factory.mktemp("shares") / "run", *settings)


def test_an_honest_run_passes_and_is_charged_with_its_cap(capped):
    found = audit_run(capped, confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if not one.passed]
    samplings = {sampling_of(one.mechanism) for one in Ledger.read(capped / "ledger.jsonl").releases}
    assert samplings == {CappedPoissonSampling(probability=0.2, cap=12, clients=60)}
    assert max(line["cohort"] for line in records(capped, "diagnostics.jsonl")) == 12


def test_a_cap_below_clients_that_are_all_drawn(tmp_path):
    capped = run(tmp_path / "run", *CAP, "federation.cohort=60", "federation.cohort_cap=50")
    assert not failed(capped)


@pytest.mark.parametrize(
    ("planted", "check"),
    [
        (lambda cohort, cap, clients, randomness, number: cohort[:cap], "cohorts follow the seed only if simulated"),
        (lambda cohort, cap, clients, randomness, number: cohort, "uploads are as accounted"),
    ],
    ids=["the lowest ids are kept", "nobody is left out"],
)
def test_a_cap_that_is_kept_otherwise_is_found(tmp_path, monkeypatch, planted, check):
    with monkeypatch.context() as fault:
        fault.setattr("dpfed.participation.sampling.cap_cohort", planted)
        folder = run(tmp_path / "run", *CAP)
    assert any(check in name for name in failed(folder))


def test_a_charge_without_the_cap_is_found(tmp_path, monkeypatch):
    with monkeypatch.context() as fault:
        fault.setattr("accounting.budget.Poisson.law", lambda self, clients, stream: PoissonSampling(probability=0.2))
        folder = run(tmp_path / "run", *CAP)
    assert "ledger follows the configuration" in failed(folder)


@pytest.mark.parametrize("written", [True, False])
def test_a_folder_of_an_earlier_version_charges_the_overflow(of_shares, tmp_path, written):
    """Its ledger has plain Poisson sampling, its configuration privacy.slots or nothing."""
    cap, beta = EARLIER_CAP, earlier_overflow(EARLIER_CAP, 0.2, 60, Adjacency.ZERO_OUT)

    def earlier(one):
        if isinstance(one, dict):
            if one.get("name") == "capped-poisson":
                one |= {"name": "poisson"}
                del one["cap"], one["clients"]
            if "overflow" in one:
                one["overflow"] = beta
        for inner in one.values() if isinstance(one, dict) else one if isinstance(one, list) else ():
            earlier(inner)

    folder = copied(of_shares, tmp_path / "run")
    change_ledger(folder, earlier)
    config = (folder / "config.toml").read_text()
    assert f"cohort_cap = {cap}\n" in config
    config = config.replace(f"cohort_cap = {cap}\n", "")
    if written:
        config = config.replace("[privacy]\n", f"[privacy]\nslots = {cap}\n")
    (folder / "config.toml").write_text(config)
    ledger = Ledger.read(folder / "ledger.jsonl")
    epsilon = ledger.guarantee(1e-4).epsilon
    lost = 3 * beta
    change_summary(folder, epsilon=epsilon, delta_charged_for_failures=lost)
    own = {"ledger follows the configuration", "uploads are as accounted", "cohort sizes follow the sampler"}
    assert not own & failed(folder)
    change_ledger(folder, lambda lines: lines[1]["mechanism"]["mechanism"].update(overflow=beta / 2))
    assert "ledger follows the configuration" in failed(folder)
