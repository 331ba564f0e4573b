"""The composition root: a checked configuration becomes the objects of a run. The only place that names them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from accounting import budget, coin_budget
from accounting.accountant import Accountant
from accounting.adjacency import Adjacency
from accounting.budget import Plan
from accounting.coin_budget import CoinPlan
from accounting.coins import BernoulliAggregate
from accounting.mechanisms import SingleRelease, Subsampled
from dpfed import compress, data, models
from dpfed.compress.code import Code
from dpfed.compress.coins import Coins
from dpfed.compress.masked_noise import FedMrnSigned
from dpfed.compress.masks import MapChoice, PublicSigns, PublicTopMask, RandomSharedMask, SendAll, kept_coordinates
from dpfed.compress.upload import Upload
from dpfed.config import Config, Mask, PrivacyTable
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.local.masked_noise import NOISE_PURPOSE
from dpfed.local.masks import MaskTraining
from dpfed.local.sgd import Sgd
from dpfed.local.task import Course
from dpfed.local.training import LocalTraining
from dpfed.mask_file import Recipe
from dpfed.methods import METHODS, Method, method
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, freeze
from dpfed.privacy.adaptive_clip import AdaptiveClip
from dpfed.privacy.client_level import ClientLevelGaussian, NotPrivate, Privacy
from dpfed.privacy.coins import ClientLevelCoins
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.readout import Masked, Readout, Weights
from dpfed.round import Parts
from dpfed.sampling import Sampler, sampler
from dpfed.seeds import Seeds
from dpfed.server.averaging import Averaging
from dpfed.server.posterior import BetaPosterior
from dpfed.server.state import ServerRule, ServerState

_EDGE_OF_SIGNS = 0.1
"""privacy.edge where none is given."""


@dataclass(frozen=True, kw_only=True)
class PrivacyGoal:
    """What the run promises: the mechanism of a round, delta, and the epsilon it may not exceed (None: only stated).

    noise_multiplier: of Gaussian noise, None for coins
    """

    mechanism: SingleRelease
    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float | None
    clip_norm: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that `dpfed.federation` needs to run.

    readout turns what the server holds into the weights that are evaluated and saved; downlink_bits is what a client
    gets in a round, uplink_bits what it sends (None: measured).
    """

    config: Config
    method: Method
    parts: Parts
    seeds: Seeds
    model: FlatModel
    readout: Readout
    dataset: Dataset
    device: torch.device
    start: ServerState
    goal: PrivacyGoal | None
    not_protected: tuple[str, ...]
    uplink_bits: int | None
    downlink_bits: int


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
    network = _network(config, model, seeds, device) if chosen.coins else None
    who = sampler(config.federation.sampling, clients=config.federation.clients, cohort=config.federation.cohort)
    randomness: Randomness = Secure() if config.run.randomness == "secure" else Simulated(seeds=seeds)
    local = _local(config, _course(config, model, network), dataset, model, seeds, device)
    map_ = _signs(config, chosen, local) if _signs_by_coins(config, chosen) else _map(config, local, public)
    goal = _goal(config, chosen, map_.sent) if config.privacy is not None else None
    code = _code(config, chosen, goal, map_, randomness, seeds)
    weighted = goal is None and not chosen.coins
    parts = Parts(
        sampler=who,
        randomness=randomness,
        map=map_,
        local=local,
        privacy=_privacy(config, goal, who, randomness),
        code=code,
        server=_server(config, chosen),
        group=config.run.group if model.size > 100_000 else max(config.run.group, 100),
        client_weights=local.partition.sizes.astype(np.float64) if weighted else None,
        divisor=who.expected if goal else None,
        slots=code.slots,
        decode_first=code.slots is None and goal is not None and not chosen.linear and _seen(config) == "sum",
    )
    readout: Readout
    if network is None:
        broadcast, readout = model.initial(seeds.integer("weights")), Weights(model=model)
    else:
        broadcast, readout = _masks(config, network, dataset, seeds)
    return Experiment(
        config=config,
        method=chosen,
        parts=parts,
        seeds=seeds,
        model=model,
        readout=readout,
        dataset=dataset,
        device=device,
        start=ServerState(round=0, broadcast=broadcast.to(device), clip_norm=goal.clip_norm if goal else math.inf),
        goal=goal,
        not_protected=_not_protected(config, public),
        uplink_bits=code.fixed_bits(map_.sent),
        downlink_bits=_downlink_bits(config, map_, who),
    )


def _check_method(config: Config, chosen: Method) -> None:
    if config.privacy is not None and chosen.privacy == "never":
        nearest = (
            "fedpm" if chosen.coins else "fed-smp-topk or fed-smp-randk" if chosen.sparse == "yes" else "dp-fedavg"
        )
        reason = "its indices come from private data" if chosen.name == "fedavg-topk" else "it adds no noise"
        raise ConfigError(
            f"method.name={chosen.name!r} with [privacy]: {chosen.name} is never private, {reason}. Use {nearest}, or "
            "remove the [privacy] table."
        )
    if config.privacy is None and chosen.privacy == "required":
        raise ConfigError(
            f"method.name={chosen.name!r} without [privacy]: it needs privacy.clip_norm and privacy.epsilon or "
            "privacy.noise_multiplier. Without privacy use fedavg, fedavg-topk or fedavg-randk."
        )
    given = config.method.keep is not None or config.method.k is not None
    if chosen.sparse == "no" and given:
        raise ConfigError(
            f"method.keep or method.k with method.name={chosen.name!r}: it sends everything. Remove the key."
        )
    if not chosen.coins and (config.mask is not None or config.server.rule == "posterior"):
        raise ConfigError(
            f"[mask] or server.rule='posterior' with method.name={chosen.name!r}: they are for masks. Remove them, or "
            "use fedpm or fedmask."
        )
    if not chosen.coins and config.local.optimizer != "sgd":
        raise ConfigError(f"local.optimizer={config.local.optimizer!r}: is for masks (fedpm, fedmask). Use 'sgd'.")
    if config.privacy is not None and config.privacy.placement == "clients" and not chosen.linear:
        raise ConfigError(
            f"privacy.placement='clients' with method.name={chosen.name!r}: shares of noise do not add up through a "
            "compressor that a sum does not commute with. Use placement 'server' or privacy.release 'uploads'."
        )
    public = chosen.needs_public_data or (chosen.sparse == "optional" and given)
    if public and config.data.public == 0:
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
    return models.build(config.model.name, dataset.input_shape, dataset.classes, **_model_options(config))


def _model_options(config: Config) -> dict[str, Any]:
    return {} if config.model.hidden is None else {"hidden": list(config.model.hidden)}


def _network(config: Config, model: FlatModel, seeds: Seeds, device: torch.device) -> FrozenNetwork:
    table = config.mask or Mask()
    return freeze(
        model, seeds, constant=table.constant, biases=table.biases, scale=table.scale, spread=table.spread
    ).to(device)


def _course(config: Config, model: FlatModel, network: FrozenNetwork | None) -> Course:
    local, table = config.local, config.mask or Mask()
    if network is None:
        return Sgd(
            size=model.size,
            learning_rate=local.learning_rate,
            learning_rate_decay=local.learning_rate_decay,
            momentum=local.momentum,
        )
    return MaskTraining(
        network=network,
        learning_rate=local.learning_rate,
        learning_rate_decay=local.learning_rate_decay,
        momentum=local.momentum,
        optimizer=local.optimizer,
        gradient=table.gradient,
        forward="threshold" if config.method.name == "fedmask" else table.forward,
        edge=table.edge,
    )


def _local(
    config: Config, course: Course, dataset: Dataset, model: FlatModel, seeds: Seeds, device: torch.device
) -> LocalTraining:
    partition = data.iid(len(dataset.train_labels), config.federation.clients, seeds.generator("partition"))
    return LocalTraining(
        model=model,
        course=course,
        inputs=torch.from_numpy(dataset.train_inputs).to(device),
        labels=torch.from_numpy(dataset.train_labels).to(device),
        partition=partition,
        epochs=config.local.epochs,
        steps=config.local.steps,
        batch_size=config.local.batch_size,
        strategy=config.local.strategy,
    )


def _map(config: Config, local: LocalTraining, public: _Public | None) -> MapChoice:
    name, size = config.method.name, local.course.size
    given = config.method.keep is not None or config.method.k is not None
    if method(name).scheme in ("topk", "randk") or not (given or method(name).sparse == "yes"):
        return SendAll(size=size)
    kept = kept_coordinates(size, keep=config.method.keep, k=config.method.k)
    if name == "fed-smp-randk":
        return RandomSharedMask(size=size, kept=kept)
    assert public is not None
    return PublicTopMask(size=size, kept=kept, trainer=local, inputs=public.inputs, labels=public.labels)


def _signs_by_coins(config: Config, chosen: Method) -> bool:
    """Whether an update's signs are private by their own coins; ConfigError where they cannot be."""
    table = config.privacy
    if table is None or chosen.coins or table.noise != "coins":
        if table is not None and table.edge is not None:
            raise ConfigError("privacy.edge: is for privacy.noise='coins'; fedpm has mask.edge. Remove it.")
        if table is not None and chosen.coins and table.noise == "gaussian":
            raise ConfigError("privacy.noise='gaussian' with masks: their noise is coins. Remove it.")
        return False
    if not chosen.coins_possible:
        able = ", ".join(name for name, one in METHODS.items() if one.coins_possible)
        raise ConfigError(f"privacy.noise='coins' with method.name={chosen.name!r}: only fedpm, {able} toss coins.")
    if _seen(config) == "uploads":
        raise ConfigError("privacy.release='uploads' with privacy.noise='coins': is built for fedpm only. Use 'sum'.")
    return True


def _signs(config: Config, chosen: Method, local: LocalTraining) -> MapChoice:
    """A public size of the signs: never one that comes from the data."""
    options = config.method.options
    if chosen.name == "fedmrns":
        if not config.method.shared or options.get("noise") != "bernoulli":
            raise ConfigError(
                "privacy.noise='coins' with fedmrns: needs method.shared=true and method.options.noise='bernoulli', "
                "one noise of one size a round, or the sum of masks could not be decoded. Set both."
            )
        bound: Any = options.get("alpha", FedMrnSigned.alpha)
    else:
        bound = options.get("bound")
    if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 < bound < math.inf:
        raise ConfigError(
            f"privacy.noise='coins' with method.options bound={bound!r}: needs a public number; 'linf' and 'l2' are "
            "computed from private data."
        )
    purpose = NOISE_PURPOSE if chosen.name == "fedmrns" else None
    return PublicSigns(size=local.course.size, bound=float(bound), noise_purpose=purpose)


def _code(
    config: Config, chosen: Method, goal: PrivacyGoal | None, map_: MapChoice, randomness: Randomness, seeds: Seeds
) -> Code:
    if chosen.scheme is None or _signs_by_coins(config, chosen):
        return _coins(config, chosen, goal, randomness)
    table = config.method
    return Upload(
        scheme=_scheme(config, chosen, map_.sent),
        seeds=seeds,
        seed_purpose=NOISE_PURPOSE if chosen.local_training == "masked noise" else "code",
        model=chosen.local_training == "pruned",
        sizes_secret=goal is not None and _seen(config) == "sum",
        feedback=config.federation.clients if table.error_feedback else None,
    )


def _scheme(config: Config, chosen: Method, size: int) -> compress.Scheme:
    """The compressor with its options; ConfigError naming method.options for one that does not fit."""
    table, name = config.method, chosen.scheme or ""
    options: dict[str, Any] = dict(table.options)
    if name in ("topk", "randk"):
        options["k"] = kept_coordinates(size, keep=table.keep, k=table.k)
    if table.shared:
        options["shared_seed"] = 0  # stands for one a round
    if table.error_feedback and config.privacy is not None:
        raise ConfigError(
            "method.error_feedback with [privacy]: a client's remembered error carries earlier rounds into this one, "
            "which no account of single rounds covers. Remove one of them."
        )
    try:
        return compress.get(name, **options)
    except ConfigError as error:
        raise ConfigError(f"method.options of {chosen.name!r}: {error}") from None


def _coins(config: Config, chosen: Method, goal: PrivacyGoal | None, randomness: Randomness) -> Coins:
    table = config.method
    if chosen.coins and (table.options or table.shared or table.error_feedback):
        raise ConfigError(
            f"method.options, method.shared or method.error_feedback with method.name={chosen.name!r}: masks have none "
            "of them; their settings are in [mask]. Remove the keys."
        )
    if config.privacy is None or goal is None:
        return Coins(randomness=randomness, edge=0.0, stochastic=chosen.name != "fedmask")
    coins = goal.mechanism.mechanism if isinstance(goal.mechanism, Subsampled) else goal.mechanism
    return Coins(
        randomness=randomness,
        edge=_edge(config),
        noise_std=config.privacy.noise_std or 0.0,
        correction=config.privacy.correction or "linear",
        slots=coins.cohort if isinstance(coins, BernoulliAggregate) else None,
        summed=isinstance(coins, BernoulliAggregate),
    )


def _edge(config: Config) -> float:
    """c: probabilities of coins lie in [c, 1 - c]."""
    if config.privacy is not None and config.privacy.edge is not None:
        return config.privacy.edge
    return (config.mask or Mask()).edge if config.method.name == "fedpm" else _EDGE_OF_SIGNS


def _seen(config: Config) -> str:
    """What a private run releases: "sum" or "uploads"."""
    return (config.privacy.release or "sum") if config.privacy is not None else "sum"


def _server(config: Config, chosen: Method) -> ServerRule:
    server, edge = config.server, (config.mask or Mask()).edge
    if server.rule == "posterior":
        kept = edge if config.privacy is not None else 0.0
        return BetaPosterior(prior=server.prior, reset_every=server.reset_every, edge=kept)
    return Averaging(learning_rate=server.learning_rate, momentum=server.momentum, edge=edge if chosen.coins else None)


def _masks(config: Config, network: FrozenNetwork, dataset: Dataset, seeds: Seeds) -> tuple[torch.Tensor, Readout]:
    table = config.mask or Mask()
    recipe = Recipe(
        model=config.model.name,
        input_shape=dataset.input_shape,
        classes=dataset.classes,
        options=_model_options(config),
        seed=seeds.root,
        constant=table.constant,
        biases=table.biases,
        scale=table.scale,
        spread=table.spread,
    )
    start = network.initial.clamp(table.edge, 1 - table.edge)
    return start, Masked(network=network, recipe=recipe, seeds=seeds, how=table.readout)


def _downlink_bits(config: Config, map_: MapChoice, who: Sampler) -> int:
    """After a reset in every round the probabilities are whole numbers of K-ths, if K is fixed."""
    server = config.server
    counted = server.rule == "posterior" and server.reset_every == 1 and server.prior == 1
    if counted and config.privacy is None and config.federation.sampling != "poisson":
        return int(who.expected).bit_length() * map_.sent
    return map_.downlink_bits


def _plan(config: Config, table: PrivacyTable) -> Plan:
    """Single uploads are charged in every round to every client: who takes part is seen."""
    federation = config.federation
    everybody = federation.sampling == "all" or _seen(config) == "uploads"
    default = Adjacency.ZERO_OUT if _seen(config) == "uploads" else None
    return Plan(
        clients=federation.clients,
        cohort=federation.clients if everybody else federation.cohort,
        sampling="all" if everybody else federation.sampling,
        adjacency=Adjacency(table.adjacency) if table.adjacency else default,
        delta=table.delta,
    )


def _goal(config: Config, chosen: Method, sent: int) -> PrivacyGoal:
    table = config.privacy
    assert table is not None
    if chosen.coins or _signs_by_coins(config, chosen):
        return _coin_goal(config, table, sent)
    named = [name for name in ("linf_clip", "noise_std", "slots", "correction") if getattr(table, name)]
    if named:
        raise ConfigError(f"privacy.{named[0]} with method.name={chosen.name!r}: is for fedpm's coins. Remove it.")
    if table.clip_norm is None:
        raise ConfigError("privacy.clip_norm: is missing and has no default.")
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
        clip_norm=table.clip_norm,
    )


def _coin_goal(config: Config, table: PrivacyTable, sent: int) -> PrivacyGoal:
    """Single uploads are charged in every round to every client: who takes part is seen."""
    for name, reason in (
        ("noise_multiplier", "the coins are the noise; privacy.noise_std adds some before them"),
        ("adaptive", "the clip norm of coins is fixed"),
    ):
        if getattr(table, name) is not None:
            raise ConfigError(f"privacy.{name} with coins: {reason}. Remove it.")
    if table.placement != "server":
        raise ConfigError("privacy.placement with coins: they are tossed by the clients. Remove it.")
    federation, seen = config.federation, table.release or "sum"
    if seen == "uploads" and table.slots is not None:
        raise ConfigError("privacy.slots with privacy.release='uploads': there is no sum to pad. Remove it.")
    plan = CoinPlan(
        clients=federation.clients,
        cohort=federation.clients if federation.sampling == "all" else federation.cohort,
        dimension=sent,
        edge=_edge(config),
        mechanism="bernoulli-aggregate" if seen == "sum" else "bernoulli-channel",
        sampling=federation.sampling if seen == "sum" else "all",
        adjacency=Adjacency(table.adjacency) if table.adjacency else None,
        delta=table.delta,
        clip_norm=table.clip_norm or (None if table.linf_clip else 1.0),
        linf_clip=table.linf_clip,
        noise_std=table.noise_std or 0.0,
        slots=table.slots,
    )
    clip = table.clip_norm
    if clip is None:
        if table.epsilon is None:
            raise ConfigError("[privacy]: give clip_norm, or epsilon to calibrate one for the rounds, or both.")
        clip = coin_budget.clip_norm(
            plan, epsilon_target=table.epsilon, rounds=federation.rounds, accountant=table.accountant
        )
    return PrivacyGoal(
        mechanism=replace(plan, clip_norm=clip).round(),
        delta=float(plan.delta or 0),
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=None,
        clip_norm=clip,
    )


def _privacy(config: Config, goal: PrivacyGoal | None, who: Sampler, randomness: Randomness) -> Privacy:
    table = config.privacy
    if table is None or goal is None:
        return NotPrivate()
    if goal.noise_multiplier is None:
        return ClientLevelCoins(
            mechanism=goal.mechanism,
            linf_clip=table.linf_clip,
            edge=_edge(config),
            noise_std=table.noise_std or 0.0,
        )
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
        placement="uploads" if _seen(config) == "uploads" else table.placement,
        adaptive=adaptive,
    )


def _not_protected(config: Config, public: _Public | None) -> tuple[str, ...]:
    notes = [public.note] if public else []
    if config.privacy is not None and config.run.randomness == "simulated":
        notes.append("noise and cohorts come from the seed (run.randomness = 'simulated'): do not release this model")
    return tuple(notes)
