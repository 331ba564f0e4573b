"""Small experiment for the audit of a method's upload: its preset with four clients, by default all in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from accounting.ledger import Release
from accounting.mechanisms import noise_matrix, schedule_of
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES, sampling_of_keys
from dpfed.aggregation.sums import least_uploads
from dpfed.audit.round.noise_checks import correlated_check
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.round_audit import audit_round
from dpfed.audit.round.round_checks import cohorts_check, sampler_check, secure_check
from dpfed.audit.trials import Progress
from dpfed.audit.verdict import Check, Verdict
from dpfed.config.own_code import load_own_code
from dpfed.config.tables import Config, override, parse
from dpfed.errors import ConfigError
from dpfed.methods import catalogue
from dpfed.methods.catalogue import all_methods, method_specification
from dpfed.methods.choices import sends_bernoulli_samples
from dpfed.randomness import Simulated
from dpfed.round import draw_round_cohort
from dpfed.runs.experiment import Experiment, build
from dpfed.seeds import Seeds

_SETTING = (
    "model.hidden=[8]",
    "federation.clients=4",
    "federation.cohort=4",
    "federation.sampling=all",
    "federation.rounds=1",
    "privacy.delta=1e-5",
    "run.device=cpu",
)
"""Settings of the small experiment, which has d = 610 parameters."""

_EPSILON_OF_COINS = 3.0
_NOISE_MULTIPLIER = 1.0
_ROUNDS = 6
"""Number of rounds of a schedule: about three participations of a client."""


def audited_methods() -> list[str]:
    """Return the names of all methods that can be private, including user-defined methods."""
    load_own_code()
    return [name for name, one in all_methods().items() if one.private_with]


def audited_configuration(name: str, settings: Sequence[str] = (), noise_multiplier: float | None = None) -> Config:
    """Return the method's small private configuration on digits: d = 610, four clients, one round, delta = 1e-5.

    All clients take part; if federation.sampling draws cohorts, two of them. Gaussian noise has multiplier 1 unless a
    multiplier or an epsilon is given; Bernoulli samples have epsilon 3. `settings` override all these values.
    """
    load_own_code()
    chosen = method_specification(name)
    if not chosen.private_with:
        near = chosen.nearest_private
        raise ConfigError(
            f"{name} has no private variant, so there is no claim to test. The nearest private method is {near}: "
            f"`dpfed audit {near}`."
        )
    tables = catalogue.preset_tables(_preset_name(name))
    tables.setdefault("privacy", {"clip_norm": catalogue.preset_tables("dp-fedavg-digits")["privacy"]["clip_norm"]})
    tables["privacy"].pop("epsilon", None)
    tables["privacy"] |= {} if chosen.audited_clip_norm is None else {"clip_norm": chosen.audited_clip_norm}
    tables = override(tables, [*_SETTING, *settings])
    if tables["privacy"].get("noise_schedule") is not None:
        raise ConfigError(
            "privacy.noise_schedule: this audit repeats one round, but the noise differs between rounds. Remove it, "
            "and set privacy.noise_multiplier to the multiplier of one round: the multiplier times that round's factor."
        )
    federation = tables["federation"]
    if _is_schedule(federation["sampling"]) and not any("federation.rounds" in one for one in settings):
        federation["rounds"] = _ROUNDS
    if federation["sampling"] != "all" and not any("federation.cohort" in one for one in settings):
        federation["cohort"] = max(1, federation["clients"] // 2)
    config = parse(
        _with_noise_or_epsilon(tables, chosen.sends_masks, noise_multiplier), source=f"audit of {_preset_name(name)}"
    )
    if config.federation.sampling == "poisson" and sends_bernoulli_samples(config, chosen):
        raise ConfigError(
            "federation.sampling='poisson' with Bernoulli uploads: the sum is padded to a fixed number of uploads, "
            "which this audit does not support. Use federation.sampling 'fixed' or 'all'; another check tests the "
            "sampler."
        )
    return config


def _is_schedule(sampling: str) -> bool:
    return sampling in SAMPLING_CLASSES and SAMPLING_CLASSES[sampling].is_schedule


def _preset_name(name: str) -> str:
    private = f"{name}-private-digits"
    return private if private in catalogue.preset_names() else f"{name}-digits"


def _with_noise_or_epsilon(tables: dict[str, Any], coins: bool, noise_multiplier: float | None) -> dict[str, Any]:
    privacy = tables["privacy"]
    if noise_multiplier is not None:
        privacy["noise_multiplier"] = noise_multiplier
        privacy.pop("epsilon", None)
    elif coins or privacy.get("noise") == "coins":
        if "epsilon" not in privacy:
            privacy.pop("clip_norm", None)
            privacy["epsilon"] = _EPSILON_OF_COINS
    elif "noise_multiplier" not in privacy and "epsilon" not in privacy:
        privacy["noise_multiplier"] = _NOISE_MULTIPLIER
    return tables


def round_of(experiment: Experiment) -> OneRound:
    """Return the first round of the experiment, with the smallest number of uploads that is released."""
    config, table = experiment.config, experiment.config.aggregation
    clients = config.round_size
    if config.privacy is not None and config.privacy.release != "uploads":
        tolerance = getattr(experiment.method.aggregation, "tolerance", None)
        clients = least_uploads(clients, tolerance or 0.0)
    if experiment.privacy_target is None or config.local.record is not None:
        raise ConfigError(
            f"method.name={experiment.specification.name!r}, aggregation.kind={table.kind!r}: no round is charged "
            "as one release, so there is no claim to test. Set [privacy]."
        )
    method = replace(experiment.method, dropouts=None)  # the round has the fewest uploads already
    return OneRound(method=method, state=experiment.start, seeds=experiment.seeds, clients=clients)


def audit_upload(
    name: str,
    *,
    settings: Sequence[str] = (),
    noise_multiplier: float | None = None,
    seed: int = 0,
    draws: int = 300_000,
    progress: Progress | None = None,
) -> Verdict:
    """Audit one round of a method; `round_audit.audit_round` describes the arguments and the claim.

    With a participation schedule or correlated noise, the audit tests one round of all clients with independent noise,
    and the cohorts and the noise of several rounds. Errors: ConfigError for a method without a private variant.
    """
    config = audited_configuration(name, settings, noise_multiplier)
    together: tuple[Check, ...] = ()
    if _is_schedule(config.federation.sampling):
        together = _checks_of_several_rounds(build(config), seed)
        config = _single_round_configuration(config)
    experiment = build(config)
    assert config.privacy is not None
    return audit_round(
        round_of(experiment),
        experiment.model.layout,
        method=name,
        seed=seed,
        delta=config.privacy.delta or 1e-5,
        draws=draws,
        rounds=catalogue.preset_tables(_preset_name(name))["federation"]["rounds"],
        checks=(_sampler_checks(name, experiment, seed), _secure_check_once(), *together),
        progress=progress,
    )


def _checks_of_several_rounds(experiment: Experiment, seed: int) -> tuple[Check, ...]:
    """Return the checks of a schedule: cohorts of three epochs, and noise correlated over rounds."""
    method, config = experiment.method, experiment.config
    drawing = replace(method, canaries=None, randomness=Simulated(seeds=Seeds(root=seed)))
    rounds, one, release = config.federation.rounds, round_of(experiment), _release_of_round(experiment)
    cohorts = sampler_check(method.sampler, lambda number: draw_round_cohort(drawing, number), rounds, release)
    schedule = schedule_of(release.mechanism)
    law = None if schedule is None else noise_matrix(schedule)
    if law is None:
        return (replace(cohorts, name="schedule"),)
    noise = correlated_check(one, law, release.noise_std, rounds)
    return replace(cohorts, name="schedule"), noise


def _single_round_configuration(config: Config) -> Config:
    """Return the configuration with one round of all clients and independent noise."""
    tables = config.to_dict()
    tables["federation"] |= {"sampling": "all", "cohort": config.federation.clients, "rounds": 1}
    for key in ("separation", "cohort_cap", "lanes", "lane_secrecy"):
        tables["federation"].pop(key, None)
    for key in ("bands", "buffers", "factorisation", "factorisation_power"):
        tables["privacy"].pop(key, None)
    return parse(tables, source="audit of one round")


_secure_check_once = cache(secure_check)
"""Check of secure randomness, made once, since all methods draw from one source."""


def _sampler_checks(name: str, experiment: Experiment, seed: int) -> Check:
    """Check the sampler of the audited round and the sampler of the method's preset."""
    table = catalogue.preset_tables(_preset_name(name))["federation"]
    drawn = sampling_of_keys(table.get("sampling", "poisson"), {"cohort": table["cohort"]}).cohorts(table["clients"])
    return cohorts_check(experiment.method, Seeds(root=seed), [drawn], _release_of_round(experiment))


def _release_of_round(experiment: Experiment) -> Release:
    one = round_of(experiment)
    release = experiment.method.release(replace(one.announcement, uploads=one.clients))
    assert release is not None
    return release
