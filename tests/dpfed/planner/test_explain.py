"""Settings of other libraries: the epsilon printed is that of the worst reading, by other computations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from refusals import refused
from scipy.stats import norm

from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.explain.settings import explain

from .test_explain_others import explained, gaussian

FLOWER = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 20, "num_clients": 100}
OPACUS = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "batch_size": 256, "num_samples": 60_000, "epochs": 10}
TFF = {"noise_multiplier": 4.0, "clip": 0.5, "clients_per_round": 50, "num_clients": 1000, "num_rounds": 4}
FLIP = {"clip": 1.0, "sensitivity": 1e-4, "epsilon": 10, "delta": 1e-5}


F, S, T = FLOWER | {"rounds": 1}, OPACUS | {"noise_multiplier": 50.0}, TFF | {"num_rounds": 1}
INF = math.inf

HELD: dict[str, tuple[dict[str, object], float]] = {
    "opacus, steps only": ({"noise_multiplier": 9.0, "max_grad_norm": 1.0, "steps": 16}, 2 * 4 / 9),
    "flower, everything left open": (FLOWER | {"noise_multiplier": 40.0, "num_server_rounds": 4}, 2 * 20 * 2 / 40),
    "flower, one client a round": (FLOWER | {"num_sampled_clients": 1, "num_server_rounds": 4}, 2 * 2 / 1),
    "flower, nodes not told": ({**FLOWER, "noise_multiplier": 40.0, "num_clients": 20, "rounds": 1}, 2 * 20 / 40),
    "flower, fewer replies": (FLOWER | {"noise_multiplier": 80.0, "fraction_train": 0.1, "rounds": 1}, 2 * 20 / 80),
    "opacus, its loader left open": (OPACUS | {"noise_multiplier": 100.0}, 2 * 2350**0.5 / 100),
    "opacus, shuffled": (OPACUS | {"poisson_sampling": False, "shuffle": True}, 2 * 10**0.5),
    "opacus, shuffled, by rate": (
        {"sigma": 2.0, "max_grad_norm": 1.0, "sample_rate": 0.01, "n": 1000, "epochs": 3, "poisson_sampling": False,
         "shuffle": True},
        2 * 3**0.5 / 2,
    ),
    "tff, sampler left open": (TFF, 2 * 2 / 4),
    "tff, no population": ({"noise_multiplier": 4.0, "clip": 0.5, "clients_per_round": 50, "num_rounds": 1}, 2 / 4),
    "pfl, noise of another cohort": (
        {"noise_scale": 8.0, "clipping_bound": 1.0, "cohort_size": 50, "noise_cohort_size": 200, "iterations": 1},
        2 * 4 / 8 * 50,  # pfl draws with replacement: one user may be the whole cohort
    ),
    "jax_privacy, batches left open": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 16},
        2 * 4 / 8,
    ),
    # Flower: mean with weights up to 1 and noise z C / 20, so noise over 2 C is z / 40, however few reply
    "flower, fixed clipping at the server": (F | {"noise_multiplier": 30.0}, 40 / 30),
    "flower, clip at the client, no clip named": ({"noise_multiplier": 1.0, "num_sampled_clients": 20}, INF),
    "flower, two fractions": (F | {"fraction_train": 0.05, "noise_multiplier": 90.0}, 40 / 90),
    "flower, too few nodes available": (F | {"min_available_nodes": 5, "noise_multiplier": 90.0}, 40 / 90),
    "flower, dropouts": (F | {"dropout": 0.3, "noise_multiplier": 90.0}, 40 / 90),
    "flower, sampled number not stated": ({"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_clients": 9}, INF),
    "flower, batches of its nodes": (
        {"noise_multiplier": 1.0, "clipping_norm": 1.0, "batch_size": 32, "num_server_rounds": 3}, INF),
    "flower, one node": ({"noise_multiplier": 2.0, "clipping_norm": 3.0, "num_sampled_clients": 1, "rounds": 9}, 3.0),
    "flower, local mod": (
        {"clipping_norm": 2.0, "sensitivity": 2.0, "epsilon": 1.0, "delta": 1e-5},
        2 / (2 * math.log(1.25e5)) ** 0.5,
    ),
    "flower, local mod of another sensitivity": (
        {"clipping_norm": 4.0, "sensitivity": 2.0, "epsilon": 1.0, "delta": 1e-5, "rounds": 4},
        2 * 2 * 4 / 2 / (2 * math.log(1.25e5)) ** 0.5,
    ),
    "flower, delta 0": (F | {"delta": 0}, INF),
    # filters
    "flip, delta not stated": (
        {"clip": 1.0, "sensitivity": 1.0, "epsilon": 1.0},
        2 / (2 * math.log(1.25)) ** 0.5,  # a delta near 1 gives the least noise
    ),
    "flip, ten rounds": (FLIP | {"sensitivity": 1.0, "rounds": 10}, 2 * 10**0.5 * 10 / (2 * math.log(1.25e5)) ** 0.5),
    "nvflare, no clip": ({"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}, INF),
    # Opacus: everyone in each of 10 * 235 steps, unless a loader is named
    "opacus, a loader that is not named": (S | {"poisson_sampling": False}, 2 * 2350**0.5 / 50),
    "opacus, accumulated steps": (S | {"gradient_accumulation_steps": 4}, 2 * 9400**0.5 / 50),
    "opacus, per-layer clipping": (S | {"clipping": "per_layer"}, INF),
    "opacus, a clip norm a layer": (
        S | {"clipping": "per_layer", "max_grad_norm": [1.0, 1.0, 1.0, 1.0]},
        2 * 2350**0.5 / 50 * 2,
    ),
    "opacus, ghost clipping": (S | {"grad_sample_mode": "ghost"}, 2 * 2350**0.5 / 50),
    "opacus, batch gradients": (S | {"per_sample": False}, INF),
    "opacus, with replacement": (S | {"replacement": True}, INF),
    "opacus, weighted sampler": (S | {"sampler": "WeightedRandomSampler", "loader": "weighted_random"}, INF),
    "opacus, epochs of federated rounds": (S | {"rounds": 5, "epochs": 2}, 2 * 2350**0.5 / 50),
    "opacus, rounds of unknown length": ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "num_rounds": 5}, INF),
    "opacus, local steps": (
        {"noise_multiplier": 9.0, "max_grad_norm": 1.0, "local_steps": 4, "rounds": 4}, 2 * 4 / 9),
    "opacus, a shuffled epoch of uneven batches": (
        {"noise_multiplier": 4.0, "max_grad_norm": 1.0, "n": 100, "batch_size": 60, "steps": 4,
         "poisson_sampling": False, "shuffle": True},
        2 * 2 / 4,  # an epoch has one whole batch: a record may be in each of the steps
    ),
    "opacus, sigma in units of gradients": (
        {"sigma": 9.0, "max_grad_norm": 4.0, "steps": 4}, 2 * 2 / 9 * 4),
    "opacus, sigma and a small clip": ({"sigma": 9.0, "max_grad_norm": 0.1, "steps": 4}, 2 * 2 / 9),
    # TFF, pfl, jax_privacy and papers' own scripts
    "tff, sampler named, not its secrecy": (T | {"sampling": "poisson"}, 2 / 4),
    "tff, weights": (T | {"weighting": "num_examples", "noise_multiplier": 90.0}, 100 / 90),
    "tff, weights in an unknown cohort": ({"noise_multiplier": 1.0, "clip": 1.0, "weighted": True}, INF),
    "tff, dropouts": (T | {"dropout_rate": 0.1, "noise_multiplier": 90.0}, 100 / 90),
    "tff, report goal": (T | {"report_goal": 10}, 2 / 4 * 5),
    "tff, noise in shares": (T | {"noise": "distributed", "noise_multiplier": 9.0}, 2 * 50**0.5 / 9),
    "tff, noise of clients": (T | {"noise_placement": "client", "noise_multiplier": 9.0}, 2 * 50**0.5 / 9),
    "tff, Laplace": (T | {"noise_type": "laplace"}, INF),
    "tff, coordinates clipped": (T | {"norm_type": "linf"}, INF),
    "tff, two sizes of noise": (T | {"sigma": 0.5}, 2 / 0.5),
    "tff, delta 0": (T | {"delta": 0.0}, INF),
    "tff, infinite clip": (T | {"clip": INF}, INF),
    "tff, no clip": ({"noise_multiplier": 1.0, "clients_per_round": 50, "num_rounds": 10}, INF),
    "tff, no noise": (T | {"noise_multiplier": 0.0}, INF),
    "pfl, population not told": (
        {"noise_scale": 100.0, "clipping_bound": 1.0, "cohort_size": 50, "central_num_iterations": 4}, 4 / 100 * 50),
    "pfl, cohort not told": (
        {"noise_scale": 100.0, "clipping_bound": 1.0, "noise_cohort_size": 200, "central_num_iterations": 4},
        4 / 100 * 200),
    "jax_privacy, fixed batches with replacement": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 16,
         "batch_selection_strategy": "fixed", "replace": True}, INF),
    "jax_privacy, banded": (
        {"noise_multiplier": 1.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_bands": 4, "strategy": "BandMF"}, 2.0),
    "jax_privacy, epochs": (
        {"noise_multiplier": 9.0, "l2_clip_norm": 1.0, "batch_size": 30, "num_examples": 100, "num_epochs": 4},
        2 * 4 / 9),
    "jax_privacy, cyclic batches": (
        {"noise_multiplier": 9.0, "l2_clip_norm": 1.0, "batch_size": 30, "num_examples": 100, "num_updates": 4,
         "batch_selection_strategy": "cyclic_poisson"}, 2 * 2 / 9),
    "a script, absolute noise": ({"noise_std": 3.0, "clip": 2.0, "noise_multiplier": 1.5, "rounds": 4}, 2 * 2 / 1.5),
    "fedml, its names": (
        {"noise_multiplier": 8.0, "clip": 1.0, "comm_round": 16, "client_num_in_total": 100,
         "client_num_per_round": 10}, 2 * 4 / 8),
    "a script, four rounds of all": ({"noise_multiplier": 8.0, "clip": 1.0, "rounds": 16}, 2 * 4 / 8),
}  # fmt: skip
"""Settings, and mu of their worst reading, derived by hand from what the library does: replace-one, so sensitivity 2 C;
everyone takes part. Infinite where nothing in the settings bounds epsilon."""


@pytest.mark.slow_but_one_in(19)
@pytest.mark.parametrize("name", HELD)
def test_no_epsilon_is_below_that_of_the_worst_reading(name: str, tmp_path: Path) -> None:
    settings, mu = HELD[name]
    found = explained(tmp_path, dict(settings))
    truth = gaussian(mu, 1e-5) if math.isfinite(mu) else INF
    assert found.epsilon >= truth * (1 - 1e-9)
    assert found.epsilon <= truth * (1 + 1e-6)
    assert found.unbounded or found.at_least <= min([truth, *(epsilon for _, epsilon in found.steps)])


def test_a_left_out_client_moves_a_weighted_mean_twice(tmp_path: Path) -> None:
    """The single reading of weights by examples and zero-out: the other clients get the weight."""
    found = explained(tmp_path, F | {"noise_multiplier": 30.0, "num_clients": 20})
    alone = {words.split(":")[0]: epsilon for words, epsilon in found.alone}
    assert alone["zero-out"] == pytest.approx(gaussian(40 / 30, 1e-5), rel=1e-6)
    assert found.steps[-1][1] == pytest.approx(gaussian(1 / 30, 1e-5), rel=1e-6)


def test_one_name_with_two_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clip: has two values"):
        explained(tmp_path, {"noise_multiplier": 1.0, "server": {"clip": 1.0}, "client": {"clip": 5.0}})


def test_numbers_that_are_known_from_elsewhere(tmp_path: Path) -> None:
    """FLIP's defaults, of noise 4.845e-5 and sensitivity 2; Flower's 20 of 100; ten shuffled epochs."""
    flip = explained(tmp_path, FLIP)
    mu = 2 / (1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10)
    assert flip.epsilon == pytest.approx(mu**2 / 2 + mu * norm.isf(1e-5), rel=1e-6)  # the profile's second term is tiny
    assert flip.epsilon == pytest.approx(8.523e8, rel=1e-4)
    flower = dict(explained(tmp_path, FLOWER | {"num_server_rounds": 100}).steps)
    assert any(epsilon == pytest.approx(57.39, abs=0.01) for epsilon in flower.values())
    shuffled = explained(tmp_path, OPACUS | {"poisson_sampling": False})
    assert shuffled.steps[-1][1] == pytest.approx(gaussian(10**0.5, 1e-5), rel=1e-6)
    assert shuffled.steps[-1][1] == pytest.approx(17.8566, abs=1e-4)


def test_poisson_batches_by_dp_accounting(tmp_path: Path) -> None:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    step = dp_event.PoissonSampledDpEvent(256 / 60_000, dp_event.GaussianDpEvent(1.0))
    theirs = PLDAccountant().compose(step, 234).get_epsilon(1e-5)
    found = explained(tmp_path, OPACUS | {"epochs": 1, "poisson_sampling": True, "drop_last": True})
    assert found.steps[-1][1] == pytest.approx(theirs, rel=1e-3)
    assert found.worst is not None
    assert found.worst.sampling == "poisson"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"noise_multiplier": 0.0, "clipping_norm": 1.0, "num_sampled_clients": 20}, "no noise"),
        ({"noise_multiplier": 1.0, "num_sampled_clients": 20}, "not clipped"),
        ({"noise_multiplier": 1.0, "max_grad_norm": math.inf}, "infinite"),
        ({"percentile": 10, "gamma": 0.01}, "percentiles"),
        ({**FLOWER, "rounds": 1, "target_clipped_quantile": 0.5, "clipped_count_stddev": 0}, "has no noise"),
        ({**TFF, "sigma": 1.0, "noise_multiplier": None, "clipping": "adaptive"}, "of a fixed size"),
        ({**OPACUS, "clipping": "adaptive"}, "by which the clip norm moves, is unknown"),
    ],
)
def test_settings_that_nothing_bounds(settings: dict[str, object], word: str, tmp_path: Path) -> None:
    found = explained(tmp_path, settings)
    assert math.isinf(found.epsilon)
    assert any(word in one for one in found.unbounded)
    assert found.to_dict()["epsilon"] is None


def test_missing_and_contradictory_settings_are_named(tmp_path: Path) -> None:
    found = explained(
        tmp_path, {"noise_multiplier": 1.0, "clipping_norm": 1.0, "fraction-train": 0.1, "num_clients": 100}
    )
    assert any("delta" in one for one in found.missing)
    assert any("rounds" in one for one in found.missing)
    twice = explained(tmp_path, FLOWER | {"noise_multiplier": 0.0, "fraction_train": 0.1, "rounds": 1})
    assert any("draws 10" in one for one in twice.contradictions)
    rate = explained(tmp_path, OPACUS | {"noise_multiplier": 0.0, "num_samples": 1000, "sample_rate": 0.5})
    assert any("sample_rate" in one for one in rate.contradictions)


def test_a_strategy_object_is_read_with_what_it_wraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_app.py").write_text(
        "from types import SimpleNamespace as Made\n"
        "class Private:\n"
        "    def __init__(self):\n"
        "        self.strategy = Made(fraction_train=0.2)\n"
        "        self.noise_multiplier, self.clipping_norm, self.num_sampled_clients = 1.0, 1.0, 20\n"
        "strategy = Private()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = explain("my_app:strategy")
    assert found.library == "Flower"
    assert found.stated["fraction_train"] == 0.2
    refused(ConfigError, "my_app:nothing", explain, "my_app:nothing")


def test_an_adaptive_strategy_of_flower_is_read_as_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's objects hold (z^-2 - (2 b)^-2)^-1/2 for a multiplier z and noise b on the count."""
    made: dict[str, object] = {"clipping_norm": 0.1, "num_sampled_clients": 20, "clipped_count_stddev": 1.0}
    held = made | {"noise_multiplier": (1 - 0.25) ** -0.5}
    (tmp_path / "adaptive.py").write_text(f"class A:\n    def __init__(self):\n        self.__dict__.update({held})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    of_settings = explained(tmp_path, made | {"noise_multiplier": 1.0})
    assert explain("adaptive:A").epsilon == pytest.approx(of_settings.epsilon, rel=1e-9)


@pytest.mark.parametrize(
    "content",
    ["[", "a = 1", '{"noise_multiplier": "much", "clip": 1}', "[1]", '{"a": ' * 9_000, ".".join("a" * 5_000) + " = 1"],
)
def test_files_that_are_no_settings(content: str, tmp_path: Path) -> None:
    path = tmp_path / ("settings.json" if content.startswith(("{", "[1")) else "settings.toml")
    path.write_text(content)
    refused(ConfigError, "", explain, str(path))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (F | {"rounds": INF}, "rounds"),
        (F | {"rounds": 10**400}, "rounds"),
        (F | {"rounds": 1e16, "num_bands": 4}, "rounds"),
        (F | {"noise_multiplier": INF}, "noise_multiplier"),
        (F | {"fraction_train": INF}, "fraction_train"),
        (F | {"strategy": "FedTrimmedAvg", "beta": 1.5}, "beta"),
        (FLIP | {"delta": 2.0}, "delta"),
        (FLIP | {"epsilon": 1e-320}, "epsilon"),
        (TFF | {"sigma": 1.0, "noise_multiplier": None, "clip": 1e-320}, "clip"),
    ],
)
def test_numbers_beyond_their_range_are_refused(settings: dict[str, object], name: str, tmp_path: Path) -> None:
    refused(ConfigError, f"{name}=", explained, tmp_path, settings)


def test_many_correlated_rounds_are_answered_at_once(tmp_path: Path) -> None:
    found = explained(tmp_path, F | {"rounds": 10**12, "num_bands": 4})
    assert math.isfinite(found.epsilon)


def test_an_object_without_attributes_has_no_settings() -> None:
    refused(ConfigError, "math:pi", explain, "math:pi")


def test_the_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = str(tmp_path / "settings.json")
    Path(given).write_text(json.dumps(OPACUS | {"poisson_sampling": False}))
    assert status(["explain", given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = {"unit", "adjacency", "sampling", "noise_multiplier", "rounds", "epsilon", "delta", "missing"}
    assert keys | {"contradictions", "dpfed"} <= found.keys()
    assert "balls-and-bins" in found["dpfed"]
    assert status(["explain", given]) == 0
    assert "46.2" in capsys.readouterr().out
