"""Audits of what a run states that ended early, or that charges what arrived."""

import json

import pytest

from accounting import Ledger
from dpfed.audit.run import audit_run
from dpfed.runs.protection import CHARGED_LOSSES, LOSSES_OF_03

from . import run_folders
from .run_folders import SURE, change_ledger, change_summary, copied, failed

EARLY = ("federation.rounds=9", "privacy.epsilon=0.5", "privacy.noise_multiplier=2.0", "privacy.delta=1e-2")
CHARGED = (
    "privacy.placement=clients", "federation.sampling=all", "privacy.adjacency=zero-out", "aggregation.tolerance=0.5",
    "privacy.missing_shares=charged", "federation.rounds=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def early(tmp_path_factory):
    """A run that its budget has ended."""
    return run_folders.run(tmp_path_factory.mktemp("early") / "run", *EARLY)


def test_a_run_that_ended_early_states_its_budget_and_passes(early):
    summary = json.loads((early / "summary.json").read_text())
    ledger = Ledger.read(early / "ledger.jsonl")
    assert summary["stopped_by"] == "budget"
    assert summary["rounds"] < 9 == ledger.header.plan.rounds
    assert summary["epsilon"] == 0.5
    assert summary["epsilon"] > ledger.if_fixed_in_advance(1e-2, accountant="rdp").epsilon
    assert any("of the budget" in note for note in summary["notes"])
    assert audit_run(early, confidence=SURE).verdict == "pass"


def test_what_was_spent_in_place_of_the_budget_fails(early, tmp_path):
    folder = copied(early, tmp_path / "run")
    change_summary(
        folder, epsilon=Ledger.read(folder / "ledger.jsonl").if_fixed_in_advance(1e-2, accountant="rdp").epsilon
    )
    assert failed(folder) == {"epsilon follows from the ledger"}
    found = {one.name: one.detail for one in audit_run(folder, confidence=SURE).checks}
    assert "less than the epsilon of the plan or budget" in found["epsilon follows from the ledger"]


@pytest.mark.parametrize("plan", [{"rounds": 4}, {"epsilon": 0.48}, {"delta": 0.011}, {"most": ()}])
def test_a_plan_that_is_not_the_configurations_fails(early, tmp_path, plan):
    """With rounds lowered to those released the epsilon of the releases would be all that is stated."""
    folder = copied(early, tmp_path / "run")

    def forge(lines):
        header = lines[0]["plan"]
        if "most" in plan:
            header["most"][0]["parts"][0][1] = 1
        else:
            header.update(plan)

    change_ledger(folder, forge)
    assert "ledger follows the configuration" in failed(folder)


def test_a_folder_of_version_0_2_passes_with_what_it_states(early, tmp_path):
    """Its ledger has no plan, its summary the epsilon of the releases."""
    folder = copied(early, tmp_path / "run")
    change_ledger(folder, lambda lines: lines[0].pop("plan"))
    stated = Ledger.read(folder / "ledger.jsonl").guarantee(1e-2, accountant="rdp")
    change_summary(folder, epsilon=stated.epsilon)
    assert "ledger follows the configuration" not in failed(folder)
    assert "epsilon follows from the ledger" not in failed(folder)
    assert any("which has no plan" in note for note in audit_run(folder, confidence=SURE).notes)


def test_a_run_that_charges_what_arrived_names_losses_that_depend_on_results(tmp_path):
    folder = run_folders.run(tmp_path / "run", *CHARGED)
    summary = json.loads((folder / "summary.json").read_text())
    assert CHARGED_LOSSES in summary["not_protected"]
    assert "summary names what ran" not in failed(folder)
    others = [one for one in summary["not_protected"] if one != CHARGED_LOSSES]
    for of_03 in ((), (LOSSES_OF_03,)):
        change_summary(folder, not_protected=[*others, *of_03])
        assert ("summary names what ran" in failed(folder)) == (of_03 == ())
