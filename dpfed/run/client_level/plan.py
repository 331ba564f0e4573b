"""What a training loop of one's own promises, in the words of a run's configuration; and the chain that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accounting.budget.plan import SAMPLINGS
from accounting.mechanisms import sampling_of, subsample, unsampled
from dpfed.compress.dense import Dense
from dpfed.config.tables import Config, parse_written
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import method
from dpfed.methods.goals import PrivacyGoal, goal_of
from dpfed.methods.refusals import refuse
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.coins import PrivateCoins
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.send_all import SendAll
from dpfed.stages.soundness import require_sound
from dpfed.stages.stage import Stage
from dpfed.stages.words import Words

Noise = Literal["gaussian", "discrete-gaussian", "skellam"]

_NOT_OURS = {
    "data": {"name": "own"},
    "model": {"name": "own"},
    "local": {"learning_rate": 1.0, "steps": 1, "batch_size": 1},
    "method": {"name": "dp-fedavg"},
}
"""Tables of a run that a loop of one's own has no part in; no account looks at them."""


def config_of(tables: Mapping[str, Any], *, source: str) -> Config:
    """The plan's tables ([federation], [privacy], [run]) as a configuration. ConfigError for what no run can have."""
    if not set(tables) <= {"federation", "privacy", "run"}:
        raise ConfigError(f"{source}: a plan has the tables federation, privacy and run, and no others.")
    config = parse_written({**_NOT_OURS, **tables}, source=source)
    refuse(config, method(config.method.name))
    if config.run.randomness == "secure" and config.federation.sampling not in SAMPLINGS:
        raise ConfigError(
            f"sampling={config.federation.sampling!r} with randomness='secure': a loop of one's own keeps no key of "
            "who is still to take part. Use 'poisson' or 'fixed', `dpfed run`, or randomness='simulated'."
        )
    return config


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What a chain of one's own is made from (there: `s`).

    size:       d, numbers in an update
    sampler, randomness, seeds: those of the loop; a stage that draws noise or is charged must have these very ones
    """

    config: Config
    size: int
    sampler: Sampler
    randomness: Randomness
    seeds: Seeds

    def goal(self, sent: int) -> PrivacyGoal:
        """What is promised for updates of which `sent` numbers are sent."""
        return goal_of(self.config, method(self.config.method.name), sent, self.randomness)

    def private(self, sent: int) -> tuple[Stage, ...]:
        """Clip, noise as planned, and wire, for rows [c, sent]: the end of a chain.

        Gaussian: Clip > GaussianNoise > Encode. Integers: Clip > Integers > IntegerNoise > Words.
        """
        goal = self.goal(sent)
        rows = goal.integer_rows
        wire = (
            Encode(scheme=Dense(), seeds=self.seeds, sizes_secret=True)
            if rows is None
            else Words(size=rows.fixed_point.padded, bits=rows.bits)
        )
        return *goal.stages, wire


def whole_update(s: Parts) -> Stages:
    """Everything is sent: the chain where none is given."""
    return Stages(Project(choice=SendAll(size=s.size)), *s.private(s.size))


def require_charged_as_drawn(stages: Stages, s: Parts) -> None:
    """ConfigError for a chain of one's own that charges for another sampler, or draws from another source, than the
    loop does, or that no account of this loop covers."""
    require_sound(stages)
    private = stages.private
    assert private is not None
    kind = type(private).__name__
    if isinstance(private, PrivateCoins):
        raise ConfigError(
            f"{kind} in a loop of one's own: coins are drawn around probabilities that a round announces, and there "
            "are none. Use Gaussian or integer noise, or fedpm with dpfed.run."
        )
    if getattr(private, "charged", False):
        raise ConfigError(
            f"{kind} with charged=True: nothing is lost on the way in a loop of one's own, so every release is charged "
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
