"""`dpfed audit replay`: test that nothing but the mechanisms' outputs depends on a client's data."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from dpfed.cli.output import console, print_json, training_extra
from dpfed.errors import ConfigError
from dpfed.planner.whole_numbers import MaybeWholeNumber, WholeNumber

if TYPE_CHECKING:
    from dpfed.audit.replays.verdict import ReplayAudit


def replay(
    config: str,
    *,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    load: Annotated[list[Path] | None, Parameter(name="--load", negative="")] = None,
    rounds: WholeNumber = 3,
    pairs: MaybeWholeNumber = None,
    seed: WholeNumber = 0,
    processes: WholeNumber = 1,
    engine: Literal["in-process", "flower"] = "in-process",
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare runs of a configuration on its data and on neighbouring data, with the mechanisms' outputs frozen.

    Everything outside the mechanisms must be equal, bit by bit: updates and uploads of all other clients,
    announcements, cohorts, charges, and every public file. Inputs of a mechanism may differ by its sensitivity.

    Exit status 1 if the verdict is "fail"; the command then writes a file that reruns the failing pair. A pass is a
    statement about these pairs and the code that they reached (docs/replay.md).

    Example: dpfed audit replay fed-smp-randk-digits

    Parameters
    ----------
    config
        A preset, a TOML file, the file of a failed pair, or a run folder, into which the audit is then written.
    settings
        table.key=value on top of the configuration; may be given again.
    load
        A Python file of your own, which registers methods, networks or data (docs/own-methods.md); may be given again.
    rounds
        Number of rounds that are replayed, starting with the first.
    pairs
        Number of neighbouring pairs, including one of equal data; default: all, about eighteen.
    seed
        Seed that chooses the clients whose data differ.
    processes
        Number of ranks that train the clients, as torchrun would start them.
    engine
        Engine that trains the clients: in-process, or Flower's apps with their nodes in this process.
    out
        A folder for audit-replay.json; default: the audited run folder, if there is one.
    json
        The outcome as one JSON document on standard output.
    """
    with training_extra("dpfed audit replay"):
        from dpfed.api.replay import replay_config
        from dpfed.records.replays import REPLAY_RECORD
    if rounds < 1 or (pairs is not None and pairs < 2):
        raise ConfigError(
            f"--rounds {rounds}, --pairs {pairs}: give at least 1 round and 2 pairs; one pair has equal data."
        )
    log = console(to_stderr=True)
    with log.status(f"{config}: the first run") as status:
        found = replay_config(
            config,
            settings or [],
            load=load or [],
            rounds=rounds,
            pairs=pairs,
            seed=seed,
            processes=max(processes, 1),
            engine=engine,
            progress=lambda words: status.update(f"{config}: {words}"),
        )
    folder = out if out is not None or not (Path(config) / "config.toml").exists() else Path(config)
    kept = None if folder is None else folder / REPLAY_RECORD
    if kept is None and found.verdict == "fail":
        kept = Path(f"replay-{Path(config).stem}.json")
    if kept is not None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(jsons.dumps(found.to_dict(), indent=2))
        except OSError as error:  # the audit is complete: its outcome does not depend on this file
            log.print(f"{kept}: cannot be written ({error.strerror}). Name another folder with --out.", markup=False)
            kept = None
    if json:
        print_json(found.to_dict())
    else:
        _show_replay(found, kept)
    return 1 if found.verdict == "fail" else 0


def _show_replay(found: ReplayAudit, kept: Path | None) -> None:
    from dpfed.audit.replays.files import MAY_DIFFER

    out = console()
    document = found.to_dict()
    table = Table(title=f"{found.name}: {document['verdict_in_full']}")
    table.add_column("pair", overflow="fold")
    table.add_column("outcome")
    for heading in ("values", "rows", "used", "seconds"):
        table.add_column(heading, justify="right")
    for one in found.pairs:
        seen = one.findings
        used = "–" if not seen.largest_used_part else f"{seen.largest_used_part:.0%}"
        table.add_row(one.pair.words, one.outcome, f"{seen.values:,}", f"{seen.rows:,}", used, f"{seen.seconds:.1f}")
    out.print(table)
    out.print(found.as_text())
    out.print(f"May differ: {'; '.join(MAY_DIFFER)}.")
    if found.verdict == "fail" and kept is not None:
        out.print(f"Run this pair again: dpfed audit replay {kept}")
    elif kept is not None:
        out.print(f"Kept: {kept}")
