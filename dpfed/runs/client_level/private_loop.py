"""`dpfed.ClientLevel`: the object that samples, clips, adds noise and charges for a custom training loop."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting import Guarantee, Ledger, require
from accounting.caveats import default_delta
from accounting.compose import accountant
from accounting.ledger import Aborted, Header, Planned
from accounting.mechanisms import Composed, SingleRelease, sampling_of, schedule_of, subsample, unsampled
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES
from dpfed import replayed
from dpfed.config.tables import plain_values
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, RunError
from dpfed.mechanisms.soundness import user_code_notes
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.participation.sampling import draw_cohort, members_text
from dpfed.records.round import RoundRecord
from dpfed.round import run_round
from dpfed.runs.client_level.book import LoopBook, delta_of_old_ledger, fingerprint_of_names, resolved_path
from dpfed.runs.client_level.plan import (
    LoopMethod,
    Noise,
    StagesOf,
    loop_method_of,
    plan_parts_of,
    planned_method,
    upload_stages,
)
from dpfed.runs.client_level.step import Step, UpdateForm, form_and_updates, updates_in_groups
from dpfed.runs.resuming import configuration_differences
from dpfed.runs.spending import EqualRounds, over_budget_text
from dpfed.runs.training import plain_torch
from dpfed.server.rules import ServerState
from dpfed.sources import GivenRows
from dpfed.version import __version__

if TYPE_CHECKING:
    Sampling = str
else:  # names of the samplers that run
    Sampling = Literal[tuple(name for name, one in SAMPLING_CLASSES.items() if one.run_instead is None)]

SKIPPED = "skipped: nothing of the round was released"
"""Reason in the ledger for a round that the loop skipped without a release."""

_MOST_ROWS, _MOST_NUMBERS = 20, 1 << 21
"""Largest number of updates, and of their numbers (8 MiB), in memory at a time; at least one update is."""


class ClientLevel:
    """Client-level differential privacy for a custom training loop.

        private = dpfed.ClientLevel(clients=600, cohort=100, clip_norm=1.0, epsilon=3.0, rounds=60, ledger="l.jsonl")
        for step in private.rounds():
            w += step.release(train(w, step.cohort))
        print(private.guarantee())

    clients: number of clients, or their names; the fingerprint of the names binds the ledger to these clients
    cohort: number of clients in a round, expected under "poisson", exact under "fixed"
    sampling: a value of federation.sampling in `dpfed run`. Schedules ("balls-and-bins", ...) require
        randomness="simulated", and every round must then be released
    separation: federation.separation, for "min-separation"
    lanes: number of lanes of "balls-and-bins", with noise in the same number of bands. A client's lane is its number
        modulo lanes, under add-remove a hash of its name; lane_secrecy="secret": lanes are drawn at random for the run
    cohort_cap: largest number of clients in a round under "poisson"; if more are drawn, a random subset of this size
        takes part
    rounds: largest number of rounds; the loop ends after them, or before a round that would exceed `epsilon`. A later
        loop on the same ledger may have more rounds if `epsilon` and `noise_multiplier` were both given from the start
    epsilon: budget; without `noise_multiplier` the noise is calibrated so that `rounds` rounds spend epsilon
    noise_multiplier: standard deviation of the noise on the sum, divided by the clip norm
    delta: default: the smaller of clients^-1.1 and 1e-4
    adjacency: default: that of the sampling (`accounting.Plan`)
    ledger: path of the ledger; an existing ledger is continued. None: a temporary file, removed with this object
    noise: "discrete-gaussian" (default) or "skellam" on integers, drawn exactly. "gaussian" requires
        randomness="simulated", where it is the default; `dpfed run` has the same rule
    randomness: "secure": from the operating system; "simulated": cohorts and noise from `seed`, never for release
    seed: seed of public rotations, and of all randomness if simulated; default 0
    dimension: d, the number of numbers in an update; required if a cohort may be empty before the first release
    keep: fraction of coordinates that a round sends and noises, by Fed-SMP's shared random mask. compress: name of a
        scheme of `dpfed.compress` for uploads, `options` its options. Both require dimension
    stages: function that makes a custom chain from `PlanParts` (its argument `s`), which has the loop's sampler and
        noise: `lambda s: Stages(Project(choice=RandomSharedMask(size=s.size, kept=99)), *s.private(99))`

    Claim: `guarantee()` is an upper bound for everything that `release` returned, and everything that an interrupted
    process was about to return, against observers who see the releases but not the cohorts. Rounds and stages are those
    of `dpfed run`, and the charge is computed from the fields that draw the noise. The guarantee covers releases by
    `release`, and no other use of clients' data in the loop. With sampling="fixed" it holds only if a client's update
    does not depend on the earlier rounds in which the client was drawn. A loop that keeps a state of each client
    between rounds (error feedback, control variates) is not covered then.

    A round without a release is skipped: nothing is released or charged, and the ledger records it. That is sound only
    if skipping depends neither on the drawn clients nor on their data. An empty cohort must therefore be released like
    any other, by `release([])`. A round that was charged and then interrupted is not repeated; it remains charged.

    Raises ConfigError or AccountingError for settings that cannot be combined or have no account. Raises RunError or
    LedgerError for a ledger that belongs to another plan, is invalid, or cannot be written.
    """

    def __init__(
        self,
        *,
        clients: int | Iterable[str],
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
        noise: Noise | None = None,
        randomness: Literal["secure", "simulated"] = "secure",
        seed: int | None = None,
        dimension: int | None = None,
        keep: float | None = None,
        compress: str = "dense",
        options: Mapping[str, object] | None = None,
        stages: StagesOf | None = None,
    ) -> None:
        replayed.require_apart(*(() if ledger is None else (ledger,)))
        names, count = _clients_of(clients)
        if delta is None and count > 0:  # the configuration refuses other numbers of clients
            delta = (None if ledger is None else delta_of_old_ledger(Path(ledger))) or default_delta(count)
        tables: dict[str, dict[str, object]] = {
            "federation": {
                "clients": count,
                "cohort": cohort,
                "rounds": rounds,
                "sampling": sampling,
                "separation": separation,
                "lanes": lanes,
                "lane_secrecy": lane_secrecy,
                "cohort_cap": cohort_cap,
            },
            "privacy": {
                "clip_norm": clip_norm,
                "epsilon": epsilon,
                "noise_multiplier": noise_multiplier,
                "delta": delta,
                "adjacency": adjacency,
                "noise": noise or ("discrete-gaussian" if randomness == "secure" else "gaussian"),
            },
            "run": {"randomness": randomness, "seed": 0 if seed is None else seed},
        }
        plan: dict[str, dict[str, Any]] = plain_values(
            {name: {key: one for key, one in table.items() if one is not None} for name, table in tables.items()}
        )
        self._names = names
        ids = None if names is None else ClientIds.of(names)
        size = None if dimension is None else require.count(dimension=dimension)
        uploads = upload_stages(size, keep=keep, scheme=compress, options=options)
        if stages is not None and (keep is not None or compress != "dense"):
            raise ConfigError("stages with keep or compress: a custom chain has its own. Remove one of them.")
        stages = stages or uploads
        self._parts, self._stages_of = plan_parts_of(plan, size, ids, ledger), stages
        self.rounds_planned, self.clip_norm = self._parts.config.federation.rounds, float(plan["privacy"]["clip_norm"])
        self.delta = float(plan["privacy"]["delta"])
        self._machine, self._target = planned_method(self._parts, stages)
        if self._target is not None:
            if noise_multiplier is not None:
                _require_affordable_round(self._target, self.rounds_planned)
            self._target.require_consistent_bounds(self.rounds_planned)
        self.stopped_by: Literal["", "rounds", "budget"] = ""
        self._form: UpdateForm | None = None
        self._step: Step | None = None
        self._taking, self._releasing = threading.Lock(), False
        self._state: ServerState | None = None
        self._account: EqualRounds | None = None
        self._began = time.monotonic()
        self._book = self._open_book(ledger, plan)
        drawn_by = self._parts.sampler.ids
        if drawn_by is not None:
            self._book.note_ids(drawn_by)

    @property
    def noise_multiplier(self) -> float:
        """Planned standard deviation of the noise on the sum, divided by the clip norm.

        Raises ConfigError if it depends on the dimension, and the dimension is not known yet.
        """
        z = self._known_target("noise_multiplier").noise_multiplier
        assert z is not None
        return z

    @property
    def mechanism(self) -> SingleRelease:
        """Mechanism of a round. Raises ConfigError if it depends on the dimension, which is not known yet."""
        return self._known_target("mechanism").mechanism

    def _known_target(self, wanted: str) -> PrivacyTarget:
        if self._target is None:
            raise ConfigError(
                f"{wanted}: integer noise depends on the dimension, which is known after the first release. Give "
                "dimension= to know it before."
            )
        return self._target

    @property
    def run(self) -> str:
        """Identity of the loop's ledger, which stays equal while it grows; empty for noise that can be repeated."""
        ledger = self._book.ledger
        return "" if ledger.header.randomness == "simulated" else ledger.identity

    @property
    def ledger(self) -> Path:
        """Path of the ledger file."""
        return self._book.ledger.path

    def rounds(self) -> Iterator[Step]:
        """Yield a step for each remaining round, until all rounds are done or epsilon is spent (`stopped_by`)."""
        while (step := self._next_step()) is not None:
            yield step
            if self._step is step:
                if self._parts.sampler.law.is_schedule:
                    raise RunError(
                        f"round {step.round} was not released: under {self._parts.sampler.law.name!r} all rounds have "
                        "one account, so none may be skipped. Release every step, an empty cohort by release([])."
                    )
                self._book.record(Aborted(round=step.round, reason=SKIPPED))
                self._book.note_diagnostics(self._record_of_skipped(step))
                self._step = None

    def _record_of_skipped(self, step: Step) -> RoundRecord:
        """Return the operator's record of a skipped round: its cohort, by which an audit tests the skipping."""
        return RoundRecord(
            round=step.round + 1,
            cohort=len(step.cohort),
            members=members_text(np.sort(step.cohort), self._parts.sampler.clients),
            participants=0,
            aborted=SKIPPED,
        )

    def is_over(self) -> bool:
        """Return True if all rounds are done, or another round would exceed epsilon (`stopped_by`). Draws no cohort."""
        if self._book.rounds_done >= self.rounds_planned:
            self.stopped_by = "rounds"
        elif not self._is_affordable():
            self.stopped_by = "budget"
        return self.stopped_by != ""

    def guarantee(self) -> Guarantee:
        """Return the guarantee, from the ledger file alone; it holds whatever the reason for the end of the loop is.

        After all planned rounds it is the guarantee of the releases. Before, and after `break`, its epsilon is that of
        the plan or the budget `epsilon`, whichever is smaller. If the number of releases was fixed in advance,
        `accounting.Ledger.read(private.ledger).if_fixed_in_advance(delta)` is the guarantee of the releases so far.
        A note names the user-defined bound or noise that it relies on.
        """
        stated = Ledger.read(self.ledger).guarantee(self.delta)
        own = () if self._machine is None else user_code_notes(self._machine.method.stages)
        return replace(stated, notes=(*stated.notes, *own))

    def names_of(self, cohort: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the names of the clients in a cohort; their numbers, as text, if clients have no names."""
        return tuple(str(one) if self._names is None else self._names[one] for one in cohort.tolist())

    @plain_torch()
    def release(self, step: Step, updates: object = None) -> Tensor | dict[str, Tensor]:
        """Release the updates of a round; `Step.release` calls this method and documents it."""
        if not isinstance(step, Step):
            raise ConfigError(
                "ClientLevel.release: updates belong to a step, which draws their cohort. Use `for step in "
                "private.rounds(): step.release(updates)`."
            )
        with self._taking:  # neither the code that yields updates nor another thread can release this step meanwhile
            self._require_open_step(step)
            self._step, self._releasing = None, True
        try:
            return self._release_updates(step, updates)
        except BaseException:
            self._step = step if self._state is None or self._state.round <= step.round else None
            raise
        finally:
            self._releasing = False

    def _release_updates(self, step: Step, updates: object) -> Tensor | dict[str, Tensor]:
        given, rows = form_and_updates(updates)
        form = self._known_form(given)
        machine = self._machine or self._method_of_size(form.size)
        if self._book.rounds_done > step.round and not self._book.is_last_charge(step.round):
            raise RunError(
                f"round {step.round} is charged already and was interrupted. Continue with the next round: a round is "
                "never repeated, so that its noise is never drawn twice."
            )
        nowhere = torch.zeros(form.size, device=form.device)
        before = self._state or ServerState(round=0, broadcast=nowhere, clip_norm=self.clip_norm)
        at_once = max(1, min(_MOST_ROWS, _MOST_NUMBERS // form.size))
        done = run_round(
            replace(before, round=step.round, broadcast=nowhere),
            machine.method,
            GivenRows(rows=updates_in_groups(rows, form, len(step.cohort), at_once=at_once)),
            seeds=self._parts.seeds,
            ledger=self._book,
            cohort=step.cohort,
        )
        # Set after the release: updates that are refused leave no form behind that other updates would have to have.
        self._form, self._machine, self._target = given or self._form, machine, self._target or machine.privacy_target
        self._state = done.state
        self._book.note_diagnostics(replace(done.whole_record(), seconds=time.monotonic() - self._began))
        assert done.mean is not None
        return form.with_form(done.mean)

    def __repr__(self) -> str:
        clients, done = self._parts.config.federation.clients, self._book.rounds_done
        return f"ClientLevel({clients} clients, {done} of {self.rounds_planned} rounds done)"

    def _next_step(self) -> Step | None:
        with self._taking:
            if self._releasing:  # this round has no charge yet, so a second step of it would be released without one
                raise RunError("a round is being released: begin the next one after release() has returned.")
            left, self._step = self._step, None
            if not self.is_over():
                number = self._book.rounds_done
                if left is not None and left.round == number:
                    cohort = left.cohort  # a new draw would let the caller choose a cohort
                else:
                    cohort = draw_cohort(self._parts.sampler, self._parts.randomness, number)
                self._step, self._began = Step(self, number, cohort), time.monotonic()
            return self._step

    def _is_affordable(self) -> bool:
        """Return True if one more round, after all charges in the ledger, does not exceed epsilon."""
        table, ledger = self._parts.config.privacy, self._book.ledger
        assert table is not None
        charged = self._book.rounds_done if self._parts.sampler.law.is_schedule else len(ledger.releases)
        if table.epsilon is None or (self._target is None and not charged):
            return True
        if self._target is None:  # the dimension is not known yet; a further round must equal those of the ledger
            rounds = Composed(parts=((ledger.shared_releases[-1].mechanism, charged + 1),))
            return accountant.epsilon(rounds, delta=self.delta) <= table.epsilon
        self._account = self._account or EqualRounds(self._target, self.rounds_planned, 0)
        return self._account.epsilon_after(charged + 1) <= table.epsilon

    def _require_open_step(self, step: Step) -> None:
        if self._step is step:
            return
        released = any(entry.round == step.round for entry in self._book.ledger.releases)
        what = "was released already" if released else "is over, or another round has begun"
        raise RunError(f"round {step.round} {what}. Release inside the loop over rounds(), once for every step.")

    def _known_form(self, form: UpdateForm | None) -> UpdateForm:
        """Return the form of these updates; raises ConfigError if it differs from that of earlier updates.

        An empty cohort's form is None; the form of earlier updates is returned then.
        """
        size = self._parts.size
        if form is None and self._form is None and not size:
            raise ConfigError(
                "updates: none, for an empty cohort, before the first release, so that the dimension is not known. "
                "Give dimension= to dpfed.ClientLevel if cohorts may be empty."
            )
        if form is None:
            return self._form or UpdateForm(size=size, device=torch.device("cpu"))
        if self._form is not None and not form.matches(self._form):
            raise ConfigError(
                f"updates: {form.description}; earlier updates were {self._form.description}. Nothing was released."
            )
        if size and form.size != size:
            raise ConfigError(f"updates: {form.description}; dimension={size}. Nothing was released.")
        return form

    def _method_of_size(self, size: int) -> LoopMethod:
        """Return the method for updates of `size` numbers. Raises ConfigError if its first round exceeds epsilon."""
        machine = loop_method_of(replace(self._parts, size=size), self._stages_of)
        if self._target is None:
            self._require_release_of_ledger(self._book, machine.privacy_target)
            _require_affordable_round(machine.privacy_target, self.rounds_planned)
            machine.privacy_target.require_consistent_bounds(self.rounds_planned)
        return machine

    def _open_book(self, ledger: str | os.PathLike[str] | None, plan: dict[str, dict[str, object]]) -> LoopBook:
        path = _temporary_ledger(self) if ledger is None else resolved_path(ledger)
        simulated = self._parts.randomness.name == "simulated"
        key = self._parts.seeds.generator("population.key").bytes(32) if simulated else None
        header = Header(
            unit="client",
            clients=self._parts.config.federation.clients,
            randomness=self._parts.randomness.name,
            about={
                "package": f"dpfed {__version__}",
                "method": "client-level",
                "delta": self.delta,
                "plan": plan,
                "stages": "whole update" if self._stages_of is None else "own",
                **({} if simulated else {"loop": secrets.token_hex(16)}),
            },
            population=None if self._names is None else fingerprint_of_names(path, self._names, new=key),
            plan=self._planned_releases(),
            solved=None if self._target is None else self._target.solved,
        )
        book = LoopBook.open(path, header)
        self._require_release_of_ledger(book, self._target)
        return book

    def _require_release_of_ledger(self, book: LoopBook, target: PrivacyTarget | None) -> None:
        """Raise RunError unless further rounds have the sampler and the dimension of the noise of the ledger's rounds,
        or of its plan before the first. Under a schedule they must have exactly this release, because all rounds of a
        schedule have one account.

        A longer plan may have another schedule: an allocation of more rounds, or bands that are optimised for them.
        """
        planned = book.ledger.header.plan
        begun = [part for one in (planned.largest_charges if planned else ()) for part, _ in one.parts]
        begun += [one.mechanism for one in book.ledger.shared_releases]
        if not begun or book.rounds_done >= self.rounds_planned:
            return
        known, law = begun[-1], self._parts.sampler.law
        now = subsample(unsampled(known), law) if target is None else target.mechanism
        before, after = (getattr(unsampled(one), "dimension", None) for one in (known, now))
        alike = sampling_of(now) == sampling_of(known) and before == after
        any_noise = schedule_of(known) is None and self._stages_of is None  # that of the plan, which is compared
        if now == known or (alike and any_noise):
            return
        different = "; ".join(configuration_differences(known.to_dict(), now.to_dict()))
        raise RunError(
            f"{book.ledger.path}: further rounds would have another release than the ledger's: {different}. Neither "
            "its plan nor the account of a schedule covers both. Use the plan with which the ledger began, "
            "or give the path of a new ledger."
        )

    def _planned_releases(self) -> Planned:
        """Return the plan for the ledger's header.

        It has no mechanism for integer noise with an unknown dimension; all rounds must then equal the first release.
        """
        table = self._parts.config.privacy
        assert table is not None
        if self._target is not None:
            return replace(self._target.planned_releases(self.rounds_planned), may_skip_rounds=True)
        delta = None if table.epsilon is None else self.delta
        return Planned(rounds=self.rounds_planned, epsilon=table.epsilon, delta=delta, may_skip_rounds=True)


def _temporary_ledger(owner: ClientLevel) -> Path:
    """Return the path of a ledger in a temporary folder, which is removed when `owner` is garbage-collected."""
    folder = tempfile.mkdtemp(prefix="dpfed-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / "ledger.jsonl"


def _require_affordable_round(privacy_target: PrivacyTarget, rounds: int) -> None:
    """Raise ConfigError if a single round would exceed epsilon."""
    after = EqualRounds(privacy_target, rounds, 0).epsilon_after(1)
    if privacy_target.budget is not None and after > privacy_target.budget:
        raise ConfigError(over_budget_text(privacy_target, after))


def _clients_of(clients: object) -> tuple[tuple[str, ...] | None, int]:
    """Return the clients' names, None if only their number is given, and their number."""
    number = require.plain(clients)
    if require.is_whole(number):
        return None, number
    if isinstance(number, str | bytes | float) or not isinstance(clients, Iterable):
        raise ConfigError(
            f"clients={require.short_repr(clients)}: must be a whole number of clients, or their names (a list, a "
            "dictionary, or anything that yields them)."
        )
    names = tuple(str(name) for name in clients)
    if len(set(names)) < len(names):
        raise ConfigError(
            "clients: a name occurs twice, but names must be different. Make them unique, or give the number of "
            "clients."
        )
    return names, len(names)
