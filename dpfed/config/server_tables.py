"""Tables [aggregation], [server] and [run]: summation of uploads, the server's step, seed and bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from dpfed.config import limits

_Some = Annotated[int, Field(ge=0, le=limits.MOST_CLIENTS)]


class _CommonAggregation(limits.Table):
    """Summation of uploads, and the clients that drop out before it.

    A secure sum adds integers: numbers are rounded to multiples of clip norm / `steps`, after an optional public
    `rotation`.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client drops out of a round; clients drop out independently, by the run's secret
    randomness."""

    dropout_at: Literal["any", "advertise", "share", "upload", "unmask", "late"] = "any"
    """Step of the protocol at which clients drop out; any: a random step for each client."""

    lost: dict[Literal["advertise", "share", "upload", "unmask", "late"], _Some] = Field(default_factory=dict)
    """Number of a round's clients that drop out at each named step of the protocol, instead of aggregation.dropout."""

    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Largest fraction of uploads that may be missing; a round with more missing uploads is not released.

    Default: no limit; where clients add noise shares, a limit that one round in a thousand exceeds. It is refused for
    private plain sums with the server's noise. These are always released, because a missing release would reveal the
    number of participants.
    """

    weights: Literal["samples", "uniform"] = "samples"
    """Weights of clients in the mean: samples, their numbers of samples; uniform, equal weights.

    Under [privacy] all weights are equal.
    """

    steps: limits.Count | None = None
    """Number of integer steps from 0 to the clip norm.

    Default: enough steps that rounding increases the clip norm only a little; without privacy, the largest power of
    two for which sums fit into 32 bits.
    """

    rotation: bool = True
    """True: a public random rotation precedes rounding, so that integers need fewer bits at the same error."""

    wrap_probability: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """Largest probability that a round's sum wraps around the modulus, for rows independent of the rotation's signs.

    The modulus is the smallest one with at most this probability. Accuracy depends on it, privacy does not.
    """

    clip_norm: limits.ClipNorm | None = None
    """Clip norm of updates without [privacy]; integer sums require it, because integers have a bounded range."""


class PlainAggregation(_CommonAggregation):
    """A sum by a trusted server."""

    kind: Literal["plain"] = "plain"
    """plain: a trusted server adds the uploads."""


class SecureAggregation(_CommonAggregation):
    """A secure sum: the server learns the total of the uploads only."""

    kind: Literal["masked", "protocol"]
    """masked: pairwise and self masks in Z_2^b with keys from one secret; protocol: the complete protocol of
    Bonawitz et al. 2017.
    """

    neighbours: _Some = 0
    """Number of other clients with which a client shares masks; 0: with all other clients."""

    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6
    """A client's secrets can be recovered as long as more than this fraction of its neighbours responds."""

    least_participants: Annotated[int, Field(ge=2)] | None = None
    """Smallest number of clients in a secure sum; at every step, every client refuses a sum of fewer clients.

    Default: the smallest number of a round's clients that tolerance and threshold allow. It is 2 if the number of a
    round's clients is random and no guarantee depends on it (Poisson sampling without [privacy]).
    """


Aggregation = Annotated[PlainAggregation | SecureAggregation, Field(discriminator="kind")]
"""Table [aggregation]; aggregation.kind selects the kind of table."""


class _CommonServer(limits.Table):
    """The server's use of the mean update."""

    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of a moving average over the models of past rounds, which is evaluated and saved in place of the last
    model; metrics of the last model are last_test_NAME. The average is post-processing and spends no privacy.
    """

    start: Literal["network", "public"] = "network"
    """Model before round 1. network: the network's own initial weights, or initial mask probabilities; public: these
    after server.start_epochs passes over the public samples (data.public), with the optimizer and batches of [local].

    It spends no privacy, because no client has a public sample. Momentum, moments, the posterior's prior and an
    adaptive clip norm start as without it.
    """

    start_epochs: limits.Count = 10
    """Number of passes over the public samples before round 1 if server.start is "public". Choose it on public samples
    only: the model would reveal another choice."""


class StepServer(_CommonServer):
    """A step along the mean update, or a user-defined rule."""

    rule: str = "step"
    """step: the model moves along the mean update; otherwise the name of a rule that your code registers
    (dpfed.server.register)."""

    learning_rate: limits.Positive = 1.0
    """Learning rate of the server's step."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of the server's step."""


class _AdaptiveServer(_CommonServer):
    """Keys of the adaptive rules (Reddi et al. 2021)."""

    learning_rate: limits.Positive = 1.0
    """Learning rate of an adaptive rule, which moves every entry by about this amount a round; usual values are 0.001
    to 0.1."""

    tau: limits.Positive = 1e-3
    """Smallest scale by which an adaptive rule divides an entry's step."""


class AdamServer(_AdaptiveServer):
    """FedAdam or FedYogi."""

    rule: Literal["adam", "yogi"]
    """FedAdam, FedYogi (Reddi et al. 2021)."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the moving mean of updates in an adaptive rule."""

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the moving mean of squared updates in adam and yogi."""


class AdagradServer(_AdaptiveServer):
    """FedAdagrad."""

    rule: Literal["adagrad"]
    """FedAdagrad (Reddi et al. 2021)."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the moving mean of updates in an adaptive rule."""

    beta2: ClassVar[float] = 0.0


class PosteriorServer(_CommonServer):
    """Beta posterior of the probabilities of masks, as in FedPM."""

    rule: Literal["posterior"]
    """Beta posterior of the probabilities of masks, as in FedPM."""

    prior: Annotated[float, Field(ge=1, le=limits.LARGEST_FLOAT)] = 1.0
    """Both parameters of the Beta prior."""

    reset_every: Annotated[int, Field(ge=0, le=10**15)] = 1
    """Number of rounds after which the posterior is reset to the prior; 0: it is never reset."""


def _kind_of_rule(table: object) -> str:
    """Return the kind of table that server.rule selects; a custom rule has the keys of the rule "step"."""
    rule = limits.value_of_key(table, "rule")
    return str(rule) if rule in ("adam", "yogi", "adagrad", "posterior") else "step"


Server = Annotated[
    Annotated[StepServer, Tag("step")]
    | Annotated[AdamServer, Tag("adam")]
    | Annotated[AdamServer, Tag("yogi")]
    | Annotated[AdagradServer, Tag("adagrad")]
    | Annotated[PosteriorServer, Tag("posterior")],
    Discriminator(_kind_of_rule),
]
"""Table [server]; server.rule selects the kind of table."""


class RunTable(limits.Table):
    """Seed, device, evaluation, and handling of errors of a run."""

    seed: limits.Seed = 0
    """Seed of all randomness of a simulation, except the division of samples among clients (data.partition_seed)."""

    device: str = "auto"
    """Device of the training: cpu, cuda or cuda:N; auto: a GPU if the machine has one, else the CPU. It has
    been run on one kind of GPU (benchmarks/gpu.md); `make bench-gpu` tests and measures another one."""

    group: limits.Clients = 20
    """Smallest number of clients that are trained and summed together; on a GPU the whole cohort is, if its memory
    allows."""

    evaluate_every: limits.Count = 1
    """Rounds between two evaluations; the last round is always evaluated."""

    metrics: tuple[str, ...] | None = Field(default=None, strict=False, max_length=limits.MOST_LAYERS)
    """Metrics on the test half in addition to the loss: mae, rmse and r2, for numeric targets; default: mae and r2.

    They are called test_NAME in metrics.jsonl and summary.json. For labels the accuracy is always computed.
    """

    randomness: Literal["simulated", "secure"] = "simulated"
    """Source of cohorts, dropouts and noise. simulated: the seed, for experiments; secure: the operating system, for a
    model that is released; run.release = true sets it."""

    on_error: Literal["raise", "count"] | None = None
    """Handling of an exception of the network or the loss while a client trains. raise: the exception ends the run.
    count: the client's update is replaced by zero, as if it were not finite, and diagnostics.jsonl counts it. Default:
    count if the model is for release (randomness = "secure" with [privacy]) and on Flower's nodes, else raise.
    """

    spare_rounds: Annotated[int, Field(ge=0, le=limits.MOST_ROUNDS)] = 0
    """Number of rounds that may be repeated after interruptions within the stated epsilon. With secure randomness a
    repeated round has new noise and is charged again. The epsilon of federation.rounds and these rounds together holds
    for any stopping rule. With more repeated rounds, epsilon holds if the interruptions did not depend on results. Set
    a few for a run for release that may be interrupted; noise is calibrated for them, too.
    """

    release: bool = False
    """True if the model is for release. Then run.randomness is "secure" and, if noise is added, privacy.noise is
    "discrete-gaussian"; settings that cannot be released are refused. privacy.release is a different key: it names
    the visible part of a round, which is its sum or every upload.
    """

    @property
    def for_release(self) -> bool:
        """True if the model is for release: noise, cohorts and dropouts come from the operating system."""
        return self.release or self.randomness == "secure"

    @model_validator(mode="before")
    @classmethod
    def _default_to_secure_randomness(cls, tables: object) -> object:
        """Set run.randomness = "secure" in a run for release if run.randomness is not given."""
        if not isinstance(tables, Mapping) or tables.get("release") is not True:
            return tables
        return {"randomness": "secure", **tables}
