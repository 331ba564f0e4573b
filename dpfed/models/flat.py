"""Network whose state is one flat vector, trained for clients side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedParameter

from dpfed.errors import ConfigError
from dpfed.models.networks import LstmLayer, make_stepwise

STATISTICS = ("running_mean", "running_var")
_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PaddedBatchNorm(nn.Module):
    """BatchNorm in training, computed from the real samples only (Ioffe, Szegedy 2015).

    With shares r [b] (1/size for each real sample of the batch, 0 for padding) and x [b, channels, ...]:
        mean = sum_b r_b mean(x_b),   var = sum_b r_b mean((x_b - mean)^2)
        y = weight (x - mean) / sqrt(var + eps) + bias
        running = (1 - momentum) running + momentum (mean, or var n / (n - 1) with n values a channel)
    as torch computes it for the real samples. The running statistics and `shares` are buffers, updated in place: pass
    them by torch.func.functional_call.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        assert isinstance(norm, _BatchNorm)
        assert norm.momentum is not None
        self.weight, self.bias = norm.weight, norm.bias
        self.eps, self.momentum = norm.eps, norm.momentum
        self.running_mean: Tensor
        self.running_var: Tensor
        self.shares: Tensor
        for name in STATISTICS:
            self.register_buffer(name, getattr(norm, name))
        self.register_buffer("shares", None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return normalised inputs in the shape of the inputs."""
        shape = (1, -1, *[1] * (inputs.dim() - 2))
        mean = self._sample_mean(inputs)
        centred = inputs - mean.view(shape)
        variance = self._sample_mean(centred.square())
        count = (self.shares > 0).sum() * inputs[0, 0].numel()
        self._update_running(self.running_mean, mean.detach())
        self._update_running(self.running_var, variance.detach() * (count / (count - 1)))
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape)
        return normal if self.bias is None else normal + self.bias.view(shape)

    def _sample_mean(self, values: Tensor) -> Tensor:
        """Return the means [channels] over the real samples."""
        of_samples = values.flatten(2).mean(dim=2) if values.dim() > 2 else values
        return (of_samples * self.shares[:, None]).sum(dim=0)

    def _update_running(self, running: Tensor, seen: Tensor) -> None:
        running.mul_(1 - self.momentum).add_(self.momentum * seen)


def batch_norms(module: nn.Module, but: Collection[str] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Yield BatchNorm layers by name, except those in `but`; raise ConfigError for a layer whose statistics cannot be
    followed."""
    for name, part in module.named_modules():
        if not isinstance(part, _BatchNorm) or name in but:
            continue
        if type(part) not in _KINDS or part.momentum is None or not part.track_running_stats:
            kept = f"momentum={part.momentum}, track_running_stats={part.track_running_stats}"
            raise ConfigError(
                f"model: layer {name!r} is {type(part).__name__}({kept}); BatchNorm must be nn.BatchNorm1d, 2d or 3d "
                "with track_running_stats=True and a number as momentum. Change it, or use GroupNorm or LayerNorm."
            )
        yield name, part


def with_padding(module: nn.Module, *, keep: Collection[str] = ()) -> nn.Module:
    """Return the module itself, with its BatchNorm layers replaced by PaddedBatchNorm, except those in `keep`."""
    twins = {part: PaddedBatchNorm(part) for _, part in batch_norms(module, keep)}
    if module in twins:
        return twins[module]
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in twins:
                setattr(parent, name, twins[child])
    return module


Kind = Literal["weight", "bias", "normalisation", "statistic"]
"""Kind of a block: a matrix or convolution, a bias, scale or shift of a normalisation layer, running statistics."""

_COUNTED = (*STATISTICS, "num_batches_tracked")
_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One named tensor inside the flat vector: entries start .. stop-1, of the given shape."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    start: int
    stop: int


class FlatModel:
    """A module as a function of a flat vector of d entries: its trained parameters (requires_grad), then BatchNorm's
    running statistics.

    Statistics are state like weights: broadcast, updated by every training batch, and sent; each client has separate
    ones. Parameters without requires_grad are `fixed`: public, equal for all clients, neither trained nor sent. So are
    the statistics of a BatchNorm whose parameters are all fixed. A part that the factory leaves in eval(), inside a
    module in training, stays in eval() during training: its dropout is off, its BatchNorm fixed.

    Other buffers (positions, index tables, frozen normalisations) are constants: equal for all clients, neither trained
    nor sent. Those that the module saves are in `fixed`. `dpfed.clients.trial` refuses a network that changes them.
    Raises ConfigError for buffers that a known layer changes, and for trained parameters that are not float32.
    """

    def __init__(self, factory: Callable[[], nn.Module], *, seed: int = 0) -> None:
        """Build modules by `factory`, which makes fresh random weights at each call; fixed parameters have the
        weights of `seed`, as in `initial`."""
        self._factory = factory
        module = _seeded_module(factory, seed)
        self._eval_modules = _eval_modules(module)
        self._module = self._set_mode(module, training=False)
        statistics = _running_statistics(module, self._eval_modules)
        _refuse_sparse(module)
        self.kept_buffers: tuple[str, ...] = _kept_buffers(module)
        """Names of saved buffers outside BatchNorm, which are constants: no forward pass may change them."""
        self.layout: tuple[Block, ...] = _vector_layout(module, statistics)
        """Trained parameters in the module's order, then statistics."""
        _refuse_not_finite(module, self.layout)
        self.fixed: Mapping[str, Tensor] = _fixed_tensors(module, self.layout)
        """Tensors of the network that are neither trained nor sent, by name."""
        self.constants: Mapping[str, Tensor] = _unsaved_buffers(module)
        """Buffers that the module does not save, by name."""
        self.size: int = self.layout[-1].stop
        """Number d of all entries."""
        self.parameters_size: int = max(block.stop for block in self.layout if block.kind != "statistic")
        """Number of entries that are parameters; they are the first entries."""
        self.compressible: Tensor = self.indices("weight", "bias")
        """Entries that masks and compressors may change, int64, sorted."""
        self.dense: Tensor = self.indices("normalisation", "statistic")
        """All other entries, int64, sorted; they need exact numbers and are sent as float32."""
        self._elsewhere: dict[torch.device, dict[str, Tensor]] = {}
        self._lengths = [block.stop - block.start for block in self.layout]
        self.recurrent: bool = any(isinstance(part, LstmLayer | nn.RNNBase) for part in self._module.modules())
        """True if the network computes step by step along its input; a loop over clients with fused kernels is then
        faster."""
        self._evaluated = copy.deepcopy(self._module)
        """Module of `forward` and `evaluate_as_made`; forward passes change it without effect on training."""
        in_training = self._set_mode(make_stepwise(copy.deepcopy(self._module)), training=True)
        self._training = with_padding(in_training, keep=self._eval_modules)
        self._shares = [f"{name}.shares".lstrip(".") for name, _ in batch_norms(self._module, self._eval_modules)]
        self.plain: bool = all(map(_is_plain, self._training.modules()))
        """True if a forward pass in training runs torch's own code only, and reads nothing at indices."""
        self._slots = _tensor_slots(self._training)

    @property
    def has_statistics(self) -> bool:
        """True if there is BatchNorm: samples of a batch then affect each other in training."""
        return self.parameters_size < self.size

    @property
    def has_fused_layers(self) -> bool:
        """True if the network has torch's LSTM, GRU or RNN, which vmap and Opacus do not support: clients then train
        in a loop, and records cannot be private. `dpfed.models.networks.LstmLayer` supports both."""
        return any(isinstance(part, nn.RNNBase) for part in self._module.modules())

    def indices(self, *kinds: Kind) -> Tensor:
        """Return the entries of blocks of these kinds, int64, sorted."""
        ranges = [torch.arange(block.start, block.stop) for block in self.layout if block.kind in kinds]
        return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64)

    def initial(self, seed: int) -> Tensor:
        """Return fresh weights, float32 [d], a function of the seed. Torch's global generators are unchanged.

        Torch keeps 32 bits of the seed, so one pair of seeds in 2^32 has equal weights. Weights are public.
        """
        module = _seeded_module(self._factory, seed)
        state = dict([*module.named_parameters(), *module.named_buffers()])
        return torch.cat([state[block.name].detach().reshape(-1) for block in self.layout])

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Return logits [b, classes] of inputs [b, ...] under weights [d], with running statistics. Differentiable in
        both.

        Not for several threads at once: each thread needs its own module from `bind`.
        """
        logits: Tensor = functional_call(self._evaluated, self._state(weights), (inputs,))
        return logits

    def evaluate_as_made(self, inputs: Tensor) -> object:
        """Return the outputs, of any type, of the module as the factory made it, for inputs [b, ...]."""
        with torch.no_grad():
            return self._evaluated(inputs)

    def accepts_inputs(self, inputs: Tensor) -> bool:
        """Return True if forward passes of these inputs [b, ...] raise no error, in evaluation and in training."""
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module = self.bind(self.initial(0))
                module(inputs.clone())
                module.eval()(inputs.clone())
        except Exception:  # a user's network may raise any exception
            return False
        return True

    def train_clients(
        self, weights: Tensor, inputs: Tensor, shares: Tensor, *, random: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [c, b, ...] in training mode, and the statistics [c, d - parameters_size] after the batch.

        shares: [c, b], 1/size for the real samples of each client's batch and 0 for padding, which statistics ignore
        random: True if the module draws random numbers; if False it must not
        """
        one = torch.vmap(self._train_client, randomness="different" if random else "error")
        outputs, statistics = one(weights, inputs, shares)
        return outputs, statistics

    def _train_client(self, weights: Tensor, inputs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [b, ...] and the statistics [d - parameters_size] after the batch, as `train_clients`, of a
        client."""
        state = self._state(weights)
        if not self.has_statistics:
            outputs = (
                self._call_plain(state, inputs) if self.plain else functional_call(self._training, state, (inputs,))
            )
            return outputs, weights[self.parameters_size :]
        statistics = {b.name: state[b.name].detach().clone() for b in self.layout if b.kind == "statistic"}
        given = state | statistics | dict.fromkeys(self._shares, shares)
        outputs = functional_call(self._training, given, (inputs,))
        return outputs, torch.cat(list(statistics.values()))

    def _call_plain(self, state: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs of `functional_call`, which analyses the module at every call."""
        replaced = [(held, key, held[key], state[name]) for held, key, name in self._slots if name in state]
        try:
            for held, key, _, given in replaced:
                held[key] = given
            outputs: Tensor = self._training(inputs)
        finally:
            for held, key, before, _ in replaced:
                held[key] = before
        return outputs

    def bind(self, weights: Tensor) -> nn.Module:
        """Return a new module for training, whose parameters and statistics are views of weights [d]: a change in
        place of either changes the other."""
        module = self._set_mode(copy.deepcopy(self._module), training=True).to(weights.device)
        self.rebind(module, weights)
        return module

    def rebind(self, module: nn.Module, weights: Tensor) -> None:
        """Make the state of a module from `bind` views of other weights [d]."""
        state = dict([*module.named_parameters(), *module.named_buffers()])
        for block in self.layout:
            state[block.name].data = weights[block.start : block.stop].view(block.shape)

    def shared_objects(self, device: torch.device) -> list[object]:
        """Modules and fixed tensors that all clients share."""
        modules: list[object] = [self._module, self._training]
        return modules if device.type == "cpu" else [*modules, self._fixed_tensors(device)]

    def trained_tensors(self, module: nn.Module) -> list[Tensor]:
        """Tensors of a module from `bind` that are views of a client's weights, and BatchNorm's counts of batches."""
        names = {block.name for block in self.layout}
        state = dict([*module.named_parameters(), *module.named_buffers()])
        return [one for name, one in state.items() if name in names or name.endswith("num_batches_tracked")]

    def trains_on_one(self, sample: Tensor) -> bool:
        """Return True if a batch of this one sample [1, ...] can be trained on: BatchNorm needs two values per
        channel."""
        if not self.has_statistics:
            return True
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.bind(self.initial(0).to(sample.device))(sample)
        except Exception as error:  # the trial before round 1 names the errors of a user's network
            return "more than 1 value per channel" not in str(error)
        return True

    def _state(self, weights: Tensor) -> dict[str, Tensor]:
        parts = torch.split(weights, self._lengths)
        trained = {block.name: part.view(block.shape) for block, part in zip(self.layout, parts, strict=True)}
        return trained if weights.device.type == "cpu" else self._fixed_tensors(weights.device) | trained

    def _fixed_tensors(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._elsewhere:
            self._elsewhere[device] = {
                name: tensor.to(device) for name, tensor in (*self.fixed.items(), *self.constants.items())
            }
        return self._elsewhere[device]

    def _set_mode(self, module: nn.Module, *, training: bool) -> nn.Module:
        module.train(training)
        for name in self._eval_modules:
            module.get_submodule(name).train(False)
        return module


def _is_plain(part: nn.Module) -> bool:
    """Return True for a layer of torch's own that has no hooks, no indices as inputs, and no second list of its tensors
    (recurrent layers have one)."""
    others = isinstance(part, nn.Embedding | nn.EmbeddingBag | nn.RNNBase)
    changed = "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks
    return type(part).__module__.startswith("torch.nn.modules.") and not (others or changed)


def _tensor_slots(module: nn.Module) -> list[tuple[dict[str, Any], str, str]]:
    """Return (dictionary, key, name) of all parameters and buffers; a tensor that two layers share has its first
    name."""
    slots, names = [], dict[int, str]()
    for path, part in module.named_modules():
        for held in (part._parameters, part._buffers):
            for key, tensor in held.items():
                name = f"{path}.{key}".lstrip(".")
                slots.append((held, key, names.setdefault(id(tensor), name)))
    return slots


def _seeded_module(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the factory's module with weights of this seed, on the CPU. Torch's generators are restored."""
    module = _make_with_seed(factory, seed)
    if any(one.device.type != "cpu" for one in (*module.parameters(), *module.buffers())):
        module = _make_with_seed(factory, seed)  # once more: the first call may have created the generator of a GPU
    return module.to("cpu")


def _refuse_not_finite(module: nn.Module, layout: tuple[Block, ...]) -> None:
    state = dict([*module.named_parameters(), *module.named_buffers()])
    for block in layout:
        if not bool(state[block.name].isfinite().all()):
            raise ConfigError(
                f"model: parameter {block.name!r} has NaN or infinity before round 1. Give it finite values, as by its "
                "layer's reset_parameters()."
            )


def _make_with_seed(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=gpus), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        return factory()


def _eval_modules(module: nn.Module) -> frozenset[str]:
    """Return the parts that stay in eval(): those made in eval(), unless all were, and BatchNorm that is not
    trained."""
    parts = dict(module.named_modules())
    asleep = {name for name, part in parts.items() if module.training and not part.training}
    owned = {name: list(part.parameters()) for name, part in batch_norms(module)}
    fixed = {name for name, own in owned.items() if own and not any(one.requires_grad for one in own)}
    return frozenset(asleep | fixed)


def _running_statistics(module: nn.Module, resting: frozenset[str]) -> dict[str, Tensor]:
    """Return running statistics by name, in the order of the trained BatchNorm layers."""
    live = {name for name, _ in batch_norms(module, resting)}
    kept = [(name, *name.rpartition("."), tensor) for name, tensor in module.named_buffers()]
    return {name: tensor for name, layer, _, kind, tensor in kept if kind in STATISTICS and layer in live}


def _fixed_tensors(module: nn.Module, layout: tuple[Block, ...]) -> dict[str, Tensor]:
    """Return parameters and statistics outside the layout, without the numbers of batches that BatchNorm has
    counted."""
    trained = {block.name for block in layout} | set(_unsaved_buffers(module))
    state = dict([*module.named_parameters(), *module.named_buffers()])
    return {
        name: tensor.detach()
        for name, tensor in state.items()
        if name not in trained and name.rpartition(".")[2] != "num_batches_tracked"
    }


def _unsaved_buffers(module: nn.Module) -> dict[str, Tensor]:
    saved = module.state_dict()
    return {name: tensor.detach() for name, tensor in module.named_buffers() if name not in saved}


def _vector_layout(module: nn.Module, statistics: dict[str, Tensor]) -> tuple[Block, ...]:
    everything = dict(module.named_parameters())
    parameters = {name: one for name, one in everything.items() if one.requires_grad}
    if not parameters:
        raise ConfigError(
            "model: has no parameters with requires_grad; there is nothing to train. Give it a layer with weights."
        )
    for name, one in parameters.items():
        if isinstance(one, UninitializedParameter):
            raise ConfigError(
                f"model: parameter {name!r} has no shape before a first call. Give layers their input sizes (nn.Linear "
                "for nn.LazyLinear), or call the network on one batch before it is given."
            )
        if one.dtype != torch.float32:
            raise ConfigError(
                f"model: parameter {name!r} is {str(one.dtype).removeprefix('torch.')}; trained parameters must be "
                "float32. Call .float() on the network, or local.precision='bf16' for fast products; fixed parameters "
                "(requires_grad=False) may have any type."
            )
    blocks: list[Block] = []
    start = 0
    for name, tensor in (parameters | statistics).items():
        kind: Kind = "statistic" if name in statistics else _parameter_kind(module, name, everything)
        stop = start + tensor.numel()
        blocks.append(Block(name=name, shape=tuple(tensor.shape), kind=kind, start=start, stop=stop))
        start = stop
    return tuple(blocks)


def _parameter_kind(module: nn.Module, name: str, parameters: dict[str, nn.Parameter]) -> Kind:
    """Return the kind of a parameter by its layer; a vector in a layer without a matrix is a scale or a shift."""
    layer = name.rpartition(".")[0]
    if isinstance(module.get_submodule(layer), _NORMALISATIONS):
        return "normalisation"
    if parameters[name].dim() > 1:
        return "weight"
    same = (parameter for other, parameter in parameters.items() if other.rpartition(".")[0] == layer)
    return "bias" if any(parameter.dim() > 1 for parameter in same) else "normalisation"


def _refuse_sparse(module: nn.Module) -> None:
    if any(isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in module.modules()):
        raise ConfigError(
            "model: has an Embedding with sparse=True, whose gradients have no entry for each weight. Use sparse=False."
        )


def _kept_buffers(module: nn.Module) -> tuple[str, ...]:
    """Return the names of saved buffers outside BatchNorm. Raise ConfigError for a layer that changes its buffers."""
    known = {f"{name}.".lstrip(".") + kind for name, _ in batch_norms(module) for kind in _COUNTED}
    known |= set(_unsaved_buffers(module))
    kept = tuple(name for name, _ in module.named_buffers() if name not in known)
    moving = [name for name in kept if isinstance(module.get_submodule(name.rpartition(".")[0]), _NormBase)]
    if moving:
        raise ConfigError(
            f"model: has buffers {moving} that training changes; only parameters and the running statistics of "
            "BatchNorm are trained, noised and sent. Replace the layer that has them by GroupNorm or LayerNorm."
        )
    return kept
