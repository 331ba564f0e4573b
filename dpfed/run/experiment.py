"""The composition root: a checked configuration becomes the objects of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_args

import torch

from accounting.caveats import default_delta
from accounting.errors import AccountingError
from dpfed import compress, data, models
from dpfed.aggregation.ranks import Alone, Ranks, local_device
from dpfed.clients.records_apart import require_records_apart
from dpfed.clients.start import Start
from dpfed.clients.state import State
from dpfed.config import registered
from dpfed.config.own_code import OwnFile, load_own_code, own_files, words_of
from dpfed.config.tables import Config
from dpfed.config.training_tables import Mask
from dpfed.data.dataset import Dataset
from dpfed.data.letters import check_letters
from dpfed.data.samples import Public, Validation, public_samples, validation_samples, whole_data, with_features
from dpfed.errors import ConfigError, DpfedError
from dpfed.methods.catalogue import method
from dpfed.methods.choices import counts_errors
from dpfed.methods.facts import MethodFacts
from dpfed.methods.goals import PrivacyGoal, slots_of
from dpfed.methods.records import RecordGoal, private_records
from dpfed.methods.refusals import refuse, refuse_network, refuse_ranks
from dpfed.methods.release import check_release
from dpfed.methods.schemes import sparsity_schedule
from dpfed.methods.settings import Settings
from dpfed.methods.sums import dropouts_of, filled_to, most_uploads, sums_of
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork
from dpfed.models.mask_file import Recipe
from dpfed.participation.of_run import sampler_of
from dpfed.randomness import randomness_of
from dpfed.round import Method
from dpfed.run.evaluate import Objective
from dpfed.run.objective import objective_of, with_own_loss
from dpfed.run.own import Own
from dpfed.run.protection import not_protected
from dpfed.run.training import (
    TRIAL_LIMITS,
    after_trial,
    course,
    frozen_network,
    group_of,
    is_custom,
    local_training,
    model_options,
    network_of,
)
from dpfed.seeds import Seeds
from dpfed.server.adaptive import AdaptiveRule, Kind
from dpfed.server.averaging import Averaging
from dpfed.server.moving_average import Averaged, MovingAverage
from dpfed.server.posterior import BetaPosterior
from dpfed.server.purging import Purging
from dpfed.server.readout import Masked, Readout, Weights
from dpfed.server.registry import check_name as check_rule
from dpfed.server.registry import own_rule
from dpfed.server.state import ServerRule, ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.encode import Encode
from dpfed.stages.soundness import of_ones_own, require_forgetful, require_form, require_sound


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that `dpfed.run.loop` needs to run.

    readout turns what the server holds into the weights that are evaluated and saved; downlink_bits is what a client
    gets in a round, uplink_bits what it sends (None: measured), secure_sum_bits of them keys and shares. own_code: what
    of it does not come with dpfed.
    """

    config: Config
    facts: MethodFacts
    method: Method
    seeds: Seeds
    model: FlatModel
    objective: Objective
    readout: Readout
    dataset: Dataset
    device: torch.device
    start: ServerState
    goal: PrivacyGoal | RecordGoal | None
    validation: Validation | None
    not_protected: tuple[str, ...]
    uplink_bits: int | None
    secure_sum_bits: int
    downlink_bits: int
    own_code: tuple[OwnFile, ...] = ()


def check(config: Config, ranks: Ranks | None = None, own: Own | None = None) -> MethodFacts:
    """What is true of the method, after everything that can be refused without the data: ConfigError as in `build`."""
    load_own_code()
    refuse_ranks(config, ranks or Alone())
    chosen = method(config.method.name)
    if own is None or own.data is None:
        data.check_name(config.data.name)
    if own is None or own.model is None:
        models.check_name(config.model.name)
    check_rule(config.server.rule)
    check_release(config, chosen)
    refuse(config, chosen)
    return chosen


def resolved(config: Config) -> Config:
    """Return the configuration with privacy.delta set: the default delta of its clients where none is given."""
    if config.privacy is None or config.privacy.delta is not None:
        return config
    return config.with_delta(default_delta(config.federation.clients))


def build(config: Config, ranks: Ranks | None = None, own: Own | None = None) -> Experiment:
    """The objects of a run, of which the caller may have some of its `own`. ConfigError for a choice that cannot work,
    with the nearest one that does; AccountingError for one that no account of privacy covers.
    """
    ranks, own = Alone() if ranks is None else ranks, Own() if own is None else own
    if own.loss is not None:
        config = with_own_loss(config)
    facts = check(config, ranks, own)
    config = resolved(config)
    seeds = Seeds(root=config.run.seed)
    device = _device(config.run.device, ranks)
    division = Seeds(root=config.data.partition_seed)
    dataset, public, validation = _samples(config, own.data, division, device)
    model = network_of(config, dataset, seeds, own.model)
    unused = State(*(("model", one) for one in model.shared(device))) if is_custom(config, own) else None
    if dataset.has_integers and not model.takes(torch.from_numpy(dataset.test_inputs[:2])):
        dataset = dataset.as_floats()
        public = public and replace(public, inputs=public.inputs.float())
        validation = validation and replace(validation, inputs=validation.inputs.float())
    objective = objective_of(config, dataset, model, own.loss, own.metrics)
    if unused is not None:
        unused.restore()
    start = None if unused is None else Start(model, objective.loss, device)
    refuse_network(config, facts, model)
    network = frozen_network(config, model, seeds, device) if facts.coins else None
    randomness = randomness_of(config.run.randomness, seeds)
    clients = local_training(
        config, course(config, model, network, device), objective.loss, dataset, model, division, device
    )
    records: RecordGoal | None = None
    if config.local.record is not None:
        clients, records = private_records(config, clients, randomness)
        require_records_apart(
            model,
            objective.loss,
            torch.from_numpy(dataset.test_inputs),
            torch.from_numpy(dataset.test_labels),
            batch_size=config.local.batch_size,
            seeds=seeds,
        )
    broadcast, readout = _start(config, network, model, dataset, seeds)
    if start is not None:
        clients = after_trial(config, clients, broadcast.to(device), dataset, start)
    settings = Settings(
        config=config,
        facts=facts,
        clients=clients,
        sampler=sampler_of(config),
        randomness=randomness,
        seeds=seeds,
        model=model,
        device=device,
        public=public,
    )
    stages = _chain(settings)
    goal = _charged(settings, stages)
    method = _method(settings, stages, goal, ranks)
    beside = method.aggregation.overhead_bits(most_uploads(config, filled_to(config, goal)))
    stated = goal or records
    if records is not None:
        config = config.with_delta(records.delta)
    notes = [one.note for one in (public, validation) if one is not None]
    if goal is not None and of_ones_own(stages):
        notes.append(_taken_at_its_word(stages))
    if start is not None and stated is not None:
        notes.append(TRIAL_LIMITS)
    return Experiment(
        config=config,
        facts=facts,
        method=method,
        seeds=seeds,
        model=model,
        objective=objective,
        readout=readout,
        dataset=dataset,
        device=device,
        start=ServerState(round=0, broadcast=broadcast.to(device), clip_norm=stated.clip_norm if stated else math.inf),
        goal=stated,
        validation=validation,
        not_protected=not_protected(notes, config, stages.decodes_before_the_clip),
        uplink_bits=None if stages.fixed_bits is None else stages.fixed_bits + beside,
        secure_sum_bits=beside,
        downlink_bits=_downlink_bits(settings, stages),
        own_code=own_code_of(config),
    )


def _samples(
    config: Config, given: Dataset | None, division: Seeds, device: torch.device
) -> tuple[Dataset, Public | None, Validation | None]:
    """What clients train on, and what of it is public or set aside instead."""
    whole = whole_data(config) if given is None else with_features(config.data, given)
    check_letters(config.model.name, whole)
    rest, validation = validation_samples(config, whole, division, device)
    dataset, public = public_samples(config, rest, division, device)
    return dataset, public, validation


def _start(
    config: Config, network: FrozenNetwork | None, model: FlatModel, dataset: Dataset, seeds: Seeds
) -> tuple[torch.Tensor, Readout]:
    """What is broadcast first, and how what the server holds becomes weights."""
    readout: Readout
    if network is None:
        broadcast, readout = model.initial(seeds.integer("weights")), Weights(model=model)
    else:
        broadcast, readout = _masks(config, network, dataset, seeds)
    return broadcast, readout if config.server.average is None else Averaged(last=readout)


def own_code_of(config: Config) -> tuple[OwnFile, ...]:
    """The files of a user's own that a run of this configuration is made of."""
    method_of, scheme_of = config.method.name, method(config.method.name).scheme
    return own_files(
        [
            ("method", method_of),
            ("scheme", scheme_of or ""),
            ("model", config.model.name),
            ("data set", config.data.name),
            ("data set", config.data.public_from or ""),
            ("server rule", config.server.rule),
        ]
    )


def _chain(settings: Settings) -> Stages:
    """The method's; ConfigError with its line where a function of one's own fails."""
    facts = settings.facts
    try:
        return require_form(facts.stages(settings))
    except (DpfedError, AccountingError):
        raise
    except Exception as error:  # the function may be the user's, and raise anything
        if registered.file_of("method", facts.name) is None:
            raise
        raise ConfigError(f"method.name={facts.name!r}: its function fails: {words_of(error)}.") from error


def _charged(settings: Settings, stages: Stages) -> PrivacyGoal | None:
    """The goal with the mechanism that the stage charges which makes rounds private: nothing else says what a run is
    charged for. ConfigError where that charge does not cover what the chain, or a scheme of one's own, does."""
    goal = settings.goal(stages.project.sent)
    if goal is None:
        return None
    require_sound(stages)
    require_forgetful(stages, settings.clients)
    _check_own_scheme(stages)
    assert stages.private is not None
    return replace(goal, private=stages.private)


def _check_own_scheme(stages: Stages) -> None:
    """A private run through a scheme of one's own rests on rows that do not depend on each other: what need not be
    believed is tried."""
    encode = stages.find(Encode)
    if encode is None or registered.file_of("scheme", encode.scheme.name) is None:
        return
    found = compress.check(encode.scheme, statistics=False)
    if not found.passed:
        words = "; ".join(f"{one.subject}: {one.detail}" for one in found.failed)
        raise ConfigError(
            f"scheme {encode.scheme.name!r} with [privacy]: does not do what it claims ({words}) See `dpfed audit "
            f"scheme {encode.scheme.name}`."
        )


def _method(settings: Settings, stages: Stages, goal: PrivacyGoal | None, ranks: Ranks) -> Method:
    config = settings.config
    return Method(
        stages=stages,
        sampler=settings.sampler,
        randomness=settings.randomness,
        clients=settings.clients,
        aggregation=sums_of(config, stages, goal, settings.seeds),
        server=_averaging_models(config, _server(config, settings.facts, settings.model, settings.device)),
        group=group_of(config, settings.model),
        divisor=settings.sampler.expected if goal else None,
        slots=slots_of(goal) if goal else None,
        fill=filled_to(config, goal),
        dropouts=dropouts_of(config, settings.randomness),
        canaries=settings.canaries(goal),
        ranks=ranks,
        counts_errors=counts_errors(config),
    )


def _downlink_bits(settings: Settings, stages: Stages) -> int:
    """After a reset in every round the probabilities are whole numbers of K-ths, if K is fixed."""
    config, choice = settings.config, stages.project.choice
    server = config.server
    counted = server.rule == "posterior" and server.reset_every == 1 and server.prior == 1
    if counted and config.privacy is None and config.federation.sampling != "poisson":
        return int(settings.sampler.expected).bit_length() * choice.sent
    return choice.downlink_bits


def _device(name: str, ranks: Ranks) -> torch.device:
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda"):
        name = local_device() if ranks.count > 1 else "cuda"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"run.device={name!r}: cannot be used here ({first}). Use 'auto' or 'cpu'.") from None
    return device


def _averaging_models(config: Config, rule: ServerRule) -> ServerRule:
    decay = config.server.average
    return rule if decay is None else MovingAverage(rule=rule, decay=decay)


def _server(config: Config, chosen: MethodFacts, model: FlatModel, device: torch.device) -> ServerRule:
    server, edge = config.server, (config.mask or Mask()).edge
    if server.rule == "posterior":
        kept = edge if config.privacy is not None else 0.0
        return BetaPosterior(prior=server.prior, reset_every=server.reset_every, edge=kept)
    own = own_rule(server.rule, learning_rate=server.learning_rate, momentum=server.momentum)
    averaged = model.indices("statistic").to(device) if model.has_statistics else None
    step = own or replace(_step(config, edge if chosen.coins else None), averaged=averaged)
    if chosen.local_training != "pruned" or config.method.purge == "clients":
        return step
    return Purging(rule=step, prunable=model.indices("weight").to(device), sparsity=sparsity_schedule(config))


def _step(config: Config, edge: float | None) -> Averaging | AdaptiveRule:
    server = config.server
    if server.rule in get_args(Kind):
        beta1 = (0.0 if server.rule == "adagrad" else 0.9) if server.beta1 is None else server.beta1
        return AdaptiveRule(
            kind=server.rule,  # type: ignore[arg-type]
            learning_rate=server.learning_rate,
            beta1=beta1,
            beta2=server.beta2,
            tau=server.tau,
        )
    return Averaging(learning_rate=server.learning_rate, momentum=server.momentum, edge=edge)


def _masks(config: Config, network: FrozenNetwork, dataset: Dataset, seeds: Seeds) -> tuple[torch.Tensor, Readout]:
    table = config.mask or Mask()
    recipe = Recipe(
        model=config.model.name,
        input_shape=dataset.input_shape,
        classes=dataset.outputs,
        options=model_options(config),
        seed=seeds.root,
        constant=table.constant,
        biases=table.biases,
        scale=table.scale,
        spread=table.spread,
    )
    start = network.initial.clamp(table.edge, 1 - table.edge)
    return start, Masked(network=network, recipe=recipe, how=table.readout)


def _taken_at_its_word(stages: Stages) -> str:
    return (
        f"against errors in code of your own: {', '.join(of_ones_own(stages))} bounds updates or makes them private, "
        "and epsilon holds if it does what it says (`dpfed audit upload` with --load tests it)"
    )
