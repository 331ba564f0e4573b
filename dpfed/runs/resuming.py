"""Configurations of resumed runs: reading them from a run's folder, comparing them, and prolonging a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accounting.ledger import Ledger
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from dpfed.config.own_code import UserCodeFile, files_not_loaded
from dpfed.config.tables import Config, override, parse_written_config
from dpfed.errors import ConfigError, RunError
from dpfed.methods.privacy_target import privacy_target_of
from dpfed.methods.records import AnyTarget
from dpfed.methods.specification import MethodSpecification
from dpfed.runs.book import has_incomplete_header

OWN_CODE = "own_code.json"


def configuration_of_run(path: Path) -> dict[str, object]:
    """Return the tables of config.toml in a run's folder, not validated. Raises RunError if it cannot be read."""
    try:
        return tomllib.loads(read_text(path / "config.toml", at_most=LARGEST_CONFIGURATION))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: has no run to resume ({error}). Start a run without --resume.") from None


def with_delta_of_run(path: Path, tables: dict[str, object]) -> dict[str, object]:
    """Return `tables` with the delta of a run of version 0.2, if neither its folder nor `tables` sets delta.

    For clients it is the default of version 0.2 (`parse_written_config`). For records it is read from the ledger,
    because the default depends on the number of records, which the configuration does not contain.
    """
    written, ledger = configuration_of_run(path), path / "ledger.jsonl"
    for key in ("privacy", "local.record"):
        begun, given = (_table_named(one, key) for one in (written, tables))
        if begun is None or given is None or begun.get("delta") is not None or given.get("delta") is not None:
            continue
        delta = None
        if key == "privacy":
            privacy = parse_written_config(written, source=str(path / "config.toml")).privacy
            delta = None if privacy is None else privacy.delta
        elif ledger.exists():
            delta = Ledger.header_of(ledger).about.get("delta")
        return tables if delta is None else override(tables, [f"{key}.delta={delta!r}"])
    return tables


def with_solved_noise(config: Config, ledger: Path) -> Config:
    """Return the configuration with the noise that was calibrated when this ledger began.

    A new calibration may differ in its last digits on another processor, and would be the noise of another schedule. A
    run with another number of rounds is calibrated anew, and compared with the ledger (`require_same_rounds`).
    """
    header = None if not ledger.exists() or has_incomplete_header(ledger) else Ledger.header_of(ledger)
    if header is None or header.solved is None or header.plan is None:
        return config
    return config.with_solved_noise(header.solved) if header.plan.rounds == config.federation.rounds else config


def _table_named(tables: Mapping[str, object], key: str) -> Mapping[str, object] | None:
    """Return the table with this dotted name; None if it is missing."""
    found: object = tables
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def read_own_code(path: Path) -> tuple[UserCodeFile, ...]:
    """Return the files of user-defined code in own_code.json of a run's folder. Raises RunError if it cannot be
    read."""
    file = path / OWN_CODE
    try:
        listed = json.loads(read_text(file, at_most=LARGEST_CONFIGURATION)) if file.exists() else []
        return tuple(UserCodeFile(path=str(one["path"]), sha256=str(one["sha256"])) for one in listed)
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise RunError(f"{file}: cannot be read ({error}). Restore the file from a copy.") from None


@contextmanager
def naming_missing_code(path: Path | None) -> Iterator[None]:
    """Context manager that adds the files of own_code.json that are not loaded to the message of a ConfigError.

    Without these files, names in the configuration are unknown, and the original message lists built-in names only.

    path: folder of the run; None leaves every error unchanged
    """
    try:
        yield
    except ConfigError as error:
        missing = () if path is None else files_not_loaded(read_own_code(path))
        if not missing:
            raise
        files = [one for one in missing if one.sha256]
        how = f"give {' '.join(f'--load {one.path}' for one in files)}" if files else "run it in this session first"
        raise ConfigError(f"{path}: needs code of your own ({OWN_CODE}): {how}. Without it: {error}") from error


def configuration_differences(before: Mapping[str, object], after: Mapping[str, object], path: str = "") -> list[str]:
    """Return a text for every key in which two configurations differ: the key with its old and its new value."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new, name = before.get(key), after.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += configuration_differences(old, new, f"{name}.")
        elif old != new:
            found.append(f"{name} was {old!r}, is {new!r}")
    return found


def is_prolonged(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if both configurations are equal except for more rounds in `now`."""
    then, later = before["federation"]["rounds"], now["federation"]["rounds"]
    return bool(later > then and {**now, "federation": {**now["federation"], "rounds": then}} == dict(before))


def require_same_rounds(
    before: Mapping[str, Any],
    config: Config,
    specification: MethodSpecification,
    privacy_target: AnyTarget | None,
    sent: int,
) -> None:
    """Raise RunError unless the prolonged run has equal rounds, and a budget that was fixed before the first round.

    Claim: if a run is prolonged after its results were seen, its length depends on the results. With a budget that was
    fixed before the first round this is sound. The releases are a part of those of the longest run within the budget,
    whose epsilon covers them. Without such a budget, no epsilon stated before covers them.
    """
    rounds = f"{before['federation']['rounds']} to {config.federation.rounds}"
    said = f"federation.rounds: cannot be prolonged from {rounds}, since"
    follows = "the round of each canary" if config.audit.canaries else specification.follows_rounds
    if follows is not None:
        raise RunError(f"{said} {follows} follows from it. Start a new run.")
    if config.local.schedule in ("cosine", "linear"):
        raise RunError(f"{said} local.schedule={config.local.schedule!r} ends with the last round. Start a new run.")
    if privacy_target is None:
        return
    if privacy_target.unit == "record" or config.privacy is None:
        raise RunError(
            f"{said} this is not built for [local.record]. Start a new run with more rounds, local.record.epsilon and "
            "local.record.noise_multiplier; it ends when its budget is spent."
        )
    if privacy_target.budget is None:
        raise RunError(
            f"{said} the run has no budget: its length would depend on its results, which its epsilon does not cover. "
            "Start a new run with privacy.epsilon and privacy.noise_multiplier; it ends after all its rounds, or when "
            "its budget is spent."
        )
    if config.privacy.noise_schedule is not None:
        raise RunError(f"{said} the parts of privacy.noise_schedule follow from it. Start a new run.")
    try:
        shorter = privacy_target_of(parse_written_config(before, source="config.toml"), specification, sent)
    except ConfigError as error:
        raise RunError(f"{said} the configuration with which it began is refused: {error}") from None
    if not shorter.has_equal_rounds(privacy_target):
        raise RunError(
            f"{said} its noise follows from the number of rounds (privacy.epsilon alone, federation.cohort_cap or "
            "tolerances by default). Runs that give privacy.noise_multiplier and privacy.epsilon can be prolonged."
        )
