"""`dpfed ledger`: one privacy budget that several runs on the same clients draw from; ledgers checked and signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from accounting import require
from accounting.caveats import caveats, default_delta
from accounting.ledger import Ledger, backups, kept_head, population_key
from accounting.ledger.project import ProjectLedger
from accounting.ledger.terms import RESERVE, unit_of, without_streams
from accounting.mechanisms import Composed
from accounting.rounding import downwards, upwards
from dpfed.cli import ledger_signature
from dpfed.cli.output import Flag, console, print_json
from dpfed.cli.project_budget import project_lines
from dpfed.errors import ConfigError
from dpfed.planner.whole import Whole

ledger = App(
    name="ledger",
    help="One privacy budget for several runs on the same clients, also at the same time; checks and signatures.",
)


@ledger.command
def create(
    path: Path,
    *,
    clients: Whole,
    epsilon: float,
    delta: float | None = None,
    population: Path | None = None,
    plan: Annotated[list[str] | None, Parameter(name="--plan", negative="")] = None,
    reserve: float = RESERVE,
) -> None:
    """Create a project ledger; runs draw from it with `dpfed run ... --ledger PATH`.

    The budget is a number of units, each one round of the first plan. Runs with rounds of that kind may be stopped,
    resumed, repeated and chosen by the results of others. A run with other rounds pays all its units before it begins.

    Example: dpfed ledger create project.jsonl --clients 650 --epsilon 3

    Parameters
    ----------
    path
        The file, which must not be there yet.
    clients
        Number of clients, the same ones in all runs.
    epsilon
        Epsilon that all runs together may spend on any one client.
    delta
        Delta of the budget; default: the smaller of clients^-1.1 and 1e-4.
    population
        The folder of a run on the clients that all runs must have; default: the first run that is charged.
    plan
        A TOML file or preset whose round is the unit; default: the first release that is charged. Given again: runs
        that are declared before any result, charged at their joint price with the units.
    reserve
        Share of delta for runs of other kinds; 0: none, and up to 1% more units.
    """
    clients = require.count(clients=clients)
    fingerprint, key = (None, None) if population is None else _population_of(population)
    project = ProjectLedger.create(
        path,
        clients=clients,
        epsilon=epsilon,
        delta=default_delta(clients) if delta is None else delta,
        population=fingerprint,
        key=key,
        reserve=reserve,
        **_terms_of(plan or [], clients),
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
    """Show a project's budget, the units that are left, and the releases of each run.

    The statement is the budget: it holds even if runs were chosen by their results. The spent epsilon is that of all
    releases, had they been fixed before the first result was seen.

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
    """Check the chain of a run's or project's ledger, that it contains a head, and its signature.

    The head is the hash of the last line. A head that was published elsewhere, or signed, shows later that no earlier
    line was changed or cut off. Exit status 1 if a check fails.

    Example: dpfed ledger verify runs/fed-smp-randk-digits/ledger.jsonl --head 3f2a...

    Parameters
    ----------
    path
        The ledger.
    head
        A head that was seen before: 64 hexadecimal digits.
    key
        The public key (`dpfed ledger keygen`) of the signer of PATH.sig.
    json
        One JSON document on standard output.
    """
    if head is not None and not kept_head.is_head(head):
        raise ConfigError(
            f"--head {head}: must be 64 hexadecimal digits in lower case, as `dpfed ledger verify` prints."
        )
    read = _checked(path)
    follow = None if head is None else kept_head.entries_after(read, head)
    signed = None if key is None else ledger_signature.verified(read, key)
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
        out.print(f"signed by the key of {key} after {signed.entries} entries; entries since: {signed.follow(read)}")


@ledger.command
def backup(path: Path, to: Path) -> None:
    """Copy a ledger, its head and its population's key to a folder, consistently even while a run continues.

    Example: dpfed ledger backup project.jsonl /backup/dpfed

    Parameters
    ----------
    path
        The ledger of a project or of a run.
    to
        The folder. An earlier copy of the same ledger in it is replaced.
    """
    made = backups.backup(path, to)
    console().print(f"{made.path}: {made.entries} entries, head {made.head}")


@ledger.command
def restore(copy: Path, path: Path, *, head: str | None = None, nothing_since: Flag = False) -> None:
    """Restore a copy of a ledger, unless a release could be forgotten by that.

    A copy that is older than the ledger or the head at PATH is refused. If both are gone, give the last head that was
    published or signed: it shows that the copy is the newest one.

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
        Declare that nothing was released after the copy was made; a release missing from the copy is in no epsilon.
    """
    if head is not None and not kept_head.is_head(head):
        raise ConfigError(
            f"--head {head}: must be 64 hexadecimal digits in lower case, as `dpfed ledger verify` prints."
        )
    made = backups.restore(copy, path, last_head=head, nothing_since=nothing_since)
    console().print(f"{made.path}: restored, {made.entries} entries, head {made.head}")


@ledger.command
def sign(path: Path, *, key: Path) -> None:
    """Sign the head of a ledger, into PATH.sig.

    Example: dpfed ledger sign project.jsonl --key operator.pem

    Parameters
    ----------
    path
        The ledger.
    key
        A private Ed25519 key (`dpfed ledger keygen`).
    """
    read = _checked(path)
    target = ledger_signature.sign(read, key)
    console().print(f"{target}: signature of head {read.head} after {len(read.entries)} entries")


@ledger.command
def keygen(path: Path) -> None:
    """Create a new Ed25519 key for signatures: the private one in PATH, the public one in PATH.pub.

    Example: dpfed ledger keygen operator.pem

    Parameters
    ----------
    path
        The file of the private key, which must not be there yet.
    """
    public = ledger_signature.generate(path)
    console().print(f"{path}: private key, keep it; {public}: public key, give it to those who verify")


def _checked(path: Path) -> Ledger:
    """Return the ledger; LedgerError unless its last entry is the one that its head file names."""
    kept = kept_head.read(path)
    read = Ledger.read(path)
    kept_head.check(read, kept, needed=bool(read.header.about.get("head_kept")))
    return read


def _terms_of(plans: list[str], clients: int) -> dict[str, Any]:
    """Return the unit and the declared runs of a project, from configurations."""
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
                f"--plan {given}: must have [privacy] and {clients} clients, as --clients says; it has "
                f"{checked.federation.clients}. Give a plan on these clients."
            )
        runs.append(privacy_target.mechanism_of_run(checked.federation.rounds).parts)
    first, *others = runs
    declared = Composed(parts=tuple(part for run in others for part in run)).parts if others else ()
    return {"unit": unit_of(first[0][0]) or without_streams(first), "declared": declared}


def _population_of(folder: Path) -> tuple[str, bytes]:
    """Return the fingerprint of a run's clients, and its key."""
    fingerprint = Ledger.so_far(folder / "ledger.jsonl").header.population
    key = population_key.read(folder / "population.key")
    if fingerprint is None or key is None:
        raise ConfigError(
            f"--population {folder}: its ledger.jsonl names no population, or population.key is not there. Name the "
            "folder of a run with [privacy] that version 0.2 or later made."
        )
    return fingerprint, key
