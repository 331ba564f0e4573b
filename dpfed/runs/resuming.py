"""Configurations of runs that continue: as written in a run's folder, compared, and prolonged by more rounds."""

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

OWN_CODE = "own_code.json"


def configuration_in(path: Path) -> dict[str, object]:
    """Return the tables of the configuration that a run wrote into its folder, unchecked; RunError if there are
    none.
    """
    try:
        return tomllib.loads(read_text(path / "config.toml", at_most=LARGEST_CONFIGURATION))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: holds no run to resume ({error}). Start one without --resume.") from None


def with_delta_of(path: Path, tables: dict[str, object]) -> dict[str, object]:
    """Return `tables` with the delta of the run in this folder, if neither has one: the run is then of 0.2.

    For clients it is the default of 0.2 (`parse_written`). For records the ledger states it, because no configuration
    has their number.
    """
    written, ledger = configuration_in(path), path / "ledger.jsonl"
    for key in ("privacy", "local.record"):
        begun, given = (_table(one, key) for one in (written, tables))
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


def _table(tables: Mapping[str, object], key: str) -> Mapping[str, object] | None:
    """Return the table of a dotted key; None if there is none."""
    found: object = tables
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def own_code_in(path: Path) -> tuple[UserCodeFile, ...]:
    """Return the files that own_code.json in this folder names; RunError if it cannot be read."""
    file = path / OWN_CODE
    try:
        listed = json.loads(read_text(file, at_most=LARGEST_CONFIGURATION)) if file.exists() else []
        return tuple(UserCodeFile(path=str(one["path"]), sha256=str(one["sha256"])) for one in listed)
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise RunError(f"{file}: cannot be read ({error}). Restore the file from a copy.") from None


@contextmanager
def naming_own_code(path: Path | None) -> Iterator[None]:
    """Add to a ConfigError inside which files of own_code.json in this folder are not loaded. path: None does nothing.

    Without them, names of the configuration are unknown, and the plain error lists what dpfed has by itself.
    """
    try:
        yield
    except ConfigError as error:
        missing = () if path is None else files_not_loaded(own_code_in(path))
        if not missing:
            raise
        files = [one for one in missing if one.sha256]
        how = f"give {' '.join(f'--load {one.path}' for one in files)}" if files else "run it in this session first"
        raise ConfigError(f"{path}: needs code of your own ({OWN_CODE}): {how}. Without it: {error}") from error


def differences(before: Mapping[str, object], after: Mapping[str, object], path: str = "") -> list[str]:
    """Describe every key in which two configurations differ."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new, name = before.get(key), after.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{name}.")
        elif old != new:
            found.append(f"{name} was {old!r}, is {new!r}")
    return found


def prolonged(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if the second configuration is the first with more rounds."""
    then, later = before["federation"]["rounds"], now["federation"]["rounds"]
    return bool(later > then and {**now, "federation": {**now["federation"], "rounds": then}} == dict(before))


def require_same_rounds(
    before: Mapping[str, Any],
    config: Config,
    specification: MethodSpecification,
    privacy_target: AnyTarget | None,
    sent: int,
) -> None:
    """Raise RunError unless a longer run has equal rounds, and a budget that was fixed before the first one.

    Claim: a run that is prolonged after its results were seen has a length chosen by them. Under a budget fixed before
    the first round this is sound: the releases are a part of those of the longest run within the budget, so its epsilon
    covers them. Without a budget no epsilon stated before covers them.
    """
    rounds = f"{before['federation']['rounds']} to {config.federation.rounds}"
    said = f"federation.rounds: cannot be prolonged from {rounds}, since"
    if specification.follows_rounds is not None:
        raise RunError(f"{said} {specification.follows_rounds} follows from it. Start a new run.")
    if config.local.schedule in ("cosine", "linear"):
        raise RunError(f"{said} local.schedule={config.local.schedule!r} ends with the last round. Start a new run.")
    if privacy_target is None:
        return
    if privacy_target.unit == "record" or privacy_target.budget is None or config.privacy is None:
        raise RunError(
            f"{said} the run has no budget: its length would be chosen by its results, which its epsilon does not "
            "cover. Start a new run with privacy.epsilon and privacy.noise_multiplier; it ends where either does."
        )
    if config.privacy.noise_schedule is not None:
        raise RunError(f"{said} the parts of privacy.noise_schedule follow from it. Start a new run.")
    try:
        shorter = privacy_target_of(parse_written_config(before, source="config.toml"), specification, sent)
    except ConfigError as error:
        raise RunError(f"{said} what it began with is refused: {error}") from None
    if not shorter.is_like(privacy_target):
        raise RunError(
            f"{said} its noise follows from the number of rounds (privacy.epsilon alone, federation.cohort_cap or "
            "tolerances by default). Runs that give privacy.noise_multiplier and privacy.epsilon can be prolonged."
        )
