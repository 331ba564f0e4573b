"""[aggregation], [server] and [run]: summation of uploads, the server's step, seed and bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from dpfed.config.limits import LARGEST_FLOAT, MOST_CLIENTS, MOST_LAYERS, Clients, ClipNorm, Count, Positive, Seed
from dpfed.config.table import Table, chosen

_Some = Annotated[int, Field(ge=0, le=MOST_CLIENTS)]


class _Aggregation(Table):
    """Summation of uploads, and the clients that drop out before it.

    A secure sum is of integers: `steps` of them to the clip norm, after an optional public `rotation`.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client drops out of a round, each by a draw of the run's secret randomness."""

    dropout_at: Literal["any", "advertise", "share", "upload", "unmask", "late"] = "any"
    """Step at which clients drop out; any: a random step."""

    lost: dict[Literal["advertise", "share", "upload", "unmask", "late"], _Some] = Field(default_factory=dict)
    """Numbers of a round's clients that drop out at each step, instead of aggregation.dropout."""

    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Largest fraction of uploads that may be missing; beyond it a round is not released.

    Default: no limit; where clients add noise shares, a limit that one round in a thousand exceeds. Refused for private
    plain sums with the server's noise: these are always released, because a missing release would reveal the number of
    participants.
    """

    weights: Literal["samples", "uniform"] = "samples"
    """Weights of clients in the mean without [privacy]: their numbers of samples, or equal.

    Under [privacy] they are equal.
    """

    steps: Count | None = None
    """Number of integers from 0 to the clip norm.

    Default: enough that rounding adds little to the clip norm; without privacy, the number that fits the 32 bits of a
    float.
    """

    rotation: bool = True
    """Public random rotation before rounding: shorter integers at the same error."""

    wrap_probability: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """Probability, at most, that a round's sum wraps around the modulus, for rows independent of the rotation's signs.

    The modulus is the least one that satisfies it. Accuracy depends on it, privacy does not.
    """

    clip_norm: ClipNorm | None = None
    """Clip norm of updates without [privacy], needed because integers have a range."""


class PlainAggregation(_Aggregation):
    """A sum by a trusted server."""

    kind: Literal["plain"] = "plain"
    """plain: a trusted sum."""


class SecureAggregation(_Aggregation):
    """A secure sum, of which the server learns the total only."""

    kind: Literal["masked", "protocol"]
    """masked: pairwise and self masks in Z_2^b with keys from one secret; protocol: the complete protocol of
    Bonawitz et al. 2017.
    """

    neighbours: _Some = 0
    """Number of clients that share masks with each other; 0: all with all."""

    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6
    """A client's secrets can be recovered while more than this fraction of its neighbours answers."""

    least_participants: Annotated[int, Field(ge=2)] | None = None
    """Fewest clients of a secure sum: every client refuses, at every step, a sum of fewer.

    Default: the number that tolerance and threshold leave of a round's clients; 2 if that number is random and no
    guarantee depends on it (Poisson sampling without [privacy]).
    """


Aggregation = Annotated[PlainAggregation | SecureAggregation, Field(discriminator="kind")]
"""[aggregation], by kind."""


class _Server(Table):
    """The server's use of the mean update."""

    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of a moving average over the models of past rounds, which is evaluated and saved in place of the last
    model; metrics of the last model are last_test_NAME. The average is post-processing and spends no privacy.
    """


class StepServer(_Server):
    """A step along the mean update, or a rule of your own."""

    rule: str = "step"
    """step: along the mean update; or a rule of your code (dpfed.server.register)."""

    learning_rate: Positive = 1.0
    """Learning rate of the server's step."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of the server's step."""


class _AdaptiveServer(_Server):
    """Keys of the adaptive rules (Reddi et al. 2021)."""

    learning_rate: Positive = 1.0
    """Learning rate of an adaptive rule, which moves every entry by about this much: 0.001 to 0.1."""

    tau: Positive = 1e-3
    """Least scale of an entry in an adaptive rule."""


class AdamServer(_AdaptiveServer):
    """FedAdam or FedYogi."""

    rule: Literal["adam", "yogi"]
    """FedAdam, FedYogi (Reddi et al. 2021)."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of an adaptive rule's mean of updates."""

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of adam's and yogi's mean of squared updates."""


class AdagradServer(_AdaptiveServer):
    """FedAdagrad."""

    rule: Literal["adagrad"]
    """FedAdagrad (Reddi et al. 2021)."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of an adaptive rule's mean of updates."""


class PosteriorServer(_Server):
    """Beta posterior of the probabilities of masks."""

    rule: Literal["posterior"]
    """Beta posterior of the probabilities of masks."""

    prior: Annotated[float, Field(ge=1, le=LARGEST_FLOAT)] = 1.0
    """Both parameters of the Beta prior."""

    reset_every: Annotated[int, Field(ge=0, le=10**15)] = 1
    """Number of rounds after which the posterior begins at the prior again; 0: never."""


def _rule(table: object) -> str:
    """Return the kind of server.rule; a custom rule has the keys of step."""
    rule = chosen(table, "rule")
    return str(rule) if rule in ("adam", "yogi", "adagrad", "posterior") else "step"


Server = Annotated[
    Annotated[StepServer, Tag("step")]
    | Annotated[AdamServer, Tag("adam")]
    | Annotated[AdamServer, Tag("yogi")]
    | Annotated[AdagradServer, Tag("adagrad")]
    | Annotated[PosteriorServer, Tag("posterior")],
    Discriminator(_rule),
]
"""[server], by rule."""


class RunTable(Table):
    """Seed, device, bookkeeping."""

    seed: Seed = 0
    """Seed of all randomness of a simulation, except the division of samples among clients (data.partition_seed)."""

    device: str = "auto"
    """cpu, cuda, cuda:N; auto: a GPU if there is one. Never run on a GPU yet: `make bench-gpu` tries it."""

    group: Clients = 20
    """Clients that are trained and summed at a time."""

    evaluate_every: Count = 1
    """Rounds between two evaluations; the last round is always evaluated."""

    metrics: tuple[str, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)
    """Metrics on the test half beside the loss, test_NAME in metrics.jsonl and summary.json: mae, rmse, r2 for
    numeric targets; default for them: mae and r2. Labels always have their accuracy.
    """

    randomness: Literal["simulated", "secure"] = "simulated"
    """Cohorts, dropouts and noise from the seed, for experiments; or from the operating system, for a model that is
    released. Default: simulated, or secure with run.release = true."""

    on_error: Literal["raise", "count"] | None = None
    """Handling of an exception of the network or the loss while a client trains. raise: it ends the run. count: the
    client's update counts as one that is not finite, zero, and diagnostics.jsonl counts it. Default: count if the
    model is for release (randomness = "secure" with [privacy]) and on Flower's nodes, else raise.
    """

    release: bool = False
    """True for a model for release: sets run.randomness = "secure" and, if noise is added, privacy.noise =
    "discrete-gaussian"; settings that cannot be released are refused. privacy.release is a different key: it names
    the visible part of a round, its sum or every upload.
    """

    @property
    def for_release(self) -> bool:
        """True if the model is for release: noise, cohorts and dropouts come from the operating system."""
        return self.release or self.randomness == "secure"

    @model_validator(mode="before")
    @classmethod
    def _secure_if_released(cls, tables: Any) -> Any:
        """Set run.randomness of a run for release if it is not given."""
        if not isinstance(tables, Mapping) or tables.get("release") is not True:
            return tables
        return {"randomness": "secure", **tables}
