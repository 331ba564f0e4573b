"""`dpfed budget`: epsilon, noise multiplier or rounds before training. Never loads torch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from accounting import budget as budgets
from accounting.accountant import Accountant
from accounting.budget import Budget, Plan
from accounting.mechanisms import Adjacency
from accounting.rdp import Conversion
from dpfed.cli.output import console, number, print_json
from dpfed.errors import ConfigError


def budget(
    *,
    clients: int,
    cohort: int,
    rounds: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    sampling: Literal["poisson", "fixed", "all"] = "poisson",
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    mechanism: Literal["gaussian", "distributed-gaussian"] = "gaussian",
    dropout: float = 0.0,
    compare: Annotated[bool, Parameter(negative="")] = False,
    plot: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Epsilon, noise multiplier or rounds: give two of the three, get the third.

    Example: dpfed budget --clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4

    Parameters
    ----------
    clients
        Clients in the population, n.
    cohort
        Clients a round: the expected number under poisson, the exact one under fixed.
    rounds
        Training rounds, T.
    noise_multiplier
        Noise standard deviation on the sum over the clip norm C.
    epsilon
        The target, if the noise multiplier or the rounds are wanted.
    delta
        Default: clients^-1.1.
    sampling
        How a cohort is drawn: each client by its own coin, a fixed number without replacement, everybody.
    adjacency
        Default: add-remove for poisson and all, replace-one for fixed. The sensitivity follows from it.
    accountant
        best is the smallest valid upper bound; the fed-smp ones are the paper's readings (fixed sampling).
    conversion
        From Renyi to (epsilon, delta); for rdp and fed-smp-lemma.
    mechanism
        Noise added by the server, or in shares by the clients.
    dropout
        Fraction of noise shares that may be missing (distributed-gaussian).
    compare
        One row for every accountant and reading, each with the sampler it belongs to.
    plot
        Write epsilon over rounds, one line for each accountant, to this PNG.
    json
        One JSON document on standard output.
    """
    plan = Plan(
        clients=clients,
        cohort=clients if sampling == "all" else cohort,
        sampling=sampling,
        adjacency=Adjacency(adjacency) if adjacency else None,
        delta=delta,
        mechanism=mechanism,
        dropout=dropout,
    )
    answer = _solve(plan, rounds, noise_multiplier, epsilon, accountant, conversion)
    rows = (
        budgets.compare(plan, noise_multiplier=answer.noise_multiplier, rounds=answer.rounds) if compare else [answer]
    )
    if plot is not None:
        from dpfed.plots.budget import plot_budget

        plot_budget(plan, answer, plot)
    if json:
        results = [row.to_dict() for row in rows]
        print_json({"results": results} if compare else results[0])
    else:
        _show(plan, answer, rows if compare else [], plot)


def _solve(
    plan: Plan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
) -> Budget:
    how = {"accountant": accountant, "conversion": conversion}
    match (rounds, noise_multiplier, epsilon):
        case (int(), float(), None):
            return budgets.epsilon(plan, noise_multiplier=noise_multiplier, rounds=rounds, **how)  # type: ignore[arg-type]
        case (int(), None, float()):
            return budgets.noise_multiplier(plan, epsilon_target=epsilon, rounds=rounds, **how)  # type: ignore[arg-type]
        case (None, float(), float()):
            return budgets.rounds(plan, epsilon_target=epsilon, noise_multiplier=noise_multiplier, **how)  # type: ignore[arg-type]
    given = {"--rounds": rounds, "--noise-multiplier": noise_multiplier, "--epsilon": epsilon}
    names = ", ".join(name for name, value in given.items() if value is not None) or "none of them"
    raise ConfigError(
        f"given {names}: give exactly two of --rounds, --noise-multiplier and --epsilon; the third is what you get."
    )


def _show(plan: Plan, answer: Budget, rows: list[Budget], plot: Path | None) -> None:
    out = console()
    out.print(
        f"[bold]epsilon {number(answer.epsilon)}[/]  noise multiplier {answer.noise_multiplier:.6g}  "
        f"rounds {answer.rounds}  delta {plan.delta:.6g}" + ("" if answer.valid else "  [bold red]NOT A GUARANTEE[/]")
    )
    out.print(
        f"for {_sampler_words(plan)}; neighbours: {plan.adjacency}, unit client, "
        f"sensitivity {answer.to_dict()['sensitivity_in_clips']:g} C; accountant: {answer.accountant}"
        + (f", {answer.conversion} conversion at order {answer.order:g}" if answer.order else "")
    )
    if answer.lower_bound is not None:
        out.print(f"no account of the same run can state less than {number(answer.lower_bound)}")
    for note in answer.notes:
        out.print(f"note: {note}")
    if rows:
        out.print(_table(rows))
        out.print(
            "Only the rows of the sampler and adjacency that really run are about your run: an epsilon of Poisson "
            "sampling\nsays nothing about fixed-size cohorts. Rows marked 'no' are readings found in a paper, not "
            "guarantees."
        )
    if plot is not None:
        out.print(f"plot: {plot}")


def _sampler_words(plan: Plan) -> str:
    if plan.sampling == "poisson":
        return (
            f"Poisson sampling, {plan.cohort} of {plan.clients} clients expected (q = {plan.sampler.probability:.6g})"
        )
    if plan.sampling == "fixed":
        return f"fixed-size sampling, exactly {plan.cohort} of {plan.clients} clients without replacement"
    return f"all {plan.clients} clients in every round"


def _table(rows: list[Budget]) -> Table:
    table = Table(title=f"noise multiplier {rows[0].noise_multiplier:.6g}, {rows[0].rounds} rounds")
    for heading in ("sampler", "neighbours", "sensitivity", "accountant", "conversion"):
        table.add_column(heading)
    table.add_column("epsilon", justify="right")
    table.add_column("at least", justify="right")
    table.add_column("guarantee")
    table.add_column("why not", overflow="fold")
    previous = None
    for row in rows:
        record = row.to_dict()
        if previous not in (None, row.plan.sampling):
            table.add_section()
        previous = row.plan.sampling
        table.add_row(
            row.plan.sampling,
            record["adjacency"],
            f"{record['sensitivity_in_clips']:g} C",
            row.accountant,
            row.conversion or "–",
            number(row.epsilon),
            number(row.lower_bound),
            "yes" if row.valid else "no",
            "; ".join(note.removeprefix("not a guarantee: ") for note in row.notes),
        )
    return table
