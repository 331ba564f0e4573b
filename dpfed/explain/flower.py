"""Reader of Flower's differentially private strategies, with the strategies that they wrap."""

from __future__ import annotations

import math

from scipy.special import ndtri

from accounting.rounding import upwards
from dpfed.explain.account import ASSUMED_DELTA, TAIL, Explanation
from dpfed.explain.reading import (
    BATCH,
    CLIP,
    POPULATION,
    RECORD_CLIP,
    ROUNDS,
    Read,
    Settings,
    count,
    largest_count,
    noise_of_sum_alone,
    number_or,
    stated_number,
)

_OPTIMISERS = ("fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedopt", "server_momentum", "server_learning_rate")


def is_flower(settings: Settings) -> bool:
    if settings.keys() & {"num_sampled_clients", "fraction_train", "fraction_fit"}:
        clips = settings.keys() & set(CLIP)
        return not clips or not clips <= set(RECORD_CLIP)  # else its nodes clip records
    return "clipping_norm" in settings and ("num_server_rounds" in settings or not settings.keys() & set(BATCH))


def read_flower(settings: Settings) -> Explanation:
    """Read a differentially private strategy of Flower.

    Flower draws a fixed number of the connected nodes, averages with weights by numbers of examples, and adds noise of
    standard deviation noise_multiplier * clipping_norm / num_sampled_clients to the mean.
    """
    read = Read(settings, "client")
    population = read.population(*POPULATION)
    cohort = count(settings, "num_sampled_clients", "clients_per_round")
    fraction = stated_number(settings, "fraction_train", "fraction_fit")
    replies, drawn = read.least_replies(cohort), None
    least = count(settings, "min_fit_clients", "min_train_nodes") or 2
    if cohort is not None and population is None and fraction is not None and least < cohort:
        replies = min(replies or cohort, least)
    if population and fraction is not None:
        drawn = min(max(least, int(population * fraction)), population)
        if cohort is not None and drawn != cohort:
            read.contradictions.append(
                f"num_sampled_clients={cohort} sets the noise, and fraction {fraction:g} of {population} nodes draws "
                f"{drawn}"
            )
            if drawn < cohort:
                replies = min(drawn, replies or drawn)
    if population is None:
        read.missing.append("number of nodes (all of them may take part in every round)")
    if cohort is None:
        read.missing.append("num_sampled_clients")
        read.unbounded.append("the noise of the mean is divided by num_sampled_clients, which is not stated")
    rounds = largest_count(settings, *ROUNDS)
    if read.adaptive and cohort:
        _flower_adaptive(read, cohort, replies or cohort, rounds or 1)
    weighted = settings.get("accountant") is not True  # with Flower's accountant, unequal weights are an error
    fewer = drawn is not None and cohort is not None and drawn < cohort
    read.only_above |= weighted and (drawn is None or drawn > (cohort or 0))  # a mean of more has less of a client
    rule = rule_of_strategy(settings)
    if rule is None:
        read.mean(cohort, replies, weighted=weighted, certain=fewer)
    elif math.isinf(rule[1]):
        read.unbounded.append(f"{rule[0]}: later rounds reveal a model that the server may keep without noise")
    elif cohort:
        name, largest = rule
        read.only_above = True
        words = f"one client moves the result of a round by up to {2 * largest:.3g} clip norms"
        moved = {"noise_multiplier": 1 / (cohort * largest), "left_out_moves_twice": True}
        read.leave_open(f"{name}: noise for a mean, on another result", (words, moved))
    if cohort is not None and population is not None and cohort < population:
        read.sampler(cohort, population, ("the nodes of a round are drawn at random and stay secret", "fixed"))
    line = "dpfed run dp-fedavg-digits --engine flower --set federation.sampling=fixed"
    if cohort:
        line += f" --set federation.cohort={cohort}"
    if population:
        line += f" --set federation.clients={population}"
    return read.explanation(
        "Flower",
        sampling="all",
        population=population,
        cohort=cohort,
        rounds=rounds,
        dpfed=f"{line} --set privacy.noise_multiplier={upwards(read.noise or 1)} --set privacy.epsilon=",
    )


def _flower_adaptive(read: Read, cohort: int, replies: int, rounds: int) -> None:
    """Add the opening of Flower's adaptive clipping, whose noise is over the clip norm of the next round.

    Claim: the clip norm shrinks by exp(lr (f - q)), f the noisy fraction of updates within it. With probability
    at least 1 - TAIL delta no f of the run is above 1 plus the quantile of the noise, and f is released.
    Source: flwr.serverapp.strategy.dp_adaptive_clipping, compute_adaptive_noise_params.
    """
    deviation = number_or(read.settings, "clipped_count_stddev", cohort / 20)
    noise, read.adaptive = read.noise or 0.0, False
    if deviation <= 0 or noise <= 0:
        read.unbounded.append("the count of clipped updates, by which the clip norm moves, has no noise")
        return
    if noise >= 2 * deviation:
        read.contradictions.append(f"noise_multiplier={noise!r} is not below twice clipped_count_stddev={deviation!r}")
    alone = noise_of_sum_alone(noise, deviation)
    read.only_above = True
    largest = 1 - float(ndtri(TAIL * (read.delta or ASSUMED_DELTA) / rounds)) * deviation / replies
    fraction = max(largest - number_or(read.settings, "target_clipped_quantile", 0.5), 0.0)
    shrinks = math.exp(min(number_or(read.settings, "clip_norm_lr", 0.2) * fraction, 600))
    worst = {"noise_multiplier": alone / shrinks, "count_std": deviation}
    stays = {"noise_multiplier": alone, "count_std": deviation}
    read.leave_open(
        "adaptive clip norm: the noise is over that of the next round",
        (f"it shrinks by a factor of up to {upwards(shrinks)} while noise is added", worst),
        ("it stays, and the noise multiplier is that of sum and count together", stays),
    )


def rule_of_strategy(settings: Settings) -> tuple[str, float] | None:
    """Return (name, largest norm of a round's result) of a wrapped strategy of Flower; None for a mean.

    The norm is that for updates of norm 1 before Flower adds noise. Krum: an update, or a mean of some. Median: half of
    the clients have at least each entry, so its square is at most 2. Trimmed mean: each entry is a part of all updates,
    over the number of the rest. Infinite for optimisers: FedAvgM, and FedAdam, FedYogi and FedAdagrad of
    flwr.server.strategy, continue from their own model without noise, so one update moves all later results.
    """
    text = " ".join(str(one) for pair in settings.items() for one in pair).lower()
    if "krum" in text:
        return "Krum", 1.0
    if "median" in text:
        return "FedMedian", math.sqrt(2)
    if "trimmed" in text:
        return "FedTrimmedAvg", 1 / max(1 - 2 * number_or(settings, "beta", 0.2), 1e-300)
    if any(one in text for one in _OPTIMISERS):
        return "FedAvgM or FedOpt", math.inf
    return None
