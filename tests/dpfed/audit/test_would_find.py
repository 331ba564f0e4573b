"""Each row says the smallest fault that it would have found: the fault is found about as often as is said."""

from __future__ import annotations

import re
from types import SimpleNamespace

import torch

import dpfed
from accounting.budget import Poisson
from dpfed.audit.evidence.run_checks import _cohort_sizes
from dpfed.audit.round.noise_checks import NoiseDraws, size_check, tail_check
from dpfed.audit.run import audit_run
from dpfed.audit.verdict import false_alarm_text
from dpfed.runs.client_level.book import diagnostics_file

from . import run_folders

CANNOT_FAIL = {"cohorts follow the seed only if simulated", "members follow the sampler"}


def draws(seed, change=lambda noise: noise, shape=(400, 50)):
    noise = change(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return NoiseDraws(released=noise, added=noise, half_step=0.0)


def test_a_false_alarm_is_never_stated_to_be_rarer_than_it_is():
    assert [false_alarm_text(alpha).split()[-1] for alpha in (1e-6, 0.05 / 8)] == ["1e-06.", "0.0063."]


def test_noise_as_short_as_is_said_is_found():
    """Stated: 95%. Of 60 seeds at least 51 (a right statement fails with 3e-3); sound noise never (1e-6 each)."""
    short = float(re.search(r"noise (\S+)% short", size_check(draws(0)).would_find)[1]) / 100
    found = sum(not size_check(draws(seed, lambda noise: noise * (1 - short))).passed for seed in range(60))
    assert found >= 51
    assert all(size_check(draws(seed)).passed for seed in range(60))


def test_draws_of_zero_as_many_as_are_said_are_found():
    zeros = float(re.search(r"([\d.]+)% of draws", tail_check(draws(0)).would_find)[1]) / 100

    def planted(noise):
        return torch.where(torch.rand(noise.shape, generator=torch.Generator().manual_seed(7)) < zeros, 0.0, noise)

    assert all(not tail_check(draws(seed, planted)).passed for seed in range(20))
    assert all(tail_check(draws(seed)).passed for seed in range(20))


def test_every_row_of_a_run_states_its_fault_or_cannot_fail(tmp_path):
    found = audit_run(run_folders.run(tmp_path / "run", "federation.rounds=2"))
    assert {one.name for one in found.checks if one.would_find is None} <= CANNOT_FAIL | {"epsilon is possible"}
    all_clients = audit_run(run_folders.run(tmp_path / "all", "federation.rounds=2", "federation.sampling=all"))
    silent = {one.name for one in all_clients.checks if one.would_find is None}
    assert "cohorts follow the seed only if simulated" in silent


def test_under_a_cap_no_single_size_is_said_to_be_found():
    files = SimpleNamespace(sampler=Poisson(cohort=12, cohort_cap=16).cohorts(60), rounds=range(20))
    assert "on average" in _cohort_sizes(files, 1e-3)


def test_skipped_cohorts_that_are_not_recorded_are_not_called_consistent(tmp_path):
    """As version 0.3 left them: lines of released rounds only."""
    private = dpfed.ClientLevel(
        clients=200, cohort=40, clip_norm=1.0, epsilon=3.0, rounds=12, ledger=tmp_path / "l.jsonl"
    )
    for step in private.rounds():
        if len(step.cohort) >= 40:
            step.release(torch.zeros(len(step.cohort), 18))
    file = diagnostics_file(tmp_path / "l.jsonl")
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "skipped" not in line))
    rows = {one.name: one.passed for one in audit_run(tmp_path / "l.jsonl").checks}
    assert rows["cohort sizes follow the sampler"] is None
    assert rows["members follow the sampler"] is None
