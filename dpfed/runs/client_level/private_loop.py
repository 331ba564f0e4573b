"""`dpfed.ClientLevel`: a custom training loop, whose sampler, clip, noise, charge and ledger are one object."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting import Guarantee, Ledger
from accounting.caveats import default_delta
from accounting.ledger import Aborted, Header, Planned
from accounting.mechanisms import Schedule
from dpfed import replayed
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, RunError
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.participation.sampling import draw_cohort
from dpfed.participation.schedules import TurnSchedule
from dpfed.round import run_round
from dpfed.runs.client_level.book import LoopBook, delta_in, fingerprint
from dpfed.runs.client_level.plan import Machine, Noise, StagesOf, machine_of, parts_of, planned
from dpfed.runs.client_level.step import Form, Step, first_of, in_groups
from dpfed.runs.plain_torch import plain_torch
from dpfed.runs.spending import EqualRounds, over_budget
from dpfed.server.state import ServerState
from dpfed.sources import GivenRows
from dpfed.version import __version__

Sampling = Literal["poisson", "fixed", "all", "balls-and-bins", "allocation", "min-separation", "cyclic"]

SKIPPED = "skipped: nothing of the round was released"
"""Reason in the ledger for a round that the loop skipped without a release."""

_MOST_ROWS, _MOST_NUMBERS = 20, 1 << 21
"""Updates in memory at a time: 8 MiB, or one update."""


class ClientLevel:
    """Client-level differential privacy for a custom training loop.

        private = dpfed.ClientLevel(clients=600, cohort=100, clip_norm=1.0, epsilon=3.0, rounds=60, ledger="l.jsonl")
        for step in private.rounds():
            w += step.release(train(w, step.cohort))
        print(private.guarantee())

    clients: number of clients, or their names, whose fingerprint binds the ledger to them
    cohort: expected number of clients in a round under "poisson", exact one under "fixed"
    sampling: values of federation.sampling in `dpfed run`; schedules ("balls-and-bins", ...) with
        randomness="simulated" only, and every round must then be released. separation: that of "min-separation". lanes:
        of "balls-and-bins", public (number of a client modulo lanes; under add-remove a hash of its name), with noise
        in as many bands. lane_secrecy: "secret" draws them for the run instead
    cohort_cap: under "poisson" the most clients of a round; of more drawn a random part of that size takes part
    rounds: the most rounds; the loop ends with them, or before a round that would exceed `epsilon`. A ledger takes more
        rounds than it began with if both `epsilon` and `noise_multiplier` were given from the start
    epsilon: budget; without `noise_multiplier` the noise is calibrated so that `rounds` rounds spend epsilon
    noise_multiplier: noise over clip norm on the sum
    delta: default: the smaller of clients^-1.1 and 1e-4
    adjacency: default: that of the sampling (`accounting.Plan`)
    ledger: a file; an existing one is continued. None: a temporary file, removed with this object
    noise: "discrete-gaussian" (default) or "skellam", on integers, drawn exactly; "gaussian" with
        randomness="simulated" only, where it is the default; `dpfed run` has the same rule
    randomness: "secure", from the operating system; "simulated": cohorts and noise from `seed`, never for release
    seed: seed of public rotations, and of all randomness if simulated; default 0
    dimension: d, needed if a cohort may be empty before the first release
    stages: custom chain: a function of `Parts` (its argument `s`), which has the loop's sampler and noise, as in
        `lambda s: Stages(Project(choice=RandomSharedMask(size=s.size, kept=99)), *s.private(99))`

    Claim: `guarantee()` is an upper bound for everything that `release` returned, and everything that an interrupted
    process was about to return, against observers who see the releases but not the cohorts. A round is that of
    `dpfed.round`, its stages are those of `dpfed run`: the charge is computed from the fields that draw the noise. It
    covers releases by `release`, and no other use of clients' data in the loop. With sampling = "fixed" it holds if a
    client's update does not depend on the earlier rounds it was drawn in; a loop that keeps a state of each client
    between its rounds (error feedback, control variates) is not covered then.

    A round without a release is skipped: nothing is released or charged, and the ledger records it. That is sound if
    skipping depends neither on the drawn clients nor on their data: an empty cohort is released like any other, by
    `release([])`. A round that was charged and then interrupted is not repeated; it stays charged.

    ConfigError, AccountingError: a plan that cannot work. RunError, LedgerError: a ledger that is another plan's, or
    cannot be trusted or written.
    """

    def __init__(
        self,
        *,
        clients: int | Sequence[str],
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
        stages: StagesOf | None = None,
    ) -> None:
        replayed.require_apart(*(() if ledger is None else (ledger,)))
        count = clients if isinstance(clients, int) else len(clients)
        if delta is None and count > 0:  # the plan refuses other numbers
            delta = (None if ledger is None else delta_in(Path(ledger))) or default_delta(count)
        privacy = {
            "clip_norm": clip_norm,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "adjacency": adjacency,
            "noise": noise or ("discrete-gaussian" if randomness == "secure" else "gaussian"),
        }
        schedule = {
            "separation": separation,
            "lanes": lanes,
            "lane_secrecy": lane_secrecy,
            "cohort_cap": cohort_cap,
        }
        plan: dict[str, dict[str, Any]] = {
            "federation": {"clients": count, "cohort": cohort, "rounds": rounds, "sampling": sampling}
            | {key: value for key, value in schedule.items() if value is not None},
            "privacy": {key: value for key, value in privacy.items() if value is not None},
            "run": {"randomness": randomness, "seed": 0 if seed is None else seed},
        }
        self._names = None if isinstance(clients, int) else _distinct(clients)
        ids = None if self._names is None else ClientIds.of(self._names)
        self._parts, self._stages_of = parts_of(plan, dimension, ids), stages
        self._machine, self._target = planned(self._parts, stages)
        if self._target is not None and noise_multiplier is not None:
            _require_one_round(self._target, rounds)
        if self._target is not None:
            self._target.require_statement(rounds)
        self.rounds_planned, self.clip_norm = rounds, clip_norm
        self.delta = float(delta or 0)
        self.stopped_by: Literal["", "rounds", "budget"] = ""
        self._form: Form | None = None
        self._step: Step | None = None
        self._state: ServerState | None = None
        self._spent: EqualRounds | None = None
        self._began = time.monotonic()
        self._book = self._opened_book(ledger, plan)
        drawn_by = self._parts.sampler.ids if isinstance(self._parts.sampler, TurnSchedule) else None
        if drawn_by is not None:
            self._book.note_ids(drawn_by)

    @property
    def noise_multiplier(self) -> float:
        """Noise over clip norm on the sum, as planned. ConfigError if it depends on a dimension that is not known."""
        if self._target is None:
            raise ConfigError(
                "noise_multiplier: integer noise is planned for a dimension, which the first release shows. Give "
                "dimension= to know it before."
            )
        assert self._target.noise_multiplier is not None
        return self._target.noise_multiplier

    @property
    def ledger(self) -> Path:
        """Path of the ledger."""
        return self._book.ledger.path

    def rounds(self) -> Iterator[Step]:
        """Yield the remaining rounds; none if all are done or epsilon is spent (`stopped_by`)."""
        while (step := self._next()) is not None:
            yield step
            if self._step is step:
                if isinstance(self._parts.sampler.law, Schedule):
                    raise RunError(
                        f"round {step.round} was not released: under {self._parts.sampler.law.name!r} rounds belong "
                        "together, and none may be left out. Release every step, an empty cohort by release([])."
                    )
                self._book.record(Aborted(round=step.round, reason=SKIPPED))
                self._step = None

    def is_over(self) -> bool:
        """Return True if all planned rounds are done, or epsilon pays for no other (`stopped_by`). Draws no cohort."""
        if self._book.rounds_done >= self.rounds_planned:
            self.stopped_by = "rounds"
        elif self._target is not None and not self._affordable(self._target):
            self.stopped_by = "budget"
        return self.stopped_by != ""

    def guarantee(self) -> Guarantee:
        """Return the guarantee that holds for any reason of ending, from the ledger's file alone.

        After all planned rounds it is that of the releases; before (and after `break`) the smaller of the plan's and of
        `epsilon`. For the releases so far, fixed in advance:
        `accounting.Ledger.read(private.ledger).if_fixed_in_advance(delta)`.
        """
        return Ledger.read(self.ledger).guarantee(self.delta)

    def names_of(self, cohort: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the names of clients, or their numbers."""
        return tuple(str(one) if self._names is None else self._names[one] for one in cohort.tolist())

    @plain_torch()
    def release(self, step: Step, updates: object) -> Tensor | dict[str, Tensor]:
        """Release a round's updates, as `Step.release`."""
        self._check_open(step)
        self._step = None  # what makes the updates, and another thread, cannot release the step meanwhile
        try:
            return self._released(step, updates)
        except BaseException:
            self._step = step if self._state is None or self._state.round <= step.round else None
            raise

    def _released(self, step: Step, updates: object) -> Tensor | dict[str, Tensor]:
        form, rows = first_of(updates)
        form = self._known(form)
        machine = self._machine_for(form)
        if self._book.rounds_done > step.round and not self._book.pending(step.round):
            raise RunError(
                f"round {step.round} is charged already and was interrupted. Go on with the next one: a round is "
                "not repeated, so that no noise is."
            )
        nowhere = torch.zeros(form.size, device=form.device)
        before = self._state or ServerState(round=0, broadcast=nowhere, clip_norm=self.clip_norm)
        at_once = max(1, min(_MOST_ROWS, _MOST_NUMBERS // form.size))
        spent = self._spending(machine.privacy_target)  # charges of the rounds before this one
        done = run_round(
            replace(before, round=step.round, broadcast=nowhere),
            machine.method,
            GivenRows(rows=in_groups(rows, form, len(step.cohort), at_once=at_once)),
            seeds=self._parts.seeds,
            ledger=self._book,
            cohort=step.cohort,
        )
        self._state = done.state
        spent.charge(done.release)
        self._book.note(replace(done.record, seconds=time.monotonic() - self._began))
        assert done.mean is not None
        return form.like_them(done.mean)

    def __repr__(self) -> str:
        clients, done = self._parts.config.federation.clients, self._book.rounds_done
        return f"ClientLevel({clients} clients, {done} of {self.rounds_planned} rounds done)"

    def _next(self) -> Step | None:
        self._step = None
        if not self.is_over():
            number = self._book.rounds_done
            cohort = draw_cohort(self._parts.sampler, self._parts.randomness, number)
            self._step, self._began = Step(self, number, cohort), time.monotonic()
        return self._step

    def _affordable(self, privacy_target: PrivacyTarget) -> bool:
        """Return True if the budget pays for one more round."""
        after = self._spending(privacy_target).with_round(np.zeros(0, dtype=np.int64), 0)
        return privacy_target.budget is None or after <= privacy_target.budget

    def _spending(self, privacy_target: PrivacyTarget) -> EqualRounds:
        if self._spent is None:
            self._spent = EqualRounds(privacy_target, self.rounds_planned, len(self._book.ledger.releases))
        return self._spent

    def _check_open(self, step: Step) -> None:
        if self._step is step:
            return
        released = any(entry.round == step.round for entry in self._book.ledger.releases)
        what = "was released already" if released else "is over, or another has begun"
        raise RunError(f"round {step.round} {what}. Release inside the loop over rounds(), once for every step.")

    def _known(self, form: Form | None) -> Form:
        """Return the form of these updates, equal to that of all earlier ones; for an empty cohort the known form."""
        size = self._parts.size
        if form is None and self._form is None and not size:
            raise ConfigError(
                "updates: none, for an empty cohort, and no release has shown yet how long one is. Give dimension= to "
                "dpfed.ClientLevel where cohorts may be empty."
            )
        if form is None:
            return self._form or Form(size=size, device=torch.device("cpu"))
        if self._form is not None and not form.is_like(self._form):
            raise ConfigError(f"updates: {form.words}; this loop's are {self._form.words}. Nothing was released.")
        if size and form.size != size:
            raise ConfigError(f"updates: {form.words}; dimension={size}. Nothing was released.")
        self._form = form
        return form

    def _machine_for(self, form: Form) -> Machine:
        if self._machine is None:
            self._parts = replace(self._parts, size=form.size)
            self._machine = machine_of(self._parts, self._stages_of)
            if self._target is None:
                self._target = self._machine.privacy_target
                _require_one_round(self._target, self.rounds_planned)
                self._target.require_statement(self.rounds_planned)
        return self._machine

    def _opened_book(self, ledger: str | os.PathLike[str] | None, plan: dict[str, dict[str, object]]) -> LoopBook:
        path = _gone_with(self) if ledger is None else Path(ledger)
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
            },
            population=None if self._names is None else fingerprint(path, self._names, new=key),
            plan=self._planned_releases(),
        )
        return LoopBook.open(path, header)

    def _planned_releases(self) -> Planned:
        """Return the releases planned in the ledger's header.

        Integer noise for updates of unknown size: rounds like the first one.
        """
        table = self._parts.config.privacy
        assert table is not None
        if self._target is not None:
            return replace(self._target.planned(self.rounds_planned), skips=True)
        delta = None if table.epsilon is None else self.delta
        return Planned(rounds=self.rounds_planned, epsilon=table.epsilon, delta=delta, skips=True)


def _gone_with(owner: ClientLevel) -> Path:
    """Return the path of a ledger in a folder that is removed with its owner."""
    folder = tempfile.mkdtemp(prefix="dpfed-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / "ledger.jsonl"


def _require_one_round(privacy_target: PrivacyTarget, rounds: int) -> None:
    """Raise ConfigError if epsilon does not pay for one round."""
    after = EqualRounds(privacy_target, rounds, 0).with_round(np.zeros(0, dtype=np.int64), 0)
    if privacy_target.budget is not None and after > privacy_target.budget:
        raise ConfigError(over_budget(privacy_target, after))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(str(name) for name in names)
    if len(set(found)) < len(found):
        raise ConfigError("clients: a name occurs twice; every client has its own. Number them, or give how many.")
    return found
