"""Plan of a custom training loop as a run's configuration, its chain of stages, and the method of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.budget.plan import SAMPLINGS
from accounting.mechanisms import sampling_of, subsample, unsampled
from dpfed.aggregation.sums import PlainSums
from dpfed.clients.training import LocalTraining
from dpfed.compress.levels import Dense
from dpfed.config.tables import Config, parse_written
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.soundness import require_sound
from dpfed.methods.catalogue import method
from dpfed.methods.privacy_target import PrivacyTarget, target_of
from dpfed.methods.refusals import refuse
from dpfed.participation.lanes import ids_of_turns, turns_are_public
from dpfed.participation.sampling import Sampler, sampler_of
from dpfed.randomness import Randomness, randomness_of
from dpfed.round import Method
from dpfed.seeds import Seeds
from dpfed.server.state import ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.encode import Encode
from dpfed.stages.maps import SendAll
from dpfed.stages.project import Project
from dpfed.stages.stage import Stage, stage_attribute
from dpfed.stages.wires import Words

Noise = Literal["gaussian", "discrete-gaussian", "skellam"]

_NOT_OURS = {
    "data": {"name": "own", "partition": "natural"},
    "model": {"name": "own"},
    "local": {"learning_rate": 1.0, "steps": 1, "batch_size": 1},
    "method": {"name": "dp-fedavg"},
}
"""Tables of a run that a custom loop has no part in, and that no account uses."""


def config_of(tables: Mapping[str, object], *, source: str) -> Config:
    """Return the plan's tables ([federation], [privacy], [run]) as a configuration.

    ConfigError for a plan that no run can have.
    """
    if not set(tables) <= {"federation", "privacy", "run"}:
        raise ConfigError(f"{source}: a plan has the tables federation, privacy and run, and no others.")
    config = parse_written({**_NOT_OURS, **tables}, source=source)
    refuse(config, method(config.method.name))
    if config.run.randomness == "secure" and config.federation.sampling not in SAMPLINGS:
        raise ConfigError(
            f"sampling={config.federation.sampling!r} with randomness='secure': a custom loop stores no key of "
            "its schedule. Use 'poisson' or 'fixed', `dpfed run`, or randomness='simulated'."
        )
    return config


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts that a custom chain is made from (there: `s`).

    size:       d, numbers in an update
    sampler, randomness, seeds: those of the loop; a stage that draws noise or is charged must have these very ones
    """

    config: Config
    size: int
    sampler: Sampler
    randomness: Randomness
    seeds: Seeds

    def privacy_target(self, sent: int) -> PrivacyTarget:
        """Return the privacy target for updates of which `sent` numbers are sent."""
        return target_of(self.config, method(self.config.method.name), sent, self.randomness)

    goal = privacy_target  # its name up to version 0.3

    def private(self, sent: int) -> tuple[Stage, ...]:
        """Return clip, planned noise, and wire, for rows [c, sent]: the end of a chain.

        Gaussian: Clip > GaussianNoise > Encode. Integers: Clip > Integers > IntegerNoise > Words.
        """
        privacy_target = self.privacy_target(sent)
        rows = privacy_target.integer_rows
        wire = (
            Encode(scheme=Dense(), seeds=self.seeds, sizes_secret=True)
            if rows is None
            else Words(size=rows.fixed_point.padded, bits=rows.bits)
        )
        return *privacy_target.stages, wire


StagesOf = Callable[[Parts], Stages]


def whole_update(s: Parts) -> Stages:
    """Return the default chain, which sends all coordinates."""
    return Stages(Project(choice=SendAll(size=s.size)), *s.private(s.size))


def require_charged_as_drawn(stages: Stages, s: Parts) -> None:
    """Raise ConfigError for a custom chain that the loop's account does not cover.

    It may charge for another sampler, or draw from another source, than the loop does.
    """
    require_sound(stages)
    private = stages.private
    assert private is not None
    kind = type(private).__name__
    if isinstance(private, PrivateCoins):
        raise ConfigError(
            f"{kind} in a custom loop: Bernoulli samples are drawn around probabilities that a round announces, and "
            "there are none. Use Gaussian or integer noise, or fedpm with dpfed.run."
        )
    if stage_attribute(private, "charged"):
        raise ConfigError(
            f"{kind} with charged=True: no upload drops out in a custom loop, so every release is charged "
            "alike. Leave it out."
        )
    encode = stages.find(Encode)
    if encode is not None and encode.feedback is not None:
        raise ConfigError(
            "Encode with feedback: a client's remembered error carries earlier rounds into this one, which no account "
            "of single rounds covers. Leave it out."
        )
    charged = private.mechanism()
    in_every_round = private.in_every_upload and unsampled(charged) is charged
    drawn = charged if in_every_round else subsample(unsampled(charged), s.sampler.law)
    if charged != drawn:
        raise ConfigError(
            f"{kind} charges for {sampling_of(charged)}, cohorts are drawn by {s.sampler.law}. Make it with s.sampler, "
            "which the function given as `stages` gets."
        )
    for stage in stages:
        given = getattr(stage, "randomness", None)
        if given is not None and given.name != s.randomness.name:
            raise ConfigError(
                f"{type(stage).__name__} draws {given.name} randomness, the loop's is {s.randomness.name!r}. Make it "
                "with s.randomness."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Machine:
    """A method for rows [c, size], and the charge of one of its rounds."""

    size: int
    method: Method
    privacy_target: PrivacyTarget


def machine_of(parts: Parts, stages_of: StagesOf | None) -> Machine:
    """Return the method for updates of `parts.size` numbers.

    The privacy target's mechanism is that of the charged stage. ConfigError for a chain whose charge does not cover it.
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
        clients=cast(LocalTraining, Elsewhere()),
        aggregation=PlainSums(),
        server=Unmoved(),
        group=1,
        divisor=parts.sampler.expected,
    )
    return Machine(size=parts.size, method=method, privacy_target=privacy_target)


class Elsewhere:
    """Local training by the caller: no records are charged here."""

    def release(self, clients: NDArray[np.int64], *, number: int) -> None:
        return None


class Unmoved:
    """Placeholder for the model, which is the caller's; the released mean is returned to the caller."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        return replace(state, round=state.round + 1)


def parts_of(plan: dict[str, dict[str, object]], dimension: int | None, ids: ClientIds | None = None) -> Parts:
    """Return the parts of a chain, for a plan. ids: of the clients, if the caller names them. ConfigError for a plan
    that no run can have."""
    config = config_of(plan, source="dpfed.ClientLevel")
    if ids is None and turns_are_public(config) and config.privacy and config.privacy.adjacency == "add-remove":
        raise ConfigError(
            f"adjacency='add-remove' with sampling={config.federation.sampling!r}: clients are numbers, from which "
            "their lanes or turns follow, and one client more may move all later ones. Give clients as the list of "
            "their names, or adjacency='zero-out', or lane_secrecy='secret' with lanes."
        )
    seeds = Seeds(root=config.run.seed)
    if dimension is not None and dimension < 1:
        raise ConfigError(f"dimension={dimension}: must be at least 1, the numbers in an update.")
    return Parts(
        config=config,
        size=dimension or 0,
        sampler=sampler_of(config, ids_of_turns(config, ids)),
        randomness=randomness_of(config.run.randomness, seeds),
        seeds=seeds,
    )


def planned(parts: Parts, stages: StagesOf | None) -> tuple[Machine | None, PrivacyTarget | None]:
    """Return the privacy target before there is a ledger; for an unknown dimension that of Gaussian noise, which needs
    none.

    A plan without an account is refused.
    """
    if parts.size:
        machine = machine_of(parts, stages)
        return machine, machine.privacy_target
    if stages is not None:
        raise ConfigError("stages without dimension: a chain is made for updates of a size. Give dimension=, too.")
    gaussian = parts.config.privacy is not None and parts.config.privacy.noise == "gaussian"
    return None, parts.privacy_target(1) if gaussian else None
