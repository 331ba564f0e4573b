"""Evidence on all values of summary.json except epsilon, recomputed from the ledger, the saved model and the data.

Every check adds the keys that it compares to `RunFiles.compared_keys`. All other keys, including unknown ones, are
listed as not checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from accounting import require
from accounting.errors import AccountingError
from accounting.ledger import LocalRelease, regular_file
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding
from dpfed.config.tables import Config
from dpfed.errors import DpfedError
from dpfed.methods.catalogue import method_specification
from dpfed.methods.choices import is_linear, sends_bernoulli_samples, sums_integers
from dpfed.records.reading import Unavailable
from dpfed.runs.binding import population_fingerprint, start_hash_of_run
from dpfed.runs.experiment import Experiment
from dpfed.runs.protection import CHARGED_LOSSES, LOSSES_OF_03, limitation_on_nodes, limitations_of_guarantee
from dpfed.runs.scores import Evaluation, evaluated_weights
from dpfed.runs.summary import (
    communication_fields,
    delta_for_failures,
    mask_bits_per_parameter,
    noise_kind,
    noise_placement,
    noise_schedule_fields,
    other_epsilon_fields,
    readings_of,
    uplink_megabytes,
)
from dpfed.server.rules import ServerState

_ROUNDING = 1e-9
_EXACT = 1e-6

_OF_SCORES = 1e-3
"""Relative difference allowed for scores, which processors round differently; accuracies may differ by two samples."""


def summary_values_follow(files: RunFiles) -> Finding:
    """Check that the lower bound and the delta charged for failures follow from the ledger.

    If the run's data can be loaded here, scores must follow from the saved model, and bits and bytes from the method.
    """
    expected, words = _ledger_values(files), ""
    rooms: dict[str, tuple[float, float]] = {}
    try:
        found, rooms = _model_values(files)
        expected |= found
    except Unavailable as reason:
        words = f" Scores, bits and bytes are not checked: {reason}"
    files.compared_keys.update(expected)
    stated = files.summary.to_dict()
    wrong = [
        f"{key} is {stated.get(key)!r}, not {value!r}"
        for key, value in expected.items()
        if not are_equal_values(value, stated.get(key), *rooms.get(key, (_EXACT, 0.0)))
    ]
    if wrong:
        return False, f"summary.json: {'; '.join(wrong)}."
    return True, f"{', '.join(expected) or 'no value'}: equal to the recomputed values.{words}"


def metrics_agree(files: RunFiles) -> Finding:
    """Check that metrics.jsonl agrees with the summary, the checkpoint and the diagnostics.

    The last line must have the summary's scores and the checkpoint's clip norm. The uplink must grow in
    proportion to the rounds, or as the diagnostics state. Epsilon must not fall, and a fixed clip norm must not change.
    """
    lines, summary = files.published_rounds, files.summary
    if not lines:
        return None, "metrics.jsonl: has no rounds."
    last, total = lines[-1], summary.uplink_megabytes_total or 0.0
    stated: dict[str, object] = {**summary.scores, "uplink_megabytes": total}
    found: dict[str, object] = {**last.scores, "uplink_megabytes": last.uplink_megabytes, "clip_norm": last.clip_norm}
    if last.clip_norm is not None:
        stated["clip_norm"] = files.checkpoint.clip_norm
    problems = [
        f"the last line states {key} {value!r}, other files {stated.get(key)!r}"
        for key, value in found.items()
        if value is not None and not are_equal_values(value, stated.get(key), _EXACT)
    ]
    sent = 0
    for number, (line, seen) in enumerate(zip(lines, files.rounds, strict=True), 1):
        sent += seen.uplink_bytes or 0
        even = total * number / len(lines)
        if not any(are_equal_values(line.uplink_megabytes, due, _EXACT) for due in (even, sent / 1e6)):
            problems.append(f"round {number} states uplink_megabytes {line.uplink_megabytes!r}, {even:g} were sent")
    epsilons = [line.epsilon for line in lines if line.epsilon is not None]
    if any(after < before * (1 - _EXACT) for before, after in itertools.pairwise(epsilons)):
        problems.append("epsilon falls from one round to the next")
    if (files.config.privacy is None or files.config.privacy.adaptive is None) and len(
        {line.clip_norm for line in lines}
    ) > 1:
        problems.append("the clip norm changes, although it is fixed")
    accuracies = [*(line.test_accuracy for line in lines), summary.test_accuracy]
    best = max((one for one in accuracies if one is not None), default=None)
    if not are_equal_values(best, summary.best_test_accuracy, _EXACT) and summary.best_test_accuracy is not None:
        problems.append(f"the best accuracy is {best!r}, summary.json states {summary.best_test_accuracy!r}")
    if problems:
        return False, f"metrics.jsonl: {'; '.join(problems[:3])}."
    return True, (
        f"the last of {len(lines)} lines agrees with summary and checkpoint, the uplink of every line with them."
    )


def unchecked_keys(files: RunFiles) -> tuple[str, ...]:
    """Return the keys of summary.json that no check has compared with other files, and those of metrics.jsonl."""
    try:
        earlier = (
            ("metrics.jsonl: scores and epsilon before the last round",) if len(files.published_rounds) > 1 else ()
        )
        return (*sorted(files.summary.to_dict().keys() - files.compared_keys), *earlier)
    except DpfedError:
        return ()


def are_equal_values(expected: object, found: object, rel: float = _ROUNDING, room: float = 0.0) -> bool:
    """Return True if two values of a JSON document are equal; fractions may differ by rounding.

    rel, room: largest relative and absolute difference of two numbers that are not both whole
    """
    match expected, found:
        case Mapping(), Mapping():
            return expected.keys() == found.keys() and all(
                are_equal_values(value, found[key], rel, room) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) == len(found) and all(
                are_equal_values(*both, rel, room) for both in zip(expected, found, strict=True)
            )
        case (float(), _) | (_, float()):
            if not (require.is_number(expected) and require.is_number(found)):
                return False
            try:
                return math.isclose(expected, found, rel_tol=rel, abs_tol=room)
            except OverflowError:  # an integer beyond all floats
                return False
    return bool(expected == found)


def _ledger_values(files: RunFiles) -> dict[str, object]:
    try:
        found = files.trusted_ledger.guarantee(files.delta, accountant=files.accountant)
    except AccountingError as error:
        raise Unavailable(f"ledger.jsonl: its lower bound cannot be computed ({error}).") from None
    summary = files.summary
    stated = (summary.advantage, summary.tpr_at_fpr, summary.gaussian_dp)
    none = all(one is None for one in stated)  # older versions do not state readings
    return {
        **({} if none else readings_of(found) or {}),
        "lower_bound": found.lower_bound,
        "no_statement": None,
        "delta_charged_for_failures": delta_for_failures(files.trusted_ledger),
    }


def _model_values(files: RunFiles) -> tuple[dict[str, object], dict[str, tuple[float, float]]]:
    """Return the values recomputed from model and data, and the allowed relative and absolute differences of scores."""
    experiment, saved = files.experiment, files.checkpoint
    _require_same_data(files, experiment)
    state = ServerState(
        round=saved.round,
        broadcast=saved.broadcast.to(experiment.device),
        clip_norm=saved.clip_norm,
        memory={name: value.to(experiment.device) for name, value in saved.memory.items()},
    )
    try:
        found = Evaluation.of(experiment).scores(evaluated_weights(experiment.readout, state))
        scores: Mapping[str, float | None] = {"validation_accuracy": None} | found
    except (RuntimeError, ValueError) as error:  # the checkpoint does not fit this network
        raise Unavailable(f"the saved model cannot be evaluated here ({str(error)[:200]}).") from None
    seen = [one.test_accuracy for one in files.published_rounds if one.test_accuracy is not None]
    now = scores.get("test_accuracy")
    best = max([*seen, *([now] if now is not None else [])], default=None)
    sent = sum(one.uplink_bytes or 0 for one in files.rounds)
    exact = {
        "parameters": experiment.model.size,
        "fixed_parameters": sum(one.numel() for one in experiment.model.fixed.values()),
        "loss": experiment.objective.loss.name,
    }
    if _calibrates_equal_noise(files, experiment):
        exact |= communication_fields(experiment, saved.round, uplink_megabytes(experiment, saved.round, sent))
    measured = [one.mask_entropy for one in files.rounds if one.has_result]
    if measured and None not in measured:
        entropy = sum(one.mask_entropy or 0 for one in files.rounds)
        exact["mask_entropy_bits_per_parameter"] = mask_bits_per_parameter(experiment, saved.round, entropy)
    content = experiment.readout.file(state)
    if content is not None:
        exact["model_bits_per_parameter"] = 8 * len(content) / experiment.model.size
    rooms = {
        key: (_OF_SCORES, 2.5 / max(len(experiment.dataset.test_labels), 1) if key.endswith("accuracy") else 0.0)
        for key in [*scores, "best_test_accuracy"]
    }
    return {**scores, "best_test_accuracy": best, **exact}, rooms


def _calibrates_equal_noise(files: RunFiles, experiment: Experiment) -> bool:
    """Return True if this version calibrates the run's noise, on which the length of dithered uploads depends."""
    now = getattr(experiment.privacy_target, "noise_multiplier", None)
    return now is None or are_equal_values(files.summary.noise_multiplier, now, _EXACT)


def _require_same_data(files: RunFiles, experiment: Experiment) -> None:
    """Raise Unavailable unless the data and the start on this machine are those of the run."""
    header = files.trusted_ledger.header
    try:
        key = regular_file.read_key(files.path / "population.key")
    except AccountingError as error:
        raise Unavailable(str(error)) from None
    if header.binding is None or key is None or header.population is None:
        raise Unavailable(
            "the folder has no key of its clients' fingerprint, so the data on this machine may differ from the run's."
        )
    if header.population != population_fingerprint(experiment, key) or header.binding.get("start") != start_hash_of_run(
        experiment
    ):
        raise Unavailable("the data or the start that config.toml gives on this machine are not those of the run.")


def values_from_ledger(files: RunFiles) -> dict[str, object]:
    """Return the values of the summary that follow from the ledger's releases; empty without releases."""
    releases = files.trusted_ledger.releases
    if not releases:
        return {}
    found: dict[str, object] = {
        "accountant": files.guarantee.method,
        "noise_placement": noise_placement(releases),
        "clip_norm": files.published_rounds[-1].clip_norm if files.published_rounds else None,
    }
    if isinstance(last := releases[-1], LocalRelease):
        table = files.config.local.record
        noise = "gaussian" if table is None else table.noise
        # The variance of integer noise is rounded up to a whole number.
        given = None if table is None or noise == "gaussian" else table.noise_multiplier
        return found | {
            "noise": noise,
            "noise_multiplier": given or last.noise_std / last.clip_norm,
            "server_epsilon": None,
            "hostile_clients_epsilon": None,
        }
    privacy_target = files.promise.privacy_target
    return found | {
        "noise": noise_kind(privacy_target),
        "noise_multiplier": privacy_target.noise_multiplier,
        **noise_schedule_fields(privacy_target),
        **other_epsilon_fields(files.config, files.promise.charged_target, files.trusted_ledger),
    }


def protection_problem(files: RunFiles) -> str | None:
    """Return text on a limitation of the guarantee that summary.json omits; None if it omits none.

    The limitation by public samples describes data that are not in the folder, so only its existence is checked.
    """
    stated = files.summary.not_protected
    config, public = files.config, []
    if config.data.public:
        public = [one for one in stated if one.startswith(f"{config.data.public} samples ") and "not protected" in one]
        if len(public) != 1:
            return "not_protected does not mention the public samples"
    set_aside = [one for one in stated if one.startswith(f"{config.data.validation} training samples are set aside")]
    if len(set_aside) != (config.data.validation is not None):
        return "not_protected does not mention the validation samples"
    expected = limitations_of_guarantee([*public, *set_aside], config, decodes_before_clipping(config))
    if files.trusted_ledger.header.plan is None or LOSSES_OF_03 in stated:  # a ledger of version 0.2; a summary of 0.3
        expected = tuple(one for one in expected if one != CHARGED_LOSSES)
    nodes = config.aggregation.kind == "protocol"  # clients may be nodes of an engine, which no file states
    lacking = [one for one in expected if one not in stated and not (nodes and limitation_on_nodes(one) in stated)]
    return f"not_protected lacks {lacking[0]!r}" if lacking else None


def decodes_before_clipping(config: Config) -> bool:
    """Return True if a trusted server decodes every upload before clipping."""
    chosen = method_specification(config.method.name)
    if config.privacy is None or config.privacy.release != "sum" or sums_integers(config):
        return False
    if sends_bernoulli_samples(config, chosen) or chosen.dithered:
        return False
    return not is_linear(config, chosen)
