"""`dpfed audit`: test runs, configurations, methods, schemes and functions against the privacy claimed for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from accounting.rounding import upwards
from dpfed.audit.verdict import Verdict, failed_checks_first
from dpfed.cli.output import Flag, Load, Settings, console, print_json, table_of, training_extra
from dpfed.errors import ConfigError, RunError
from dpfed.planner.whole_numbers import WholeNumber

if TYPE_CHECKING:
    from dpfed.api.audit import Kind

audit = App(
    name="audit",
    help="Test privacy claims against the code that runs. Exit status 1 if an audit fails.",
)
_HOLDS = {True: "yes", False: "NO", None: "could not tell"}
_OLD_NAMES: dict[str, str] = {
    "run": "dpfed audit FOLDER",
    "upload": "dpfed audit METHOD, or dpfed audit FILE.py",
    "scheme": "dpfed audit SCHEME",
    "replay": "dpfed audit CONFIG",
}
_MOVED = {
    "accountant": "python experiments/audit-field/accountants.py",
    "flower": "python experiments/audit-field/flower_strategies.py",
}
_OLD_OPTIONS = (
    *("trials", "noise-multiplier", "confidence", "epsilon", "delta", "adjacency", "clip-norm", "clients"),
    *("dimension", "time-limit"),
)
_OLD_REPLAY_OPTIONS = ("rounds", "pairs", "processes", "engine")


@audit.default
def audit_anything(
    what: str,
    *,
    settings: Settings = None,
    load: Load = None,
    out: Path | None = None,
    seed: WholeNumber = 0,
    effort: Literal["quick", "normal", "long"] = "normal",
    project: Path | None = None,
    json: Flag = False,
    kinds: Annotated[tuple[Any, ...] | None, Parameter(parse=False)] = None,
) -> int:
    """Test a privacy claim against the code or the files behind it, by every audit that applies.

    A run folder or ledger: its files, and a replay of its configuration. A preset or TOML file: the checks of its
    round, and a replay. A method or scheme: its checks. A Python file: each function with @audit.claim by trials, each
    training call(data, out) by replay. "all": every private method.

    Exit status 1 if the verdict is "fail", 3 if an audit stopped before its end. A pass is no proof: each row says the
    smallest fault that it would have found (docs/audit.md).

    Example: dpfed audit fed-smp-randk

    Parameters
    ----------
    what
        A run folder, ledger, TOML file, preset, method, scheme, Python file, or a function in a file of --load.
    settings
        table.key=value on top of a configuration; option=value of a scheme; key=value of a function's audit, such as
        trials=20000; confidence=0.99 for a run; replay.rounds, replay.last, replay.pairs, replay.processes,
        replay.engine.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again.
    out
        A folder for audit.html, audit.json and figures; default: the audited run folder, if there is one.
    seed
        Seed of all draws.
    effort
        quick, normal or long: a sixth, all or ten times the trials of a function; a tenth, all or ten times the draws
        of a round's noise; 1, 3 or 6 rounds of a replay. Of a run folder, quick reads the files alone.
    project
        The project ledger charged for the run (`dpfed run --ledger`): both ledgers are compared.
    json
        One JSON document on standard output.
    kinds
        Audits of an old name; no option.
    """
    with training_extra("dpfed audit"):
        from dpfed.api.audit import audits, combined
    log = console(to_stderr=True)
    with log.status(f"{what}: starting") as status:
        found = audits(
            what,
            settings or (),
            load=load or (),
            seed=seed,
            effort=effort,
            project=project,
            kinds=kinds,
            progress=status.update,
        )
    whole = combined(found, what)
    pages = _written_pages(found, what, out)
    if json:
        print_json(whole.to_dict())
    else:
        for one in found:
            show_verdict(one)
        if len(found) > 1:
            console().print(f"{what}: {whole.verdict_in_full}")
        for page in pages:
            console().print(f"report: {page}")
    return 1 if whole.verdict == "fail" else 0


def _written_pages(found: list[Verdict], what: str, out: Path | None) -> list[Path]:
    """Write the cards, into `out` or the audited run folder, and return their paths."""
    from dpfed.report.audit import write_cards, write_json

    here = Path(what)
    folder = out or (here if (here / "config.toml").exists() else here.parent if here.suffix == ".jsonl" else None)
    replays = [one for one in found if "reproduce" in one.details]
    try:
        if folder is not None:
            return write_cards(found, folder)
        if not any(one.verdict == "fail" for one in replays):
            return []
        path = Path(f"replay-{here.stem}.json")  # the file by which a failed replay can be run again
        write_json(replays[0], path)
        return [path]
    except (RunError, OSError) as error:  # the audit is complete: its outcome does not depend on these pages
        console(to_stderr=True).print(f"No report was written: {error}")
        return []


def show_verdict(found: Verdict) -> None:
    """Print a verdict: its reasons, the table of checks, the pairs, and what was not tested."""
    out = console()
    out.print(f"{found.name}: {found.verdict_in_full}. {found.text}")
    if found.claimed_epsilon is not None and "claim" in found.details:
        out.print(f"claimed epsilon {upwards(found.claimed_epsilon)}: {found.details['claim']}")
    if found.checks:
        table = table_of("check", "holds", "detail", "would find")
        for one in failed_checks_first(found.checks):
            table.add_row(one.name, _HOLDS[one.passed], one.detail, one.would_find or "cannot fail")
        out.print(table)
    if found.pairs:
        headings = list(found.pairs[0].cells)
        table = table_of(*headings)
        for pair in found.pairs:
            table.add_row(*(pair.cells.get(heading, "–") for heading in headings))
        out.print(table)
    if found.skipped_files:
        out.print(f"files not compared: {'; '.join(found.skipped_files)}")
    for text in found.not_tested:
        out.print(f"limitation: {text}")


def _old_name(name: Kind, now: str) -> Callable[..., int]:
    """Return the command of 0.3 of this name, which calls the one command with its audits only."""

    def command(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
        print(f"`dpfed audit {name}` is an old name, until version 0.5; it is now `{now}`.", file=sys.stderr)
        _, bound, _ = audit.parse_args(_new_words(words), exit_on_error=False, print_error=False)
        return audit_anything(*bound.args, **bound.kwargs, kinds=(name,))

    command.__doc__ = f"Old name of `{now}`, until version 0.5."
    return command


def _new_words(words: tuple[str, ...]) -> list[str]:
    """Return the arguments of an old command, with its options as settings."""
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.removeprefix("--").partition("=")
        if word == "--all":
            found.insert(0, "all")
        elif word.startswith("--") and option in (*_OLD_OPTIONS, *_OLD_REPLAY_OPTIONS):
            table = "replay." if option in _OLD_REPLAY_OPTIONS else ""
            given = value if equals else rest.pop(0) if rest else ""
            found += ["--set", f"{table}{option.replace('-', '_')}={given}"]
        else:
            found.append(word)
    return found


def _moved(name: str, now: str) -> Callable[..., int]:
    def command(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
        raise ConfigError(f"`dpfed audit {name}` has moved to the project's experiments: {now}.")

    command.__doc__ = f"Moved: {now}."
    return command


for _name, _now in _OLD_NAMES.items():
    audit.command(_old_name(_name, _now), name=_name, show=False)  # type: ignore[arg-type]
for _name, _now in _MOVED.items():
    audit.command(_moved(_name, _now), name=_name, show=False)
