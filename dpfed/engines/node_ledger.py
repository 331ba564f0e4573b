"""Ledger of a node: what its uploads have charged, and the refusal of rounds that its own budget does not cover.

Two figures that are never added. Records: against everyone outside the node, the server included, from the node's own
noise. Client: against observers of released models under an honest server, from the noise that the server declares.
"""

from __future__ import annotations

import json
import os
from bisect import bisect
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_type_hints

from filelock import FileLock

from accounting import (
    Composed,
    Gaussian,
    Header,
    Ledger,
    LocalRelease,
    PoissonSampling,
    Release,
    Steps,
    mechanisms,
    require,
    subsample,
)
from accounting.compose import accountant
from accounting.errors import AccountingError, BudgetSpent, LedgerError
from accounting.ledger import Purchase, backups, regular_file
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.project import ProjectLedger
from accounting.ledger.unit_filter import RefusedRelease, UnitFilter
from accounting.mechanisms import SingleRelease, unsampled
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import downwards, upwards
from dpfed.errors import ConfigError, WireError

MOST_ROUNDS = 1_000_000
LARGEST_UPLOAD = 2**36
ON_WORD = "on the server's word"
"""Statement beside the client-level figure: the node cannot test the noise that the server declares."""


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """Declaration of a run by its server to the nodes. Declared sizes and numbers only, nothing that depends on data.

    run: identity of the server's ledger, a different one for each run; empty if the server can repeat its noise.
    release: the mechanism of a round without its sampling, as JSON; empty if rounds have no charge of their own
    whole_plan: True if a node that refuses a later round would make updates depend on earlier rounds without an
    account: fixed size, replace-one, a cap, or noise in shares.
    head: hash of the node's ledger that the server has seen last; empty before the first round
    """

    run: str
    rounds: int
    release: str
    whole_plan: bool
    head: str = ""

    @classmethod
    def of(cls, run: str, rounds: int, mechanism: SingleRelease) -> ServerPlan:
        """Return the declaration of a run with this mechanism in each round."""
        plain: Any = unsampled(mechanism)
        sampling = mechanisms.sampling_of(mechanism).name
        if sampling == "correlated":
            return cls(run=run, rounds=rounds, release="", whole_plan=True)
        replaces = sampling in ("fixed", "capped-poisson")
        if replaces:  # another client takes the place of one that is left out, so the sum moves by 2 C
            plain = replace(plain, adjacency=Adjacency.REPLACE_ONE)
        whole = replaces or plain.adjacency is Adjacency.REPLACE_ONE or getattr(plain, "shares", 1) > 1
        return cls(run=run, rounds=rounds, release=json.dumps(plain.to_dict()), whole_plan=whole)

    @classmethod
    def read(cls, text: str) -> ServerPlan:
        """Return the declaration in a round's terms. Raises WireError without one, and for one that is invalid."""
        try:
            given = json.loads(text)
            kinds = get_type_hints(cls)
            if set(given) != set(kinds) or any(type(given[name]) is not kind for name, kind in kinds.items()):
                raise ValueError(f"names {sorted(given)}")
            return cls(**given)
        except (ValueError, TypeError) as error:
            raise WireError(
                f"plan {text[:100]!r}: no declaration of the run ({error}). A node with a ledger needs a server of the "
                "same version of dpfed."
            ) from None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def require_run(self) -> None:
        """Raise WireError for a run without an identity of its own, or without a length."""
        if not self.run:
            raise WireError(
                "the server's noise is simulated: it can be repeated, so a node with a ledger answers no round. Use "
                "randomness='secure', or run.release=true."
            )
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise WireError(f"rounds={self.rounds} of run {self.run[:20]!r}: must be from 1 to {MOST_ROUNDS:,}.")

    def mechanism(self) -> SingleRelease:
        """Return the unsampled mechanism of a round. Raises WireError for a declaration that cannot be read."""
        if not self.release:
            raise WireError(
                "the noise is correlated over rounds, or there is none: a node cannot charge single rounds. Start the "
                "node without a ledger, or use independent noise."
            )
        try:
            found = mechanisms.from_dict(json.loads(self.release))
        except (AccountingError, ValueError, TypeError) as error:
            raise WireError(f"release {self.release[:100]!r}: cannot be read ({error}).") from None
        if isinstance(found, Composed) or unsampled(found) is not found:
            raise WireError("release: must be the mechanism of one round, without sampling.")
        return found


@dataclass(frozen=True, kw_only=True)
class RecordNoise:
    """Noise of the node's own training: `steps` releases of `mechanism` for each upload, and the budget of a record.

    mechanism: one local step, for example a Gaussian on Poisson batches of the node's records
    """

    mechanism: SingleRelease
    steps: int
    epsilon: float
    delta: float

    @classmethod
    def poisson(
        cls, *, records: int, batch_size: int, steps: int, noise_multiplier: float, epsilon: float, delta: float
    ) -> RecordNoise:
        """Return the noise of DP-SGD on Poisson batches of this number of records, under add-remove."""
        noise = Gaussian(noise_multiplier=noise_multiplier, adjacency=Adjacency.ADD_REMOVE)
        drawn = PoissonSampling(probability=min(batch_size / require.count(records=records), 1.0))
        return cls(mechanism=subsample(noise, drawn), steps=steps, epsilon=epsilon, delta=delta)

    def epsilon_of(self, uploads: int) -> float:
        """Return the epsilon of a record after this number of uploads. Direction of error: upwards."""
        run = Composed(parts=((self.mechanism, max(uploads, 1) * self.steps),))
        return accountant.epsilon(run, delta=self.delta) if uploads else 0.0

    def most_uploads(self) -> int:
        """Return the largest number of uploads within the budget, at most MOST_ROUNDS.

        Claim: it is fixed in advance, so the budget holds whenever a server, or its results, end the uploads.
        """
        high = 1
        while high <= MOST_ROUNDS and self.epsilon_of(high) <= self.epsilon:
            high *= 2
        return bisect(range(1, min(high, MOST_ROUNDS + 1)), self.epsilon, key=self.epsilon_of)


class NodeLedger:
    """A node's own ledger, one for all servers that see these data.

        ledger = NodeLedger("node/ledger.jsonl", epsilon=8.0, delta=1e-5)
        app = ClientApp(mods=[node_mod(ledger)])  # Flower; NVFlare: KeepTerms(ledger), CompressUpdate(ledger)

    epsilon, delta: budget of the node as a client, on the server's word: each round that it answers is charged without
        amplification; None for a ledger of records alone
    records: noise of the node's own training, for the budget of one record against everyone outside the node; every
        upload is charged as if the node were always drawn, used or not

    A line is on disk before anything leaves the node. An upload is stored before it is sent; a second request for the
    same round gets the stored upload, so a killed node loses and doubles nothing. A node that is restored from an older
    copy, or runs as two copies, refuses: its ledger lacks the line that PATH.head, or the server, names. A refusal
    depends on rounds and declared sizes only. Where a plan does not allow refusals (`ServerPlan.whole_plan`), all its
    rounds are charged before round 1, or the node refuses then.

    Claim: the composition of all client-level charges is within epsilon at delta (`accounting.ledger.project`); the
    uploads' record-level epsilon is within that of `records`. The two figures are never added.
    Direction of error: upwards.
    Errors: BudgetSpent for a round that is not covered; LedgerError for a copied, restored or unwritable ledger;
    ConfigError without a budget.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        records: RecordNoise | None = None,
    ) -> None:
        self.path, self.records = regular_file.one_path(path), records
        if (epsilon is None) != (delta is None) or (epsilon is None and records is None):
            raise ConfigError(
                f"{path}: epsilon={epsilon}, delta={delta} of a node's ledger: would charge nothing. Give both for a "
                "budget of the node as a client, or neither and records."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{self.path}.node.lock")
        with self._lock:
            promised = {"a client": self.path.exists(), "a record": self._records_path.exists()}
            if (promised["a client"] and epsilon is None) or (promised["a record"] and records is None):
                unit = "a client" if epsilon is None else "a record"
                raise LedgerError(
                    f"{path}: promises a budget of {unit}, and this app has no noise for that. Nothing was answered."
                )
            self._project = None if epsilon is None or delta is None else self._opened_project(epsilon, delta)
            self._most_uploads = 0
            if records is not None:
                self._most_uploads = int(str(self._opened_records(records).header.about["most_uploads"]))

    def _opened_project(self, epsilon: float, delta: float) -> ProjectLedger:
        if not self.path.exists():
            ProjectLedger.create(self.path, clients=1, epsilon=epsilon, delta=delta)
        project = ProjectLedger.open(self.path)
        if (project.terms.epsilon, project.terms.delta) != (epsilon, delta):
            raise LedgerError(
                f"{self.path}: has epsilon {project.terms.epsilon} at delta {project.terms.delta}, not {epsilon} at "
                f"{delta}. A budget that was promised is not changed: use its numbers, or new data and a new ledger."
            )
        return project

    def admit(self, plan: ServerPlan, number: int, *, clip_norm: float) -> bytes | None:
        """Charge the answer to round `number` before the node trains; return the upload that is stored for it, if any.

        Errors: BudgetSpent if the round is not covered: the node must not answer. LedgerError for a copied node.
        """
        plan.require_run()
        release = None if self._project is None else plan.mechanism()
        if number < 0 or (plan.whole_plan and number >= plan.rounds):
            raise BudgetSpent(f"{self.path}: round {number} of a plan of {plan.rounds} rounds. It was not answered.")
        with self._lock:
            self._require_newest(plan)
            stored = self._stored_upload(plan.run, number)
            if stored:
                return stored
            records = self._records_to_charge(plan.run, number, begun=stored is not None)
            if self._project is not None and release is not None:
                self._pay(self._project, plan, release)
                for one in range(plan.rounds) if plan.whole_plan else (number,):
                    self._project.charge(_line(release, one, clip_norm), run=plan.run, repeatable=True)
            if records is not None:
                self._store_upload(plan.run, number, b"")  # nothing has been sent under the charge that follows
                self._charge_records(records, plan.run, number)
        return None

    def keep(self, plan: ServerPlan, number: int, upload: bytes) -> bytes:
        """Store the upload of a round on disk, and return the only one that may be sent: the first that was stored.

        Another process may have answered the same round meanwhile, on the same charge. Errors: BudgetSpent if a later
        round was answered.
        """
        with self._lock:
            stored = self._stored_upload(plan.run, number)
            if not stored:
                stored = upload
                self._store_upload(plan.run, number, stored)
            return stored

    @property
    def head(self) -> str:
        """Hashes of the last lines, which the server gives back in the next round's terms."""
        return " ".join(ledger.head for ledger in self._ledgers)

    @property
    def _ledgers(self) -> list[Ledger]:
        """Ledgers of client and of records, as they are on disk."""
        found = [] if self.records is None else [Ledger.so_far(self._records_path)]
        if self._project is not None:
            self._project.refresh()
            found.insert(0, self._project.ledger)
        return found

    def report(self) -> dict[str, Any]:
        """Return what is charged and what is left, for the node's operator: two figures, never to be added."""
        report: dict[str, Any] = {"head": self.head}
        if self._project is not None:
            found = self._project.to_dict()
            keys = ("epsilon", "delta", "spent_epsilon", "left_epsilon", "units_left", "adjacency")
            report["client"] = {key: found[key] for key in keys}
            report["client"] |= {"against": "observers of released models", "holds": ON_WORD}
            report["runs"] = found["runs"]
        if self.records is not None:
            uploads = len(Ledger.so_far(self._records_path).releases)
            report["records"] = {
                "epsilon": self.records.epsilon,
                "delta": self.records.delta,
                "spent_epsilon": self.records.epsilon_of(uploads),
                "uploads": uploads,
                "uploads_left": max(self._most_uploads - uploads, 0),
                "against": "everyone outside the node, the server included",
            }
        return report

    def __str__(self) -> str:
        found, words = self.report(), []
        for unit, one in (("client", "client"), ("records", "one record")):
            if unit in found:
                spent, budget = found[unit]["spent_epsilon"], found[unit]["epsilon"]
                more = ON_WORD if unit == "client" else f"{found[unit]['uploads_left']} uploads left"
                words.append(f"{one}: epsilon {upwards(spent)} of {downwards(budget)}, {more}")
        return "; ".join(words)

    def _require_newest(self, plan: ServerPlan) -> None:
        """Raise LedgerError if the server has seen a line that this ledger lacks: a copied or restored node."""
        for ledger, head in zip(self._ledgers, plan.head.split(), strict=False):
            if ledger.entries_after(head) is None:
                raise LedgerError(
                    f"{ledger.path}: lacks the line {head[:12]}... that the server got from this node. The node was "
                    "copied, or restored from an older copy. Restore the newest copy (`dpfed ledger restore`)."
                )

    def _pay(self, project: ProjectLedger, plan: ServerPlan, release: SingleRelease) -> None:
        """Buy a run before its first round if its rounds differ from the unit, and require a whole plan's units."""
        lines = (line for line in project.ledger.entries if isinstance(line, Release | Purchase))
        if any(line.detail.get("run") == plan.run for line in lines):
            return
        units = project.units
        try:
            first = replace(project.terms, unit=((release, 1),))
            left = units[1] if units is not None else UnitFilter(first).remaining_units
        except RefusedRelease:
            left = 0
        if project.refusal(release, run=plan.run, number=0) is not None:
            project.pay = max(left, 1)
            project.begin([release] * plan.rounds, run=plan.run)
        elif plan.whole_plan and plan.rounds > left:
            raise BudgetSpent(
                f"{self.path}: all {plan.rounds} rounds of run {plan.run[:12]} are charged before round 1, because its "
                f"sampling allows no later refusal, and {left} fit. Round 1 was not answered."
            )

    def _records_to_charge(self, run: str, number: int, *, begun: bool) -> Ledger | None:
        """Return the ledger of records that must be charged for an upload, and can be.

        None without `records`, and for an upload that a process charged and did not store before it ended (`begun`).
        A restored ledger may lack an upload that was sent: another one is charged again.
        """
        if self.records is None:
            return None
        ledger = self._opened_records(self.records)
        charged = {line.round for line in ledger.releases if line.detail.get("run") == run}
        if max(charged, default=-1) > number:
            raise BudgetSpent(f"{self.path}: round {number} of run {run[:12]} is over. It was not answered again.")
        if number in charged and begun:
            return None
        if len(ledger.releases) >= self._most_uploads:
            raise BudgetSpent(
                f"{ledger.path}: {self._most_uploads} uploads are within epsilon {downwards(self.records.epsilon)} of "
                f"a record, and all are charged. Round {number} was not answered."
            )
        return ledger

    def _charge_records(self, ledger: Ledger, run: str, number: int) -> None:
        assert self.records is not None
        steps = Steps(mechanism=self.records.mechanism, count=self.records.steps, clients=(0,))
        std = unsampled(self.records.mechanism).least_noise_std(1.0, 0.0)
        ledger.record(LocalRelease(round=number, steps=(steps,), clip_norm=1.0, noise_std=std, detail={"run": run}))
        backups.write_head(ledger.path, ledger.head)

    def _opened_records(self, records: RecordNoise) -> Ledger:
        about: dict[str, object] = {"epsilon": records.epsilon, "delta": records.delta, "steps": records.steps}
        about |= {"mechanism": records.mechanism.to_dict(), "head_kept": True}
        path = self._records_path
        if not path.exists():
            more = {**about, "most_uploads": records.most_uploads()}
            header = Header(unit="record", clients=1, randomness="as the node's training says", about=more)
            backups.write_first_head(path, chained_line(header.to_dict(), "")[1])
            return Ledger.create(path, header)
        head, ledger = backups.read_head(path), Ledger.resume(path)
        backups.check_head(ledger, head, needed=True)
        if {key: one for key, one in ledger.header.about.items() if key != "most_uploads"} != about:
            raise LedgerError(
                f"{path}: was begun with other noise, steps or budget of records. Use those, or new data and a new "
                "ledger."
            )
        return ledger

    @property
    def _records_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.records")

    def _upload_path(self, run: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{sha256(run.encode()).hexdigest()[:16]}.upload")

    def _store_upload(self, run: str, number: int, upload: bytes) -> None:
        regular_file.replace_content(self._upload_path(run), number.to_bytes(8, "big") + upload, mode=0o600)

    def _stored_upload(self, run: str, number: int) -> bytes | None:
        """Return the stored upload of this round, empty if its records are charged and none was stored; None without.

        Errors: BudgetSpent for a round that is over.
        """
        path = self._upload_path(run)
        if not path.exists():
            return None
        content = regular_file.read_input(path, at_most=LARGEST_UPLOAD)
        stored = int.from_bytes(content[:8], "big")
        if stored > number:
            raise BudgetSpent(f"{self.path}: round {number} of run {run[:12]} is over. It was not answered again.")
        return content[8:] if stored == number else None


@dataclass(frozen=True, kw_only=True)
class DeclaredRound:
    """Round that a server declares to a node with a ledger of its own."""

    ledger: NodeLedger
    plan: ServerPlan
    number: int

    def admit(self, clip_norm: float) -> bytes | None:
        """Charge the round before anything leaves the node; return the stored upload of an earlier answer, if any."""
        return self.ledger.admit(self.plan, self.number, clip_norm=clip_norm)

    def keep(self, upload: bytes) -> bytes:
        """Store the upload before it is sent; return the upload to send."""
        return self.ledger.keep(self.plan, self.number, upload)


def _line(release: SingleRelease, number: int, clip_norm: float) -> Release:
    """Return the client-level line of a round, with the noise that the server declares."""
    std = unsampled(release).least_noise_std(clip_norm, 0.0)
    detail = {"holds": ON_WORD}
    return Release(
        round=number, mechanism=release, clip_norm=clip_norm, noise_std=std, noise_placement="server", detail=detail
    )
