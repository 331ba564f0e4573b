"""Evidence that all files are of one run, and that they and its project agree on rounds and charges."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from accounting.compose import accountant
from accounting.errors import AccountingError, EditedLedger, LedgerError
from accounting.ledger import Aborted, Release
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import ReleasedRounds
from accounting.rounding import upwards
from dpfed.audit.evidence.run_files import RunFiles, sha256_of, sorted_values_of
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.config.own_code import code_hash
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import method_specification
from dpfed.records.reading import Unavailable
from dpfed.records.round import configuration_hash
from dpfed.runs.book import project_releases_of
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
        return False, (
            f"checkpoint.safetensors: its clip norm is {files.checkpoint.clip_norm:.6g}, metrics.jsonl has {norm:.6g}."
        )
    if method_specification(files.config.method.name).sends_masks:
        return True, (
            "the model has the hash that summary.json states; a mask's network is not compared with probabilities."
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
        return None, (
            f"the run's user-defined code is not loaded here. Give {words}. All other checks are made without it."
        )
    if code_hash(user_code_of_run(files.config)) != recorded:
        names = ", ".join(f"{one.path} ({one.sha256[:12]})" for one in files.own_code)
        return None, f"the code loaded here is not the version of the run, {names}. Load that version (--load)."
    return True, f"{len(files.own_code)} files of user-defined code have the hashes of the run."


_STREAMED = 1e-3
"""Relative difference allowed for epsilons during a run, which are computed by another order of convolutions."""


def files_agree_on_rounds(files: RunFiles) -> Finding:
    """Check that summary, metrics, diagnostics and checkpoint end with one round, and that the stated end is possible.

    A run that ended by "rounds" must have all configured rounds. For a run that ended by "budget", one more round must
    exceed the budget. The summary must count the charges without a round.
    """
    done = files.summary.rounds
    counts = {
        "metrics.jsonl": len(files.published_rounds),
        "diagnostics.jsonl": len(files.rounds),
        "checkpoint.safetensors": files.checkpoint.round,
    }
    other = [f"{name} has {count}" for name, count in counts.items() if count != done]
    if other:
        return False, f"summary.json states {done} rounds; " + ", ".join(other) + ". Rounds were cut off or added."
    problem = _ending_problem(files, done) or _charges_problem(files, done)
    if problem is not None:
        return False, problem
    return True, f"{done} rounds in summary, metrics, diagnostics and checkpoint; {_ending_text(files)}."


def _ending_problem(files: RunFiles, done: int) -> str | None:
    """Return the problem with the stated reason for the end of the run; None if there is none."""
    configured, stopped_by = files.config.federation.rounds, files.summary.stopped_by
    if stopped_by == "rounds":
        if done == configured:
            return None
        return (
            f"the run states that it ended with the last round of config.toml, {configured}, but it has {done} rounds."
        )
    if stopped_by != "budget":
        return f"summary.json: stopped_by is {stopped_by!r}, must be 'rounds' or 'budget'."
    if done >= configured:
        return f"the run states that its budget ended it, but all {configured} rounds were run."
    table = files.private_table
    budget = table.epsilon if table is not None else None
    if files.summary.project_ledger is not None:
        return None
    if budget is None:
        return "the run states that its budget ended it, but config.toml has no epsilon."
    if files.config.privacy is None or not files.releases:
        return None
    epsilon = _epsilon_with_one_more_round(files)
    if epsilon * (1 + _STREAMED) > budget:
        return None
    after, allowed = upwards(epsilon), upwards(budget)
    return f"the run states that its budget ended it, but with round {done + 1} epsilon would be {after} of {allowed}."


def _epsilon_with_one_more_round(files: RunFiles) -> float:
    """Return the epsilon with one more round at its largest possible charge."""
    privacy_target = files.promise.privacy_target
    released, lines = ReleasedRounds(), files.trusted_ledger.shared_releases
    for line in lines:
        released.add(line.mechanism, line.round, line.nonce)
    following = max((line.round + 1 for line in lines), default=0)
    released.add(privacy_target.mechanism_of_round(following), following)
    try:
        return accountant.epsilon(
            released.composition(), delta=privacy_target.delta, accountant=privacy_target.accountant
        )
    except AccountingError as error:
        raise Unavailable(f"epsilon with one more round could not be computed ({error}).") from None


def _charges_problem(files: RunFiles, done: int) -> str | None:
    """Return the problem with charges that have no finished round; None if there is none.

    An interrupted round leaves such a charge. Only a run that the budget ended may have one after its last round.
    """
    beyond = sorted(
        number
        for number, entries in files.entries.items()
        if number > done and not all(isinstance(entry, Aborted) for entry in entries)
    )
    if beyond and files.summary.stopped_by != "budget":
        return f"ledger.jsonl: round {beyond[0]} is charged, but the run ended before it. Rounds were cut off."
    charges = Counter(entry.round for entry in files.trusted_ledger.releases)
    extra = sum(charges.values()) - sum(round < done for round in charges)
    stated = files.summary.interrupted_charges
    if stated is None:
        raise Unavailable("summary.json: does not count interrupted charges.")
    if stated < extra or (stated > extra and files.summary.project_ledger is None):
        return f"ledger.jsonl: {extra} charges have no finished round, summary.json counts {stated}."
    return None


def project_ledger_agrees(files: RunFiles, path: Path) -> Finding:
    """Check that the project's ledger has an equal line for every release of the run's ledger.

    The project's ledger must not have a charge of fresh noise for the run that the run's ledger lacks.
    """
    header, own = files.trusted_ledger.header, files.trusted_ledger.releases
    try:
        project = ProjectLedger.open(path)
    except EditedLedger as error:
        return False, str(error)
    except LedgerError as error:
        raise Unavailable(str(error)) from None
    run = header.about.get("run")
    if run is None:
        return False, f"the run's ledger does not state that it is charged to a project, so {path} cannot cover it."
    if (project.ledger.header.clients, project.population) != (header.clients, header.population):
        return False, f"{path} is for clients that differ from the run's clients."
    for name in ("epsilon", "delta"):
        files.compared_keys.add(f"project_{name}")
        stated, promised = getattr(files.summary, f"project_{name}"), getattr(project.terms, name)
        if stated not in (None, promised):
            return False, f"summary.json states {name} {stated} of the project, {path} one of {promised}."
    heads = {"ledger.jsonl": header.about.get("project_head"), "summary.json": files.summary.project_head}
    for name, head in heads.items():
        if not isinstance(head, str) or project.ledger.entries_after(head) is None:
            return False, (
                f"{path} lacks the line that {name} names as its last: lines were cut off, or it is another ledger."
            )
    charged = project_releases_of(str(run), project)
    ours = _line_counts(one for one in own if isinstance(one, Release))
    theirs = _line_counts(charged)
    if unpaid := _round_numbers(ours - theirs):
        return False, f"{path} was not charged as ledger.jsonl states for {rounds_text(unpaid)}."
    repeatable = header.randomness == "simulated"
    if beyond := [one for one in (theirs - ours).elements() if repeatable or "nonce" in json.loads(one)]:
        words = rounds_text(_round_numbers(beyond))
        return False, (
            f"{path} was also charged for {words}, which ledger.jsonl lacks: there is another copy of the run."
        )
    return True, f"{len(own)} releases, each with an equal line in {path}."


def _line_counts(lines: Iterable[Release]) -> Counter[str]:
    """Return the lines as JSON text with their counts, without the keys that a project adds."""
    found: Counter[str] = Counter()
    for line in lines:
        record = line.to_dict()
        record["detail"] = {
            key: value for key, value in record["detail"].items() if key not in ("run", "population", "charged_as")
        }
        found[json.dumps(record, sort_keys=True)] += 1
    return found


def _round_numbers(contents: Iterable[str]) -> list[int]:
    """Return the rounds of these lines, counted from 1."""
    return sorted({json.loads(one)["round"] + 1 for one in contents})


def _ending_text(files: RunFiles) -> str:
    if files.summary.stopped_by == "rounds":
        return "these are all configured rounds"
    if files.summary.project_ledger is not None:
        return "the project's budget, which is not in these files, may have ended the run"
    if files.config.privacy is None:
        return "it was not tested that one more round exceeds the clients' budget"
    return "one more round would exceed the budget"
