"""Readers of FLIP and NVFlare's filters, Opacus, and DP-FedAvg as TFF, pfl and jax_privacy name it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.explain.account import ASSUMED_DELTA, Explanation
from dpfed.explain.flower import is_flower, read_flower
from dpfed.explain.reading import (
    BATCH,
    CLIP,
    COHORT,
    DELTA,
    EPOCHS,
    FEDERATED_ROUNDS,
    NEIGHBOURS,
    NOISE,
    PASS,
    POPULATION,
    RECORD_CLIP,
    RECORDS,
    ROUNDS,
    STEPS,
    Change,
    Read,
    Settings,
    count,
    largest_count,
    number_or,
    product_of_counts,
    stated_number,
)


def _is_filter(settings: Settings) -> bool:
    if settings.keys() & {"percentile", "exclude_vars"} or settings.keys() >= {"sensitivity", "epsilon"}:
        return True
    return "fraction" in settings and not any(one in settings for one in NOISE)


def _filter(settings: Settings) -> Explanation:
    """Read a filter of uploads, as in FLIP and NVFlare: the classical Gaussian of a stated sensitivity and epsilon."""
    stated, target = stated_number(settings, "sensitivity"), stated_number(settings, "epsilon")
    delta = stated_number(settings, *DELTA) or ASSUMED_DELTA
    noise: float | None = None
    clip = max((one for name in CLIP if (one := stated_number(settings, name)) is not None), default=None)
    if stated and target:
        deviation = stated * math.sqrt(2 * math.log(1.25 / delta)) / target
        noise = deviation / clip if clip else deviation
        noise = min(noise, number_or(settings, "noise_multiplier", noise))
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
        read.leave_open(
            "delta that sizes the noise: not stated",
            ("it is near 1", {"noise_multiplier": smaller}),
            (f"it is {upwards(ASSUMED_DELTA)}", {}),
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


RATE = ("sample_rate", "sampling_probability")
LOCAL_STEPS, LOCAL_EPOCHS = ("local_steps", "num_local_steps"), ("local_epochs", "num_local_epochs")
ACCUMULATED = ("gradient_accumulation_steps", "accumulation_steps", "accumulate_grad_batches")
_MANY = 10**6
"""Number of records of a reading that knows only the sampling rate."""
_UNKNOWN_STEPS = "an epoch has an unknown number of steps (records or batch size are not stated)"
_UNKNOWN_ROUNDS = "a round has an unknown number of steps (epochs or steps are not stated)"


def _opacus(settings: Settings) -> Explanation:
    """Read Opacus' (or TensorFlow Privacy's) arguments: noise and clip of records; the loader decides the rest."""
    read = Read(settings, "record")
    microbatches = count(settings, "num_microbatches", "microbatches")
    records, batch = read.population(*RECORDS), largest_count(settings, *BATCH)
    rate, known = stated_number(settings, *RATE), records
    if rate is not None and not 0 < rate <= 1:
        raise ConfigError(f"sample_rate={rate:g}: must be above 0 and at most 1.")
    if rate is not None and batch is None:
        records = records or _MANY
    least = read.population(*BATCH)  # of two stated sizes of a batch: an epoch has more of the smaller ones
    if rate is not None and records:
        if batch and not math.isclose(rate, batch / records, rel_tol=0.05):
            read.contradictions.append(f"sample_rate={rate:g} is not batch_size/records = {batch / records:g}")
        sizes = (batch or records, max(1, math.floor(rate * records))), (batch or 1, math.ceil(rate * records))
        least, batch = min(least or records, *sizes[0]), min(max(sizes[1]), records)
    poisson = settings.get("poisson_sampling")
    shuffled = poisson is False and settings.get("shuffle") is True
    rounds = largest_count(settings, *ROUNDS)
    steps = product_of_counts(largest_count(settings, *STEPS), count(settings, *LOCAL_STEPS))
    steps = None if steps is None else steps * (rounds or 1)
    epochs = product_of_counts(largest_count(settings, *EPOCHS), count(settings, *LOCAL_EPOCHS))
    epochs = None if epochs is None else epochs * (rounds or 1)
    known_pass = largest_count(settings, *PASS)  # may be more steps than batches of all records
    passes = epochs * max(-(-records // least), known_pass or 1) if epochs and records and least else None
    accumulated = count(settings, *ACCUMULATED)
    dropped = steps  # number of batches if the last, smaller one of an epoch is dropped
    if passes and epochs and records and least and (steps is None or passes > steps):
        dropped = max(epochs * max(records // least, known_pass or 1), steps or 0)
        steps = dropped if settings.get("drop_last") is True else passes
    if steps is None and rounds and epochs is None:
        read.unbounded.append(_UNKNOWN_ROUNDS)
    elif steps is None and epochs and not shuffled:
        read.unbounded.append(_UNKNOWN_STEPS)
    processes = largest_count(settings, "world_size", "num_gpus", "n_gpus", "devices", "num_processes") or 1
    joined = processes * (accumulated or 1)
    uneven = epochs is None and records and batch and records % batch  # passes of an unknown number of batches
    read.only_above |= joined > 1 or bool(uneven and poisson is not True)
    if joined > 1 and batch and records:
        words = f"of each of {joined} processes or accumulated passes"
        whole = {"cohort": min(batch * joined, records)}
        read.leave_open("batch_size: " + words, (words, whole), ("of all together", {}))
    for name, value in (("records", known), ("batch_size", batch), ("epochs or steps", steps or epochs)):
        if value is None:
            read.missing.append(name)
    if accumulated and accumulated > 1 and steps:
        read.contradictions.append(f"{accumulated} accumulated batches a step: each may be clipped and noised alone")
        steps, dropped = steps * accumulated, (dropped or steps) * accumulated
    sampling = "all"
    rates: list[Change] = [("Poisson batches, at batch_size / records", {"sampling": "poisson"})]
    if records and batch and least and records > batch and (records % batch or least < batch):
        # Opacus' own loader draws a record at 1 / the number of batches in a pass
        own, last = {"sampling": "poisson", "population": -(-records // least) * batch}, settings.get("drop_last")
        fewer = {"sampling": "poisson", "rounds": dropped or 1, "population": records - records % batch}
        if last is not False:
            rates.insert(0, ("Poisson batches of Opacus' loader, the last one of a pass dropped", fewer))
        if last is None:
            rates.append(
                ("Poisson batches, in the number of those with the last one dropped", {**fewer, "population": records})
            )
        if last is not True:
            rates.append(("Poisson batches of Opacus' loader", own))
    if shuffled and dropped and records and batch:
        sampling, steps = "shuffled", dropped
    elif shuffled and steps is None:
        steps = epochs  # a record takes part once in an epoch
    elif poisson is True and records and batch:
        sampling = "poisson"
        if len(rates) > 1:
            read.leave_open("loader: how many Poisson batches make a pass", *rates)
    elif records and batch and steps:
        read.leave_open(
            "loader: the arguments do not say which one ran",
            ("the same batches hold a record in every step", {"sampling": "all"}),
            ("batches of a shuffled pass: each record once in an epoch", {"sampling": "shuffled", "rounds": dropped}),
            *(rates if poisson is None else ()),
        )
    clients = read.population(*POPULATION)
    if clients != 1 and (clients or settings.keys() & {*COHORT, "fraction_train", "fraction_fit"}):
        read.only_above = True  # a client may be drawn in few rounds
        few = "of all: batches of a client with few records may hold a record in every step"
        read.leave_open("records: of one client, or of all", (few, {"sampling": "all"}), ("of one client", {}))
    if microbatches and (batch is None or microbatches < batch):
        moved: dict[str, Any] = {"adjacency": Adjacency.ADD_REMOVE, "noise_multiplier": 0.5 / microbatches}
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


def _dp_fedavg(settings: Settings) -> Explanation:
    """Read DP-FedAvg (or DP-SGD) by the usual names of TFF, pfl and jax_privacy."""
    clients = any(name in settings for name in (*COHORT, *POPULATION))
    records = any(name in settings for name in (*BATCH, "num_examples", "num_updates")) and not any(
        name in settings for name in COHORT
    )
    read = Read(settings, "record" if records else "client")
    population = read.population(*(RECORDS if records else POPULATION))
    cohort = largest_count(settings, *COHORT) or largest_count(settings, *BATCH)
    stated_batch, accumulated = read.population(*BATCH), count(settings, *ACCUMULATED) or 1
    if records and cohort:  # a batch of jax_privacy's Keras models is one part of a step's
        cohort *= accumulated
    if cohort and population and (rate := stated_number(settings, "sampling_prob", *RATE)):
        cohort = max(cohort, math.ceil(rate * population))
    if cohort and "clients_per_round" in settings:
        read.usual_count = (count(settings, "clients_per_round") or cohort) / 20  # of TFF
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
        read.leave_open("noise of another cohort size", (words, {"noise_multiplier": less}))
    rounds = product_of_counts(largest_count(settings, *ROUNDS), largest_count(settings, *STEPS))
    if records:  # epochs of a run, or epochs or steps of a round
        epochs = product_of_counts(largest_count(settings, *EPOCHS), count(settings, *LOCAL_EPOCHS))
        batches = -(-population // stated_batch) if epochs and population and stated_batch else None
        batches = max(batches, largest_count(settings, *PASS) or 1) if batches else None
        if epochs and batches is None:
            read.unbounded.append(_UNKNOWN_STEPS)
        local = count(settings, *LOCAL_STEPS)
        if not (epochs or local or largest_count(settings, *STEPS)) and largest_count(settings, *FEDERATED_ROUNDS):
            read.unbounded.append(_UNKNOWN_ROUNDS)
        rounds = product_of_counts(rounds, epochs, batches, local)
    text = " ".join(f"{one}" for one in settings.values() if isinstance(one, str)).lower()
    weighted = True in (settings.get("weighted"), settings.get("weight_by_samples"))
    weighted |= "example" in text or "num_samples" in text or "token" in str(settings.get("weighting", ""))
    read.mean(cohort, read.least_replies(cohort), weighted=weighted)
    if "distributed" in text or "shares" in text or "client" in str(settings.get("noise_placement", "")).lower():
        if cohort is None:
            read.unbounded.append("noise in shares of an unknown number of clients")
        read.leave_open(
            "noise: in shares of the clients, whose uploads are visible",
            ("each upload has a share of the noise", {"noise_multiplier": (cohort or 1) ** -0.5}),
            ("only the sum of all shares is visible", {}),
        )
    named = ("sampling", "batch_selection_strategy", "user_sampler", "sample_type", "sampler")
    sampler = next((str(one).lower() for name in named if (one := settings.get(name))), "")
    once = sampler.startswith(("poisson", "fixed", "without_replacement"))
    pfl = settings.keys() & {
        "noise_cohort_size", "central_num_iterations", "noise_parameter", "relative_noise_stddev", "user_sampler",
    }  # fmt: skip
    if pfl and weighted:
        read.unbounded.append("the sum of weights has no noise, and divides that on the sum")
    sampling = "all"
    for name, value in (("population", population), ("cohort", cohort)):
        if value is None:
            read.missing.append(name)
    planned, sampled = rounds, ""
    in_turn = sampler == "minimize_reuse" and "num_silos" not in settings  # by one public list
    if in_turn and cohort and population and cohort <= population:
        sampled = "--sampling cyclic "
        if not (read.banded or read.tree):  # their noise is over all rounds
            rounds = -(-(rounds or 1) * cohort // population)
    elif pfl and not once:  # its sampler "random" draws each user anew
        read.leave_open(
            "users are drawn with replacement",
            ("one user is the whole cohort", {"noise_multiplier": 1 / (cohort or 1)}),
            ("each user is at most once in a cohort", {}),
        )
    secret = any(settings.get(name) is True for name in ("secret", "secrecy", "secret_cohorts"))
    secret = not clients if records else secret  # records of all clients are not those of one
    plain = count(settings, "truncated_batch_size") is None and count(settings, "cycle_length") in (None, 1)
    known = once or sampler in ("", "random", "minimize_reuse")
    # jax_privacy's Poisson batches with a cap, or of groups of records in turn, are none of the readings
    read.only_above |= not (plain and known) or (records and (clients or accumulated > 1))
    if sampler.startswith("poisson") and cohort and population and secret and plain:
        sampling = "poisson"
    elif sampler in ("fixed", "without_replacement") and cohort and population and secret:
        sampling = "fixed"
    elif sampler != "minimize_reuse":
        read.sampler(
            cohort,
            population,
            ("a fixed number is drawn in secret", "fixed"),
            ("each takes part independently (Poisson), in secret", "poisson"),
        )
    read.leave_open(
        "noise_multiplier: of the clip norm, or of twice the clip norm",
        ("it is noise over the clip norm", {}),
        ("it is noise over twice the clip norm", {"noise_multiplier": 2}),
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
    (is_flower, read_flower),
    (lambda settings: any(name in settings for name in RECORD_CLIP), _opacus),
    (lambda settings: any(name in settings for name in NOISE), _dp_fedavg),
)
