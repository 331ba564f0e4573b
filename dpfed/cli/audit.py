"""`dpfed audit`: test methods, functions and runs against the privacy claimed for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.table import Table

from accounting.rounding import downwards, upwards
from dpfed.cli.audit_accountant import accountant
from dpfed.cli.audit_flower import flower
from dpfed.cli.audit_replay import replay
from dpfed.cli.audit_run import run
from dpfed.cli.audit_scheme import scheme
from dpfed.cli.output import Flag, Load, Settings, console, print_json, training_extra
from dpfed.config.own_code import load_files
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import all_methods
from dpfed.planner.whole_numbers import MaybeWholeNumber

if TYPE_CHECKING:
    from dpfed.audit.round.round_audit import UploadAudit

audit = App(name="audit", help="Test privacy claims against the code that runs. Exit status 1 if an audit fails.")
audit.command(run)
audit.command(replay)
audit.command(scheme)
audit.command(accountant)
audit.command(flower)


@audit.command
def upload(
    method: str | None = None,
    *,
    noise_multiplier: float | None = None,
    trials: MaybeWholeNumber = None,
    confidence: float | None = None,
    seed: MaybeWholeNumber = None,
    settings: Settings = None,
    out: Path | None = None,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    load: Load = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str | None = None,
    clip_norm: float | None = None,
    clients: MaybeWholeNumber = None,
    dimension: MaybeWholeNumber = None,
    time_limit: float | None = None,
    json: Flag = False,
) -> int:
    """Test one round on neighbouring datasets: no attacker may distinguish them better than the claim allows.

    The round is run by a method of this package or by a function f(updates, seed) in your Python file (docs/audit.md).

    A pass names the faults that this number of trials would have found, and with what probability. If the trials could
    not have found noise too small by a fifth, the verdict is "inconclusive". Exit status 1 for "fail" only; 3 if the
    audit stopped before its end (a time limit, a process that died).

    Example: dpfed audit upload fed-smp-randk --trials 3000

    Parameters
    ----------
    method
        A private method (`dpfed methods`) in a small setting: d = 610, four clients, delta = 1e-5. All four take part
        in each trial; with --set federation.sampling=fixed (or poisson), two are drawn per trial.
    noise_multiplier
        Gaussian noise over the clip norm; default 1. The noise of Bernoulli samples is set by --set privacy.epsilon=...
    trials
        Total number of rounds over all pairs of neighbouring datasets; default 6000, or the value in @claim. If every
        upload is visible, trials are single uploads. Pairs that would get fewer than two trials are left out. For a
        lossy encoding, up to 200 uncounted pilot trials on each dataset set the threshold of its scores.
    confidence
        Confidence of the test of the claim and of the lower bounds; default 0.95, or the value in @claim.
    seed
        Seed of all draws; default 0, or the value in @claim.
    settings
        table.key=value on top of the method's private preset; may be given again.
    out
        A folder for report.html, audit.png and audit.json.
    every
        Audit every private method, and print one line for each.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again.
    epsilon
        Epsilon claimed for a function of your own, with --delta; or --noise-multiplier, if it adds Gaussian noise.
    delta
        Delta at which epsilon is claimed; default 1e-5.
    adjacency
        Adjacency of the claim: add-remove, zero-out or replace-one; default: the value in @claim, or
        add-remove.
    clip_norm
        Clip norm that the function enforces on a client's update; default 1.
    clients
        Number of updates passed to the function; default 4.
    dimension
        Dimension of an update; default 32.
    time_limit
        Time limit in seconds for all calls of the function, which runs in a separate process; default 600.
    json
        One JSON document on standard output.
    """
    if every == (method is not None):
        raise ConfigError("name one method, or give --all.")
    with training_extra("dpfed audit"):
        from dpfed.audit.one_call import loaded_function, names_of_loaded_functions
        from dpfed.audit.round.method_setting import audit_upload, audited_methods
        from dpfed.cli.audit_function import audit_loaded_function, show_audit
        from dpfed.report.audit import write_audit
    if every and noise_multiplier is not None:
        raise ConfigError("--noise-multiplier with --all: some methods have no Gaussian noise. Audit one method.")
    load_files(load or [])
    function = loaded_function(method) if method is not None else None
    given: dict[str, object] = {
        "clip_norm": clip_norm,
        "clients": clients,
        "dimension": dimension,
        "time_limit": time_limit,
    }
    if function is not None:
        return audit_loaded_function(
            function,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            adjacency=adjacency,
            out=out,
            json=json,
            setting=given | {"trials": trials, "confidence": confidence, "seed": seed},
        )
    given |= {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    if wrong := [f"--{key.replace('_', '-')}" for key, value in given.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(wrong)}: only for functions of your own (--load FILE.py NAME). {method or '--all'} is a "
            "method: use --set table.key=value."
        )
    if load and method is not None and method not in all_methods() and names_of_loaded_functions():
        raise ConfigError(
            f"method={method!r}: is neither a private method (`dpfed methods`) nor in the files of --load, which have "
            f"{', '.join(names_of_loaded_functions())}."
        )
    log, audits, page = console(to_stderr=True), [], None
    for name in audited_methods() if method is None else [method]:
        with log.status(f"{name}: starting") as status:
            done = audit_upload(
                name,
                settings=settings or [],
                noise_multiplier=noise_multiplier,
                trials=6_000 if trials is None else trials,
                confidence=0.95 if confidence is None else confidence,
                seed=seed or 0,
                progress=status.update,
            )
        audits.append(done)
        if every:
            log.print(f"{name}: {done.verdict_in_full}, {done.seconds:.0f} s")
        if out is not None:
            page = write_audit(done, out / name if every else out)
    if json:
        print_json({"results": [done.to_dict() for done in audits]} if every else audits[0].to_dict())
    elif every:
        _show_audits(audits)
    else:
        show_audit(audits[0], page)
    return 1 if any(done.verdict == "fail" for done in audits) else 0


def _show_audits(audits: list[UploadAudit]) -> None:
    table = Table()
    for heading in ("method", "seen", "mechanism"):
        table.add_column(heading, no_wrap=True)
    headings = (
        "claimed epsilon",
        "at least",
        "if Gaussian",
        "gap",
        "trials",
        "finds noise short by",
        "checks",
        "seconds",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for done in audits:
        table.add_row(
            done.method,
            done.claim.visible_output,
            str(done.claim.mechanism.to_dict()["kind"]),
            upwards(done.claim.epsilon),
            downwards(done.lower_bound),
            downwards(done.lower_bound_if_gaussian),
            f"{done.score_gap:.4f}",
            f"{done.trials:,}",
            "–" if done.power.noise_short is None else f"{upwards(100 * done.power.noise_short, digits=1)}%",
            f"{sum(bool(check.passed) for check in done.checks)}/{len(done.checks)}",
            f"{done.seconds:.0f}",
            done.verdict_in_full,
        )
    console().print(table)
