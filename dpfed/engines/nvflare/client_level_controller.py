"""Controller of a private NVFlare job: federated averaging with sampling, clipping, noise, charges and a ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController
from torch import Tensor

from accounting import Guarantee, require
from dpfed.engines.node_ledger import ServerPlan
from dpfed.engines.nvflare.update_filters import META, model_size, numpy_arrays_of, update_in_result
from dpfed.engines.round_terms import Arrays, RoundTerms, add_to_named_arrays
from dpfed.errors import ConfigError, RunError, WireError
from dpfed.runs.client_level import ClientLevel, Step
from dpfed.runs.client_level.plan import json_of_options
from dpfed.stages.project import kept_coordinates

_OF_LOOP = (
    *("cohort", "clip_norm", "rounds", "epsilon", "noise_multiplier", "delta", "sampling", "adjacency", "ledger"),
    *("randomness", "seed", "keep"),
)
"""Parameters that are those of `dpfed.ClientLevel`."""


class ClientLevelFedAvg(ModelController):
    """Controller that adds client-level differential privacy and compressed uploads to an NVFlare job.

        job.to_server(ClientLevelFedAvg(clients=8, cohort=4, clip_norm=1.0, rounds=3, epsilon=3.0, ledger="l.jsonl"))

    clients: number, or names, of NVFlare's clients (sites); the sites connected at the first round are the clients of
    all
        rounds
    compress: name of a scheme of `dpfed.compress` for uploads, `options` its options; needs the filters `KeepTerms` and
        `CompressUpdate` on the clients
    keep: fraction of coordinates that a round sends and noises, by Fed-SMP's shared random mask; needs the same filters
    patience: seconds to wait for the clients before the first round, and for the results of each; at least 1
    persistor_id, task_name: as in NVFlare's FedAvg

    Other parameters are those of `dpfed.ClientLevel`, which samples, clips, adds noise and charges.

    Claim: `guarantee()` is an upper bound for all models that are sent to clients or saved, against observers who see
    these models but not the cohorts, for any messages of clients. Each round draws its cohort with the sampler that is
    charged, clips each update at the server, sums with equal weights, adds noise, writes the ledger and only then moves
    the model. Unit: one NVFlare client. Adjacency: that of the sampling (`accounting.Plan`). Direction of error:
    upwards. The account of fixed-size sampling assumes that a client's update does not depend on the earlier rounds in
    which it was drawn (`accounting.compose.adaptive`). Client scripts must therefore keep no state between rounds,
    although NVFlare allows it.

    The update of a client that fails, is late or sends an unreadable message counts as zeros, and the divisor is always
    that of the plan. Metrics and numbers of steps that clients report are not used. No epsilon covers other components
    of a job that see results at the server, or further streams of clients (logs, metrics, statistics).

    Raises ConfigError or AccountingError for settings that cannot be combined or have no account. Raises RunError or
    LedgerError if planned clients are missing, or for a ledger that belongs to another plan, is invalid, or cannot be
    written. NVFlare ends the job with the message.
    """

    def __init__(
        self,
        clients: int | Sequence[str],
        cohort: int,
        clip_norm: float,
        rounds: int,
        ledger: str,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        sampling: Literal["poisson", "fixed", "all"] = "poisson",
        adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None,
        randomness: Literal["secure", "simulated"] = "secure",
        seed: int = 0,
        keep: float | None = None,
        compress: str = "dense",
        options: Mapping[str, object] | None = None,
        patience: int = 600,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        task_name: str = AppConstants.TASK_TRAIN,
    ) -> None:
        # A client's error never ends the job: otherwise the end of the job would depend on that client's data.
        super().__init__(persistor_id=persistor_id, ignore_result_error=True)
        _require_supported(sampling, patience)
        json_of_options(compress, options)
        self.clients, self.cohort, self.clip_norm, self.rounds = clients, cohort, clip_norm, rounds
        self.epsilon, self.noise_multiplier, self.delta = epsilon, noise_multiplier, delta
        self.sampling, self.adjacency, self.ledger = sampling, adjacency, ledger
        self.randomness, self.seed = randomness, seed
        self.keep, self.compress, self.options = keep, compress, options
        self.patience, self.persistor_id, self.task_name = patience, persistor_id, task_name
        self._private: ClientLevel | None = None

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all models so far, from the ledger file alone. Raises RunError before the first
        round."""
        if self._private is None:
            raise RunError("guarantee(): no round has begun, so nothing was released.")
        return self._private.guarantee()

    def run(self) -> None:
        """Run rounds until all are done or epsilon is spent; NVFlare calls this method."""
        model = self.load_model()
        if model is None:
            raise RunError(f"persistor {self.persistor_id!r}: returns no initial model.")
        model.params = numpy_arrays_of(model.params)
        names = self._wait_for_clients()
        size = model_size(model.params)
        terms = self._round_terms(size)
        settings: dict[str, Any] = {name: getattr(self, name) for name in _OF_LOOP}
        private = self._private = ClientLevel(clients=names, dimension=size, **settings)
        plan = ServerPlan.of(private.run, private.rounds_planned, private.mechanism)
        terms = replace(terms, plan=plan.to_json())
        for step in private.rounds():
            self.info(f"dpfed: round {step.round}")
            self.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, step.round, private=True, sticky=False)
            updates = self._request_updates(model, step, private, names, replace(terms, round=step.round))
            if self.abort_signal.triggered:
                return
            mean = step.release(updates)
            assert isinstance(mean, Tensor)
            model = FLModel(params=add_to_named_arrays(model.params, mean), params_type=ParamsType.FULL)
            self.save_model(model)
        self.info(f"dpfed: {self.guarantee()}")

    def _round_terms(self, size: int) -> RoundTerms:
        return RoundTerms(
            round=0,
            client=0,
            clip_norm=float(self.clip_norm),
            dimension=size,
            kept=size if self.keep is None else kept_coordinates(size, keep=self.keep, k=None),
            seed=self.seed,
            scheme=self.compress,
            options=json_of_options(self.compress, self.options),
        )

    def _wait_for_clients(self) -> list[str]:
        """Return the names of the clients, sorted. Raises RunError if planned clients are not connected within
        `patience`."""
        planned = self.clients if isinstance(self.clients, int) else len(self.clients)
        end = time.monotonic() + self.patience
        while True:
            there = sorted(str(client.name) for client in self.engine.get_clients())
            if not isinstance(self.clients, int):
                if set(self.clients) <= set(there):
                    return sorted(self.clients)
            elif len(there) > self.clients:
                raise RunError(
                    f"{len(there)} clients for clients={planned}: which of them take part must not depend on who is "
                    "first. Give clients as their names, or all of them."
                )
            elif len(there) == self.clients:
                return there
            if time.monotonic() > end or self.abort_signal.triggered:
                raise RunError(f"{len(there)} clients are connected, but not all of the {planned} that are planned.")
            time.sleep(min(1.0, self.patience / 10))

    def _request_updates(
        self, model: FLModel, step: Step, private: ClientLevel, names: list[str], terms: RoundTerms
    ) -> Iterable[Tensor] | Tensor:
        """Return one update [d] per client, in the order of the cohort.

        For an empty cohort no task is sent, because NVFlare would send it to all clients.
        """
        cohort = private.names_of(step.cohort)
        if not cohort:
            return torch.zeros(0, terms.dimension)
        public = {name: value for name, value in asdict(terms).items() if name != "client"}
        asked = FLModel(
            params=model.params,
            params_type=ParamsType.FULL,
            current_round=step.round,
            total_rounds=self.rounds,
            meta={META: {**public, "clients": names}},
        )
        results = self.send_model_and_wait(
            task_name=self.task_name, data=asked, targets=list(cohort), timeout=self.patience
        )
        return self._read_updates(
            results, model.params, {name: replace(terms, client=names.index(name)) for name in cohort}
        )

    def _read_updates(
        self, results: Sequence[FLModel], start: Arrays, terms: Mapping[str, RoundTerms]
    ) -> Iterator[Tensor]:
        came: dict[str, list[FLModel]] = {name: [] for name in terms}
        for result in results:
            came.get(str(result.meta.get("client_name")), []).append(result)
        unread = 0
        for name, of_client in terms.items():
            try:
                if len(came[name]) != 1:
                    raise WireError(f"{len(came[name])} results: must be one.")
                (result,) = came[name]
                yield update_in_result(result.params, str(getattr(result.params_type, "value", "")), start, of_client)
            except WireError as error:
                self.debug(f"dpfed: {name} counts as an update of zeros in round {of_client.round}: {error}")
                yield torch.zeros(of_client.dimension)
                unread += 1
        if unread == len(terms):
            self.warning(
                "dpfed: no update of this round could be read: the model moves by noise alone. Do the clients have the "
                "filters KeepTerms and CompressUpdate? No epsilon covers this line."
            )


def _require_supported(sampling: str, patience: int) -> None:
    if sampling not in ("poisson", "fixed", "all"):
        raise ConfigError(f"sampling={sampling!r}: must be 'poisson', 'fixed' or 'all'. Schedules: `dpfed run`.")
    if not require.is_whole(patience) or patience < 1:
        raise ConfigError(f"patience={patience!r}: must be a whole number of seconds from 1.")
