"""`dpfed budget`: epsilon, noise multiplier or rounds before training. Never loads torch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from accounting import budget as budgets
from accounting.budget import Budget, Plan, advice
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from dpfed.cli.budget_tables import pairs, show, show_group, show_pairs
from dpfed.cli.output import console, print_json
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import Mechanism, PlanOptions, Sampling, refuse, solve

_PAPERS = "fed-smp"
"""What accounts after formulas of a paper begin with; some of them guarantee nothing."""


def budget(
    *,
    clients: int | None = None,
    cohort: int | None = None,
    rounds: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    sampling: Sampling = "poisson",
    noise: Literal["independent", "banded", "blt"] = "independent",
    bands: int | None = None,
    buffers: int | None = None,
    factorisation: Literal["optimised", "square-root"] = "optimised",
    server_momentum: float = 0.0,
    server_decay: float = 1.0,
    participations: int | None = None,
    separation: int | None = None,
    noise_schedule: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True)] = None,
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    mechanism: Mechanism = "gaussian",
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
    clip_metric: Literal["euclidean", "fisher"] | None = None,
    others: Literal["anywhere", "near-reference"] | None = None,
    slots: int | None = None,
    compare: Annotated[bool, Parameter(negative="")] = False,
    papers: Annotated[bool, Parameter(negative="")] = False,
    plot: Path | None = None,
    over: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    ledger: Path | None = None,
    second_opinion: Annotated[bool, Parameter(negative="")] = False,
    precision: Annotated[bool, Parameter(negative="")] = False,
    group: int = 1,
    table: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Epsilon, noise multiplier or rounds: give two of the three, get the third.

    Example: dpfed budget --clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4

    With --ledger, what a project has spent and left; with a plan besides, what of it still fits: the rounds if you give
    the noise multiplier, the noise multiplier if you give the rounds, epsilon of everything together if you give both.

    Parameters
    ----------
    clients
        Clients in the population, n. From the ledger, where there is one.
    cohort
        Clients a round: the expected number under poisson, the exact one under fixed.
    rounds
        Training rounds, T.
    noise_multiplier
        Noise standard deviation on the sum over the clip norm C.
    epsilon
        The target, if the noise multiplier or the rounds are wanted. From the ledger, where there is one.
    delta
        Default: the smaller of clients^-1.1 and 1e-4, or the ledger's.
    sampling
        How a cohort is drawn: each client independently, a fixed number without replacement, all; or a schedule over
        rounds, in which each client takes part once in an epoch of clients / cohort rounds (balls-and-bins), in so many
        of all rounds (allocation), at most once in so many rounds by its own coin (min-separation), or in a public
        order (cyclic). docs/participation.md says which is for whom.
    noise
        Independent over rounds, or correlated so that it cancels in the model: in so many --bands, or by so many
        --buffers (blt). With --separation alone clients take part in a public order; under poisson (banded, to plan
        with) in as many groups as bands.
    bands
        banded: rounds over which noise is taken back; 1 is independent noise.
    buffers
        blt: vectors that the noise needs, whatever the rounds. Default: 3.
    factorisation
        banded: the matrix of least error for these rounds, or the square root of prefix sums, in closed form.
    server_momentum
        banded, blt: of the server's step, for which the matrix is made.
    server_decay
        banded, blt: factor of the server's learning rate, a round.
    participations
        balls-and-bins, allocation: in how many rounds a client takes part. With it the cohort follows from the rounds.
        banded, blt: in how many at most.
    separation
        min-separation, banded, blt: a client that took part stays away from the next separation - 1 rounds.
    noise_schedule
        Gaussian noise: factors of the noise multiplier in equal parts of the run, such as 1.2 1.0 0.8. Each round is
        charged as it is.
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
    clip_metric
        Coins: fisher has both clips of the move over sqrt(theta (1 - theta)), theta the public probability.
    others
        Coins: near-reference relies on all clients of a sum to keep to linf_clip; anywhere (the default) to the edge.
    slots
        Under poisson, with coins: the fixed number of coins that the server pads to; with noise shares: the fixed
        number of uploads, some of noise alone.
    compare
        One row for every accountant and reading, each with the sampler it belongs to; and which schedule and noise give
        the model's sums the least error at this epsilon.
    papers
        With --compare: also what a paper's own formulas say of such a run, some of which guarantee nothing (--json has
        these rows always).
    plot
        Write epsilon over rounds, one line for each accountant, to this PNG, and what epsilon says in other words
        (profile, trade-off curve, groups, an observer's belief) to NAME-readings.png; with --over, a heat map.
    over
        Twice, with --plot: the axes of a heat map of epsilon, as in --over noise-multiplier=.5:4 --over rounds=10:1000;
        also cohort=LOW:HIGH. Give what is no axis of --noise-multiplier and --rounds. --accountant rdp is the quickest.
    ledger
        A project's ledger (`dpfed ledger create`): what it holds comes on top of the plan. Runs may go on meanwhile.
    second_opinion
        What dp-accounting, which shares no code with this, states for the same run, its known errors avoided.
    precision
        Fixed-size sampling with Gaussian noise: to 0.05% instead of 0.3%, in up to some minutes.
    group
        State epsilon at the same delta for this many clients who act as one, too.
    table
        The pairs (epsilon, delta) that hold together, both rounded upwards.
    json
        One JSON document on standard output.
    """
    if ledger is None and clients is None:
        raise ConfigError("--clients is missing: how many there are. (Or --ledger: what a project has left.)")
    if conversion != "improved" and accountant not in ("rdp", "fed-smp-lemma"):
        raise ConfigError(
            f"--conversion {conversion} with --accountant {accountant}: it is for rdp and fed-smp-lemma. Add one."
        )
    if papers and not compare:
        raise ConfigError("--papers without --compare: it adds rows to that table. Add --compare.")
    if json and group != 1:
        raise ConfigError("--group with --json: is printed for people only. Remove one.")
    options = PlanOptions(
        clients=clients or 0, cohort=cohort, sampling=sampling, participations=participations, separation=separation,
        noise_schedule=noise_schedule,
        noise=noise, bands=bands, buffers=buffers, factorisation=factorisation, server_momentum=server_momentum,
        server_decay=server_decay, rounds=rounds, adjacency=adjacency, delta=delta, mechanism=mechanism,
        dropout=dropout, dimension=dimension, scale=scale, rotate=rotate, placement=placement, edge=edge,
        clip_norm=clip_norm, l2_sensitivity=l2_sensitivity, linf_clip=linf_clip, noise_std=noise_std,
        clip_metric=clip_metric, others=others, slots=slots,
    )  # fmt: skip
    if ledger is not None:
        from dpfed.cli.project_budget import project_budget

        refuse("--ledger: the project's own counts", clients=clients, epsilon=epsilon, delta=delta)
        refuse("--ledger", compare=compare or None, over=over or None, group=None if group == 1 else group)
        project_budget(
            ledger, options, rounds=rounds, noise_multiplier=noise_multiplier, accountant=accountant,
            conversion=conversion, plot=plot, json=json, second_opinion=second_opinion, precise=precision,
        )  # fmt: skip
        return
    plan = options.plan()
    if over:
        from dpfed.cli.budget_maps import show_map

        if not plan.has_noise_multiplier:
            raise ConfigError(f"--over with --mechanism {mechanism}: maps are for noise. Remove it.")
        refuse(
            "--over: the map shows every epsilon",
            epsilon=epsilon,
            compare=compare or None,
            second_opinion=second_opinion or None,
        )
        given = {"noise-multiplier": noise_multiplier, "rounds": rounds}
        show_map(plan, over, given, accountant, conversion, plot, json=json)
        return
    if compare and mechanism not in ("gaussian", "distributed-gaussian"):
        raise ConfigError(f"--compare with --mechanism {mechanism}: it is for Gaussian noise. Remove it.")
    answer = solve(plan, rounds, noise_multiplier, epsilon, accountant, conversion, precision)
    rows = [answer]
    if compare:
        rows = budgets.compare(plan, noise_multiplier=float(answer.noise_multiplier or 0), rounds=answer.rounds)
    if second_opinion:
        answer, *rows = budgets.with_second_opinion([answer, *rows])
    found = advice.choices(plan, epsilon=answer.epsilon, rounds=answer.rounds) if compare and answer.valid else ()
    _report(plan, answer, rows, found, plot=plot, json=json, compare=compare, papers=papers, table=table)
    if group != 1 and not json:
        show_group(answer, group)


def _report(
    plan: Plan,
    answer: Budget,
    rows: list[Budget],
    found: tuple[advice.Advised, ...],
    *,
    plot: Path | None,
    json: bool,
    compare: bool,
    papers: bool,
    table: bool,
) -> None:
    plots = []
    if plot is not None:
        from dpfed.report.figures.budget import plot_budget, plot_readings, readings_path

        plot_budget(plan, answer, plot)
        plots = [plot, *([readings_path(plot)] if plot_readings(answer, readings_path(plot)) else [])]
    if json:
        results = [row.to_dict() for row in rows]
        more: dict[str, object] = {"profile": pairs(answer)} if table else {}
        more |= {"advice": [one.to_dict() for one in found]} if found else {}
        print_json({"results": results, **more} if compare else {**results[0], **more})
        return
    shown = [row for row in rows if papers or not row.accountant.startswith(_PAPERS)] if compare else []
    show(plan, answer, shown, plots)
    if 0 < len(shown) < len(rows):
        console().print("note: what a paper's own formulas say of such a run: --papers")
    for line in advice.words(found):
        console().print(f"advice: {line}")
    if table:
        show_pairs(answer)
