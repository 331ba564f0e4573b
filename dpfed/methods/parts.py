"""Local training, rule of the server and compressor of a run, made from its configuration and its method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpfed import compress
from dpfed.clients.masks import Forward, MaskedNoise, MaskTraining
from dpfed.clients.optimisers import Adam, PrunedSgd, Sgd, constant, cosine, factors_by_round, linear, step
from dpfed.clients.task import Course
from dpfed.compress.levels import SignSgd, StochasticSign
from dpfed.compress.mask_schemes import FedMrn, random_noise
from dpfed.compress.sparse import FedSparsify, cubic_sparsity
from dpfed.config.server_tables import PosteriorServer, StepServer
from dpfed.config.tables import Config
from dpfed.config.training_tables import MaskTable, ScheduledLocal, StepLocal
from dpfed.errors import ConfigError
from dpfed.methods.specification import MethodSpecification
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork
from dpfed.server.rules import AdaptiveRule, Averaging, BetaPosterior, MovingAverage, Purging, ServerRule, custom_rule
from dpfed.stages.project import kept_coordinates


def layer_rates(texts: Sequence[str], model: FlatModel) -> Tensor:
    """Return the factor of the learning rate of each entry of the vector [d], from texts PATTERN=FACTOR.

    Raises ConfigError for a factor that is not a number from 0, and for a pattern that matches no trained parameter.
    """
    patterns = [text.rpartition("=") for text in texts]
    factors, used = torch.ones(model.size), set()
    for block in model.layout:
        place = next((i for i, (one, _, _) in enumerate(patterns) if fnmatchcase(block.name, one.strip())), None)
        if place is not None and block.kind != "statistic":
            factors[block.start : block.stop] = _rate_factor(patterns[place][2])
            used.add(place)
    for place, (pattern, _, _) in enumerate(patterns):
        if place not in used:
            names = ", ".join(block.name for block in model.layout if block.kind != "statistic")
            raise ConfigError(
                f"local.rates: {pattern!r} decides the rate of no trained parameter. Parameters are {names:.500}; the "
                "first pattern that matches a name counts."
            )
    return factors


def personal_entries(patterns: Sequence[str], model: FlatModel) -> Tensor:
    """Return the entries, sorted, of the parameters whose names match one of the patterns of local.personal.

    Raises ConfigError for a pattern that matches no trained parameter, and if no parameter remains to be shared.
    """
    trained = [block for block in model.layout if block.kind != "statistic"]
    names = f"Parameters are {', '.join(block.name for block in trained):.500}."
    for pattern in patterns:
        if not any(fnmatchcase(block.name, pattern) for block in trained):
            raise ConfigError(f"local.personal: {pattern!r} matches no trained parameter. {names}")
    chosen = [block for block in trained if any(fnmatchcase(block.name, pattern) for pattern in patterns)]
    if len(chosen) == len(trained):
        raise ConfigError(f"local.personal: {', '.join(patterns)} matches all parameters, so nothing is sent. {names}")
    return torch.cat([torch.arange(block.start, block.stop) for block in chosen])


def _rate_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor < float("inf"):
        raise ConfigError(f"local.rates: factor {text!r} must be a finite number from 0.")
    return factor


def scheme_of_method(config: Config, specification: MethodSpecification, size: int | None) -> compress.Scheme:
    """Return the compressor for rows of `size` coordinates, with the options of [method].

    Raises ConfigError for options that the compressor does not have, also for a size that is not known yet (None).
    """
    table, options = config.method, dict[str, object](config.method.options)
    if specification.sends_models:
        sparsity_schedule(config)(0)
        options.pop("initial", None)
    if specification.scheme in ("topk", "randk"):
        options["k"] = 1 if size is None else kept_coordinates(size, keep=table.keep, k=table.k)
    if table.shared:
        options["shared_seed"] = (1 << 63) - 1  # the seed of each round replaces it; none is longer in a header
    try:
        made = compress.get(specification.scheme or "", **options)
        if isinstance(made, SignSgd | StochasticSign) and made.majority:
            raise ConfigError("majority=True has no effect in a run, which adds decoded uploads. Remove it.")
        return made
    except ConfigError as error:
        raise ConfigError(f"method.options of {specification.name!r}: {error}") from None


def sparsity_schedule(config: Config) -> Callable[[int], float]:
    """Return FedSparsify's sparsity by round, which rises from method.options.initial to method.options.sparsity.

    If both are equal, the sparsity is constant, as in FedMRN's comparison (Section 5.1.3).
    """
    final = _sparsity_option(config, "sparsity", FedSparsify.sparsity)
    initial = _sparsity_option(config, "initial", 0)
    if initial > final:
        raise ConfigError(
            f"method.options.initial={initial} with method.options.sparsity={final}: the sparsity of a model "
            "never decreases. Set initial to at most sparsity."
        )
    return partial(cubic_sparsity, initial=initial, final=final, rounds=config.federation.rounds)


def _sparsity_option(config: Config, name: str, default: float) -> float:
    given = config.method.options.get(name, default)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        raise ConfigError(f"method.options.{name}={given!r}: must be a number in [0, 1).")
    return float(given)


def fedsparsify_scheme(config: Config, number: int) -> compress.Scheme:
    """Return the compressor of FedSparsify's clients in round `number`; client and server derive the number of
    weights."""
    return FedSparsify(sparsity=sparsity_schedule(config)(number + 1 if config.method.purge == "clients" else number))


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingParts:
    """Inputs of local training and of the server's rule, the argument of a method's functions `course` and `server`.

    network: the frozen weights of a method that trains masks, else None
    """

    config: Config
    specification: MethodSpecification
    model: FlatModel
    network: FrozenNetwork | None
    device: torch.device

    def local_training(self) -> Course:
        """Return the local training of the method."""
        if self.specification.course is not None:
            return self.specification.course(self)
        match self.specification.local_training:
            case "masks":
                return self.masks()
            case "masked noise":
                return self.masked_noise()
            case "pruned":
                return self.pruned()
        return self.optimizer()

    def server_rule(self) -> ServerRule:
        """Return the server's rule of the method, with the moving average of server.average if it is set."""
        if self.specification.server is not None:
            rule = self.specification.server(self)
        elif self.specification.sends_masks:
            rule = self.of_masks()
        else:
            rule = self.purging() if self.specification.sends_models else self.step()
        decay = self.config.server.average
        return rule if decay is None else MovingAverage(rule=rule, decay=decay)

    def optimizer(self) -> Sgd | Adam:
        """Return local training by the optimizer of [local] on the model's weights."""
        local, model = self.config.local, self.model
        given = self._learning_rate_arguments | {
            "size": model.size,
            "weight_decay": local.weight_decay,
            "decayed": model.parameters_size,
            "proximal": local.proximal,
            "rates": None if local.rates is None else layer_rates(local.rates, model).to(self.device),
        }
        if local.optimizer == "sgd":
            return Sgd(momentum=local.momentum, **given)
        return Adam(decoupled=local.optimizer == "adamw", **given)

    def masks(self, *, forward: Forward | None = None) -> MaskTraining:
        """Return the training of mask probabilities over frozen weights; `forward` is mask.forward by default."""
        local, table = self.config.local, self.config.mask or MaskTable()
        assert local.optimizer != "adamw"  # refused when the run is built
        assert self.network is not None
        return MaskTraining(
            network=self.network,
            **self._learning_rate_arguments,
            momentum=local.momentum,
            optimizer=local.optimizer,
            gradient=table.gradient,
            forward=forward or table.forward,
            edge=table.edge,
        )

    def masked_noise(self) -> MaskedNoise:
        """Return FedMRN's training of a mask over seeded noise."""
        table, made = self.config.method, scheme_of_method(self.config, self.specification, self.model.size)
        assert isinstance(made, FedMrn)
        return MaskedNoise(
            size=self.model.size,
            masked=self.model.compressible.to(self.device),
            noise=partial(random_noise, noise=made.noise, alpha=made.alpha),
            signed=made.signed,
            shared_noise=table.shared,
            progressive=table.progressive,
            stochastic=table.stochastic,
            train_masked=table.train_masked,
            momentum=self.config.local.momentum,
            **self._learning_rate_arguments,
        )

    def pruned(self) -> PrunedSgd:
        """Return training that keeps pruned weights at zero; with method.purge = "clients" each client prunes its
        model."""
        purged = sparsity_schedule(self.config) if self.config.method.purge == "clients" else None
        prunable = self.model.indices("weight").to(self.device)
        return PrunedSgd(sgd=self.optimizer(), prunable=prunable, sparsity=purged)

    @property
    def _learning_rate_arguments(self) -> dict[str, Any]:
        """Keyword arguments of an optimizer for the learning rate, and its schedule over rounds."""
        local, rounds = self.config.local, self.config.federation.rounds
        if isinstance(local, StepLocal):
            chosen = step(local.schedule_rounds, local.learning_rate_decay)
        elif isinstance(local, ScheduledLocal):
            falls, given = {"cosine": cosine, "linear": linear}, local.schedule
            chosen = falls[given](rounds) if isinstance(given, str) else factors_by_round(given)
        else:
            decay = local.learning_rate_decay
            return {"learning_rate": local.learning_rate, "learning_rate_decay": decay, "schedule": constant}
        return {"learning_rate": local.learning_rate, "schedule": chosen}

    def of_masks(self) -> ServerRule:
        """Return the rule of [server] for mask probabilities, which it clips to [mask.edge, 1 - mask.edge]."""
        server, edge = self.config.server, (self.config.mask or MaskTable()).edge
        if isinstance(server, PosteriorServer):
            kept = edge if self.config.privacy is not None else 0.0
            return BetaPosterior(prior=server.prior, reset_every=server.reset_every, edge=kept)
        return self.step(edge=edge)

    def purging(self) -> ServerRule:
        """Return a rule that sets the smallest weights to zero after its step, unless clients purge their models."""
        if self.config.method.purge == "clients":
            return self.step()
        prunable = self.model.indices("weight").to(self.device)
        return Purging(rule=self.step(), prunable=prunable, sparsity=sparsity_schedule(self.config))

    def step(self, *, edge: float | None = None) -> ServerRule:
        """Return the rule of [server] for the weights of the model, or values that it clips to [edge, 1 - edge]."""
        server = self.config.server
        assert not isinstance(server, PosteriorServer)  # refused when the run is built
        averaged = self.model.indices("statistic").to(self.device) if self.model.has_statistics else None
        if isinstance(server, StepServer):
            rate, momentum = server.learning_rate, server.momentum
            own = custom_rule(server.rule, learning_rate=rate, momentum=momentum)
            return own or Averaging(learning_rate=rate, momentum=momentum, edge=edge, averaged=averaged)
        return AdaptiveRule(
            kind=server.rule,
            learning_rate=server.learning_rate,
            beta1=server.beta1,
            beta2=server.beta2,
            tau=server.tau,
            averaged=averaged,
        )


ServerParts = TrainingParts  # old name, up to version 0.3
