"""Readers of Flower, FLIP and NVFlare's filters, Opacus, and DP-FedAvg as TFF, pfl and jax_privacy name it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from scipy.special import ndtri

from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.explain.account import ASSUMED_DELTA, TAIL, Explanation, Opening
from dpfed.explain.reading import (
    BATCH,
    CLIP,
    COHORT,
    DELTA,
    EPOCHS,
    NEIGHBOURS,
    NOISE,
    POPULATION,
    RECORD_CLIP,
    RECORDS,
    ROUNDS,
    STEPS,
    Read,
    Settings,
    count,
    largest_count,
    noise_of_sum_alone,
    product_of_counts,
    stated_number,
)


def _is_flower(settings: Settings) -> bool:
    if "num_sampled_clients" in settings or "fraction_train" in settings or "fraction_fit" in settings:
        return True
    return "clipping_norm" in settings and not any(name in settings for name in BATCH)


def _flower(settings: Settings) -> Explanation:
    """Read a differentially private strategy of Flower.

    Flower draws a fixed number of the connected nodes, averages with weights by numbers of examples, and adds noise of
    standard deviation noise_multiplier * clipping_norm / num_sampled_clients to the mean.
    """
    read = Read(settings, "client")
    population = read.population(*POPULATION)
    cohort = count(settings, "num_sampled_clients", "clients_per_round")
    fraction = stated_number(settings, "fraction_train", "fraction_fit")
    replies, drawn = read.least_replies(cohort), None
    if population and fraction is not None:
        least = count(settings, "min_fit_clients", "min_train_nodes") or 1
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
    shrinks = _flower_adaptive(read, cohort, replies or cohort, rounds or 1) if read.adaptive and cohort else 1.0
    weighted = settings.get("accountant") is not True  # with Flower's accountant, unequal weights are an error
    fewer = drawn is not None and cohort is not None and drawn < cohort
    rule, remembers = _rule_of_strategy(settings, rounds or 1), False
    if rule is None:
        read.mean(cohort, replies, weighted=weighted, certain=fewer)
    elif cohort:
        name, largest, remembers = rule
        read.only_above = True
        words = f"one client moves the result of a round by up to {2 * largest:.3g} clip norms"
        if remembers:  # updates of rounds with larger clip norms
            largest *= math.exp(min(math.log(shrinks) * ((rounds or 1) - 1), 600))
        moved: dict[str, object] = {"noise_multiplier": 1 / (cohort * largest), "left_out_moves_twice": True}
        read.openings.append(Opening(name=f"{name}: noise for a mean, on another result", changes=((words, moved),)))
    if cohort is not None and population is not None and cohort < population and not remembers:
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


def _flower_adaptive(read: Read, cohort: int, replies: int, rounds: int) -> float:
    """Add the opening of Flower's adaptive clipping, whose noise is over the clip norm of the next round.

    Returns the largest factor by which the clip norm shrinks in a round.

    Claim: the clip norm shrinks by exp(lr (f - q)), f the fraction of clipped updates with its noise. With probability
    at least 1 - TAIL delta no f of the run is above 1 plus the quantile of the noise, and f is released.
    Source: flwr.serverapp.strategy.dp_adaptive_clipping, compute_adaptive_noise_params.
    """
    deviation = stated_number(read.settings, "clipped_count_stddev")
    deviation, noise, read.adaptive = cohort / 20 if deviation is None else deviation, read.noise or 0.0, False
    if deviation <= 0 or noise <= 0:
        read.unbounded.append("the count of clipped updates, by which the clip norm moves, has no noise")
        return 1.0
    if noise >= 2 * deviation:
        read.contradictions.append(f"noise_multiplier={noise:g} is not below twice clipped_count_stddev={deviation:g}")
    alone = noise_of_sum_alone(noise, deviation)
    read.only_above = True
    largest = 1 - float(ndtri(TAIL * (read.delta or ASSUMED_DELTA) / rounds)) * deviation / replies
    rate = stated_number(read.settings, "clip_norm_lr")
    quantile = stated_number(read.settings, "target_clipped_quantile")
    fraction = max(largest - (0.5 if quantile is None else quantile), 0.0)
    shrinks = math.exp(min((0.2 if rate is None else rate) * fraction, 600))
    worst: dict[str, object] = {"noise_multiplier": alone / shrinks, "count_std": deviation}
    stays: dict[str, object] = {"noise_multiplier": alone, "count_std": deviation}
    read.openings.append(
        Opening(
            name="adaptive clip norm: the noise is over that of the next round",
            changes=(
                (f"it shrinks by a factor of up to {upwards(shrinks)} while noise is added", worst),
                ("it stays, and the noise multiplier is that of sum and count together", stays),
            ),
        )
    )
    return shrinks


def _rule_of_strategy(settings: Settings, rounds: int) -> tuple[str, float, bool] | None:
    """Return (name, largest norm of a round's result, memory) of a wrapped strategy of Flower; None for a mean.

    The norm is that for updates of norm 1 before Flower adds noise. Krum: an update, or a mean of some. Median: half of
    the clients have at least each entry, so its square is at most 2. Trimmed mean: each entry is a part of all updates,
    over the number of the rest. FedAdam, FedYogi, FedAdagrad: eta over tau times a mean of updates so far. FedAvgM: the
    learning rate times the momentum's sum. One participation moves every later round of strategies with memory.
    """
    text = " ".join(str(one) for pair in settings.items() for one in pair).lower()

    def number(name: str, usual: float) -> float:
        found = stated_number(settings, name)
        return usual if found is None else found

    if "krum" in text:
        return "Krum", 1.0, False
    if "median" in text:
        return "FedMedian", math.sqrt(2), False
    if "trimmed" in text:
        return "FedTrimmedAvg", 1 / max(1 - 2 * number("beta", 0.2), 1e-300), False
    if any(one in text for one in ("fedadam", "fedyogi", "fedadagrad", "fedopt")):
        first, second = number("beta_1", 0.9), number("beta_2", 0.99)
        mean = 1 - first**rounds
        if "fedadam" in text and "yogi" not in text and "adagrad" not in text:
            mean *= math.sqrt(1 - second ** (rounds + 1)) / (1 - first ** (rounds + 1))
        usual = 0.01 if "yogi" in text else 0.1
        return "FedOpt", mean * number("eta", usual) / max(number("tau", 1e-3), 1e-300), True
    if "fedavgm" in text or "server_momentum" in text or "server_learning_rate" in text:
        kept = number("server_momentum", 0.0)
        summed = rounds if kept >= 1 else (1 - kept**rounds) / (1 - kept)
        return "FedAvgM", number("server_learning_rate", 1.0) * summed, True
    return None


def _is_filter(settings: Settings) -> bool:
    sized = "sensitivity" in settings and "epsilon" in settings
    return (
        sized
        or "percentile" in settings
        or "exclude_vars" in settings
        or ("fraction" in settings and not any(one in settings for one in NOISE))
    )


def _filter(settings: Settings) -> Explanation:
    """Read a filter of uploads, as in FLIP and NVFlare: the classical Gaussian of a stated sensitivity and epsilon."""
    stated, target = stated_number(settings, "sensitivity"), stated_number(settings, "epsilon")
    delta = stated_number(settings, *DELTA) or ASSUMED_DELTA
    noise: float | None = None
    clip = stated_number(settings, *CLIP)
    if stated and target:
        deviation = stated * math.sqrt(2 * math.log(1.25 / delta)) / target
        noise = deviation / clip if clip else deviation
    read = Read({**settings, "noise_multiplier": noise} if noise is not None else settings, "client")
    if stated and clip and stated < clip:
        read.contradictions.append(
            f"sensitivity={stated:g} sizes the noise, and the clip lets an update be {clip:g} long: one client moves "
            "more"
        )
    if target:
        read.contradictions.append(
            f"epsilon={target:g} is that of one upload at the stated sensitivity, not of the run"
        )
    if stated and target and stated_number(settings, *DELTA) is None:
        smaller = math.sqrt(math.log(1.25) / math.log(1.25 / ASSUMED_DELTA))
        read.openings.append(
            Opening(
                name="delta that sizes the noise: not stated",
                changes=(
                    ("it is near 1", {"noise_multiplier": smaller}),
                    (f"it is {upwards(ASSUMED_DELTA)}", {}),
                ),
            )
        )
    if noise is None:
        read.unbounded.append("percentiles and thresholds of an update are computed from it, without noise on them")
    return read.explanation(
        "FLIP, NVFlare filters",
        sampling="all",
        population=count(settings, *POPULATION),
        cohort=None,
        rounds=largest_count(settings, *ROUNDS),
        dpfed="dpfed run dp-fedavg-digits --set privacy.release=uploads --set federation.sampling=all",
    )


def _is_opacus(settings: Settings) -> bool:
    return any(name in settings for name in RECORD_CLIP)


_MANY = 10**6
"""Number of records of a reading that knows only the sampling rate."""


def _opacus(settings: Settings) -> Explanation:
    """Read Opacus' (or TensorFlow Privacy's) arguments: noise and clip of records; the loader decides the rest."""
    read = Read(settings, "record")
    microbatches = count(settings, "num_microbatches", "microbatches")
    records, batch = read.population(*RECORDS), largest_count(settings, *BATCH)
    rate, known = stated_number(settings, "sample_rate", "sampling_probability"), records
    if rate is not None and not 0 < rate <= 1:
        raise ConfigError(f"sample_rate={rate:g}: must be above 0 and at most 1.")
    if rate is not None and batch is None:
        records = records or _MANY
        batch = min(max(1, math.ceil(rate * records)), records)
    elif rate is not None and records and batch and not math.isclose(rate, batch / records, rel_tol=0.05):
        read.contradictions.append(f"sample_rate={rate:g} is not batch_size/records = {batch / records:g}")
        batch = min(max(batch, math.ceil(rate * records)), records)
    poisson = settings.get("poisson_sampling")
    shuffled = poisson is False and settings.get("shuffle") is True
    rounds = largest_count(settings, *ROUNDS)
    steps = product_of_counts(largest_count(settings, *STEPS), count(settings, "local_steps", "num_local_steps"))
    steps = None if steps is None else steps * (rounds or 1)
    local = count(settings, "local_epochs", "num_local_epochs")
    epochs = product_of_counts(largest_count(settings, *EPOCHS), local)
    epochs = None if epochs is None else epochs * (rounds or 1)
    passes = epochs * -(-records // batch) if epochs and records and batch else None
    accumulated = count(settings, "gradient_accumulation_steps", "accumulation_steps", "accumulate_grad_batches")
    dropped = steps  # number of batches if the last, smaller one of an epoch is dropped
    if passes and epochs and records and batch and (steps is None or passes > steps):
        dropped = max(epochs * max(records // batch, 1), steps or 0)
        steps = dropped if settings.get("drop_last") is True else passes
    if steps is None and rounds and epochs is None:
        read.unbounded.append("a round has an unknown number of steps (epochs or steps are not stated)")
    elif steps is None and epochs and not shuffled:
        read.unbounded.append("an epoch has an unknown number of steps (records or batch size are not stated)")
    processes = largest_count(settings, "world_size", "num_gpus", "n_gpus", "devices", "num_processes") or 1
    joined = processes * (accumulated or 1)
    if joined > 1 and batch and records:
        whole: dict[str, object] = {"cohort": min(batch * joined, records)}
        words = f"of each of {joined} processes or accumulated passes"
        read.openings.append(Opening(name="batch_size: " + words, changes=((words, whole), ("of all together", {}))))
    for name, value in (("records", known), ("batch_size", batch), ("epochs or steps", steps or epochs)):
        if value is None:
            read.missing.append(name)
    if accumulated and accumulated > 1 and steps:
        read.contradictions.append(f"{accumulated} accumulated batches a step: each may be clipped and noised alone")
        steps, dropped = steps * accumulated, (dropped or steps) * accumulated
    sampling = "all"
    if shuffled and dropped and records and batch:
        sampling, steps = "shuffled", dropped
    elif shuffled and steps is None:
        steps = epochs  # a record takes part once in an epoch
    elif poisson is True and records and batch:
        sampling = "poisson"
    elif records and batch and steps:
        loader: tuple[tuple[str, dict[str, object]], ...] = (
            ("the same batches hold a record in every step", {"sampling": "all"}),
            (
                "batches of a shuffled pass: each record once in an epoch",
                {"sampling": "shuffled", "rounds": dropped},
            ),
        )
        if poisson is None:
            loader += (("Poisson batches (Opacus' own loader)", {"sampling": "poisson"}),)
        if steps != dropped and poisson is None:
            loader += (
                (
                    "Poisson batches, in the number of those with the last one dropped",
                    {**loader[-1][1], "rounds": dropped},
                ),
            )
        read.openings.append(
            Opening(
                name="loader: the arguments do not say which one ran",
                changes=loader,
            )
        )
    if microbatches and (batch is None or microbatches < batch):
        moved: dict[str, object] = {"adjacency": Adjacency.ADD_REMOVE, "noise_multiplier": 0.5 / microbatches}
        if sampling != "poisson":  # the records of all later batches move, too
            moved |= {"sampling": "all", "rounds": steps or 1}
        words = f"add-remove: one record more moves records between all {microbatches} microbatches"
        (words_of_one, one), (words_of_zero, zero) = NEIGHBOURS.changes
        zero = {**zero, "left_out_moves_twice": True}  # the others of its microbatch are clipped less
        fixed = ((words_of_one, one), (words_of_zero, zero)) if poisson is False else ()  # else a draw moves all, too
        read.neighbours = replace(NEIGHBOURS, changes=((words, moved), *fixed))
    line = f"dpfed run fedavg-digits --set local.record.clip_norm={read.clip or 1:g}"
    line += f" --set local.record.noise_multiplier={upwards(read.noise or 1)}"
    if known and batch and passes and sampling != "poisson":
        line += f"; or, nearest to shuffled epochs: dpfed budget --sampling balls-and-bins --clients {known}"
        line += f" --cohort {batch} --rounds {dropped} --noise-multiplier {upwards(read.noise or 1)}"
        line += f" --delta {read.delta or ASSUMED_DELTA}"
    return read.explanation(
        "Opacus",
        sampling=sampling,
        population=records,
        cohort=batch,
        rounds=steps,
        dpfed=line,
    )


def _is_dp_fedavg(settings: Settings) -> bool:
    return any(name in settings for name in NOISE)


def _dp_fedavg(settings: Settings) -> Explanation:
    """Read DP-FedAvg (or DP-SGD) by the usual names of TFF, pfl and jax_privacy."""
    clients = any(name in settings for name in (*COHORT, *POPULATION))
    records = any(name in settings for name in (*BATCH, "num_examples", "num_updates")) and not any(
        name in settings for name in COHORT
    )
    read = Read(settings, "record" if records else "client")
    population = read.population(*POPULATION, *RECORDS)
    cohort = count(settings, *COHORT) or largest_count(settings, *BATCH)
    if cohort and "clients_per_round" in settings:
        read.usual_count = cohort / 20  # of TFF
    meant = count(settings, "noise_cohort_size")
    if meant and cohort is None:
        read.missing.append("cohort_size (1 is used for the noise of noise_cohort_size)")
    if meant and cohort and meant != cohort:
        read.contradictions.append(
            f"noise_cohort_size={meant} sizes the noise of cohorts of {meant}, and {cohort} take part: the stated "
            f"guarantee is for {meant}"
        )
    if meant and meant != cohort:
        less = min(1.0, (cohort or 1) / meant)
        words = f"noise for {meant} on the sum of {cohort or 'an unknown number'}"
        read.openings.append(
            Opening(name="noise of another cohort size", changes=((words, {"noise_multiplier": less}),))
        )
    rounds = product_of_counts(
        largest_count(settings, *ROUNDS, "num_updates") if clients else largest_count(settings, *ROUNDS, *STEPS),
        largest_count(settings, *STEPS) if clients else None,
    )
    if records:  # epochs of a run, or epochs or steps of a round
        epochs = product_of_counts(largest_count(settings, *EPOCHS), count(settings, "local_epochs"))
        batches = -(-population // cohort) if epochs and population and cohort else 1
        rounds = product_of_counts(rounds, epochs, batches if epochs else None, count(settings, "local_steps"))
    text = " ".join(f"{one}" for one in settings.values() if isinstance(one, str)).lower()
    weighted = "example" in text or "num_samples" in text or settings.get("weighted") is True
    read.mean(cohort, read.least_replies(cohort), weighted=weighted)
    if "distributed" in text or "shares" in text or "client" in str(settings.get("noise_placement", "")).lower():
        if cohort is None:
            read.unbounded.append("noise in shares of an unknown number of clients")
        read.openings.append(
            Opening(
                name="noise: in shares of the clients, whose uploads are visible",
                changes=(
                    ("each upload has a share of the noise", {"noise_multiplier": (cohort or 1) ** -0.5}),
                    ("only the sum of all shares is visible", {}),
                ),
            )
        )
    named = ("sampling", "batch_selection_strategy", "user_sampler", "sample_type", "sampler")
    sampler = next((str(settings[name]).lower() for name in named if name in settings), "")
    once = sampler.startswith(("poisson", "cyclic", "fixed", "without_replacement"))
    pfl = "noise_cohort_size" in settings or "central_num_iterations" in settings
    sampling = "all"
    for name, value in (("population", population), ("cohort", cohort)):
        if value is None:
            read.missing.append(name)
    planned, sampled = rounds, ""
    if sampler == "minimize_reuse" and cohort and population and cohort <= population:  # in turn, by a public list
        sampled = "--sampling cyclic "
        rounds = -(-(rounds or 1) * cohort // population)
    elif pfl and not once:  # its sampler "random" draws each user anew
        read.openings.append(
            Opening(
                name="users are drawn with replacement",
                changes=(
                    ("one user is the whole cohort", {"noise_multiplier": 1 / (cohort or 1)}),
                    ("each user is at most once in a cohort", {}),
                ),
            )
        )
    secret = any(settings.get(name) is True for name in ("secret", "secrecy", "secret_cohorts"))
    secret = secret or (records and not clients)
    if sampler.startswith("poisson") and cohort and population and secret:
        sampling = "poisson"
    elif sampler in ("fixed", "uniform", "without_replacement") and cohort and population and secret:
        sampling = "fixed"
    elif sampler != "minimize_reuse":
        read.sampler(
            cohort,
            population,
            ("a fixed number is drawn in secret", "fixed"),
            ("each takes part independently (Poisson), in secret", "poisson"),
        )
    read.openings.append(
        Opening(
            name="noise_multiplier: of the clip norm, or of twice the clip norm",
            changes=(
                ("it is noise over the clip norm", {}),
                ("it is noise over twice the clip norm", {"noise_multiplier": 2}),
            ),
        )
    )
    return read.explanation(
        "DP-FedAvg (TFF, pfl, jax_privacy)",
        sampling=sampling,
        population=population,
        cohort=cohort,
        rounds=rounds,
        dpfed=f"dpfed budget {sampled}--clients {population or 'N'} --cohort {cohort or 'M'} "
        f"--rounds {planned or 'T'} --noise-multiplier {upwards(read.noise or 1)}",
    )


READERS: tuple[tuple[Callable[[Settings], bool], Callable[[Settings], Explanation]], ...] = (
    (_is_filter, _filter),
    (_is_flower, _flower),
    (_is_opacus, _opacus),
    (_is_dp_fedavg, _dp_fedavg),
)
