"""Faults planted in the quantiser whose error is the noise: the audit of its uploads finds each."""

from dataclasses import replace

import pytest
import torch

from dpfed.audit.round.method_setting import audit_upload
from dpfed.mechanisms import dithered
from dpfed.mechanisms.dithered import DitheredNoise
from tests.dpfed.audit.fault_layers import few_cohorts
from tests.dpfed.audit.run_folders import failed, records, run

SLICES, STD, PER_CLIENT = dithered._Slices.of, DitheredNoise._std, DitheredNoise._client_slices


def one_width(**given):
    """A lattice of one width, whose error is uniform, of the same variance."""
    made = SLICES(**given)
    return replace(made, widths=torch.full_like(made.widths, 12**0.5 * given["std"]), middles=0 * made.middles)


FAULTS = {
    "missing shares are not drawn": (DitheredNoise, "server", lambda self, total, now: total),
    "one width": (dithered._Slices, "of", staticmethod(one_width)),
    "noise of two thirds": (DitheredNoise, "_std", lambda self, norm: STD(self, norm) / 1.5),
    "clients share their draws": (
        DitheredNoise,
        "_client_slices",
        lambda self, row, now, client: PER_CLIENT(self, row, now, 0),
    ),
}


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("fault", sorted(FAULTS))
@few_cohorts
def test_a_fault_is_found(monkeypatch, fault):
    monkeypatch.setattr(*FAULTS[fault])
    settings = ["federation.sampling=poisson"] if fault.startswith("missing") else []
    assert audit_upload("dp-dithered", settings=settings, draws=100_000).verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_quantiser_as_it_is_passes(seed):
    """False-alarm rate 5% a seed, at other seeds."""
    assert audit_upload("dp-dithered", seed=seed).verdict == "pass"


def test_a_round_without_clients_has_the_noise_of_all_shares(tmp_path):
    """It was recorded as a sum without noise."""
    empty = run(tmp_path / "run", "method.name=dp-dithered", "federation.cohort=1", "federation.rounds=6")
    assert min(one["cohort"] for one in records(empty, "diagnostics.jsonl")) == 0
    assert not failed(empty)
