"""The composition root: a checked configuration becomes the objects of a run. The only place that names them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accounting import budget
from accounting.accountant import Accountant
from accounting.adjacency import Adjacency
from accounting.budget import Plan
from accounting.mechanisms import SingleRelease
from dpfed import data, models
from dpfed.compress.masks import (
    MapChoice,
    OwnRandomMask,
    OwnTopMask,
    PublicTopMask,
    RandomSharedMask,
    SendAll,
    kept_coordinates,
)
from dpfed.config import Config, PrivacyTable
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.local.sgd import LocalSgd
from dpfed.methods import Method, method
from dpfed.models.flat import FlatModel
from dpfed.privacy.adaptive_clip import AdaptiveClip
from dpfed.privacy.client_level import ClientLevelGaussian, NotPrivate, Privacy
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.round import Parts
from dpfed.sampling import Sampler, sampler
from dpfed.seeds import Seeds
from dpfed.server.averaging import Averaging, ServerState


@dataclass(frozen=True, kw_only=True)
class PrivacyGoal:
    """What the run promises: the mechanism of a round, delta, and the epsilon it may not exceed (None: only stated)."""

    mechanism: SingleRelease
    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that `dpfed.federation` needs to run."""

    config: Config
    method: Method
    parts: Parts
    seeds: Seeds
    model: FlatModel
    dataset: Dataset
    device: torch.device
    start: ServerState
    goal: PrivacyGoal | None
    not_protected: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Public:
    inputs: torch.Tensor
    labels: torch.Tensor
    note: str


def build(config: Config) -> Experiment:
    """The objects of a run. ConfigError for a choice that cannot work, with the nearest one that does."""
    chosen = method(config.method.name)
    _check_method(config, chosen)
    seeds = Seeds(root=config.run.seed)
    device = _device(config.run.device)
    whole = data.load(config.data.name, config.data.root)
    dataset, public = _public(config, whole, seeds, device)
    model = _model(config, dataset)
    who = sampler(config.federation.sampling, clients=config.federation.clients, cohort=config.federation.cohort)
    randomness: Randomness = Secure() if config.run.randomness == "secure" else Simulated(seeds=seeds)
    local = _local(config, model, dataset, seeds, device)
    goal = _goal(config) if config.privacy is not None else None
    parts = Parts(
        sampler=who,
        randomness=randomness,
        map=_map(config, model, local, public),
        local=local,
        privacy=_privacy(config.privacy, goal, who, randomness),
        server=Averaging(learning_rate=config.server.learning_rate, momentum=config.server.momentum),
        group=config.run.group if model.size > 100_000 else max(config.run.group, 100),
        client_weights=None if goal else local.partition.sizes.astype(np.float64),
    )
    weights = model.initial(seeds.integer("weights")).to(device)
    norm = config.privacy.clip_norm if config.privacy else math.inf
    return Experiment(
        config=config,
        method=chosen,
        parts=parts,
        seeds=seeds,
        model=model,
        dataset=dataset,
        device=device,
        start=ServerState(round=0, weights=weights, velocity=None, clip_norm=norm),
        goal=goal,
        not_protected=_not_protected(config, public),
    )


def _check_method(config: Config, chosen: Method) -> None:
    if config.privacy is not None and not chosen.private:
        nearest = "fed-smp-topk or fed-smp-randk" if chosen.sparse else "dp-fedavg"
        reason = "its indices come from private data" if chosen.name == "fedavg-topk" else "it adds no noise"
        raise ConfigError(
            f"method.name={chosen.name!r} with [privacy]: {chosen.name} is never private, {reason}. Use {nearest}, or "
            "remove the [privacy] table."
        )
    if config.privacy is None and chosen.private:
        raise ConfigError(
            f"method.name={chosen.name!r} without [privacy]: it needs privacy.clip_norm and privacy.epsilon or "
            "privacy.noise_multiplier. Without privacy use fedavg, fedavg-topk or fedavg-randk."
        )
    if not chosen.sparse and (config.method.keep is not None or config.method.k is not None):
        raise ConfigError(
            f"method.keep or method.k with method.name={chosen.name!r}: it sends everything. Remove the key."
        )
    if chosen.needs_public_data and config.data.public == 0:
        raise ConfigError(
            f"method.name={chosen.name!r} with data.public=0: its mask comes from public data. Set data.public to a "
            "number of samples, and data.public_from to the data set they come from if it is another."
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"run.device={name!r}: cannot be used here ({first}). Use 'auto' or 'cpu'.") from None
    return device


def _public(config: Config, whole: Dataset, seeds: Seeds, device: torch.device) -> tuple[Dataset, _Public | None]:
    count = config.data.public
    if count == 0:
        return whole, None
    if config.data.public_from is None:
        rest, inputs, labels = whole.carve_public(count, seeds.generator("public.carve"))
        note = (
            f"{count} samples carved out of the training set of {whole.name} serve as public data: "
            "they are not protected by the stated epsilon"
        )
    else:
        other = data.load(config.data.public_from, config.data.root)
        if other.input_shape != whole.input_shape or other.classes > whole.classes:
            raise ConfigError(
                f"data.public_from={other.name!r}: its samples are {other.input_shape} in {other.classes} classes, "
                f"{whole.name} has {whole.input_shape} in {whole.classes}. Use a data set of the same form."
            )
        _, inputs, labels = other.carve_public(count, seeds.generator("public.carve"))
        rest, note = whole, f"{count} samples of {other.name} serve as public data: they are not protected"
    return rest, _Public(
        inputs=torch.from_numpy(inputs).to(device), labels=torch.from_numpy(labels).to(device), note=note
    )


def _model(config: Config, dataset: Dataset) -> FlatModel:
    options: dict[str, Any] = {} if config.model.hidden is None else {"hidden": config.model.hidden}
    return models.build(config.model.name, dataset.input_shape, dataset.classes, **options)


def _local(config: Config, model: FlatModel, dataset: Dataset, seeds: Seeds, device: torch.device) -> LocalSgd:
    partition = data.iid(len(dataset.train_labels), config.federation.clients, seeds.generator("partition"))
    return LocalSgd(
        model=model,
        inputs=torch.from_numpy(dataset.train_inputs).to(device),
        labels=torch.from_numpy(dataset.train_labels).to(device),
        partition=partition,
        learning_rate=config.local.learning_rate,
        learning_rate_decay=config.local.learning_rate_decay,
        momentum=config.local.momentum,
        epochs=config.local.epochs,
        steps=config.local.steps,
        batch_size=config.local.batch_size,
        strategy=config.local.strategy,
    )


def _map(config: Config, model: FlatModel, local: LocalSgd, public: _Public | None) -> MapChoice:
    name, size = config.method.name, model.size
    if name in ("fedavg", "dp-fedavg"):
        return SendAll(size=size)
    kept = kept_coordinates(size, keep=config.method.keep, k=config.method.k)
    match name:
        case "fedavg-topk":
            return OwnTopMask(size=size, kept=kept)
        case "fedavg-randk":
            return OwnRandomMask(size=size, kept=kept)
        case "fed-smp-randk":
            return RandomSharedMask(size=size, kept=kept)
    assert public is not None
    return PublicTopMask(size=size, kept=kept, trainer=local, inputs=public.inputs, labels=public.labels)


def _plan(config: Config, table: PrivacyTable) -> Plan:
    federation = config.federation
    return Plan(
        clients=federation.clients,
        cohort=federation.clients if federation.sampling == "all" else federation.cohort,
        sampling=federation.sampling,
        adjacency=Adjacency(table.adjacency) if table.adjacency else None,
        delta=table.delta,
    )


def _goal(config: Config) -> PrivacyGoal:
    table = config.privacy
    assert table is not None
    plan = _plan(config, table)
    z = table.noise_multiplier
    if z is None:
        if table.epsilon is None:
            raise ConfigError("[privacy]: give noise_multiplier, or epsilon to calibrate one for the rounds, or both.")
        calibrated = budget.noise_multiplier(
            plan, epsilon_target=table.epsilon, rounds=config.federation.rounds, accountant=table.accountant
        )
        z = float(calibrated.noise_multiplier or 0)
    return PrivacyGoal(
        mechanism=plan.round(z),
        delta=float(plan.delta or 0),
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
    )


def _privacy(table: PrivacyTable | None, goal: PrivacyGoal | None, who: Sampler, randomness: Randomness) -> Privacy:
    if table is None or goal is None:
        return NotPrivate()
    adaptive = None
    if table.adaptive is not None:
        # A twentieth of the cohort, as Andrew et al. 2021; more in a small one, where the count would cost too much.
        std = table.adaptive.count_noise_std or max(who.expected / 20, goal.noise_multiplier)
        adaptive = AdaptiveClip(quantile=table.adaptive.quantile, rate=table.adaptive.rate, count_noise_std=std)
    return ClientLevelGaussian(
        noise_multiplier=goal.noise_multiplier,
        adjacency=goal.mechanism.adjacency,
        sampler=who,
        randomness=randomness,
        placement=table.placement,
        adaptive=adaptive,
    )


def _not_protected(config: Config, public: _Public | None) -> tuple[str, ...]:
    notes = [public.note] if public else []
    if config.privacy is not None and config.run.randomness == "simulated":
        notes.append("noise and cohorts come from the seed (run.randomness = 'simulated'): do not release this model")
    return tuple(notes)
