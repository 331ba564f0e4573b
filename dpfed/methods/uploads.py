"""What clients send: the map, the code, the bits."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from accounting.mechanisms import Subsampled
from accounting.mechanisms.bernoulli import BernoulliAggregate
from dpfed import compress
from dpfed.clients.masked_noise import NOISE_PURPOSE
from dpfed.clients.training import LocalTraining
from dpfed.compress.masked_noise import FedMrnSigned
from dpfed.compress.projection import FedScalar
from dpfed.config.tables import Config
from dpfed.data.samples import Public
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import Method, method
from dpfed.methods.goals import PrivacyGoal, edge_of, seen, signs_by_coins
from dpfed.methods.schemes import is_linear, scheme, sparse_scheme
from dpfed.methods.sums import in_integers, integer_upload, most_uploads
from dpfed.models.flat import FlatModel
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.code import Code
from dpfed.stages.coins import Coins
from dpfed.stages.integer_upload import IntegerUpload
from dpfed.stages.masks import MapChoice, PublicSigns, PublicTopMask, RandomSharedMask, SendAll, kept_coordinates
from dpfed.stages.shared_projection import SharedProjection
from dpfed.stages.summed_symbols import SummedSymbols, symbol_bits
from dpfed.stages.upload import Upload


def map_of(config: Config, local: LocalTraining, public: Public | None) -> MapChoice:
    name, size = config.method.name, local.course.size
    if name == "fedscalar" and config.method.shared:
        made = scheme(config, method(name), size)
        assert isinstance(made, FedScalar)
        return SharedProjection(size=size, scheme=made, purpose="code")
    given = config.method.keep is not None or config.method.k is not None
    if method(name).scheme in ("topk", "randk") or not (given or method(name).sparse == "yes"):
        return SendAll(size=size)
    kept = kept_coordinates(size, keep=config.method.keep, k=config.method.k)
    if name == "fed-smp-randk":
        return RandomSharedMask(size=size, kept=kept)
    assert public is not None
    trainer = replace(local, epochs=None, steps=public_period(config, local, len(public.labels)))
    return PublicTopMask(size=size, kept=kept, trainer=trainer, inputs=public.inputs, labels=public.labels)


def public_period(config: Config, local: LocalTraining, samples: int) -> int:
    """Steps of the server on its public samples: the clients' local update period, where that is public.

    Under local.epochs the period is that of the client with most samples. Their number follows from the settings where
    data are dealt evenly. Where it is private, one client's would show in the mask: there the server goes through its
    own samples as often.
    """
    if local.epochs is None or config.privacy is None or config.data.partition in ("iid", "resampled"):
        return local.period
    return local.epochs * -(-samples // local.batch_size)


def signs_map(config: Config, chosen: Method, local: LocalTraining) -> MapChoice:
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


def code_of(
    config: Config,
    chosen: Method,
    goal: PrivacyGoal | None,
    map_: MapChoice,
    model: FlatModel,
    device: torch.device,
    randomness: Randomness,
    seeds: Seeds,
) -> Code:
    if chosen.scheme is None or signs_by_coins(config, chosen):
        return _coins(config, chosen, goal, randomness)
    if in_integers(config):
        return _whole_numbers(config, chosen, goal, map_, model, randomness, seeds)
    pruned = chosen.local_training == "pruned"
    dense = model.indices("bias", "normalisation", "statistic") if pruned else model.dense
    if chosen.scheme == "dense" or isinstance(map_, SharedProjection):
        dense = dense[:0]  # everything is
    return Upload(
        scheme=sparse_scheme(config, 0) if pruned else _sent_as(config, chosen, map_, len(dense)),
        scheme_of=partial(sparse_scheme, config) if pruned else None,
        dense=dense.to(device) if len(dense) else None,
        seeds=seeds,
        seed_purpose=NOISE_PURPOSE if chosen.local_training == "masked noise" else "code",
        model=pruned,
        majority=pruned and config.method.purge == "clients",
        sizes_secret=goal is not None and seen(config) == "sum",
        feedback=config.federation.clients if config.method.error_feedback else None,
    )


def _whole_numbers(
    config: Config,
    chosen: Method,
    goal: PrivacyGoal | None,
    map_: MapChoice,
    model: FlatModel,
    randomness: Randomness,
    seeds: Seeds,
) -> IntegerUpload | SummedSymbols:
    """Codes whose sums are sums of integers; ConfigError for a method that has none."""
    if is_linear(config, chosen):
        return integer_upload(config, goal, map_.sent, randomness, seeds)
    kind = config.aggregation.kind
    if goal is not None:
        raise ConfigError(
            f"aggregation.kind={kind!r} or integer noise with method.name={chosen.name!r} and [privacy]: its uploads "
            "cannot be decoded from their sum, so the clip would not bound it. Use dp-fedavg, fed-smp-randk, "
            "fed-smp-topk, fedpm, fedscalar with method.shared=true, or privacy.noise='coins' where signs are tossed."
        )
    if len(model.dense):
        raise ConfigError(
            f"aggregation.kind={kind!r} with method.name={chosen.name!r} and BatchNorm: its statistics are sent as "
            "floats. Use a model without BatchNorm, or kind 'plain'."
        )
    made = scheme(config, chosen, map_.sent)
    return SummedSymbols(
        scheme=made,
        bits=symbol_bits(made, map_.sent, most_uploads(config, goal)),
        seeds=seeds,
        seed_purpose=NOISE_PURPOSE if chosen.local_training == "masked noise" else "code",
    )


def _sent_as(config: Config, chosen: Method, map_: MapChoice, dense: int) -> compress.Scheme:
    if isinstance(map_, SharedProjection):
        return compress.get("dense")
    return scheme(config, chosen, map_.sent - dense)


def _coins(config: Config, chosen: Method, goal: PrivacyGoal | None, randomness: Randomness) -> Coins:
    secure = config.aggregation.kind != "plain"
    bits = most_uploads(config, goal).bit_length() if secure else None
    if config.privacy is None or goal is None:
        stochastic = chosen.name != "fedmask"
        return Coins(randomness=randomness, edge=0.0, stochastic=stochastic, summed=secure, bits=bits)
    coins = goal.mechanism.mechanism if isinstance(goal.mechanism, Subsampled) else goal.mechanism
    return Coins(
        randomness=randomness,
        edge=edge_of(config),
        noise_std=config.privacy.noise_std or 0.0,
        correction=config.privacy.correction or "linear",
        slots=coins.cohort if isinstance(coins, BernoulliAggregate) else None,
        summed=isinstance(coins, BernoulliAggregate),
        bits=bits,
    )


def downlink_bits(config: Config, map_: MapChoice, who: Sampler) -> int:
    """After a reset in every round the probabilities are whole numbers of K-ths, if K is fixed."""
    server = config.server
    counted = server.rule == "posterior" and server.reset_every == 1 and server.prior == 1
    if counted and config.privacy is None and config.federation.sampling != "poisson":
        return int(who.expected).bit_length() * map_.sent
    return map_.downlink_bits
