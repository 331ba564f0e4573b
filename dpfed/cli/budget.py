"""`dpfed budget`: compute epsilon, noise multiplier or rounds before training. Never loads torch."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from accounting import budget as budgets
from accounting.budget import advice, certificates, certified_noise
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from dpfed.cli.budget_tables import epsilon_delta_pairs, show_budget, show_group, show_pairs
from dpfed.cli.output import console, print_json
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import refuse_options, solve_budget
from dpfed.planner.question import OPTIONS, Question, group_of
from dpfed.planner.whole_numbers import WholeNumber

_PAPERS = "fed-smp"
"""Prefix of accountants that follow a paper's formulas; some of them guarantee nothing."""

_NO_OPTIONS = Question()
_ACCOUNT = Parameter(group=Group("Account", sort_key=50), negative="")
_TARGET = Parameter(group=Group("Targets in place of --epsilon", sort_key=51))
_OUTPUT = Parameter(group=Group("Output", sort_key=52), negative="")


def budget(
    *,
    options: Question = _NO_OPTIONS,
    noise_schedule: Annotated[
        tuple[float, ...] | None,
        Parameter(consume_multiple=True, help=OPTIONS["noise_schedule"].help, group=group_of("noise_schedule")),
    ] = None,
    accountant: Annotated[Accountant, _ACCOUNT] = "best",
    conversion: Annotated[Conversion, _ACCOUNT] = "improved",
    compare: Annotated[bool, _OUTPUT] = False,
    papers: Annotated[bool, _OUTPUT] = False,
    plot: Annotated[Path | None, _OUTPUT] = None,
    over: Annotated[tuple[str, ...], _OUTPUT] = (),
    ledger: Annotated[Path | None, _ACCOUNT] = None,
    second_opinion: Annotated[bool, _OUTPUT] = False,
    precision: Annotated[bool, _ACCOUNT] = False,
    certificate: Annotated[Literal["none", "sampled"], _ACCOUNT] = "none",
    group: Annotated[WholeNumber, _OUTPUT] = 1,
    advantage: Annotated[float | None, _TARGET] = None,
    tpr: Annotated[float | None, _TARGET] = None,
    fpr: Annotated[float | None, _TARGET] = None,
    table: Annotated[bool, _OUTPUT] = False,
    json: Annotated[bool, _OUTPUT] = False,
) -> None:
    """Epsilon, noise multiplier or rounds: give two of the three, get the third.

    Example: dpfed budget --clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4

    With --ledger: print the spent and remaining budget of a project. With --ledger and a plan: print the rounds that
    still fit (given the noise multiplier), the noise multiplier (given the rounds), or the total epsilon (given both).

    Parameters
    ----------
    accountant
        best is the smallest valid upper bound; exact is for few Bernoulli samples that are visible one by one;
        fed-smp-theorem and fed-smp-lemma follow the paper (fixed sampling).
    conversion
        Conversion from Rényi divergences to (epsilon, delta); for rdp and fed-smp-lemma.
    compare
        One row for every accountant, sampler and adjacency; and the schedule and noise with the least error of the
        model's sums at this epsilon.
    papers
        With --compare: add rows computed by formulas of papers, some of which guarantee nothing (--json always has
        these rows).
    plot
        Write epsilon over rounds, one line for each accountant, to this PNG; with --over, a heat map. NAME-readings.png
        shows the guarantee as privacy profile, trade-off curve, group privacy and an observer's belief.
    over
        Given twice, with --plot: the axes of a heat map of epsilon, as in --over noise-multiplier=.5:4 --over
        rounds=10:1000; also cohort=LOW:HIGH. Give --noise-multiplier or --rounds too, unless it is an axis.
        --accountant rdp is the fastest.
    ledger
        A project ledger (`dpfed ledger create`), whose releases are added to the plan. Runs may be in progress.
    second_opinion
        Also print the epsilon that dp-accounting, which shares no code with dpfed, states for the same run. Settings
        in which dp-accounting is known to be wrong are avoided.
    precision
        Compute epsilon of fixed-size sampling with Gaussian noise to 0.05% instead of 0.3%; this can take minutes.
    certificate
        sampled: for min-separation and secret lanes, an epsilon certified by simulation, beside the deterministic
        bound. The certificate fails with probability 1e-12, which is part of delta. With --epsilon and --rounds: the
        noise that the certificate requires. Takes minutes.
    group
        Also state epsilon, at the same delta, for a group of this many clients.
    advantage
        A target in place of --epsilon: the largest difference between true and false positive rate of any membership
        test.
    tpr
        A target in place of --epsilon, with --fpr: the largest true positive rate of any membership test.
    fpr
        The false positive rate at which --tpr holds.
    table
        Print pairs (epsilon, delta) of the same guarantee, both rounded upwards.
    json
        One JSON document on standard output.
    """
    given = {"advantage": advantage, "tpr": tpr, "fpr": fpr}
    targets = {name: value for name, value in given.items() if value is not None}
    asked: dict[str, object] = {
        **targets,
        **{name: getattr(options, name) for name in ("clients", "epsilon", "delta")},
        "compare": compare or None,
        "over": over or None,
        "plot": plot,
        "table": table or None,
        "second_opinion": second_opinion or None,
        "precision": precision or None,
        "group": None if group == 1 else group,
        "certificate": None if certificate == "none" else certificate,
        "unit": None if options.unit == "client" else options.unit,
    }

    def refuse(why: str, *names: str) -> None:
        refuse_options(why, **{name: asked[name] for name in names})

    if ledger is None and options.clients is None and options.unit == "client":
        raise ConfigError(
            "--clients is missing: give the number of clients, or --ledger for the remaining budget of a project."
        )
    if conversion != "improved" and accountant not in ("rdp", "fed-smp-lemma"):
        raise ConfigError(
            f"--conversion {conversion} with --accountant {accountant}: requires rdp or fed-smp-lemma. Change one."
        )
    if papers and not compare:
        raise ConfigError("--papers without --compare: --papers adds rows to the table of --compare. Add --compare.")
    if json and group != 1:
        raise ConfigError("--group with --json: the JSON document has no groups. Remove one.")
    if ledger is not None:
        from dpfed.cli.project_budget import project_budget

        refuse("--ledger: the project ledger sets them", "clients", "epsilon", "delta")
        refuse("--ledger: the unit of a project is the client", "unit")
        refuse("--ledger: a certificate is for one run without earlier releases", "certificate")
        refuse("--ledger: the project ledger has an epsilon", *targets)
        refuse("--ledger", "compare", "over", "group", "table")
        project_budget(
            ledger, options, noise_schedule=noise_schedule, accountant=accountant, conversion=conversion, plot=plot,
            json=json, second_opinion=second_opinion, precise=precision,
        )  # fmt: skip
        return
    plan = options.plan(noise_schedule=noise_schedule)
    if plan.unit == "record":
        refuse("--unit record: not available for steps of one client", "compare", "plot", "over", "group")
    mechanism, rounds, noise_multiplier = plan.mechanism, options.rounds, options.noise_multiplier
    if certificate != "none":
        why = f"--certificate {certificate}: a certificate is for one epsilon"
        refuse(why, "over", "compare", "table", "group", *targets)
    if over:
        from dpfed.cli.budget_tables import show_map

        if not plan.has_noise_multiplier:
            raise ConfigError(
                f"--over with --mechanism {mechanism.name}: heat maps require noise with a multiplier. Remove --over."
            )
        refuse(
            "--over: the map shows every epsilon", "epsilon", *targets, "compare", "second_opinion", "table", "group"
        )
        refuse("--over: a precise epsilon takes minutes at every point of a map", "precision")
        given = {"noise-multiplier": noise_multiplier, "rounds": rounds}
        show_map(plan, over, given, accountant, conversion, plot, json=json)
        return
    if compare and mechanism.name not in ("gaussian", "distributed-gaussian"):
        raise ConfigError(
            f"--compare with --mechanism {mechanism.name}: --compare requires Gaussian noise. Remove --compare."
        )
    if compare:
        refuse("--compare: its rows have the usual precision", "precision")
    sampled: certificates.Certificate | None = None
    if certificate != "none" and noise_multiplier is None and rounds is not None and options.epsilon is not None:
        if accountant != "best":
            raise ConfigError(
                f"--certificate {certificate} with --epsilon and --accountant {accountant}: the search for noise uses "
                "--accountant best. Remove one."
            )
        found_noise = certified_noise.cached_or_new_certified_noise(plan, epsilon=options.epsilon, rounds=rounds)
        answer, sampled = found_noise.budget, found_noise.certificate
    else:
        answer = solve_budget(
            plan, rounds, noise_multiplier, options.epsilon, accountant, conversion, precision, targets
        )
    answer = budgets.beside_shuffled(answer)
    plan, rows = answer.plan, [answer]  # the plan now has the number of lanes that a search may have found
    if compare:
        rows = budgets.compare(plan, noise_multiplier=float(answer.noise_multiplier or 0), rounds=answer.rounds)
    if second_opinion:
        answer, *rows = budgets.with_second_opinion([answer, *rows])
    found = advice.advised_plans(plan, epsilon=answer.epsilon, rounds=answer.rounds) if compare and answer.valid else ()
    if certificate != "none" and sampled is None:
        sampled = certificates.cached_or_new_certificate(certificates.Claim.of(answer))
    plots = []
    if plot is not None:
        from dpfed.report.figures.budget import plot_budget, plot_readings, readings_path

        plot_budget(plan, answer, plot)
        plots = [plot, *([readings_path(plot)] if plot_readings(answer, readings_path(plot)) else [])]
    if json:
        results = [row.to_dict() for row in rows]
        more: dict[str, object] = {"profile": epsilon_delta_pairs(answer)} if table else {}
        more |= {"advice": [one.to_dict() for one in found]} if found else {}
        more |= {"certificate": sampled.to_dict()} if sampled else {}
        print_json({"results": results, **more} if compare else {**results[0], **more})
        return
    shown = [row for row in rows if papers or not row.accountant.startswith(_PAPERS)] if compare else []
    show_budget(plan, answer, shown, plots)
    if 0 < len(shown) < len(rows):
        console().print("note: --papers adds rows computed by formulas of papers")
    if sampled is not None:
        console().print(f"certificate: {sampled}")
    for line in advice.advice_lines(found):
        console().print(f"advice: {line}")
    if table:
        show_pairs(answer)
    if group != 1:
        show_group(answer, group)
