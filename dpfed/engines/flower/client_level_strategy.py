"""Client-level privacy for an existing Flower app, by a wrapper around its strategy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import signature
from logging import INFO, WARNING
from typing import Any, Literal, get_args

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor

from accounting import Guarantee
from accounting.budget.plan import SAMPLINGS
from accounting.mechanisms.samplings.planned import without_runs_text
from dpfed.engines.flower.client_mod import RECORD, add_to_arrays, model_size, update_in_reply, with_types_of
from dpfed.engines.flower.conversation import log_dropout
from dpfed.engines.flower.directory import NodePopulation
from dpfed.engines.flower.inbox import single_replies
from dpfed.engines.node_ledger import ServerPlan
from dpfed.engines.round_terms import RoundTerms
from dpfed.errors import ConfigError, RunError, WireError
from dpfed.runs.client_level import ClientLevel, Step
from dpfed.runs.client_level.plan import json_of_options
from dpfed.runs.client_level.private_loop import Sampling
from dpfed.stages.project import kept_coordinates


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedRound:
    """A round and the nodes that were asked to train.

    clients: number of each client of the cohort, by the id of its node
    terms: terms of each client, by its number, in the order of the cohort"""

    step: Step
    start: ArrayRecord
    example: Message
    key: str
    clients: Mapping[int, int]
    terms: Mapping[int, RoundTerms]

    def heads(self, replies: Iterable[Message]) -> dict[int, str]:
        """Return the heads of the ledgers that nodes keep, by client, for the terms of later rounds."""
        found = {}
        for node, reply in single_replies(replies, self.clients):
            sent = None if reply.has_error() else reply.content.config_records.get(RECORD)
            if sent is not None and isinstance(head := sent.get("head"), str):
                found[self.clients[node]] = head[:200]
        return found

    def updates(self, replies: Iterable[Message], size: int) -> Iterator[Tensor]:
        """Return one update [size] per client, in the order of the cohort; a missing or unreadable update is zeros."""
        came = {self.clients[node]: reply for node, reply in single_replies(replies, self.clients)}
        unread = 0
        for client, terms in self.terms.items():
            try:
                if client not in came:
                    raise WireError("no reply, or more than one.")
                yield _update_in_reply(came[client], terms, self.start)
            except WireError as error:
                log_dropout(client, f"in round {terms.round}", error)
                unread += 1
                yield torch.zeros(size)
        if unread == len(self.terms):
            needs = (
                "" if next(iter(self.terms.values())).sends_all else " Do the nodes have ClientApp(mods=[client_mod])?"
            )
            log(
                WARNING,
                "dpfed: no update of round %s could be read, so the model moves by noise alone.%s FLWR_LOG_LEVEL=DEBUG "
                "says why. No epsilon covers this line.",
                self.step.round,
                needs,
            )


def _update_in_reply(reply: Message, terms: RoundTerms, start: ArrayRecord) -> Tensor:
    """Return the update [d] in a reply; raises WireError for an error reply, or one that does not follow the terms."""
    if reply.has_error():
        raise WireError(f"the node failed: {reply.error.reason}")
    sent = reply.content.config_records.get(RECORD)
    if sent is not None:
        payload = sent.get("payload")
        if sent.get("round") != terms.round or not isinstance(payload, bytes):
            raise WireError(f"an update of round {sent.get('round')!r}: expected round {terms.round}, in bytes.")
        return terms.decode(payload)
    if not terms.sends_all:
        raise WireError(f"arrays where {terms.scheme} of {terms.kept} coordinates were asked for.")
    return update_in_reply(start, reply.content)


class ClientLevelStrategy(Strategy):
    """Wrapper that adds client-level differential privacy and compressed uploads to an existing Flower app.

        strategy = ClientLevelStrategy(
            FedAdam(), clients=600, cohort=100, clip_norm=1.0, epsilon=3.0, rounds=60, ledger="ledger.jsonl"
        )

    strategy:  FedAvg or any other strategy, which gets one reply per round, the private mean
    clients:   number of nodes, or their ids. One node is one client, and the nodes connected at the first round are
               the clients of all rounds
    compress:  name of a scheme of `dpfed.compress` for uploads, `options` its options; needs `client_mod` on the nodes
    keep:      fraction of coordinates that a round sends and noises, by Fed-SMP's shared random mask; needs
               `client_mod`, too
    evaluate_on_clients: True if nodes evaluate the model. No epsilon covers their reports
    noise_at:  "server" only. Noise shares of nodes require a secure sum: `dpfed deploy`
    patience:  seconds to wait for the nodes before the first round

    Other parameters are those of `dpfed.ClientLevel`, which samples, clips, adds noise and charges. Schedules need
    randomness="simulated". Under add-remove, lanes and turns are derived from node ids, so clients must be given as the
    list of node ids.

    Claim: `guarantee()` is an upper bound for all models that leave `aggregate_train`, against observers who see these
    models but not the cohorts, for any messages of nodes. Each round draws its cohort with the sampler that is charged,
    clips each update at the server, sums with equal weights, adds noise, writes the ledger and only then passes the
    mean to `strategy`, whose steps are post-processing. Unit: one node. Direction of error: upwards. The account of
    fixed-size sampling assumes that a node's update does not depend on the earlier rounds in which it was drawn
    (`accounting.compose.adaptive`). Nodes must therefore keep no state between rounds, although Flower's Context allows
    it.

    The update of a node that fails, is late, answers twice or sends an unreadable message counts as zeros, and the
    divisor is always that of the plan. A client's row therefore never moves the sum by more than the clip norm, and a
    failure is not revealed. Training metrics of nodes are dropped, because no epsilon covers them. Numbers of examples
    are not used: they are private, and unequal weights would change the sensitivity. When another round would exceed
    epsilon, or all rounds are done, Flower 1.43 ends the run (`should_stop`). In older versions, further rounds ask no
    node and do not change the model.

    Raises ConfigError or AccountingError, before any node is asked, for settings that cannot be combined or have no
    account. Raises RunError or LedgerError if nodes are missing, or for a ledger that belongs to another plan, is
    invalid, or cannot be written.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clients: int | Sequence[int],
        cohort: int,
        clip_norm: float,
        rounds: int,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        sampling: Sampling = "poisson",
        separation: int | None = None,
        lanes: int | None = None,
        lane_secrecy: Literal["public", "secret"] | None = None,
        cohort_cap: int | None = None,
        adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        randomness: Literal["secure", "simulated"] = "secure",
        seed: int = 0,
        keep: float | None = None,
        compress: str = "dense",
        options: Mapping[str, object] | None = None,
        evaluate_on_clients: bool = False,
        noise_at: Literal["server"] = "server",
        patience: float = 300.0,
    ) -> None:
        super().__init__()
        _require_supported(sampling, noise_at, randomness)
        self.strategy, self._evaluates = strategy, evaluate_on_clients
        self._plan: dict[str, Any] = {
            "clients": clients if isinstance(clients, int) else [str(node) for node in sorted(clients)],
            "cohort": cohort,
            "clip_norm": clip_norm,
            "rounds": rounds,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "sampling": sampling,
            "separation": separation,
            "lanes": lanes,
            "lane_secrecy": lane_secrecy,
            "cohort_cap": cohort_cap,
            "adjacency": adjacency,
            "ledger": ledger,
            "randomness": randomness,
            "seed": seed,
        }
        self._keep, self._scheme, self._options = keep, compress, json_of_options(compress, options)
        count = clients if isinstance(clients, int) else len(clients)
        self._population = NodePopulation(count=count, named=None if isinstance(clients, int) else sorted(clients))
        self._patience = patience
        self._private: ClientLevel | None = None
        self._heads: dict[int, str] = {}
        self._steps: Iterator[Step] = iter(())
        self._opened: AskedRound | None = None
        _require_enough_nodes(strategy, count)
        if hasattr(strategy, "train_metrics_aggr_fn"):
            strategy.train_metrics_aggr_fn = lambda replies, weighted_by_key: MetricRecord()
        if evaluate_on_clients:
            log(
                WARNING,
                "evaluate_on_clients=True: no epsilon covers what nodes report of their evaluation. Keep it from "
                "readers who must not learn about single clients.",
            )

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all models so far, from the ledger file alone. Raises RunError before the first
        round."""
        if self._private is None:
            raise RunError("guarantee(): no round has begun, so nothing was released.")
        return self._private.guarantee()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages, addressed to the cohort that the charged sampler draws."""
        self._opened = None
        private = self._private or self._begin_loop(arrays)
        self._population.wait_for_nodes(grid, self._patience)
        example = self._message_of_strategy(server_round, arrays, config)
        step = next(self._steps, None)
        if step is None:
            log(INFO, "dpfed: no round is left (%s); no node is asked.", private.stopped_by)
            return []
        key = _key_of_model(example, arrays)
        clients = {self._population.ids[client]: client for client in step.cohort.tolist()}
        terms = {client: self._terms_of_client(step, client, arrays, key) for client in clients.values()}
        self._opened = AskedRound(step=step, start=arrays, example=example, key=key, clients=clients, terms=terms)
        return [
            Message(
                RecordDict({**example.content, RECORD: ConfigRecord(asdict(terms[client]))}),
                dst_node_id=node,
                message_type=example.metadata.message_type,
            )
            for node, client in clients.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the wrapped strategy's result for the private mean, after the charge is on disk; metrics are
        dropped."""
        opened, self._opened = self._opened, None
        if opened is None:
            return None, None
        size, replies = model_size(opened.start), list(replies)
        self._heads |= opened.heads(replies)
        mean = opened.step.release(opened.updates(replies, size) if opened.clients else torch.zeros(0, size))
        assert isinstance(mean, Tensor)
        weight = getattr(self.strategy, "weighted_by_key", "num-examples")
        content = RecordDict({opened.key: add_to_arrays(opened.start, mean), "metrics": MetricRecord({weight: 1.0})})
        arrays, _ = self.strategy.aggregate_train(server_round, [Message(content, reply_to=opened.example)])
        return None if arrays is None else with_types_of(opened.start, arrays), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's evaluation messages if `evaluate_on_clients`, else none."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid) if self._evaluates else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the wrapped strategy's evaluation result if `evaluate_on_clients`, else None."""
        return self.strategy.aggregate_evaluate(server_round, replies) if self._evaluates else None

    def summary(self) -> None:
        """Log the plan and the wrapped strategy, at the start of Flower's run."""
        plan = {name: value for name, value in self._plan.items() if value is not None and name != "clients"}
        log(INFO, "\t├──> dpfed: %s clients, %s", self._population.count, plan)
        log(INFO, "\t└──> the private mean goes to %s", type(self.strategy).__name__)

    def start(self, *args: object, **kwargs: object) -> Result:
        """Run Flower's rounds, then log the guarantee of the models.

        From Flower 1.43 on, the run ends before a round that would exceed epsilon."""
        given = signature(super().start).bind(*args, **kwargs)
        if "should_stop" in given.signature.parameters:
            given.arguments["should_stop"] = partial(self._should_stop, given.arguments.get("should_stop"))
        result = super().start(*given.args, **given.kwargs)
        if self._private is not None:
            log(INFO, "dpfed: %s", self.guarantee())
        return result

    def _should_stop(self, wanted: Callable[[int, Result], bool] | None, server_round: int, result: Result) -> bool:
        """Return True if all private rounds are done, or if the app's own `should_stop` returns True."""
        return (self._private is not None and self._private.is_over()) or (
            wanted is not None and wanted(server_round, result)
        )

    def _begin_loop(self, arrays: ArrayRecord) -> ClientLevel:
        size = model_size(arrays)
        self._kept = size if self._keep is None else kept_coordinates(size, keep=self._keep, k=None)
        self._private = ClientLevel(**self._plan, dimension=size, keep=self._keep)
        self._declared = ServerPlan.of(self._private.run, self._private.rounds_planned, self._private.mechanism)
        self._steps = self._private.rounds()
        return self._private

    def _message_of_strategy(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        """Return the message that the wrapped strategy would send to every node.

        Raises ConfigError for a strategy that sends no message, or different messages to different nodes.
        """
        messages = list(self.strategy.configure_train(server_round, arrays, config, self._population))
        kind = type(self.strategy).__name__
        if not messages:
            raise ConfigError(
                f"{kind} selects no node to train (fraction_train=0?): there is no round to make private."
            )
        first = messages[0]
        if any(one.content is not first.content and one.content != first.content for one in messages[1:]):
            raise ConfigError(f"{kind} sends nodes of one round different messages: its cohort cannot be drawn anew.")
        return first

    def _terms_of_client(self, step: Step, client: int, arrays: ArrayRecord, key: str) -> RoundTerms:
        return RoundTerms(
            round=step.round,
            client=client,
            clip_norm=float(self._plan["clip_norm"]),
            dimension=model_size(arrays),
            kept=self._kept,
            seed=self._plan["seed"],
            scheme=self._scheme,
            options=self._options,
            arrays=key,
            plan=replace(self._declared, head=self._heads.get(client, "")).to_json(),
        )


def _key_of_model(example: Message, arrays: ArrayRecord) -> str:
    """Return the name of the record in which the wrapped strategy sends the model."""
    for name, record in example.content.array_records.items():
        if record is arrays or list(record.keys()) == list(arrays.keys()):
            return str(name)
    raise ConfigError("the wrapped strategy's messages do not hold the model: dpfed cannot tell an update from it.")


def _require_supported(sampling: str, noise_at: str, randomness: str) -> None:
    if sampling not in get_args(Sampling):
        allowed = ", ".join(get_args(Sampling))
        raise ConfigError(f"sampling={sampling!r}: must be one of {allowed}.{without_runs_text(sampling)}")
    if sampling not in SAMPLINGS and randomness == "secure":
        raise ConfigError(
            f"sampling={sampling!r} with randomness='secure': a strategy does not store the key of its schedule. "
            "Use 'poisson', 'fixed' or 'all', `dpfed deploy`, or randomness='simulated' for an experiment."
        )
    if noise_at != "server":
        raise ConfigError(
            f"noise_at={noise_at!r}: must be 'server'. This server sees every upload, so that a node's share of noise "
            "would not protect it; missing replies would remove noise; and rows with noise cannot be clipped again. "
            "`dpfed deploy` with privacy.placement='clients' has shares, with and without secure sums."
        )


def _require_enough_nodes(strategy: Strategy, clients: int) -> None:
    """Raise ConfigError for a strategy that would wait for more nodes than the plan has clients."""
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"strategy={type(strategy).__name__}: must be a flwr.serverapp.strategy.Strategy.")
    for name in ("min_available_nodes", "min_train_nodes"):
        value = getattr(strategy, name, 0)
        if isinstance(value, int) and value > clients:
            raise ConfigError(f"{name}={value} of the strategy, clients={clients}: it would wait for ever. Lower it.")
    fraction = getattr(strategy, "fraction_train", 1.0)
    if isinstance(fraction, float) and math.isfinite(fraction) and fraction <= 0.0:
        raise ConfigError(
            f"fraction_train={fraction}: the strategy trains no node. Leave it out: dpfed draws the cohort."
        )
