"""[aggregation], [server] and [run]: how uploads are summed, what the server does with the mean, and bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from dpfed.config.limits import LARGEST_FLOAT, MOST_CLIENTS, MOST_LAYERS, Clients, ClipNorm, Count, Positive, Seed
from dpfed.config.table import Table, chosen

_Some = Annotated[int, Field(ge=0, le=MOST_CLIENTS)]


class _Aggregation(Table):
    """Summation of uploads, and the clients that drop out on the way.

    In a secure sum numbers become integers: `steps` of them to the clip norm, after a public `rotation` or not.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client drops out of a round, each by a draw of the run's secret randomness."""

    dropout_at: Literal["any", "advertise", "share", "upload", "unmask", "late"] = "any"
    """The step at which clients drop out; any: a random one."""

    lost: dict[Literal["advertise", "share", "upload", "unmask", "late"], _Some] = Field(default_factory=dict)
    """Numbers of a round's clients that drop out at each step, instead of aggregation.dropout."""

    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The fraction of uploads that may be missing; beyond it a round is not released. Default: no limit, or where
    clients add noise shares so many that one round in a thousand ends that way. Refused for private plain sums whose
    noise is not the clients': they never end, since ending would show how many took part."""

    weights: Literal["samples", "uniform"] = "samples"
    """Weights of clients in the mean without [privacy]: their numbers of samples, or all the same. Under [privacy] they
    are all the same."""

    steps: Count | None = None
    """Integers from 0 to the clip norm; default: so many that rounding adds little to the clip norm."""

    rotation: bool = True
    """A public random rotation before rounding: shorter integers at the same error."""

    wrap_probability: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    """The modulus is the least with which a round of rows that do not follow the rotation's signs wraps around with
    at most this probability. Accuracy rests on it, privacy does not."""

    clip_norm: ClipNorm | None = None
    """Clip norm of updates without [privacy], since integers have a range."""


class PlainAggregation(_Aggregation):
    """A sum by a trusted server."""

    kind: Literal["plain"] = "plain"
    """plain: a trusted sum."""


class SecureAggregation(_Aggregation):
    """A secure sum, of which the server learns the total only."""

    kind: Literal["masked", "protocol"]
    """masked: pairwise and self masks in Z_2^b with keys from one secret; protocol: the whole of Bonawitz et al.
    2017."""

    neighbours: _Some = 0
    """Number of clients that share masks with each other; 0: all with all."""

    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6
    """A client's secrets can be recovered while more than this fraction of its neighbours answers."""

    least_participants: Annotated[int, Field(ge=2)] | None = None
    """The fewest clients that a secure sum may hold: every client refuses, at every step, a sum of fewer. Default: as
    many as tolerance and threshold leave of a round's clients; 2 where their number is drawn anew and nothing rests on
    it (Poisson sampling without [privacy])."""


Aggregation = Annotated[PlainAggregation | SecureAggregation, Field(discriminator="kind")]
"""[aggregation], by kind."""


class _Server(Table):
    """The server's use of the mean update."""

    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The decay of a moving average over the models of past rounds, which is evaluated and saved in place of the last
    one; of that one metrics have last_test_NAME. Free of cost: post-processing."""


class StepServer(_Server):
    """A step along the mean update, or a rule of your own."""

    rule: str = "step"
    """step, along the mean update; or one of your own (dpfed.server.register)."""

    learning_rate: Positive = 1.0
    """Learning rate of the server's step."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of the server's step."""


class _AdaptiveServer(_Server):
    """Keys of the adaptive rules (Reddi et al. 2021)."""

    learning_rate: Positive = 1.0
    """An adaptive rule moves every entry by about as much: 0.001 to 0.1."""

    tau: Positive = 1e-3
    """An adaptive rule's least scale of an entry."""


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
    """For masks, the Beta posterior of their probabilities."""

    rule: Literal["posterior"]
    """For masks, the Beta posterior of their probabilities."""

    prior: Annotated[float, Field(ge=1, le=LARGEST_FLOAT)] = 1.0
    """Both parameters of the Beta prior."""

    reset_every: Annotated[int, Field(ge=0, le=10**15)] = 1
    """The posterior begins at the prior again after so many rounds; 0: never."""


def _rule(table: object) -> str:
    """Return the kind of server.rule; a rule of a user's own takes the keys of step."""
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
    """Everything random of a simulation follows from it, but for who the clients are (data.partition_seed)."""

    device: str = "auto"
    """cpu, cuda, cuda:N; auto: a GPU where there is one. Never run on a GPU yet: `make bench-gpu` tries it."""

    group: Clients = 20
    """Clients that are trained and summed at a time."""

    evaluate_every: Count = 1
    """Rounds between two evaluations; the last round is always evaluated."""

    metrics: tuple[str, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)
    """Metrics on the test half beside the loss, test_NAME in metrics.jsonl and summary.json: mae, rmse, r2 for
    targets that are no classes; default: mae and r2 for them. Labels have their accuracy anyhow."""

    randomness: Literal["simulated", "secure"] = "simulated"
    """Cohorts, dropouts and noise from the seed, for experiments; or from the operating system, for a model that is
    released. Default: simulated, or secure with run.release = true."""

    on_error: Literal["raise", "count"] | None = None
    """An exception of the network or the loss while a client trains. raise: it ends the run. count: the client's update
    counts as one that is not finite, zero, and diagnostics.jsonl counts it. Default: count where a model is for release
    (randomness = "secure" with [privacy]) and on Flower's nodes, else raise."""

    release: bool = False
    """A model for release: sets run.randomness = "secure" and, where noise is added, privacy.noise =
    "discrete-gaussian"; what cannot be released is refused. privacy.release is about something else: which part of a
    round is seen, its sum or every upload."""

    @property
    def for_release(self) -> bool:
        """True if the model is for release: noise, cohorts and dropouts come from the operating system."""
        return self.release or self.randomness == "secure"

    @model_validator(mode="before")
    @classmethod
    def _secure_if_released(cls, tables: Any) -> Any:
        """Set run.randomness of a run for release where it is not given."""
        if not isinstance(tables, Mapping) or tables.get("release") is not True:
            return tables
        return {"randomness": "secure", **tables}
