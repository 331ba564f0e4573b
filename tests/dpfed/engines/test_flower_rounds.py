"""The strategy on nodes of this process: what a run in process does, and nodes that fail, lie or stutter."""

import pytest

from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from .served import PRIVATE, SHARES, lines, serve_run

COINS = {"clip_norm": 0.5, "accountant": "rdp"}
FIXED = ("federation.sampling=fixed",)
METHODS = {
    "fedavg": ("fedavg", (), None),
    "dp-fedavg": ("dp-fedavg", (), PRIVATE),
    "adaptive": ("dp-fedavg", ("privacy.adaptive.count_noise_std=2.0",), PRIVATE),
    "canaries": ("dp-fedavg", ("audit.canaries=4",), PRIVATE),
    "gaussian shares": ("dp-fedavg", FIXED, {**PRIVATE, "placement": "clients"}),
    "uploads seen": ("qsgd", (), {**PRIVATE, "release": "uploads"}),
    "decoded first": ("qsgd", (), PRIVATE),
    "fed-smp-randk": ("fed-smp-randk", ("method.keep=0.3",), PRIVATE),
    "fed-smp-topk": ("fed-smp-topk", ("method.keep=0.1", "data.public=50"), PRIVATE),
    "discrete shares": ("dp-fedavg", (), SHARES),
    "dithered": ("dp-dithered", (), {**PRIVATE, "adjacency": "zero-out"}),
    "balls-and-bins": ("dp-fedavg", ("federation.sampling=balls-and-bins",), PRIVATE),
    "rests, with integer noise": (
        "dp-fedavg",
        ("federation.sampling=min-separation", "federation.separation=2"),
        {**PRIVATE, "noise": "discrete-gaussian"},
    ),
    "skellam at the server": ("dp-fedavg", (), {**PRIVATE, "noise": "skellam"}),
    "fedpm": ("fedpm", (), None),
    "fedpm by its sum": ("fedpm", (), {**COINS, "slots": 15, "delta": 1e-2}),
    "fedpm seen": ("fedpm", (), {**COINS, "release": "uploads"}),
    "fedmask": ("fedmask", (), None),
    "fedavg-topk": ("fedavg-topk", ("method.keep=0.1",), None),
    "fedavg-randk": ("fedavg-randk", ("method.keep=0.1",), None),
    "personal layers": ("dp-fedavg", ("local.personal=['*bias']",), PRIVATE),
    "signsgd": ("signsgd", ("method.error_feedback=true",), None),
    "stochastic-sign": (
        "stochastic-sign",
        ("method.options.bound=0.05",),
        {**COINS, "noise": "coins", "edge": 0.2, "slots": 15, "delta": 1e-2},
    ),
    "terngrad": ("terngrad", (), None),
    "drive": ("drive", (), None),
    "eden": ("eden", (), None),
    "fedmrn": ("fedmrn", (), None),
    "fedmrns": ("fedmrns", ("method.shared=true",), None),
    "fedscalar": ("fedscalar", ("method.shared=true", "method.options.projections=5"), PRIVATE),
    "fedsparsify": ("fedsparsify", (), None),
    "fedsparsify votes": ("fedsparsify", ("method.purge=clients",), None),
    "records": (
        "fedavg",
        ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.record.accountant=rdp"),
        None,
    ),
}


@pytest.mark.parametrize("case", sorted(METHODS))
def test_nodes_do_what_one_process_does(tmp_path, grid, tables, checked, same_run, case):
    """Cohorts, bytes and ledger the same; weights up to the order of float sums."""
    method, settings, privacy = METHODS[case]
    chosen = tables(method, *settings, privacy=privacy)
    here = federation.run(build(checked(chosen)), tmp_path / "here")
    there = serve_run(grid(chosen), chosen, tmp_path / "there")
    changed = {"seconds", "model_sha256", "mask_sha256"}  # sums of floats in another order
    assert here.summary.keys() == there.summary.keys()
    for key, value in here.summary.items():
        if key not in changed and not key.startswith(("test_", "best_test")):
            assert there.summary[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    same_run(tmp_path / "here", tmp_path / "there")
    for before, after in zip(*(lines(tmp_path / one, "diagnostics.jsonl") for one in ("here", "there")), strict=True):
        for key in ("counted", "clipped", "longest_added"):
            assert after[key] is None or after[key] == pytest.approx(before[key], rel=1e-5), key
    if "canaries" in case:
        scores = [lines(tmp_path / one, "canaries.jsonl") for one in ("here", "there")]
        assert len(scores[0]) == len(scores[1]) > 0
        for before, after in zip(*scores, strict=True):
            assert after == pytest.approx(before, abs=1e-4)
