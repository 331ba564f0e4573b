"""`dpfed budget`: epsilon, noise multiplier or rounds before training. Never loads torch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from accounting import budget as budgets
from accounting import coin_budget
from accounting.accountant import Accountant
from accounting.adjacency import Adjacency
from accounting.budget import Budget, NoisePlan, Plan
from accounting.coin_budget import CoinPlan
from accounting.fixed_point import NoiseLaw
from accounting.integer_plan import IntegerPlan, Placement
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
    mechanism: Literal[
        "gaussian",
        "distributed-gaussian",
        "discrete-gaussian",
        "skellam",
        "bernoulli-channel",
        "bernoulli-aggregate",
    ] = "gaussian",
    dropout: float = 0.0,
    dimension: int | None = None,
    scale: float | None = None,
    rotate: bool | None = None,
    placement: Literal["clients", "server"] | None = None,
    edge: float | None = None,
    clip_norm: float | None = None,
    l2_sensitivity: float | None = None,
    linf_clip: float | None = None,
    noise_std: float = 0.0,
    slots: int | None = None,
    compare: Annotated[bool, Parameter(negative="")] = False,
    plot: Path | None = None,
    over: Annotated[tuple[str, ...], Parameter(negative="")] = (),
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
        best is the smallest valid upper bound; exact: few coins seen one by one; the fed-smp ones are the paper's
        readings (fixed sampling).
    conversion
        From Renyi to (epsilon, delta); for rdp and fed-smp-lemma.
    mechanism
        Gaussian noise added by the server, or in shares by the clients; integer noise for secure sums of rounded
        uploads (discrete Gaussian, Skellam); or coins (masks, signs): sums of exactly K, or uploads seen one by one.
    dropout
        Fraction of noise shares that may be missing. distributed-gaussian: the noise shrinks by them. Integer noise:
        the shares are larger, so that it does not.
    dimension
        Integer noise and coins: number of coordinates, d.
    scale
        Integer noise: steps per clip norm. Default: the least with which rounding costs 1%.
    rotate
        Integer noise: a random Hadamard rotation before rounding (the default) saves bits and fills d up to a power of
        two.
    placement
        Integer noise: in shares by the clients (the default), or added by the server.
    edge
        Coins: c, all probabilities lie in [c, 1-c].
    clip_norm
        Coins: how far a client's probabilities may lie from the public ones, in L2. The sensitivity follows.
    l2_sensitivity
        Coins: the L2 sensitivity itself, instead of clip_norm.
    linf_clip
        Coins: how far one coordinate may lie from the public one; beside clip_norm it lowers epsilon a lot.
    noise_std
        Coins: Gaussian noise on the probabilities before they are clipped.
    slots
        Under poisson, with coins: the fixed number of coins that the server pads to; with noise shares: the fixed
        number of uploads, some of noise alone.
    compare
        One row for every accountant and reading, each with the sampler it belongs to.
    plot
        Write epsilon over rounds, one line for each accountant, to this PNG; with --over, a heat map.
    over
        Twice, with --plot: the axes of a heat map of epsilon, as in --over noise-multiplier=.5:4 --over rounds=10:1000;
        also cohort=LOW:HIGH. Give what is no axis of --noise-multiplier and --rounds. --accountant rdp is the quickest.
    json
        One JSON document on standard output.
    """
    integer = {"scale": scale, "rotate": rotate, "placement": placement}
    coin = {"edge": edge, "clip_norm": clip_norm, "l2_sensitivity": l2_sensitivity, "linf_clip": linf_clip}
    coin["noise_std"] = noise_std or None
    if mechanism in ("bernoulli-channel", "bernoulli-aggregate"):
        _refuse_for_coins(noise_multiplier=noise_multiplier, accountant=accountant, compare=compare, dropout=dropout)
        _refuse(f"--mechanism {mechanism}: for integer noise", **integer)
        _refuse(f"--mechanism {mechanism}: for noise", over=over or None)
        coins = _coin_plan(
            clients, cohort, sampling, adjacency, delta, mechanism, dimension, edge, clip_norm, l2_sensitivity,
            linf_clip, noise_std, slots,
        )  # fmt: skip
        coin_answer = _solve_coins(coins, rounds, epsilon, accountant)
        _report(coins, coin_answer, [coin_answer], plot=plot, json=json, compare=False)
        return
    plan: NoisePlan
    if mechanism in ("discrete-gaussian", "skellam"):
        _refuse(
            f"--mechanism {mechanism}: for coins or, --compare, for Gaussian noise",
            **coin,
            compare=compare or None,
        )
        plan = _integer_plan(
            clients, cohort, sampling, adjacency, delta, mechanism, dropout, dimension, scale, rotate, placement, slots
        )
    else:
        _refuse(
            f"--mechanism {mechanism}: for coins (bernoulli-channel, bernoulli-aggregate) or integer noise "
            "(discrete-gaussian, skellam). With Gaussian noise the sensitivity follows from the adjacency, in units of "
            "the clip norm",
            **coin, **integer, dimension=dimension, slots=slots,
        )  # fmt: skip
        plan = Plan(
            clients=clients,
            cohort=clients if sampling == "all" else cohort,
            sampling=sampling,
            adjacency=Adjacency(adjacency) if adjacency else None,
            delta=delta,
            mechanism=mechanism,
            dropout=dropout,
        )
    if over:
        given = {"noise-multiplier": noise_multiplier, "rounds": rounds}
        _refuse("--over: the map shows every epsilon", epsilon=epsilon, compare=compare or None)
        _map(plan, over, given, accountant, conversion, plot, json=json)
        return
    answer = _solve(plan, rounds, noise_multiplier, epsilon, accountant, conversion)
    rows = [answer]
    if compare and isinstance(plan, Plan):
        rows = budgets.compare(plan, noise_multiplier=float(answer.noise_multiplier or 0), rounds=answer.rounds)
    _report(plan, answer, rows, plot=plot, json=json, compare=compare)


def _report(
    plan: NoisePlan | CoinPlan, answer: Budget, rows: list[Budget], *, plot: Path | None, json: bool, compare: bool
) -> None:
    if plot is not None:
        from dpfed.plots.budget import plot_budget

        plot_budget(plan, answer, plot)
    if json:
        results = [row.to_dict() for row in rows]
        print_json({"results": results} if compare else results[0])
    else:
        _show(plan, answer, rows if compare else [], plot)


def _map(
    plan: NoisePlan,
    over: tuple[str, ...],
    given: dict[str, float | None],
    accountant: Accountant,
    conversion: Conversion,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """The heat map of two axes; `given` is what may have been given besides."""
    from dpfed.plots.budget_map import Axis, budget_map, plot_budget_map

    axes = [Axis.of(text) for text in over]
    names = {axis.name for axis in axes}
    if len(axes) != 2 or len(names) != 2:
        raise ConfigError("--over: give it exactly twice, for two different axes.")
    if plot is None and not json:
        raise ConfigError("--over needs --plot FILE.png (or --json).")
    for name, value in given.items():
        if (value is None) != (name in names):
            what = "is an axis, remove it" if name in names else "is no axis, give it"
            raise ConfigError(f"--{name} with --over {', '.join(sorted(names))}: it {what}.")
    fixed = {name: value for name, value in given.items() if value is not None}
    found = budget_map(plan, (axes[0], axes[1]), fixed=fixed, accountant=accountant, conversion=conversion)
    if plot is not None:
        plot_budget_map(found, plot)
    if json:
        print_json(found.to_dict())
        return
    low, high = (number(float(end)) for end in (found.epsilon.min(), found.epsilon.max()))
    console().print(f"epsilon from {low} to {high} over {' x '.join(axis.name for axis in axes)}")
    console().print(f"for {_sampler_words(plan)}; neighbours: {plan.adjacency}, unit client; delta {plan.delta:.6g}")
    console().print(f"plot: {plot}")


def _refuse_for_coins(**given: object) -> None:
    if given["accountant"] not in ("best", "rdp", "exact"):
        raise ConfigError(f"--accountant {given['accountant']} with coins: use best, rdp, or exact (few coordinates).")
    for name in ("noise_multiplier", "compare", "dropout"):
        if given[name]:
            raise ConfigError(f"--{name.replace('_', '-')} with coins: it is for Gaussian noise. Remove it.")


def _refuse(why: str, **given: object) -> None:
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(f"{', '.join(named)} with {why}. Remove it.")


def _integer_plan(
    clients: int,
    cohort: int,
    sampling: str,
    adjacency: str | None,
    delta: float | None,
    mechanism: NoiseLaw,
    dropout: float,
    dimension: int | None,
    scale: float | None,
    rotate: bool | None,
    placement: Placement | None,
    slots: int | None,
) -> IntegerPlan:
    if dimension is None:
        raise ConfigError(f"--mechanism {mechanism} needs --dimension: rounding costs depend on it.")
    return IntegerPlan(
        clients=clients,
        cohort=clients if sampling == "all" else cohort,
        dimension=dimension,
        mechanism=mechanism,
        sampling=sampling,
        adjacency=Adjacency(adjacency) if adjacency else None,
        delta=delta,
        scale=scale,
        rotate=rotate is not False,
        placement=placement or "clients",
        dropout=dropout,
        slots=slots,
    )


def _coin_plan(
    clients: int,
    cohort: int,
    sampling: str,
    adjacency: str | None,
    delta: float | None,
    mechanism: str,
    dimension: int | None,
    edge: float | None,
    clip_norm: float | None,
    l2_sensitivity: float | None,
    linf_clip: float | None,
    noise_std: float,
    slots: int | None,
) -> CoinPlan:
    if dimension is None or edge is None:
        raise ConfigError(f"--mechanism {mechanism} needs --dimension and --edge.")
    if clip_norm is not None and l2_sensitivity is not None:
        raise ConfigError("--clip-norm and --l2-sensitivity: give one; the sensitivity follows from the clip norm.")
    chosen = Adjacency(adjacency) if adjacency else Adjacency.REPLACE_ONE if sampling == "fixed" else Adjacency.ZERO_OUT
    if l2_sensitivity is not None:
        clip_norm = l2_sensitivity / chosen.sensitivity_in_clips
    return CoinPlan(
        clients=clients,
        cohort=clients if sampling == "all" else cohort,
        dimension=dimension,
        edge=edge,
        mechanism=mechanism,
        sampling=sampling,
        adjacency=chosen,
        delta=delta,
        clip_norm=clip_norm,
        linf_clip=linf_clip,
        noise_std=noise_std,
        slots=slots,
    )


def _solve_coins(plan: CoinPlan, rounds: int | None, epsilon: float | None, accountant: Accountant) -> Budget:
    match (rounds, epsilon):
        case (int(), None):
            return coin_budget.epsilon(plan, rounds=rounds, accountant=accountant)
        case (None, float()):
            return coin_budget.rounds(plan, epsilon_target=epsilon, accountant=accountant)
    raise ConfigError("coins: give --rounds to get epsilon, or --epsilon to get the rounds; exactly one of them.")


def _solve(
    plan: NoisePlan,
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


def _show(plan: NoisePlan | CoinPlan, answer: Budget, rows: list[Budget], plot: Path | None) -> None:
    out = console()
    out.print(
        f"[bold]epsilon {number(answer.epsilon)}[/]  {_strength(answer)}  "
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


def _strength(answer: Budget) -> str:
    if answer.noise_multiplier is not None:
        return f"noise multiplier {answer.noise_multiplier:.6g}"
    record = answer.to_dict()
    return f"{record['mechanism']} of d = {record['dimension']:,} coins in [{record['edge']:g}, {1 - record['edge']:g}]"


def _sampler_words(plan: NoisePlan | CoinPlan) -> str:
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
