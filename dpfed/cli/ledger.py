"""`dpfed ledger`: one privacy budget shared by several runs on the same clients; checks and signatures of ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from accounting import require
from accounting.caveats import caveats, default_delta
from accounting.ledger import Ledger, backups, regular_file
from accounting.ledger.project import ProjectLedger
from accounting.ledger.terms import RESERVE, unit_of, without_streams
from accounting.mechanisms import Composed
from accounting.rounding import downwards, upwards
from dpfed.cli import ledger_signature
from dpfed.cli.output import Flag, console, print_json
from dpfed.cli.project_budget import project_lines
from dpfed.errors import ConfigError
from dpfed.planner.whole_numbers import WholeNumber

ledger = App(
    name="ledger",
    help="Share one privacy budget among runs on the same clients, also concurrent ones; check and sign ledgers.",
)


@ledger.command
def create(
    path: Path,
    *,
    clients: WholeNumber,
    epsilon: float,
    delta: float | None = None,
    population: Path | None = None,
    plan: Annotated[list[str] | None, Parameter(name="--plan", negative="")] = None,
    reserve: float = RESERVE,
) -> None:
    """Create a project ledger; runs draw from it with `dpfed run ... --ledger PATH`.

    The budget is a number of units; one unit pays for one round of the first plan. Runs with such rounds may be
    stopped, resumed, repeated, and chosen by results of earlier runs. A run with other rounds pays all its units before
    it begins.

    Example: dpfed ledger create project.jsonl --clients 650 --epsilon 3

    Parameters
    ----------
    path
        Path of the new ledger; no file of this name may exist.
    clients
        Number of clients; all runs have the same clients.
    epsilon
        Epsilon that all runs together may spend on any one client.
    delta
        Delta of the budget; default: the smaller of clients^-1.1 and 1e-4.
    population
        A run folder that identifies the clients of all runs; default: the first run that is charged.
    plan
        A TOML file or preset whose round is the unit; default: the first release that is charged. Each further --plan
        declares a run before any result is seen; declared runs are charged at their joint price with the units.
    reserve
        Share of delta reserved for runs whose rounds are not the unit; 0 reserves none and gives up to 1% more units.
    """
    clients = require.count(clients=clients)
    fingerprint, key = (None, None) if population is None else _population_and_key(population)
    project = ProjectLedger.create(
        path,
        clients=clients,
        epsilon=epsilon,
        delta=default_delta(clients) if delta is None else delta,
        population=fingerprint,
        key=key,
        reserve=reserve,
        **_project_terms(plan or [], clients),
    )
    units = project.units
    console().print(
        f"{path}: epsilon {downwards(epsilon)} at delta {upwards(project.terms.delta)} for {clients} clients"
        + ("" if units is None else f", which is {units[0]} units ({project.to_dict()['unit']})")
    )
    for note in caveats(epsilon=epsilon, delta=project.terms.delta, units=clients):
        console().print(f"note: {note}")


@ledger.command
def show(path: Path, *, json: Flag = False) -> None:
    """Show a project's budget, its remaining units, and the releases of each run.

    The guarantee is the budget's epsilon, which holds even if runs were chosen by earlier results. The epsilon shown as
    spent would hold only if all releases had been fixed before the first result was seen.

    Example: dpfed ledger show project.jsonl

    Parameters
    ----------
    path
        The project's ledger.
    json
        One JSON document on standard output.
    """
    record = ProjectLedger.open(path).to_dict()
    if json:
        print_json(record)
        return
    for line in project_lines(record):
        console().print(line)


@ledger.command
def verify(
    path: Path,
    *,
    head: str | None = None,
    key: Path | None = None,
    json: Flag = False,
) -> None:
    """Check the hash chain of a run's or project's ledger, a head that it must contain, and its signature.

    The head is the hash of the last line. Publish or sign it: it proves later that no earlier line was changed or
    removed. Exit status 1 if a check fails.

    Example: dpfed ledger verify runs/fed-smp-randk-digits/ledger.jsonl --head 3f2a...

    Parameters
    ----------
    path
        The ledger.
    head
        A head recorded earlier: 64 hexadecimal digits.
    key
        The public key (`dpfed ledger keygen`) of the signer of PATH.sig.
    json
        One JSON document on standard output.
    """
    _check_head(head)
    read = _checked_ledger(path)
    follow = None if head is None else backups.entries_after(read, head)
    signed = None if key is None else ledger_signature.verified_head(read, key)
    if json:
        print_json(
            {
                "ledger": str(path),
                "kind": "project" if "project" in read.header.about else "run",
                "unit": read.header.unit,
                "clients": read.header.clients,
                "population": read.header.population,
                "entries": len(read.entries),
                "head": read.head,
                "entries_after_head": follow,
                "signature": None if signed is None else signed.to_dict(read),
            }
        )
        return
    out = console()
    out.print(f"{path}: {len(read.entries)} entries, unbroken")
    out.print(f"head {read.head}")
    if follow is not None:
        out.print(f"the head given is in the chain; entries after it: {follow}")
    if signed is not None:
        out.print(
            f"signed by the key of {key} after {signed.entries} entries; entries since: {signed.entries_since(read)}"
        )


@ledger.command
def backup(path: Path, to: Path) -> None:
    """Copy a ledger, its head and its population key to a folder; the copy is consistent even during a run.

    Example: dpfed ledger backup project.jsonl /backup/dpfed

    Parameters
    ----------
    path
        The ledger of a project or of a run.
    to
        The target folder. An earlier copy of the same ledger there is replaced.
    """
    made = backups.backup(path, to)
    console().print(f"{made.path}: {made.entries} entries, head {made.head}")


@ledger.command
def restore(copy: Path, path: Path, *, head: str | None = None, nothing_since: Flag = False) -> None:
    """Restore a copy of a ledger, unless the ledger would then lack a release.

    A copy older than the ledger or the head at PATH is refused. If both files are gone, give the last head that was
    published or signed: it proves that the copy is the newest one.

    Example: dpfed ledger restore /backup/dpfed/project.jsonl project.jsonl --head 3f2a...

    Parameters
    ----------
    copy
        The ledger in the folder of `dpfed ledger backup`.
    path
        Path of the ledger that is restored.
    head
        The last head: 64 hexadecimal digits.
    nothing_since
        Declare that nothing was released after the copy was made. Epsilon omits any release that the copy lacks.
    """
    _check_head(head)
    made = backups.restore(copy, path, last_head=head, nothing_since=nothing_since)
    console().print(f"{made.path}: restored, {made.entries} entries, head {made.head}")


@ledger.command
def sign(path: Path, *, key: Path) -> None:
    """Sign the head of a ledger and write the signature to PATH.sig.

    Example: dpfed ledger sign project.jsonl --key operator.pem

    Parameters
    ----------
    path
        The ledger.
    key
        A private Ed25519 key (`dpfed ledger keygen`).
    """
    read = _checked_ledger(path)
    target = ledger_signature.sign(read, key)
    console().print(f"{target}: signature of head {read.head} after {len(read.entries)} entries")


@ledger.command
def keygen(path: Path) -> None:
    """Create an Ed25519 key pair for signatures: the private key in PATH, the public key in PATH.pub.

    Example: dpfed ledger keygen operator.pem

    Parameters
    ----------
    path
        Path of the new private key; no file of this name may exist.
    """
    public = ledger_signature.generate_key_pair(path)
    console().print(f"{path}: private key, keep it; {public}: public key, give it to anyone who verifies")


def _check_head(head: str | None) -> None:
    if head is not None and not backups.is_head(head):
        raise ConfigError(
            f"--head {head}: must be 64 hexadecimal digits in lower case, as `dpfed ledger verify` prints."
        )


def _checked_ledger(path: Path) -> Ledger:
    """Return the ledger. LedgerError unless its last entry has the hash in the head file."""
    kept = backups.read_head(regular_file.one_path(path))
    read = Ledger.read(path)
    backups.check_head(read, kept, needed=bool(read.header.about.get("head_kept")))
    return read


def _project_terms(plans: list[str], clients: int) -> dict[str, Any]:
    """Return the unit and the declared runs of a project with these plans; empty without plans."""
    if not plans:
        return {}
    from dpfed.cli.run_on_terminal import read_configuration
    from dpfed.methods.privacy_target import PrivacyTarget
    from dpfed.runs.experiment import build

    runs = []
    for given in plans:
        checked, _ = read_configuration(given, [])
        privacy_target = build(checked).privacy_target
        if not isinstance(privacy_target, PrivacyTarget) or checked.federation.clients != clients:
            raise ConfigError(
                f"--plan {given}: must have [privacy] and {clients} clients (--clients); it has "
                f"{checked.federation.clients}. Give a plan on these clients."
            )
        runs.append(privacy_target.mechanism_of_run(checked.federation.rounds).parts)
    first, *others = runs
    declared = Composed(parts=tuple(part for run in others for part in run)).parts if others else ()
    return {"unit": unit_of(first[0][0]) or without_streams(first), "declared": declared}


def _population_and_key(folder: Path) -> tuple[str, bytes]:
    """Return the fingerprint of a run's clients and the key of this fingerprint."""
    fingerprint = Ledger.so_far(folder / "ledger.jsonl").header.population
    key = regular_file.read_key(folder / "population.key")
    if fingerprint is None or key is None:
        raise ConfigError(
            f"--population {folder}: its ledger.jsonl names no population, or population.key is not there. Name the "
            "folder of a run with [privacy] that version 0.2 or later made."
        )
    return fingerprint, key
