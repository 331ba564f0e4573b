"""`dpfed verify`: recompute what a published run states, by two implementations, without torch."""

from __future__ import annotations

import hashlib
import json as json_files
import math
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accounting import require
from accounting.budget import certificates
from accounting.compose.twins import overflow
from accounting.errors import AccountingError
from accounting.ledger import Ledger, Release, regular_file
from accounting.ledger.entries import noise_error
from accounting.ledger.hash_chain import chained_line
from accounting.mechanisms import noise_of, parts_of, unsampled
from accounting.mechanisms.samplings.planned import sampling_of_keys
from accounting.rounding import upwards
from dpfed import second_verifier
from dpfed.cli.ledger_signature import verified_head
from dpfed.cli.output import Flag, console, print_json
from dpfed.config.tables import private_table
from dpfed.errors import ConfigError, DpfedError
from dpfed.records.reading import read_lines, text_of_file
from dpfed.records.round import MetricsLine, configuration_hash
from dpfed.records.summary import PROJECT, Summary
from dpfed.report.privacy_text import privacy_statement

PACK = "pack.json"
_ROUNDING = 1e-6
"""Largest relative difference of a number that another processor computed."""
_STREAMED = 1e-3
"""Largest relative difference of an epsilon that a run computed round by round."""


class _Problem(Exception):
    """Contradiction between the files of a bundle, or content that this version does not know."""


@dataclass(kw_only=True)
class Verification:
    """Verdict of `dpfed verify`, on JSON keys that scripts rely on.

    verdict: "verified" (unchanged since the head or signature given), "consistent with itself" (neither was given),
        "not verified" (not known to one of the implementations), or "refused" (a contradiction)
    second:  verdict, interval and text of the second implementation (`dpfed.second_verifier`)
    """

    verdict: str = "refused"
    epsilon: float | None = None
    chain: str = "not read"
    signature: str = "none given"
    statement: str = "none in the bundle"
    problems: list[str] = field(default_factory=list)
    second: dict[str, Any] = field(default_factory=dict)
    not_checked: list[str] = field(default_factory=list)


def verify(bundle: Path, *, head: str | None = None, key: Path | None = None, json: Flag = False) -> int:
    """Recompute a published run's epsilon and check its ledger, numbers and sentence, by two implementations.

    The bundle is the folder of `dpfed report RUN --pack BUNDLE`, or a run folder. Without --head or --key the best
    verdict is "consistent with itself", as an attacker who writes all files can make them agree. Neither shows that the
    code did what the ledger states: `dpfed audit` tests that. Exit status 1 unless both implementations agree; runs for
    release stay "not verified", as the second one knows floating-point Gaussian noise only.

    Example: dpfed verify runs/fed-smp-randk-digits

    Parameters
    ----------
    bundle
        Folder with config.toml, ledger.jsonl and summary.json.
    head
        Hash of the ledger's last line, from a source that the publisher cannot change.
    key
        Public key of the signer of ledger.jsonl.sig (`dpfed ledger sign`), from such a source.
    json
        One JSON document on standard output.
    """
    if not bundle.is_dir():
        raise ConfigError(f"{bundle}: is no folder. Name the folder of `dpfed report RUN --pack`, or of a run.")
    found = verified(bundle, head=head, key=key)
    if json:
        print_json(asdict(found))
    else:
        out = console()
        out.print(f"{found.verdict}: epsilon {found.epsilon}, chain {found.chain}, signature {found.signature}")
        out.print(f"statement: {found.statement}")
        out.print(f"second implementation: {found.second.get('verdict')}: {found.second.get('text')}")
        for words in found.problems:
            out.print(f"problem: {words}")
        out.print(f"not checked here (`dpfed audit` compares more): {', '.join(found.not_checked)}")
    return 0 if found.verdict in ("verified", "consistent with itself") else 1


def verified(bundle: Path, *, head: str | None = None, key: Path | None = None) -> Verification:
    """Return the verdict of both implementations on a bundle."""
    found = Verification()
    try:
        _check_bundle(bundle, found, head, key)
        found.verdict = "consistent with itself" if head is None and key is None else "verified"
    except (_Problem, AccountingError, DpfedError) as error:
        found.problems.append(str(error))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        found.verdict = "not verified"
        found.problems.append(f"a file is missing, or not in a form that is known ({type(error).__name__}: {error}).")
    try:
        word, low, high, text = second_verifier.verify(bundle, head)
        found.second = {"verdict": word, "lower": low, "upper": high, "text": text}
    except Exception as error:  # whatever fails there, nothing was verified
        refused = isinstance(error, second_verifier.Refused)
        found.second = {"verdict": "refused" if refused else "not verified", "text": f"{error}"}
    if found.second["verdict"] in ("refused", "not verified") and found.verdict != "refused":
        found.verdict = found.second["verdict"]
    return found


def _check_bundle(bundle: Path, found: Verification, head: str | None, key: Path | None) -> None:
    """Compare all files of a bundle with its ledger. Raises _Problem, or an error of a reader."""
    path, summary = bundle / "ledger.jsonl", Summary.of_folder(bundle)
    ledger = Ledger.read(path)
    found.chain = f"unbroken, {len(ledger.entries)} entries, head {ledger.head}"
    _check_lines(path, ledger)
    if head is not None and ledger.head != head:
        raise _Problem(f"the last line has the hash {ledger.head}, not the head given: the ledger was changed.")
    if key is not None:
        signed = verified_head(ledger, key)
        if signed.entries_since(ledger):
            raise _Problem("the ledger has lines after the signed one, for which no signature vouches.")
        found.signature = f"valid, by the key of {key}"
    tables = tomllib.loads(text_of_file(bundle / "config.toml", at_most=regular_file.LARGEST_CONFIGURATION))
    if (ledger.header.binding or {}).get("configuration") != configuration_hash(tables):
        raise _Problem("config.toml is not the one that the ledger's header binds.")
    expected = _expected_values(ledger, summary, tables)
    stated = summary.to_dict()
    wrong = [key for key, value in expected.items() if not _is_near(stated.get(key), value)]
    if wrong:
        texts = [f"{key} is {stated.get(key)!r}, the ledger gives {expected[key]!r}" for key in wrong]
        raise _Problem(f"summary.json: {'; '.join(texts)}.")
    if summary.others:
        raise _Problem(f"summary.json: this version does not know {', '.join(summary.others)}.")
    found.epsilon = summary.epsilon
    found.not_checked = sorted(key for key, value in stated.items() if key not in expected and value is not None)
    model = bundle / "model.safetensors"
    if model.exists() and hashlib.sha256(model.read_bytes()).hexdigest() != summary.model_sha256:
        raise _Problem("model.safetensors is not the model whose digest summary.json states.")
    if (bundle / "metrics.jsonl").exists():
        lines = read_lines(bundle / "metrics.jsonl", MetricsLine)
        last, delta, known = lines[-1].epsilon if lines else None, summary.delta or 0.0, [summary.epsilon or 0.0]
        for one in (private_table(tables).get("accountant", "best"), "best"):
            known.append(ledger.if_fixed_in_advance(delta, accountant=one, with_lower_bound=False).epsilon)
        if last is None or not any(math.isclose(last, one, rel_tol=_STREAMED) for one in known):
            raise _Problem("metrics.jsonl: the last epsilon is neither that of the releases nor that of summary.json.")
    if (bundle / PACK).exists():
        _check_pack(bundle, summary, found)


def _check_lines(path: Path, ledger: Ledger) -> None:
    """Raise _Problem unless each line is what this version writes for it, with at least the noise that is charged."""
    content, previous = [], ""
    for entry in (ledger.header, *ledger.entries):
        line, previous = chained_line(entry.to_dict(), previous)
        content.append(line)
    if b"".join(content) != path.read_bytes():
        raise _Problem("ledger.jsonl: has content that this version does not know, or not in its form.")
    for entry in ledger.entries:
        if error := noise_error(entry):
            raise _Problem(f"ledger.jsonl, round {entry.round}: {error}")


def _expected_values(ledger: Ledger, summary: Summary, tables: dict[str, Any]) -> dict[str, object]:
    """Return the values of summary.json that follow from ledger and configuration."""
    record, private = tables.get("local", {}).get("record"), private_table(tables)
    delta = ledger.header.about.get("delta", private.get("delta"))
    if delta is None or "project" in ledger.header.about or not ledger.releases:
        raise _Problem("ledger.jsonl: names no delta, or is not the ledger of one run with releases.")
    units = None if record is None else 2**62  # notes on delta need the number of records, which no file states
    stated = ledger.guarantee(delta, accountant=private.get("accountant", "best"), units=units)
    if not stated.valid or (record is None and not set(stated.notes) <= set(summary.notes)):
        raise _Problem("summary.json lacks a condition under which its epsilon holds.")
    releases, federation = ledger.releases, tables.get("federation", {})
    last, mechanism = releases[-1], ledger.mechanism() if record is None else None
    planned = ledger.header.plan
    rounds = max(one.round for one in ledger.entries) + 1
    most, length = federation["rounds"], None if planned is None or planned.epsilon is not None else planned.rounds
    if rounds > most or length not in (None, most):
        raise _Problem(f"config.toml has {most} rounds, ledger.jsonl {rounds}, its plan {length or 'no number'}.")
    if private.get("delta", delta) != delta:
        raise _Problem(f"config.toml: delta is {private['delta']}, the ledger's is {delta}.")
    if summary.certificate is not None and mechanism is not None:
        certificates.sampled_run(mechanism)  # raises AccountingError unless such a mechanism can have a certificate
    released = [] if mechanism is None else [part for part, _ in parts_of(mechanism)]
    multipliers = [noise.noise_multiplier for noise in map(noise_of, released) if noise is not None]
    aggregation, schedule = tables.get("aggregation", {}).get("kind", "plain"), private.get("noise_schedule")
    norms = {one.clip_norm for one in releases}
    simulated = ledger.header.randomness == "simulated"
    if simulated and not any("run.randomness = 'simulated'" in one for one in summary.not_protected):
        raise _Problem("summary.json: not_protected does not say that noise and cohorts come from a seed.")
    return {
        **stated.readings().to_dict(),
        "epsilon": stated.epsilon,
        "lower_bound": stated.lower_bound,
        "delta": delta,
        "unit": ledger.header.unit,
        "adjacency": stated.adjacency,
        "accountant": stated.method,
        "no_statement": None,
        "clients": ledger.header.clients,
        "cohort": _expected_cohort(federation),
        "sampling": federation.get("sampling"),
        "rounds": rounds,
        "randomness": ledger.header.randomness,
        "population": ledger.header.population,
        **({"noise_multiplier": multipliers[0] / (schedule or [1])[0]} if len(multipliers) == 1 or schedule else {}),
        **({"noise": "gaussian"} if {unsampled(part).kind for part in released} == {"gaussian"} else {}),
        "noise_schedule": schedule,
        **({"clip_norm": last.clip_norm} if len(norms) == 1 else {}),
        "aggregation": aggregation,
        **(dict.fromkeys(("server_epsilon", "hostile_clients_epsilon")) if aggregation == "plain" else {}),
        "for_release": not simulated if "release" in tables.get("run", {}) else None,
        **({} if "run" in ledger.header.about else dict.fromkeys(PROJECT)),
        "method": tables.get("method", {}).get("name"),
        "dataset": tables.get("data", {}).get("name"),
        "noise_placement": last.noise_placement if isinstance(last, Release) else "local steps",
        "delta_charged_for_failures": 0.0 if mechanism is None else overflow(mechanism),
        "ledger_head": ledger.head,
        "ledger_entries": len(ledger.entries),
    }


def _expected_cohort(federation: dict[str, Any]) -> int:
    """Return the expected cohort of a configuration, which summary.json has rounded down; all clients under 'all'."""
    clients, cohort, name = federation["clients"], federation["cohort"], federation["sampling"]
    times = max(round(federation["rounds"] * cohort / clients), 1)
    keys = {"cohort": cohort, "participations": times, "separation": federation.get("separation")}
    return cohort if name == "custom" else int(sampling_of_keys(name, keys).expected(clients))


def _check_pack(bundle: Path, summary: Summary, found: Verification) -> None:
    """Compare sentence and digests of pack.json with the other files."""
    pack = json_files.loads(text_of_file(bundle / PACK, at_most=regular_file.LARGEST_DOCUMENT))
    if pack["statement"] != privacy_statement(summary):
        found.statement = "differs from summary.json"
        raise _Problem(f"{PACK}: its sentence is not that of summary.json.")
    found.statement = pack["statement"]
    loss = pack.get("registry_entry", {}).get("deployment", {}).get("privacy_loss", {}).get("privacy_parameters")
    if loss not in (None, {"epsilon": float(upwards(summary.epsilon)), "delta": float(upwards(summary.delta))}):
        raise _Problem(f"{PACK}: the registry entry has other numbers than summary.json: {loss}.")
    found.not_checked += [f"other answers in {PACK}", "pack.html"]
    for name, digest in pack["files"].items():
        if Path(name).name != name or hashlib.sha256((bundle / name).read_bytes()).hexdigest() != digest:
            raise _Problem(f"{PACK}: {name} is not the file whose digest it has.")


def _is_near(stated: object, value: object) -> bool:
    if isinstance(stated, dict) and isinstance(value, dict):
        return stated.keys() == value.keys() and all(_is_near(stated[key], value[key]) for key in value)
    if require.is_number(stated) and require.is_number(value):
        return math.isclose(stated, value, rel_tol=_ROUNDING)
    return stated == value
