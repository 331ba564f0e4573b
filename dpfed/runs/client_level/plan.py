"""Plan of a custom training loop: its tables as a run's configuration, its chain of stages, and its method."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.mechanisms import sampling_of, subsample, unsampled
from accounting.mechanisms.samplings.planned import Sampler
from dpfed import compress
from dpfed.aggregation.sums import PlainSums
from dpfed.clients.training import LocalTraining
from dpfed.compress.levels import Dense
from dpfed.config.tables import Config, parse_written_config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.soundness import require_sound, require_sound_schemes
from dpfed.methods.catalogue import method_specification
from dpfed.methods.privacy_target import PrivacyTarget, privacy_target_of
from dpfed.methods.refusals import refuse
from dpfed.participation.sampling import ids_of_turns, sampler_of, turns_are_public
from dpfed.randomness import Randomness, randomness_of
from dpfed.round import Method
from dpfed.runs.resuming import with_solved_noise
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.clip import clip_rows
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project, RandomSharedMask, SendAll, kept_coordinates
from dpfed.stages.stage import Round, Stage, stage_attribute
from dpfed.stages.wires import Words

Noise = Literal["gaussian", "discrete-gaussian", "skellam"]

_NOT_OURS = {
    "data": {"name": "own", "partition": "natural"},
    "model": {"name": "own"},
    "local": {"learning_rate": 1.0, "steps": 1, "batch_size": 1},
    "method": {"name": "dp-fedavg"},
}
"""Tables that a run's configuration requires, although a custom loop does not use them and no account depends on
them."""


def config_of(tables: Mapping[str, object], *, source: str) -> Config:
    """Return the plan's tables ([federation], [privacy], [run]) as a run's configuration.

    Raises ConfigError for settings that cannot be combined.
    """
    if not set(tables) <= {"federation", "privacy", "run"}:
        raise ConfigError(f"{source}: a plan may have the tables federation, privacy and run only.")
    config = parse_written_config({**_NOT_OURS, **tables}, source=source)
    refuse(config, method_specification(config.method.name))
    if config.run.randomness == "secure" and not config.cohorts_drawn_anew:
        raise ConfigError(
            f"sampling={config.federation.sampling!r} with randomness='secure': a custom loop does not store the key "
            "of its schedule. Use 'poisson' or 'fixed', `dpfed run`, or randomness='simulated'."
        )
    return config


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanParts:
    """Settings from which a function `stages` makes a custom chain (its argument `s`).

    size: d, the number of numbers in an update
    sampler, randomness, seeds: objects of the loop, with which every stage that draws noise or is charged must be made
    """

    config: Config
    size: int
    sampler: Sampler
    randomness: Randomness
    seeds: Seeds

    def privacy_target(self, sent: int) -> PrivacyTarget:
        """Return the privacy target of rounds in which clients send `sent` numbers of their update."""
        return privacy_target_of(self.config, method_specification(self.config.method.name), sent, self.randomness)

    goal = privacy_target  # old name, up to version 0.3

    def private(self, sent: int) -> tuple[Stage, ...]:
        """Return the last stages of a chain for rows [c, sent]: clipping, the planned noise, and encoding.

        Gaussian noise: Clip > GaussianNoise > Encode. Integer noise: Clip > Integers > IntegerNoise > Words.
        """
        privacy_target = self.privacy_target(sent)
        rows = privacy_target.integer_rows
        wire = (
            Encode(scheme=Dense(), seeds=self.seeds, sizes_secret=True)
            if rows is None
            else Words(size=rows.fixed_point.padded, bits=rows.bits)
        )
        return *privacy_target.stages, wire


Parts = PlanParts  # old name, up to version 0.3

StagesOf = Callable[[PlanParts], Stages]


def whole_update(s: PlanParts) -> Stages:
    """Return the default chain, which sends all coordinates."""
    return Stages(Project(choice=SendAll(size=s.size)), *s.private(s.size))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippedUpload(Stage):
    """Upload of a node: rows are clipped, encoded and decoded; the loop's own clip and noise follow."""

    encode: Encode

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        clipped = clip_rows(rows, now.clip_norm)
        now.tally.not_finite += clipped.not_finite  # the loop's own clip counts all other rows
        return self.encode.read(self.encode.messages(clipped.rows, ids, now), ids, now)


def upload_stages(
    size: int | None, *, keep: float | None, scheme: str, options: Mapping[str, object] | None
) -> StagesOf | None:
    """Return the chain of uploads on a shared random part of the coordinates, compressed; None for whole updates.

    The rows are clipped, encoded and decoded as a node of `ClientLevelStrategy` does it, then clipped again.
    size: dimension of an update. Raises ConfigError without it, and for a scheme that does not compress updates.
    """
    json_of_options(scheme, options)
    if keep is None and scheme == "dense":
        return None
    if size is None:
        raise ConfigError("keep or compress without dimension: give dimension=, the number of numbers in an update.")
    kept = size if keep is None else kept_coordinates(size, keep=keep, k=None)
    if kept == size and scheme == "dense":
        return None

    def chain(s: PlanParts) -> Stages:
        choice = SendAll(size=size) if kept == size else RandomSharedMask(size=size, kept=kept)
        encode = Encode(scheme=compress.get(scheme, **(options or {})), seeds=s.seeds, sizes_secret=True)
        sent = () if scheme == "dense" else (ClippedUpload(encode=encode),)
        return Stages(Project(choice=choice), *sent, *s.private(kept))

    return chain


_NOT_FOR_UPDATES = {
    **dict.fromkeys(
        ("fedpm", "fedmask", "fedmrn", "fedmrns", "fedsparsify"),
        "its clients train masks or pruned models, not updates",
    ),
    **dict.fromkeys(("shared-randk", "shared-topk"), "all clients of a round have its coordinates, as with keep="),
}


def json_of_options(scheme: str, options: Mapping[str, object] | None) -> str:
    """Return the options of a scheme as JSON.

    Raises ConfigError for an unknown scheme, and for one that does not compress updates.
    """
    if scheme in _NOT_FOR_UPDATES:
        raise ConfigError(
            f"compress={scheme!r}: {_NOT_FOR_UPDATES[scheme]}. Use one of "
            f"{', '.join(name for name in compress.names() if name not in _NOT_FOR_UPDATES)}."
        )
    compress.get(scheme, **(options or {}))
    return json.dumps(dict(options or {}))


def require_charged_as_drawn(stages: Stages, s: PlanParts) -> None:
    """Raise ConfigError for a custom chain that the loop's account does not cover.

    Such a chain charges for a sampler, or draws from a source of randomness, that is not that of the loop.
    """
    require_sound(stages)
    require_sound_schemes(stages)
    private = stages.private
    assert private is not None
    kind = type(private).__name__
    if isinstance(private, PrivateCoins):
        raise ConfigError(
            f"{kind} in a custom loop: Bernoulli samples require that the server announces probabilities, which a "
            "custom loop does not have. Use Gaussian or integer noise, or fedpm with dpfed.run."
        )
    if stage_attribute(private, "charged"):
        raise ConfigError(
            f"{kind} with charged=True: no upload drops out in a custom loop, so the charge does not depend on "
            "missing shares. Leave it out."
        )
    shares: int = getattr(private, "shares", None) or getattr(getattr(private, "noise", None), "shares", None) or 1
    law, cohort = s.sampler.law, s.sampler.expected
    if law.fixed_size or law.takes_all:
        fits = shares >= cohort if isinstance(private, DitheredNoise) else shares <= cohort
    else:  # dithered noise fills missing shares up; of other noise a small cohort would have less than is charged
        fits = isinstance(private, DitheredNoise) and shares >= (law.cohort_cap or math.inf)
    if stages.noise_in_rows and not (fits or private.in_every_upload):
        raise ConfigError(
            f"{kind} with {shares} shares of noise for cohorts drawn by {law}: a cohort's shares are not the charged "
            "noise. Use noise of the server, or a cohort of known size and as many shares."
        )
    encode = stages.find(Encode)
    if encode is not None and encode.feedback is not None:
        raise ConfigError(
            "Encode with feedback: a client's stored compression error makes its upload depend on earlier rounds, "
            "which the account of a custom loop does not cover. Leave it out."
        )
    charged = private.mechanism()
    in_every_round = private.in_every_upload and unsampled(charged) is charged
    drawn = charged if in_every_round else subsample(unsampled(charged), s.sampler.law)
    if charged != drawn:
        raise ConfigError(
            f"{kind} charges for {sampling_of(charged)}, but cohorts are drawn by {s.sampler.law}. Make the stage with "
            "s.sampler; `s` is the argument of the function `stages`."
        )
    for stage in stages:
        given = getattr(stage, "randomness", None)
        if given is not None and given.name != s.randomness.name:
            raise ConfigError(
                f"{type(stage).__name__} draws {given.name!r} randomness, but the loop has {s.randomness.name!r}. Make "
                "the stage with s.randomness."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopMethod:
    """Method for updates of one size, and the privacy target with the charge of its rounds."""

    method: Method
    privacy_target: PrivacyTarget


def loop_method_of(parts: PlanParts, stages_of: StagesOf | None) -> LoopMethod:
    """Return the method and privacy target for updates of `parts.size` numbers.

    The privacy target's mechanism is that of the chain's private stage. Raises ConfigError for a chain that this charge
    does not cover.
    """
    stages = (stages_of or whole_update)(parts)
    if stages_of is None:
        require_sound(stages)
    else:
        require_charged_as_drawn(stages, parts)
    assert stages.private is not None
    privacy_target = replace(parts.privacy_target(stages.project.sent), private=stages.private)
    method = Method(
        stages=stages,
        sampler=parts.sampler,
        randomness=parts.randomness,
        clients=cast(LocalTraining, TrainingByCaller()),
        aggregation=PlainSums(),
        server=ModelOfCaller(),
        group=1,
        divisor=parts.sampler.expected,
    )
    return LoopMethod(method=method, privacy_target=privacy_target)


class TrainingByCaller:
    """Placeholder for local training, which the caller's code does; it charges no records."""

    def release(self, clients: NDArray[np.int64], *, number: int) -> None:
        return None


class ModelOfCaller:
    """Placeholder for the server's rule; the caller gets the released mean and moves the model."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        return replace(state, round=state.round + 1)


def plan_parts_of(
    plan: dict[str, dict[str, object]],
    dimension: int | None,
    ids: ClientIds | None,
    ledger: str | os.PathLike[str] | None,
) -> PlanParts:
    """Return the settings from which the chain of a plan is made.

    ids: public ids of the clients, if the caller names them; ledger: its header has the noise of a continued loop.
    Raises ConfigError for settings that cannot be combined.
    """
    config = config_of(plan, source="dpfed.ClientLevel")
    if ledger is not None:
        config = with_solved_noise(config, Path(ledger))
    privacy = config.privacy
    assert privacy is not None
    calibrated_integers = privacy.noise_multiplier is None and privacy.noise != "gaussian"
    if calibrated_integers and dimension is None and sampler_of(config).law.is_schedule:
        raise ConfigError(
            f"sampling={config.federation.sampling!r} with epsilon and integer noise, without dimension: the noise is "
            "calibrated for the dimension before round 1, and all rounds of a schedule have the same. Give dimension=."
        )
    if ids is None and turns_are_public(config) and privacy.adjacency == "add-remove":
        raise ConfigError(
            f"adjacency='add-remove' with sampling={config.federation.sampling!r}: lanes and turns are derived "
            "from clients' numbers, and adding a client may change those of all later clients. Give clients as the "
            "list of their names, or adjacency='zero-out', or lane_secrecy='secret' with lanes."
        )
    seeds = Seeds(root=config.run.seed)
    return PlanParts(
        config=config,
        size=dimension or 0,
        sampler=sampler_of(config, ids_of_turns(config, ids)),
        randomness=randomness_of(config.run.randomness, seeds),
        seeds=seeds,
    )


def planned_method(parts: PlanParts, stages: StagesOf | None) -> tuple[LoopMethod | None, PrivacyTarget | None]:
    """Return method and privacy target before a ledger is opened, so that a plan without an account is refused.

    With an unknown dimension there is no method. The privacy target is then that of Gaussian noise, which does not
    depend on the dimension, or None for other noise.
    """
    if parts.size:
        machine = loop_method_of(parts, stages)
        return machine, machine.privacy_target
    if stages is not None:
        raise ConfigError(
            "stages without dimension: a custom chain is made for updates of a known size. Give dimension=, too."
        )
    gaussian = parts.config.privacy is not None and parts.config.privacy.noise == "gaussian"
    return None, parts.privacy_target(1) if gaussian else None
