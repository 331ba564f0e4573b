"""Audit of anything by its name: a run folder, a configuration, a method, a scheme, a function, a training call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from accounting import require
from dpfed import compress
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.functions.audit import audit_function
from dpfed.audit.functions.claim import overridden_claim
from dpfed.audit.one_call import loaded_functions, names_of_loaded_functions, settings_beside, upload
from dpfed.audit.replays.audit import replay
from dpfed.audit.run import audit_run
from dpfed.audit.verdict import Check, Verdict, worst_outcome
from dpfed.config import own_code
from dpfed.config.own_code import load_files
from dpfed.config.tables import override, read_toml
from dpfed.errors import ConfigError, did_you_mean
from dpfed.methods import catalogue
from dpfed.methods.catalogue import all_methods
from dpfed.records.round import ReplayRecord

Kind = Literal["run", "upload", "scheme", "replay"]
Effort = Literal["quick", "normal", "long"]

_EFFORTS = {"quick": (1 / 6, 30_000, 1), "normal": (1.0, 300_000, 3), "long": (10.0, 3_000_000, 6)}
"""For each effort: factor of a function's trials, draws of a round's noise, rounds of a replay."""
_UNUSED = ("trials", "confidence")
"""Settings of 0.3 that audits of methods no longer use."""
_BERNOULLI_SCHEMES = ("fedpm", "fedmask")


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Name of the audited subject, and the options of its audits. `kinds`: audits to make; None for all that apply."""

    what: str
    settings: tuple[str, ...]
    load: tuple[Path, ...]
    seed: int
    effort: Effort
    project: Path | None
    kinds: tuple[Kind, ...] | None
    progress: Callable[[str], None]

    def wants(self, kind: Kind) -> bool:
        return self.kinds is None or kind in self.kinds

    @property
    def bare(self) -> dict[str, Any]:
        """Settings without a table, by name."""
        given = [one for one in self.settings if "." not in one.partition("=")[0]]
        found: dict[str, object] = override({}, [f"bare.{one}" for one in given]).get("bare", {})
        return found

    @property
    def of_config(self) -> list[str]:
        """Settings of a configuration's tables."""
        return [one for one in self.settings if "." in one.partition("=")[0] and not one.startswith("replay.")]

    @property
    def of_replay(self) -> dict[str, Any]:
        """Settings `replay.key=value`: rounds, last, pairs, processes, engine."""
        given = [one for one in self.settings if one.startswith("replay.")]
        found: dict[str, Any] = override({}, given).get("replay", {})
        _require_known(found, ("rounds", "last", "pairs", "processes", "engine"), "replay.")
        for key, least in {"rounds": 1, "last": 1, "pairs": 2, "processes": 1}.items():
            if key in found and not (require.is_whole(found[key]) and found[key] >= least):
                raise ConfigError(
                    f"replay.{key}={found[key]}: give whole numbers, at least 1 round and 2 pairs; one pair has equal "
                    "data."
                )
        return {"rounds": _EFFORTS[self.effort][2], **found}


def audit(what: str | Path, settings: Sequence[str] = (), **options: Any) -> Verdict:
    """Make every audit that applies to `what`, as `dpfed audit X` does, and return one verdict.

    what:     a run folder or ledger, a preset or TOML file, a method, a scheme, a Python file, or a function in a file
              of `load`. settings: as of --set
    options:  load, seed, effort, project, kinds and progress of `audits`

    Claim: a sound subject fails with the probability that its rows state; a pass is no proof. Source: docs/audit.md.
    Adjacency: that of the claim. Direction of error: faults may be missed; each row says the smallest fault that it
    would have found. Errors: ConfigError for a name that is none of these.

    >>> import dpfed.audit
    >>> dpfed.audit.audit("dense").verdict  # a scheme
    'pass'
    """
    return combined(audits(what, settings, **options), str(what))


def audits(
    what: str | Path,
    settings: Sequence[str] = (),
    *,
    load: Sequence[Path] = (),
    seed: int = 0,
    effort: Effort = "normal",
    project: Path | None = None,
    kinds: tuple[Kind, ...] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Verdict]:
    """Return the verdicts of all audits that apply to `what`.

    what:     a run folder or ledger: its files, and a replay of its configuration where its data can be read;
              a preset or TOML file: the checks of its method's round, and a replay;
              a method or scheme: the checks of its round or of its encoding; "all": the checks of every private method;
              FILE.py: every function with `@audit.claim` by trials, every training call(data, out) by replay;
              the name of such a function of a file in `load`; the JSON file of a failed replay
    settings: table.key=value of a configuration; option=value of a scheme; key=value of a function's audit, such as
              trials=20000; confidence=0.99 of a run folder; replay.rounds, .last, .pairs, .processes,
              .engine
    effort:   "quick", "normal" or "long": number of trials, draws and replayed rounds
    project:  ledger of the project that a run was charged to
    kinds:    the audits to make, of "run", "upload", "scheme", "replay"; None for all that apply
    """
    load_files(list(load))
    request = _Request(
        what=str(what),
        settings=tuple(settings),
        load=tuple(map(Path, load)),
        seed=seed,
        effort=effort,
        project=project,
        kinds=kinds,
        progress=progress,
    )
    found = list(_audits(request))
    if not found:
        raise ConfigError(_unknown_text(request))
    return found


def combined(parts: Sequence[Verdict], what: str) -> Verdict:
    """Return one verdict for several audits: the worst of them, with all rows and pairs."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Verdict(
        audited=what,
        verdict=worst_outcome([one.verdict for one in parts]),
        text=" ".join(f"{one.name}: {one.verdict_in_full}. {one.text}" for one in parts),
        scope="on what was tried",
        claimed_epsilon=first.claimed_epsilon,
        delta=first.delta,
        adjacency=first.adjacency,
        unit=first.unit,
        lower_bound=max((one.lower_bound for one in parts if one.lower_bound is not None), default=None),
        checks=tuple(check for one in parts for check in one.checks),
        pairs=tuple(pair for one in parts for pair in one.pairs),
        differences=tuple(each for one in parts for each in one.differences),
        skipped_files=tuple(file for one in parts for file in one.skipped_files),
        not_tested=tuple(dict.fromkeys(text for one in parts for text in one.not_tested)),
        details={"parts": [one.to_dict() for one in parts]},
    )


def _audits(request: _Request) -> Iterator[Verdict]:
    path = Path(request.what)
    if path.suffix == ".py" and path.exists():
        yield from _of_file(request, path)
    elif path.suffix in (".toml", ".json") and path.exists():
        yield from _of_tables(request, read_toml(path) if path.suffix == ".toml" else {})
    elif request.kinds == ("run",) or (_is_run(path) and request.wants("run")):
        yield from _of_run(request, path)
    else:
        yield from _of_name(request)


def _is_run(path: Path) -> bool:
    """Return True for a ledger, or a folder that has the files of a run or a loop."""
    return path.is_file() or (path / "config.toml").exists() or any(path.glob("*.jsonl"))


def _of_run(request: _Request, path: Path) -> Iterator[Verdict]:
    _require_known(request.bare, ("confidence",), "")
    found = audit_run(path, confidence=request.bare.get("confidence", 0.95), project=request.project, compare=True)
    yield found
    if request.wants("replay") and request.effort != "quick" and _can_be_replayed(found.evidence.files):
        yield _replayed(request, **({"rounds": 1} if request.effort == "normal" else {}))


def _can_be_replayed(files: RunFiles) -> bool:
    """Return True if the run has a configuration whose data can be read here, and no replay of it is recorded."""
    if not (files.path / "config.toml").exists() or ReplayRecord.read(files.path, files.tables) is not None:
        return False
    return files.can_be_built


def _of_tables(request: _Request, tables: dict[str, Any]) -> Iterator[Verdict]:
    """Yield the checks of a configuration's method, if it is private, and the replay of the configuration."""
    name = str(tables.get("method", {}).get("name", ""))
    method = all_methods().get(name)
    if request.wants("upload") and method is not None and method.private_with and "privacy" in tables:
        kept = _settings_of_method(tables)
        yield _with_settings_left_out(_checked(request, name, kept), tables, [*kept, *request.of_config])
    if request.wants("replay"):
        yield _replayed(request)


def _settings_of_method(tables: dict[str, Any]) -> list[str]:
    """Return the settings of a configuration that its small round keeps: those of its method, its sum and its clip."""
    tables = {name: dict(tables.get(name, {})) for name in ("method", "aggregation", "mask", "privacy")}
    adaptive = dict(tables["privacy"].pop("adaptive", {}))
    kept = {"adjacency", "noise", "placement", "release", "clip_norm"}
    if "noise_multiplier" in tables["privacy"] and adaptive:
        kept |= {"noise_multiplier"}
    else:
        adaptive.pop("count_noise_std", None)  # its noise must fit the multiplier
    inside = [("method.options", tables["method"].pop("options", {})), ("privacy.adaptive", adaptive)]
    tables["privacy"] = {key: value for key, value in tables["privacy"].items() if key in kept}
    return [
        f"{name}.{key}={json.dumps(value)}"
        for name, table in [*tables.items(), *inside]
        for key, value in table.items()
        if (name, key) != ("method", "name")
    ]


def _with_settings_left_out(found: Verdict, tables: dict[str, Any], kept: Sequence[str]) -> Verdict:
    """Return a verdict whose limitations name the settings of the configuration that its small round lacks."""
    lacking = [
        f"{name}.{key}"
        for name in ("privacy", "federation", "server")
        for key in tables.get(name, {})
        if not any(one.startswith((f"{name}.{key}=", f"{name}.{key}.")) for one in kept)
    ]
    text = f"settings of the configuration that this small round lacks (give them by --set): {', '.join(lacking)}"
    return replace(found, not_tested=(*found.not_tested, text)) if lacking else found


def _of_name(request: _Request) -> Iterator[Verdict]:
    name = request.what
    if request.wants("upload") and name == "all":
        from dpfed.audit.round.method_setting import audited_methods

        for each in audited_methods():
            yield _checked(request, each)
        return
    function = None if name in own_code.objects_of_kind("method") else loaded_functions().get(name.replace("-", "_"))
    if function is not None and request.wants("upload"):
        yield _of_function(request, function)
        return
    if name in catalogue.preset_names():
        yield from _of_tables(request, catalogue.preset_tables(name))
        return
    if name in all_methods() and request.wants("upload") and (all_methods()[name].private_with or request.kinds):
        yield _checked(request, name)
    scheme = name if name in compress.names() else all_methods()[name].scheme if name in all_methods() else None
    if scheme is not None and request.wants("scheme") and (request.kinds or scheme not in _BERNOULLI_SCHEMES):
        own = name not in all_methods() or request.kinds == ("scheme",)
        yield _of_scheme(scheme, request.bare if own else {})
    if request.kinds == ("replay",):
        yield _replayed(request)


def _checked(request: _Request, method: str, settings: Sequence[str] = ()) -> Verdict:
    bare = {key: value for key, value in request.bare.items() if key not in _UNUSED}
    _require_known(bare, ("noise_multiplier", "draws"), "")
    if request.bare.keys() & set(_UNUSED):
        request.progress("trials and confidence: not used, since a method's round is audited without trials")
    return upload(
        method,
        settings=[*settings, *request.of_config],
        seed=request.seed,
        progress=lambda text: request.progress(f"{method}: {text}"),
        **{"draws": _EFFORTS[request.effort][1], **bare},
    )


def _of_scheme(scheme: str, options: dict[str, object]) -> Verdict:
    if scheme in _BERNOULLI_SCHEMES:
        raise ConfigError(f"{scheme}: sends Bernoulli samples, which are not tested here. Audit the method {scheme}.")
    found = compress.check(compress.get(scheme, **options))
    failed = ", ".join(one.subject for one in found.failed)
    return Verdict(
        audited=found.scheme,
        verdict="pass" if found.passed else "fail",
        text=f"Checks that failed: {failed}." if failed else f"{len(found.findings)} tests found no fault.",
        scope="on these updates",
        checks=tuple(
            Check(
                name=one.subject,
                passed=one.passed,
                detail=one.detail,
                would_find="a bias of a few standard errors" if one.subject == "unbiased" else "any violation here",
            )
            for one in found.findings
        ),
        details=found.to_dict(),
    )


def _of_function(request: _Request, function: Callable[..., object]) -> Verdict:
    beside, bare = settings_beside(function), dict(request.bare)
    factor = _EFFORTS[request.effort][0]
    if factor != 1.0:
        bare.setdefault("trials", round(factor * int(beside.get("trials", 6_000))))
    given = overridden_claim(beside, bare)
    known = [*inspect.signature(audit_function).parameters][1:]
    _require_known(given, known, "")
    return upload(function, progress=request.progress, **{**({"seed": request.seed} if request.seed else {}), **given})


def _of_file(request: _Request, path: Path) -> Iterator[Verdict]:
    load_files([path])
    here = {name: one for name, one in loaded_functions().items() if _is_defined_in(one, path)}
    claimed = [one for one in here.values() if settings_beside(one)]
    calls = [one for one in here.values() if _is_training_call(one) and not settings_beside(one)]
    for one in claimed if request.wants("upload") else ():
        yield _of_function(request, one)
    for call in calls if request.wants("replay") else ():
        pairs = request.of_replay.get("pairs")
        rounds = request.of_replay["rounds"] if "replay.rounds" in "".join(request.settings) else None
        yield replay(call, pairs, seed=request.seed, rounds=rounds, name=call.__name__, progress=request.progress)
    if not claimed and not calls:
        kinds: tuple[own_code.Kind, ...] = ("method", "scheme")
        for kind in kinds:
            for name in own_code.objects_of_kind(kind):
                if own_code.registering_file(kind, name) == str(path.absolute()):
                    yield from _of_name(replace(request, what=name))


def _is_defined_in(function: Callable[..., object], path: Path) -> bool:
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and Path(code.co_filename).absolute() == path.absolute()


def _is_training_call(function: Callable[..., object]) -> bool:
    """Return True for a function of two arguments named data and out."""
    return list(getattr(inspect.signature(function), "parameters", ()))[:2] == ["data", "out"]


def _replayed(request: _Request, **settings: object) -> Verdict:
    from dpfed.api.replay import replay_config

    return replay_config(
        request.what,
        request.of_config,
        load=request.load,
        seed=request.seed,
        progress=lambda text: request.progress(f"{request.what}: {text}"),
        **{**request.of_replay, **settings},
    )


def _require_known(given: dict[str, object], known: Sequence[str], table: str) -> None:
    if wrong := [key for key in given if key not in known]:
        raise ConfigError(
            f"--set {table}{wrong[0]}={given[wrong[0]]}: is no setting here; give table.key=value of a configuration"
            + (f", or one of {', '.join(table + key for key in known)}." if known else ".")
        )


def _unknown_text(request: _Request) -> str:
    hint = did_you_mean(request.what, [*all_methods(), *compress.names(), *catalogue.preset_names()])
    loaded = f" The files of --load have {', '.join(names_of_loaded_functions())}." if request.load else ""
    return (
        f"{request.what!r}: must be a run folder or ledger, a TOML file, a preset, a method (`dpfed methods`), a "
        f"scheme, or a Python file that has a function with @audit.claim or a training call(data, out).{loaded}{hint}"
    )
