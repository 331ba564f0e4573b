"""Filters of the task "train" for the clients of a private NVFlare job.

    job.to(KeepTerms(), "site-1", tasks=["train"], filter_type=FilterType.TASK_DATA)
    job.to(CompressUpdate(), "site-1", tasks=["train"], filter_type=FilterType.TASK_RESULT)

`ClientLevelFedAvg` clips again, so that no claim depends on these filters. Their purpose is to send fewer bytes, and to
send no metric and no update longer than the clip norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from dpfed.engines.node_ledger import DeclaredRound, NodeLedger, RecordNoise, ServerPlan
from dpfed.engines.round_terms import Arrays, RoundTerms, add_to_named_arrays, checked_terms
from dpfed.errors import ConfigError, WireError
from dpfed.stages.clip import clip_rows


def numpy_arrays_of(params: Mapping[str, object]) -> Arrays:
    """Return numpy arrays or torch tensors by name as numpy arrays, in their order; raises WireError for other
    values."""
    try:
        return {str(name): np.asarray(value) for name, value in params.items()}
    except Exception as error:  # numpy may raise anything on an untrusted object
        raise WireError(f"parameters cannot be read as arrays ({error}).") from None


def model_size(start: Arrays) -> int:
    """Return d, the number of floating-point numbers in the arrays. Raises ConfigError if d is 0."""
    size = sum(array.size for array in start.values() if _is_floating_point(array))
    if not size:
        raise ConfigError("the model has no floating-point parameters: there is nothing to train.")
    return size


def update_of_arrays(start: Arrays, arrays: Arrays, *, whole: bool) -> Tensor:
    """Return the update as float32 [d], in the order of the arrays of the model `start`.

    whole: True if `arrays` are those of the trained model, False if they are its differences from `start`

    All floating-point arrays of the model are required; other names are ignored. Raises WireError unless shapes are
    those of the model.
    """
    parts = []
    for name, array in start.items():
        if not _is_floating_point(array):
            continue
        if name not in arrays or arrays[name].shape != array.shape or arrays[name].dtype.kind not in "fiu":
            found = f"{arrays[name].dtype} {arrays[name].shape}" if name in arrays else "missing"
            raise WireError(f"parameter {name!r}: {found}; must be numbers of shape {array.shape}, as the model's.")
        moves = arrays[name].astype(np.float64) - array if whole else arrays[name]
        parts.append(moves.astype(np.float32).ravel())
    return torch.from_numpy(np.concatenate(parts))


def arrays_of_vector(start: Arrays, move: Tensor) -> Arrays:
    """Return a float32 vector [d] as arrays by name, in the shapes of the model's floating-point arrays."""
    nothing = {
        name: np.zeros(array.shape, dtype=np.float32) for name, array in start.items() if _is_floating_point(array)
    }
    return add_to_named_arrays(nothing, move)


def _is_floating_point(array: NDArray[np.generic]) -> bool:
    return array.dtype.kind == "f"


META = "dpfed"
"""Key in the meta of a model for the server's terms, and in the meta of a result for the compressed bytes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _AskedTask:
    terms: RoundTerms
    start: Arrays
    own: DeclaredRound | None
    stored: bytes | None


class KeepTerms(Filter):
    """Filter of task data that stores the model and the round's terms for the filter of the result; data are unchanged.

    ledger: path of the node's own ledger (`dpfed.engines.node_ledger`), with its budget epsilon at delta; records:
        arguments of `RecordNoise.poisson`, if the node's training adds noise. Uploads then need `CompressUpdate`. A
        round that the ledger does not cover is refused before the client trains.

    Raises ConfigError if the controller is not a `ClientLevelFedAvg`, WireError for invalid terms, BudgetSpent for a
    round that is refused. The client then answers with an error, which counts as an update of zeros.
    """

    def __init__(
        self,
        ledger: str | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        records: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if ledger is not None and (epsilon is None or delta is None):
            raise ConfigError("ledger without epsilon and delta: give the budget of this node.")
        if ledger is None and (epsilon, delta, records) != (None, None, None):
            raise ConfigError("epsilon, delta or records without ledger: nothing would be charged. Give its path.")
        self.ledger, self.epsilon, self.delta, self.records = ledger, epsilon, delta, records

    def _node_ledger(self) -> NodeLedger | None:
        if self.ledger is None or self.epsilon is None or self.delta is None:
            return None
        records = None if self.records is None else RecordNoise.poisson(**self.records)
        return NodeLedger(self.ledger, epsilon=self.epsilon, delta=self.delta, records=records)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        dxo = from_shareable(shareable)
        given = dict(dxo.meta.get(META) or {})
        if not given:
            raise ConfigError(
                f"a task without {META!r} in its meta: these filters need dpfed's ClientLevelFedAvg at the server."
            )
        names, me = list(given.pop("clients", [])), fl_ctx.get_identity_name()
        if me not in names:
            raise WireError(f"{me!r}: is none of the job's clients {names!r:.200}.")
        terms, own, stored = checked_terms({**given, "client": names.index(me)}), None, None
        if (ledger := self._node_ledger()) is not None:
            own = DeclaredRound(ledger=ledger, plan=ServerPlan.read(terms.plan), number=terms.round)
            stored = own.admit(terms.clip_norm)
            self.log_info(fl_ctx, f"dpfed: {ledger}")
        start = {name: array.copy() for name, array in numpy_arrays_of(dxo.data).items()}  # training may write to these
        asked = _AskedTask(terms=terms, start=start, own=own, stored=stored)
        fl_ctx.set_prop(META, asked, private=True, sticky=False)
        return shareable


class ClipUpdate(Filter):
    """Filter of a task result that replaces it by the update, clipped to the round's clip norm, as WEIGHT_DIFF.

    Metrics are removed. It is for jobs that send whole updates, without `keep` and `compress`.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        asked = _requested_terms(fl_ctx)
        if asked.own is not None:
            raise ConfigError("ClipUpdate with a ledger: uploads are stored as bytes. Use CompressUpdate.")
        if not asked.terms.sends_all:
            raise ConfigError(f"ClipUpdate: the server requires {asked.terms.scheme}. Use CompressUpdate.")
        row = clip_rows(_update_of_result(shareable, asked.start)[None], asked.terms.clip_norm).rows[0]
        return _result_with_arrays(shareable, arrays_of_vector(asked.start, row))


class CompressUpdate(Filter):
    """Filter of a task result that replaces it by the clipped update on the round's coordinates, compressed to bytes.

    Metrics are removed.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        asked = _requested_terms(fl_ctx)
        content = asked.stored or asked.terms.encode(_update_of_result(shareable, asked.start))
        if asked.own is not None:
            content = asked.own.keep(content)
        return _result_with_arrays(shareable, {META: np.frombuffer(content, dtype=np.uint8)})


def update_in_result(params: Any, kind: str, start: Arrays, terms: RoundTerms) -> Tensor:
    """Return the update [d] in a result's parameters (server side).

    kind: "FULL" or "DIFF". Raises WireError for a result that does not follow the terms.
    """
    arrays = numpy_arrays_of(params or {})
    if set(arrays) == {META}:
        if arrays[META].dtype != np.uint8 or arrays[META].ndim != 1:
            raise WireError(f"an upload of {arrays[META].dtype}, {arrays[META].ndim} dimensions: must be bytes.")
        return terms.decode(arrays[META].tobytes())
    if not terms.sends_all:
        raise WireError(f"arrays where {terms.scheme} of {terms.kept} coordinates were asked for.")
    return update_of_arrays(start, arrays, whole=kind != "DIFF")


def _requested_terms(fl_ctx: FLContext) -> _AskedTask:
    asked = fl_ctx.get_prop(META)
    if not isinstance(asked, _AskedTask):
        raise ConfigError("a result without its task: add KeepTerms to the task's data filters, too.")
    return asked


def _update_of_result(shareable: Shareable, start: Arrays) -> Tensor:
    dxo = from_shareable(shareable)
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise WireError(f"a result of kind {dxo.data_kind!r}: must be WEIGHTS or WEIGHT_DIFF.")
    return update_of_arrays(start, numpy_arrays_of(dxo.data), whole=dxo.data_kind == DataKind.WEIGHTS)


def _result_with_arrays(shareable: Shareable, arrays: Arrays) -> Shareable:
    return DXO(data_kind=DataKind.WEIGHT_DIFF, data=arrays).update_shareable(shareable)
