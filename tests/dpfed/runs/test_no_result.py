"""Runs of which no round has a result: refused where that is sure, else finished, with a report that says it."""

import json

import pytest

from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.runs.experiment import build

LOST = ["federation.sampling=fixed", "federation.cohort=10", "federation.rounds=2", "model.hidden=[8]"]
COINS = ["method.name=stochastic-sign", "method.options.bound=0.01", "privacy.noise=coins", "privacy.clip_norm=0.1"]
MASKED = ["aggregation.kind=masked", "aggregation.lost.upload=9", *LOST]
WAYS = {
    "shares": ["privacy.placement=clients", "aggregation.tolerance=0.1", *MASKED],
    "the server's noise": MASKED,
    "coins": [*COINS, *MASKED],
    "a filled sum": [*MASKED, "aggregation.lost=", "aggregation.dropout=0.9", "federation.sampling=poisson"],
}


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("way", WAYS)
def test_the_run_ends_with_a_report_that_says_it(tmp_path, capsys, way):
    """With the same status after --resume, and no reader of the folder fails."""
    run = ["run", "dp-fedavg-digits", *(word for one in WAYS[way] for word in ("--set", one)), "--out", str(tmp_path)]
    for more in ([], ["--resume"]):
        (tmp_path / "report.html").unlink(missing_ok=True)
        assert status([*run, *more, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert (summary["aborted_rounds"], summary["epsilon"], summary["noise_placement"]) == (2, 0.0, None)
        assert "Nothing was released: none of 2 rounds had a result." in (tmp_path / "report.html").read_text()
    assert status([*run, "--resume"]) == 0
    assert "nothing was released" in capsys.readouterr().out.lower()
    assert audit_run(tmp_path).verdict != "fail"
    card, entry = tmp_path / "card.md", tmp_path / "entry.yaml"
    assert status(["report", str(tmp_path), "--card", str(card), "--registry", str(entry)]) == 0
    assert all("Nothing was released" in file.read_text() for file in (card, entry))
    for command in ("report", "diagnose"):
        assert status([command, str(tmp_path)]) == 0


@pytest.mark.parametrize("kind", ["masked", "protocol"])
@pytest.mark.parametrize("without", [[], ["privacy"]], ids=["private", "public"])
def test_a_secure_sum_of_one_client_is_refused_at_the_start(tiny_config, kind, without):
    """Every client refuses such a sum, so that no round could have a result."""
    settings = ["aggregation.clip_norm=1.0", "method.name=fedavg"] if without else []
    alone = tiny_config(
        f"aggregation.kind={kind}", "federation.sampling=fixed", "federation.cohort=1", *settings, without=without
    )
    with pytest.raises(ConfigError, match=rf"aggregation\.kind='{kind}' with 1 client in every sum"):
        build(alone)
