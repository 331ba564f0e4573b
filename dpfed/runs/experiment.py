"""Construction of all objects of a run from its configuration (composition root)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from accounting.caveats import default_delta
from accounting.errors import AccountingError
from dpfed import data, models, replayed
from dpfed.aggregation.ranks import Ranks
from dpfed.clients import LocalTraining
from dpfed.clients.masks import MaskTraining
from dpfed.clients.records_apart import require_records_apart
from dpfed.clients.state import State
from dpfed.clients.task import InitialState
from dpfed.config.own_code import UserCodeFile, code_files_of_run, error_text, load_own_code, registering_file
from dpfed.config.server_tables import PosteriorServer, StepServer
from dpfed.config.tables import Config
from dpfed.config.training_tables import MaskTable
from dpfed.data.client_ids import ClientIds
from dpfed.data.dataset import Dataset
from dpfed.data.partition import Holdings, Partition
from dpfed.data.samples import (
    Public,
    Validation,
    check_letters,
    declaration_notes,
    public_samples,
    validation_samples,
    whole_data,
    with_features,
)
from dpfed.errors import ConfigError, DpfedError
from dpfed.mechanisms.soundness import (
    require_forgetful,
    require_form,
    require_sound,
    require_sound_schemes,
    user_code_notes,
)
from dpfed.methods.catalogue import method_specification
from dpfed.methods.choices import counts_errors
from dpfed.methods.parts import TrainingParts
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.methods.records import AnyTarget, RecordTarget, private_records
from dpfed.methods.refusals import check_release, refuse, refuse_network, refuse_ranks
from dpfed.methods.settings import Settings, public_period
from dpfed.methods.specification import MethodSpecification
from dpfed.methods.sums import clients_in_filled_sum, dropouts_of, most_uploads, sums_of
from dpfed.models.flat import FlatModel
from dpfed.participation.custom import CustomCohorts, refuse_wrong_sampler
from dpfed.participation.sampling import canaries_of, ids_of_turns, resolve_lanes, sampler_of
from dpfed.randomness import randomness_of
from dpfed.round import Method
from dpfed.runs.evaluate import Objective, objective_of, with_own_loss
from dpfed.runs.protection import limitations_of_guarantee
from dpfed.runs.training import (
    PUBLIC_START_NOTE,
    TRIAL_LIMITS,
    CustomObjects,
    PublicTraining,
    clients_trained_together,
    device_of,
    frozen_network,
    is_custom,
    local_training,
    network_of,
    start_of_rounds,
    training_after_custom_trial,
    with_personal_layers,
)
from dpfed.seeds import Seeds
from dpfed.server.rules import Readout, ServerState
from dpfed.server.rules import check_name as check_rule
from dpfed.stages.chain import Stages


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """All objects of a run, for its loop (`dpfed.runs.loop`).

    readout:         maps the server's state to the weights that are evaluated and saved
    start:           state of the server before the first round, before training on public samples (server.start)
    public:          training on the public samples before round 1; None if the run has no public samples
    not_protected:   limitations of the stated epsilon, as texts
    uplink_bits:     bits that a client sends in a round; None if they are measured
    secure_sum_bits: part of uplink_bits for keys and shares of a secure sum
    downlink_bits:   bits that a client receives in a round
    own_code:        files of user-defined code of the run
    """

    config: Config
    specification: MethodSpecification
    method: Method
    seeds: Seeds
    model: FlatModel
    objective: Objective
    readout: Readout
    dataset: Dataset
    device: torch.device
    start: ServerState
    privacy_target: AnyTarget | None
    public: PublicTraining | None
    validation: Validation | None
    not_protected: tuple[str, ...]
    uplink_bits: int | None
    secure_sum_bits: int
    downlink_bits: int
    own_code: tuple[UserCodeFile, ...] = ()

    @property
    def for_release(self) -> bool:
        """True if the run is private and its model is for release."""
        return self.privacy_target is not None and self.config.run.for_release

    @property
    def mask_warning(self) -> str | None:
        """Warning that masks cannot move, from declared keys and public sizes only; None if they can."""
        config, training = self.config, self.method.clients
        course, steps = training.course, public_period(config, training)
        if not isinstance(course, MaskTraining) or steps is None:
            return None
        masks: float | None = None
        loses_none = not (config.aggregation.dropout or config.aggregation.lost)
        if config.rounds_have_fixed_size and config.round_size % 2 and loses_none:
            match config.server:
                case PosteriorServer(prior=prior):
                    masks = config.round_size + 2 * (prior - 1)
                case StepServer(rule="step", learning_rate=1.0, momentum=0.0):
                    masks = config.round_size
        return course.standstill(steps, rounds=config.federation.rounds, masks=masks)


def check_configuration(
    config: Config, ranks: Ranks | None = None, own: CustomObjects | None = None
) -> MethodSpecification:
    """Return the method's specification after all checks that need no data. Raises ConfigError, as `build` does."""
    load_own_code()
    refuse_ranks(config, ranks or Ranks())
    chosen = method_specification(config.method.name)
    if own is None or own.data is None:
        data.check_name(config.data.name)
    if own is None or own.model is None:
        models.check_name(config.model.name)
    check_rule(config.server.rule)
    check_release(config, chosen)
    refuse(config, chosen)
    return chosen


def with_derived_defaults(config: Config) -> Config:
    """Return the configuration with derived defaults filled in: privacy.delta, cohort_cap, lanes and bands."""
    config = resolve_lanes(config)
    if config.privacy is not None and config.privacy.delta is None:
        config = config.with_delta(default_delta(config.federation.clients))
    return config if config.cohort_cap is None else config.with_cap(config.cohort_cap)


def build(config: Config, ranks: Ranks | None = None, own: CustomObjects | None = None) -> Experiment:
    """Return all objects of a run; `own` has the objects that the caller gives in Python.

    Raises ConfigError for settings that are invalid or cannot be combined, AccountingError for settings that no privacy
    account covers.
    """
    ranks, own = ranks or Ranks(), CustomObjects() if own is None else own
    if (replay := replayed.current_replay()) is not None:
        own = replay.own(own, config)
    if own.loss is not None:
        config = with_own_loss(config)
    specification = check_configuration(config, ranks, own)
    config = with_derived_defaults(config)
    seeds = Seeds(root=config.run.seed)
    device = device_of(config.run.device, ranks)
    division = Seeds(root=config.data.partition_seed)
    dataset, public, validation = _load_samples(config, own.data, division, device)
    model = network_of(config, dataset, seeds, own.model)
    private = config.privacy is not None or config.local.record is not None
    own_course = specification.course and registering_file("method", specification.name)
    custom = is_custom(config, own) or (private and own_course)
    unused = State(*(("model", one) for one in model.shared_objects(device))) if custom else None
    if dataset.has_integers and not model.accepts_inputs(torch.from_numpy(dataset.test_inputs[:2])):
        dataset = dataset.as_floats()
        public = public and replace(public, inputs=public.inputs.float())
        validation = validation and replace(validation, inputs=validation.inputs.float())
    objective = objective_of(config, dataset, model, own.loss, own.metrics)
    if unused is not None:
        unused.restore()
    start = None if unused is None else InitialState(model, objective.loss, device)
    refuse_network(config, specification, model)
    network = frozen_network(config, model, seeds, device) if specification.sends_masks else None
    randomness = randomness_of(config.run.randomness, seeds)
    parts = TrainingParts(config=config, specification=specification, model=model, network=network, device=device)
    clients = local_training(config, parts.local_training(), objective.loss, dataset, model, division, device)
    if config.local.personal is not None:
        clients = with_personal_layers(config, clients, config.local.personal)
    records: RecordTarget | None = None
    if config.local.record is not None:
        clients, records = private_records(config, clients, randomness)
        by = require_records_apart(
            model,
            objective.loss,
            torch.from_numpy(dataset.test_inputs),
            torch.from_numpy(dataset.test_labels),
            batch_size=config.local.batch_size,
            seeds=seeds,
        )
        clients = replace(clients, gradients_by=by)
    broadcast, readout = start_of_rounds(config, network, model, dataset, seeds)
    if start is not None:
        clients = training_after_custom_trial(config, clients, broadcast.to(device), dataset, start)
    settings = Settings(
        **vars(parts),
        clients=clients,
        sampler=sampler_of(config, ids_of_turns(config, public_client_ids(clients.partition))),
        randomness=randomness,
        seeds=seeds,
        public=public,
    )
    if isinstance(settings.sampler, CustomCohorts) and private:
        refuse_wrong_sampler(settings.sampler, randomness)
    stages = _chain_of_stages(settings)
    if clients.remembers_clients and not stages.project.remembers_clients:
        raise ConfigError(
            f"local.personal with method.name={specification.name!r}: its uploads have all layers. Use a method that "
            "sends updates of weights (dp-fedavg, fedavg, fed-smp-randk, qsgd), or remove local.personal."
        )
    privacy_target = _charged_target(settings, stages)
    method = Method(
        stages=stages,
        sampler=settings.sampler,
        randomness=randomness,
        clients=clients,
        aggregation=sums_of(config, stages, privacy_target, seeds),
        server=settings.server_rule(),
        group=clients_trained_together(config, model, device),
        divisor=settings.sampler.expected if privacy_target else None,
        fill=clients_in_filled_sum(config, privacy_target),
        dropouts=dropouts_of(config, randomness),
        canaries=canaries_of(config, settings.size) if config.audit.canaries else None,
        ranks=ranks,
        counts_errors=counts_errors(config),
    )
    beside = method.aggregation.overhead_bits(most_uploads(config, privacy_target))
    stated = privacy_target or records
    if records is not None:
        config = config.with_delta(records.delta)
    notes = [one.note for one in (public, validation) if one is not None]
    notes += declaration_notes(dataset.columns)
    if config.server.start == "public":
        notes.append(PUBLIC_START_NOTE)
    if privacy_target is not None:
        notes += user_code_notes(stages, " (`dpfed audit` with --load tests it)")
    if start is not None and stated is not None:
        notes.append(TRIAL_LIMITS)
    return Experiment(
        config=config,
        specification=specification,
        method=method,
        seeds=seeds,
        model=model,
        objective=objective,
        readout=readout,
        dataset=dataset,
        device=device,
        start=ServerState(round=0, broadcast=broadcast.to(device), clip_norm=stated.clip_norm if stated else math.inf),
        privacy_target=stated,
        public=None if public is None else _public_training(parts, clients, public, seeds),
        validation=validation,
        not_protected=limitations_of_guarantee(notes, config, stages.decodes_before_the_clip),
        uplink_bits=None if stages.fixed_bits is None else stages.fixed_bits + beside,
        secure_sum_bits=beside,
        downlink_bits=_downlink_bits(settings, stages),
        own_code=user_code_of_run(config),
    )


def _public_training(parts: TrainingParts, clients: LocalTraining, public: Public, seeds: Seeds) -> PublicTraining:
    masks = parts.specification.sends_masks
    return PublicTraining(
        clients=clients,
        course=parts.masks() if masks else parts.optimizer(),
        public=public,
        seeds=seeds,
        edge=(parts.config.mask or MaskTable()).edge if masks else None,
    )


def _load_samples(
    config: Config, given: Dataset | None, division: Seeds, device: torch.device
) -> tuple[Dataset, Public | None, Validation | None]:
    """Return the clients' data set, the public samples, and the samples that are set aside for validation."""
    whole = whole_data(config) if given is None else with_features(config.data, given)
    check_letters(config.model.name, whole)
    rest, validation = validation_samples(config, whole, division, device)
    dataset, public = public_samples(config, rest, division, device)
    return dataset, public, validation


def public_client_ids(holdings: Holdings) -> ClientIds | None:
    """Return the public ids of the clients; None if the data set does not name its clients."""
    return holdings.ids if isinstance(holdings, Partition) else None


def user_code_of_run(config: Config) -> tuple[UserCodeFile, ...]:
    """Return the files of user-defined code that a run of this configuration needs."""
    method_of, scheme_of = config.method.name, method_specification(config.method.name).scheme
    return code_files_of_run(
        [
            ("method", method_of),
            ("scheme", scheme_of or ""),
            ("model", config.model.name),
            ("data set", config.data.name),
            ("data set", config.data.public_from or ""),
            ("server rule", config.server.rule),
            ("sampler", getattr(config.federation, "sampler", "")),
        ]
    )


def _chain_of_stages(settings: Settings) -> Stages:
    """Return the method's chain of stages. Raises ConfigError with the source line if a custom function raises."""
    specification = settings.specification
    try:
        return require_form(specification.stages(settings))
    except (DpfedError, AccountingError):
        raise
    except Exception as error:  # a user's function may raise anything
        if registering_file("method", specification.name) is None:
            raise
        raise ConfigError(f"method.name={specification.name!r}: its function raises {error_text(error)}.") from error


def _charged_target(settings: Settings, stages: Stages) -> PrivacyTarget | None:
    """Return the privacy target whose mechanism is that of the chain's private stage; no other code sets the charge.

    Raises ConfigError if this charge does not cover the chain, or if a custom scheme fails its check.
    """
    privacy_target = settings.privacy_target(stages.project.sent)
    if privacy_target is None:
        return None
    require_sound(stages)
    require_forgetful(stages, settings.clients)
    require_sound_schemes(stages)
    assert stages.private is not None
    return replace(privacy_target, private=stages.private)


def _downlink_bits(settings: Settings, stages: Stages) -> int:
    """Return the number of bits that a client receives in a round.

    With the posterior rule, a reset in every round and K clients of which none drops out, probabilities are multiples
    of 1/K, if all are sent. The server then sends counts from 0 to K.
    """
    config, choice = settings.config, stages.project.choice
    server = config.server
    counted = isinstance(server, PosteriorServer) and server.reset_every == 1 and server.prior == 1
    loses_none = not (config.aggregation.dropout or config.aggregation.lost)
    if counted and config.privacy is None and config.rounds_have_fixed_size and loses_none and not settings.sparse:
        return int(settings.sampler.expected).bit_length() * choice.sent
    return choice.downlink_bits
