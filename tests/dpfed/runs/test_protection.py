"""What a stated epsilon does not cover: the words of a run whose clients' coins are summed."""

import pytest

from dpfed.config.tables import parse
from dpfed.methods import catalogue
from dpfed.runs.protection import limitations_of_guarantee

WORDS = "against other clients that deviate"


def of_coins(*, kind="plain", partition="iid", sampling="poisson", **privacy):
    """What FedPM's private preset on digits with such sums says of other clients' coins."""
    tables = catalogue.preset_tables("fedpm-digits")
    tables["privacy"] = {"linf_clip": 0.1, "clip_norm": 1.0, "noise": "coins", **privacy}
    tables["aggregation"] = {"kind": kind}
    tables["federation"] = {**tables["federation"], "sampling": sampling}
    tables["data"] = {**tables["data"], "partition": partition}
    config = parse(tables, source="test")
    return [note for note in limitations_of_guarantee((), config, decodes_first=False) if WORDS in note]


def test_a_plain_sum_in_one_process_relies_on_no_other_client():
    assert of_coins() == []


@pytest.mark.parametrize("elsewhere", [{"kind": "masked"}, {"partition": "nodes"}], ids=["masked", "nodes"])
def test_sums_of_coins_from_other_machines_say_what_they_rely_on(elsewhere):
    """The edge of fedpm-digits is 0.01; under "near-reference" it is the clip that others are relied on to keep."""
    (note,) = of_coins(**elsewhere)
    assert note.endswith("of probabilities in [0.01, 0.99], and on their clip norms, because cohorts are sampled")
    (note,) = of_coins(**elsewhere, sampling="all")
    assert note.endswith("of probabilities in [0.01, 0.99]")
    (note,) = of_coins(**elsewhere, others="near-reference", sampling="all")
    assert note.endswith("of probabilities within linf_clip of the round's (privacy.others)")


def test_released_uploads_rely_on_no_other_client():
    assert of_coins(partition="nodes", release="uploads") == []
