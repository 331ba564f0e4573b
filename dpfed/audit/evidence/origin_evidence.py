"""Evidence that configuration, ledger, checkpoint, model and custom code of a folder belong to one run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dpfed.audit.evidence.run_files import RunFiles, sha256_of, sorted_values_of
from dpfed.audit.verdict import Finding
from dpfed.config.own_code import code_hash
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import method_specification
from dpfed.records.reading import Unavailable
from dpfed.records.round import configuration_hash
from dpfed.runs.experiment import user_code_of_run

_HASHED = {"model_sha256": "model.safetensors", "mask_sha256": "model.mask.safetensors"}


def files_belong_to_one_run(files: RunFiles) -> Finding:
    """Check that configuration, ledger, checkpoint and summary belong to one run.

    The ledger's header and the checkpoint must have the hash of config.toml. Ledger, checkpoint and summary must agree
    on the start and the population. The ledger must have the lines that were its last ones according to checkpoint and
    summary. The hashes of population and start are compared, not computed: one has a secret key, one needs the model.
    """
    header, ledger, facts = files.trusted_ledger.header, files.trusted_ledger, files.checkpoint.header
    if header.binding is None or header.population is None or "ledger_head" not in facts:
        raise Unavailable(
            "ledger.jsonl, checkpoint.safetensors: do not identify a run, since an old version wrote them."
        )
    configuration = configuration_hash(files.tables)
    pairs = {
        "config.toml is not the configuration in the ledger's header": (
            configuration,
            header.binding.get("configuration"),
        ),
        "config.toml is not the configuration of the checkpoint": (configuration, facts.get("run")),
        "ledger and checkpoint have different starts": (header.binding.get("start"), facts.get("start")),
        "own_code.json is not the code in the ledger's header": (
            code_hash(files.own_code),
            header.binding.get("own_code", ""),
        ),
        "ledger and checkpoint have different clients": (header.population, facts.get("population")),
        "ledger and summary have different clients": (header.population, files.summary.population),
        "summary.json names a different last line of the ledger": (ledger.head, files.summary.ledger_head),
        "summary.json names a different number of ledger lines": (len(ledger.entries), files.summary.ledger_entries),
    }
    wrong = [words for words, (one, other) in pairs.items() if one != other]
    files.compared_keys |= {"population", "ledger_head", "ledger_entries"}
    later = ledger.entries_after(facts["ledger_head"])
    if later is None:
        wrong.append("the ledger lacks the line that checkpoint.safetensors names as its last")
    elif any(entry.round < files.checkpoint.round for entry in ledger.entries[len(ledger.entries) - later :]):
        wrong.append("rounds of the checkpoint were charged after it was written")
    if wrong:
        return False, "; ".join(wrong) + "."
    return True, "configuration, ledger, checkpoint and summary agree on run, clients and last line of the ledger."


def model_belongs_to_run(files: RunFiles) -> Finding:
    """Check that the model's files are those of the run.

    They must have the SHA-256 of summary.json, and the checkpoint the clip norm of the last line of metrics.jsonl. The
    model must have the numbers of the checkpoint, or of its moving average (server.average). Masks are exempt, since
    their network is not in the folder.
    """
    stated = {"model_sha256": files.summary.model_sha256, "mask_sha256": files.summary.mask_sha256}
    for key, name in _HASHED.items():
        if stated[key] is None and key != "model_sha256" and not (files.path / name).exists():
            continue
        if stated[key] is None:
            raise Unavailable(f"summary.json: has no {key!r}. The run was made by a version that did not record it.")
        files.compared_keys.add(key)
        if sha256_of(files.path / name) != stated[key]:
            return False, f"{name}: does not have the hash that summary.json states."
    norm = files.published_rounds[-1].clip_norm if files.published_rounds else None
    if norm is not None and not math.isclose(files.checkpoint.clip_norm, norm, rel_tol=1e-12):
        return (
            False,
            f"checkpoint.safetensors: its clip norm is {files.checkpoint.clip_norm:.6g}, metrics.jsonl has {norm:.6g}.",
        )
    if method_specification(files.config.method.name).sends_masks:
        return (
            True,
            "the model has the hash that summary.json states; a mask's network is not compared with probabilities.",
        )
    model = files.checkpoint.broadcast
    if files.config.server.average is not None:
        if "average" not in files.checkpoint.memory:
            return False, "checkpoint.safetensors: has no average of models, which config.toml requires."
        model = files.checkpoint.memory["average"]
    if not np.array_equal(np.sort(model.float().numpy()), sorted_values_of(files.path / "model.safetensors")):
        return False, "model.safetensors: its numbers are not those of checkpoint.safetensors."
    return True, "the model has the hash that summary.json states, and holds the numbers of the checkpoint."


def require_own_code(files: RunFiles) -> None:
    """Raise ConfigError, with the files to load, if the run needs user-defined code that is not registered here."""
    try:
        user_code_of_run(files.config)
    except ConfigError as error:
        if not files.own_code:
            raise
        words = " ".join(f"--load {one.path}" for one in files.own_code)
        raise ConfigError(f"{files.path}: the run was made with user-defined code ({words}): {error}") from None


def own_code_is_loaded(files: RunFiles) -> bool:
    """Return True if each file of code that the run needed is loaded here, perhaps in another version."""
    here = user_code_of_run(files.config)
    known = {one.sha256 for one in here} | {Path(one.path).name for one in here}
    return all(one.sha256 in known or Path(one.path).name in known for one in files.own_code)


def own_code_matches_run(files: RunFiles) -> Finding:
    """Check that the user-defined code loaded here has the hash in own_code.json and in the ledger's header.

    If a different version is loaded, the check is inconclusive, since results with that version are not about the run.
    """
    header = files.trusted_ledger.header
    if header.binding is None:
        raise Unavailable("ledger.jsonl: does not identify a run, since an old version wrote it.")
    recorded = code_hash(files.own_code)
    if header.binding.get("own_code", "") != recorded:
        return False, "own_code.json is not the code in the ledger's header."
    if any(not one.sha256 for one in files.own_code):
        return None, "some of the run's code was typed in a session, and is in no file."
    if not own_code_is_loaded(files):
        words = " ".join(f"--load {one.path}" for one in files.own_code)
        return (
            None,
            f"the run's user-defined code is not loaded here. Give {words}. All other checks are made without it.",
        )
    if code_hash(user_code_of_run(files.config)) != recorded:
        names = ", ".join(f"{one.path} ({one.sha256[:12]})" for one in files.own_code)
        return None, f"the code loaded here is not the version of the run, {names}. Load that version (--load)."
    return True, f"{len(files.own_code)} files of user-defined code have the hashes of the run."
