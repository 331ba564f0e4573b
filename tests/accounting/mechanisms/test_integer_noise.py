"""Descriptions of integer noise: what they refuse, and that ledgers keep them."""

import json
import math

import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import (
    Composed,
    DiscreteGaussian,
    FixedSizeSampling,
    FullParticipation,
    Header,
    Ledger,
    PoissonSampling,
    Release,
    Skellam,
    Subsampled,
    guarantee,
    subsample,
)
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import from_dict

FIELDS = {"dimension": 10, "l2_bound": 30.0, "share_variance": 400.0, "adjacency": "zero-out", "shares": 5}
LAWS = pytest.mark.parametrize("law", [DiscreteGaussian, Skellam])


@LAWS
@pytest.mark.parametrize(
    "sampling", [None, PoissonSampling(probability=0.1), FixedSizeSampling(cohort=5, clients=50), FullParticipation()]
)
def test_dictionaries_and_ledgers_keep_everything(law, sampling, tmp_path):
    noise = law(**FIELDS, overflow=1e-9)
    mechanism = noise if sampling is None else Subsampled(mechanism=noise, sampling=sampling)
    assert from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism
    composed = Composed(parts=((mechanism, 3), (gaussian(2.0, "zero-out"), 1)))
    assert from_dict(json.loads(json.dumps(composed.to_dict()))) == composed
    ledger = Ledger.create(tmp_path / "ledger.jsonl", Header(unit="client", clients=50, randomness="simulated"))
    for round_ in range(2):
        ledger.record(
            Release(round=round_, mechanism=mechanism, clip_norm=1.0, noise_std=1.5, noise_placement="clients")
        )
    stated = Ledger.read(tmp_path / "ledger.jsonl").if_fixed_in_advance(1e-5)
    assert stated == guarantee(times(mechanism, 2), delta=1e-5)
    assert stated.lower_bound is None


@LAWS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 0}, "dimension=0: must be a whole number from 1"),
        ({"l2_bound": 0}, "l2_bound=0: must be a finite number above 0"),
        ({"l2_bound": math.inf}, "l2_bound=inf: must be a finite number above 0"),
        ({"share_variance": -1.0}, "share_variance=-1.0: must be a finite number above 0"),
        ({"share_variance": math.nan}, "share_variance=nan: must be"),
        ({"share_variance": True}, "share_variance=True: must be"),
        ({"share_variance": 1e-30}, "the noise multiplier is 7.45[0-9]*e-17; must be from 1e-09 to 1e"),
        ({"shares": 0}, "shares=0: must be a whole number from 1"),
        ({"shares": 2.0}, "shares=2.0: must be a whole number"),
        ({"overflow": 1.5}, r"overflow=1.5: must be a probability in \[0, 1\]"),
        ({"adjacency": "bounded"}, "adjacency='bounded': must be one of add-remove"),
    ],
)
def test_fields_are_checked(law, change, message):
    refused(InvalidParameter, message, law, **{**FIELDS, **change})


@LAWS
def test_shares_of_clients_refuse_add_remove_and_the_servers_noise_does_not(law):
    with pytest.raises(
        UnsupportedMechanism, match=r"noise in 5 shares: one client added or removed.*'zero-out'.*'replace-one'"
    ):
        law(**{**FIELDS, "adjacency": "add-remove"})
    assert law(**{**FIELDS, "adjacency": "add-remove", "shares": 1}).sensitivity == 30.0
    assert law(**{**FIELDS, "adjacency": "replace-one"}).sensitivity == 60.0


@LAWS
def test_samplers(law):
    with pytest.raises(UnsupportedMechanism, match=r"add-remove.*fixed-size"):
        subsample(law(**{**FIELDS, "adjacency": "add-remove", "shares": 1}), FixedSizeSampling(cohort=5, clients=50))
    noise = law(**FIELDS)
    assert subsample(noise, PoissonSampling(probability=1.0)) == noise
    assert subsample(noise, FullParticipation()) == noise


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "discrete-gauss", **FIELDS},
        {"kind": "skellam", **FIELDS, "more": 1},
        {"kind": "skellam", "dimension": 10},
        {"kind": ["skellam"], **FIELDS},
    ],
)
def test_unknown_records_are_refused(record):
    refused(InvalidParameter, "this version does not support this mechanism", from_dict, record)


@pytest.mark.parametrize("law", [DiscreteGaussian, Skellam])
def test_shares_add_their_variances(law):
    noise = law(dimension=2, l2_bound=1.0, share_variance=4.0, shares=3, adjacency="zero-out")
    assert noise.variance == 12.0
