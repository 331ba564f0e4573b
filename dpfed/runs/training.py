"""Device, network and local training of a run, made from its configuration or from objects given in Python.

Training on public samples before round 1 gives the start of a run, and the score of the public samples alone. Both
depend on public samples and public settings only, so that releases of later rounds are charged as from any other start.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dpfed import models, replayed
from dpfed.aggregation.ranks import Ranks, local_device
from dpfed.clients.losses import LOSSES, Loss, OfSamples
from dpfed.clients.optimisers import Adam, Sgd
from dpfed.clients.plan import LOOPS, default_budget
from dpfed.clients.task import Course, InitialState
from dpfed.clients.training import LocalTraining
from dpfed.clients.trial import SECONDS, training_after_batch_trial, training_after_trial
from dpfed.config.tables import Config
from dpfed.config.training_tables import MaskTable
from dpfed.data.dataset import Dataset
from dpfed.data.samples import Public, partition_of
from dpfed.errors import ConfigError
from dpfed.methods.parts import personal_entries
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, Recipe, freeze
from dpfed.runs.evaluate import Metric, Objective, evaluate, finite_or_none
from dpfed.seeds import Seeds
from dpfed.server.rules import AveragedReadout, MaskedReadout, Readout, WeightsReadout
from dpfed.stages.stage import require_room_for_memory

_STEPS, _BATCH, _RATE = 1000, 32, 1e-3
"""Training of `score_alone`: fixed, so that no sample chooses it."""


PUBLIC_START_NOTE = (
    "the model starts from training on the public samples: epsilon does not cover server.start_epochs, rates and clip "
    "norms that were chosen by looking at clients' data"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicTraining:
    """Training on a run's public samples by the server, before round 1.

    clients: local training of the clients, whose network, loss and batches are used
    course:  training of what the server broadcasts: weights, or the probabilities of a mask
    edge:    probabilities are kept in [edge, 1 - edge]; None for weights
    """

    clients: LocalTraining
    course: Course
    public: Public
    seeds: Seeds
    edge: float | None = None

    def start(self, broadcast: Tensor, *, epochs: int) -> Tensor:
        """Return the first broadcast [n]: `broadcast` after `epochs` passes over the public samples.

        Raises ConfigError if training diverges.
        """
        batch = self.clients.batch_size
        steps = epochs * -(-len(self.public.labels) // batch)
        moved = self._after(self.course, broadcast, "public.start", steps=steps, batch_size=batch)
        if not moved.isfinite().all():
            raise ConfigError(
                f"server.start='public' with server.start_epochs={epochs}: training on the public samples diverges. "
                "Lower local.learning_rate, or set fewer epochs."
            )
        return moved if self.edge is None else moved.clamp_(self.edge, 1 - self.edge)

    def score_alone(self, initial: Tensor, inputs: Tensor, labels: Tensor, *, objective: Objective) -> float | None:
        """Return the score of the public samples alone on the test half: accuracy, or the loss without classes.

        The run's network starts from weights `initial` [d] and takes 1,000 steps of Adam at rate 0.001 in batches of
        32. Returns None if the score is not finite.
        """
        adam = Adam(size=self.clients.model.size, learning_rate=_RATE)
        weights = self._after(adam, initial, "public.alone", steps=_STEPS, batch_size=_BATCH)
        result = evaluate(self.clients.model, weights, inputs, labels, objective=replace(objective, metrics={}))
        return finite_or_none(result.accuracy if objective.has_accuracy else result.loss)

    def _after(self, course: Course, start: Tensor, purpose: str, *, steps: int, batch_size: int) -> Tensor:
        """Return `start` [n] after `steps` steps on the public samples."""
        training = replace(
            self.clients,
            course=course,
            epochs=None,
            steps=steps,
            batch_size=batch_size,
            record=None,
            precision="float32",
        )
        inputs, labels = self.public.inputs, self.public.labels
        return start + training.train_on(inputs, labels, start, number=0, seeds=self.seeds, purpose=purpose)


TRIAL_LIMITS = (
    "against state of custom networks, losses or courses that passes between clients in ways that the trial before "
    f"round 1 ({SECONDS} s of processor time for each group of synthetic clients) does not find: later, or for certain "
    "samples"
)
"""Limitation of the guarantee of a run with a custom network, loss or course."""

Maker = Callable[..., nn.Module]


@dataclass(frozen=True, kw_only=True, eq=False)
class CustomObjects:
    """Objects of a run that are given in Python; an object that is None is made from its name in the configuration.

    data:    data set of the clients
    model:   function of (input_shape, classes) that makes the network
    loss:    function f(outputs [n, ...], targets [n, ...]) -> [n]; the configuration then has local.loss = "own"
    metrics: metrics by name, in addition to those of run.metrics (`dpfed.runs.evaluate.Metric`)
    """

    data: Dataset | None = None
    model: Maker | None = None
    loss: OfSamples | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def given_names(self) -> tuple[str, ...]:
        """Names of the given objects."""
        given = tuple(name for name in ("data", "model", "loss") if getattr(self, name) is not None)
        return (*given, "metrics") if self.metrics else given


def model_maker(model: nn.Module | Callable[..., nn.Module]) -> Maker:
    """Return a function of (input_shape, classes) that makes the network.

    A module is copied, so that training starts from its weights. A function, without arguments or of
    (input_shape, classes), makes a network whose initial weights follow from run.seed.
    """
    if isinstance(model, nn.Module):
        return lambda input_shape, classes: _copied(model)
    if not callable(model):
        raise ConfigError(f"model: {type(model).__name__}; must be a torch.nn.Module or a function that makes one.")
    if _takes_no_arguments(model):
        return lambda input_shape, classes: model()
    return model


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        if "graph leaves" not in str(error):
            raise
        raise ConfigError(
            f"model: {type(model).__name__} has weights that are computed from others, as by "
            "torch.nn.utils.weight_norm or prune, and cannot be copied. Use torch.nn.utils.parametrizations, or "
            "prune.remove."
        ) from error


def model_name(model: nn.Module | Callable[..., nn.Module]) -> str:
    """Return the model's name for reports."""
    return str(getattr(model, "__name__", type(model).__name__))


def _takes_no_arguments(maker: Callable[..., nn.Module]) -> bool:
    try:
        inspect.signature(maker).bind()
    except (TypeError, ValueError):
        return False
    return True


def network_of(config: Config, dataset: Dataset, seeds: Seeds, own: Maker | None = None) -> FlatModel:
    """Return the network of a run; its initial and fixed weights follow from the seed."""
    name, shape, fixed_seed = config.model.name, dataset.input_shape, seeds.integer("weights")
    labels = None if dataset.classes is None else dataset.target_shape
    if own is not None:
        return models.build_own(
            name, own, shape, dataset.outputs, fixed_seed=fixed_seed, parts=dataset.parts, labels=labels
        )
    options = model_options(config)
    return models.build(
        name, shape, dataset.outputs, fixed_seed=fixed_seed, parts=dataset.parts, labels=labels, **options
    )


def model_options(config: Config) -> dict[str, object]:
    return {} if config.model.hidden is None else {"hidden": list(config.model.hidden)}


def frozen_network(config: Config, model: FlatModel, seeds: Seeds, device: torch.device) -> FrozenNetwork:
    table = config.mask or MaskTable()
    return freeze(
        model, seeds, constant=table.constant, biases=table.biases, scale=table.scale, spread=table.spread
    ).to(device)


_VECTORS = 16
"""Vectors of the model's size for each client of a group: training and stages, on a GPU."""


def clients_trained_together(config: Config, model: FlatModel, device: torch.device) -> int:
    """Return the number of clients that are trained together, whose updates are in memory at the same time.

    On a GPU it is the cohort, as far as a quarter of its memory allows; it does not depend on who was drawn.
    """
    least = config.run.group if model.size > 100_000 else max(config.run.group, 100)
    if device.type != "cuda":
        return least
    return max(least, min(config.federation.cohort, default_budget(device) // (4 * _VECTORS * model.size)))


def local_training(
    config: Config, course: Course, loss: Loss, dataset: Dataset, model: FlatModel, seeds: Seeds, device: torch.device
) -> LocalTraining:
    training = LocalTraining(
        model=model,
        course=course,
        inputs=torch.from_numpy(dataset.train_inputs).to(device),
        labels=torch.from_numpy(dataset.train_labels).to(device),
        partition=partition_of(config, dataset, seeds),
        epochs=config.local.epochs,
        steps=config.local.steps,
        batch_size=config.local.batch_size,
        loss=loss,
        strategy=config.local.strategy,
        chunk=config.local.chunk,
        memory=config.local.memory,
        at_once=min(config.federation.cohort, clients_trained_together(config, model, device)),
        precision=config.local.precision,
        not_together=LOOPS["secure"].why if config.privacy is not None and config.run.randomness == "secure" else None,
        probe=torch.from_numpy(dataset.test_inputs[:2]),
    )
    replay = replayed.current_replay()
    return training if replay is None else replay.training(training)


def with_personal_layers(config: Config, training: LocalTraining, patterns: Sequence[str]) -> LocalTraining:
    """Return the training in which layers of these names stay with each client (local.personal).

    Raises ConfigError if the method does not train weights, or if the layers of all clients take too much memory.
    """
    if not isinstance(training.course, Sgd | Adam):
        raise ConfigError(
            f"local.personal with method.name={config.method.name!r}: its clients do not train weights alone. Use a "
            "method that sends updates of weights (dp-fedavg, fedavg, fed-smp-randk, qsgd), or remove local.personal."
        )
    personal = personal_entries(patterns, training.model).to(training.labels.device)
    require_room_for_memory("local.personal", training.partition.clients, len(personal))
    return replace(training, personal=personal)


def is_custom(config: Config, own: CustomObjects) -> bool:
    """Return True if the network or the loss is user-defined."""
    given = own.model is not None or own.loss is not None
    return given or config.model.name not in models.MODELS or config.local.loss not in (None, *LOSSES)


def training_after_custom_trial(
    config: Config, clients: LocalTraining, broadcast: torch.Tensor, dataset: Dataset, start: InitialState
) -> LocalTraining:
    """Return the local training of a custom network or loss, after a trial on test samples.

    Raises ConfigError if training fails on a batch of some size, or if state passes from one client to another
    (`dpfed.clients.trial`).
    """
    samples = torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_labels)
    if config.privacy is None and config.local.record is None:
        return training_after_batch_trial(clients, broadcast, samples, start)
    return training_after_trial(clients, broadcast, samples, start, cohort=config.federation.cohort)


def start_of_rounds(
    config: Config, network: FrozenNetwork | None, model: FlatModel, dataset: Dataset, seeds: Seeds
) -> tuple[torch.Tensor, Readout]:
    """Return the first broadcast, and the readout, which maps the server's state to weights."""
    readout: Readout
    if network is None:
        broadcast, readout = model.initial(seeds.integer("weights")), WeightsReadout(model=model)
    else:
        table = config.mask or MaskTable()
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
        broadcast = network.initial.clamp(table.edge, 1 - table.edge)
        readout = MaskedReadout(network=network, recipe=recipe, rule=table.readout)
    return broadcast, readout if config.server.average is None else AveragedReadout(readout=readout)


def device_of(name: str, ranks: Ranks) -> torch.device:
    """Return the device run.device. Raises ConfigError if it does not exist, or is neither a CPU nor a CUDA GPU."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise ConfigError(
            f"run.device={name!r}: runs are on the CPU or on a CUDA GPU. Use 'auto', 'cpu', 'cuda' or 'cuda:N'."
        )
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


def gpu_description(device: torch.device) -> str | None:
    """Return the model of the GPU with the versions of its driver and of CUDA; None on the CPU."""
    if device.type != "cuda":
        return None
    versions = [f"CUDA {torch.version.cuda}"]
    with suppress(OSError):
        if found := re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text()):
            versions.insert(0, f"driver {found[1]}")
    return f"{torch.cuda.get_device_properties(device).name}, {', '.join(versions)}"


@contextmanager
def plain_torch() -> Iterator[None]:
    """Context manager: float32 is the default type, the CPU the default device, without autocast and inference mode.

    The caller's modes are restored on exit.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if (dtype := torch.get_default_dtype()) is not torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        yield
