"""The loop of a run: rounds, evaluation and checkpoints, until all rounds are done or the next would exceed a
budget."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accounting.errors import BudgetSpent
from accounting.ledger import Aborted, Entry, Header, LocalRelease, Release
from accounting.ledger.project import ProjectLedger
from dpfed import replayed
from dpfed.data.samples import require_samples_here
from dpfed.errors import RunError, RunInterrupted, TrainingFailed
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.methods.records import AnyTarget
from dpfed.randomness import Secure
from dpfed.records.round import INTERRUPTED, CheckpointReport, MetricsLine, RoundRecord
from dpfed.records.summary import Summary
from dpfed.round import (
    NO_RESULT,
    RoundResult,
    Source,
    draw_round_cohort,
    run_round,
    run_share_of_round,
    skipped_round,
)
from dpfed.runs.binding import Binding, Checkpoint, LedgerHeads, binding_of, new_population_key
from dpfed.runs.book import LedgerBook
from dpfed.runs.durable_files import FileWriter
from dpfed.runs.experiment import Experiment, public_client_ids
from dpfed.runs.folder import RunFolder
from dpfed.runs.protection import SUM_MAY_BE_SEEN, epsilon_against_server
from dpfed.runs.public_code import NO_VIEWERS, OnRound, PublicCode, Viewers, start_public_code
from dpfed.runs.resuming import require_same_rounds
from dpfed.runs.scores import Evaluation, Scores, evaluated_weights, scores_of_summary
from dpfed.runs.spending import over_budget_text, over_project_budget_text, spending_account
from dpfed.runs.summary import requests_certificate, summary_of, uplink_megabytes
from dpfed.sources import InProcessClients, TrainedClients, training_errors
from dpfed.version import __version__


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Folder and records of a finished run; for scripts, `summary` and `metrics` have the records as JSON objects."""

    folder: Path
    record: Summary
    lines: list[MetricsLine]

    @property
    def summary(self) -> dict[str, Any]:
        """JSON object of summary.json."""
        return self.record.to_dict()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """JSON objects of metrics.jsonl."""
        return [line.to_dict() for line in self.lines]


def run(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    on_round: OnRound = lambda record: None,
    project: ProjectLedger | None = None,
    stop: Callable[[], bool] = lambda: False,
    viewers: Viewers = NO_VIEWERS,
) -> Outcome:
    """Run or resume the experiment in folder `out`.

    on_round: called in this process with each line of metrics.jsonl, as a JSON object
    viewers:  trackers and progress function of the user, which also receive these lines; in a run for release in the
              separate process that evaluates the models (`dpfed.runs.public_code`)
    project:  ledger of a project, which is charged too; its budget can end the run
    stop:     called before every round; if it returns True, the run ends with RunInterrupted

    Claim: the summary's epsilon is recomputed from the ledger alone, which contains every release that was made. No
    round is run whose epsilon would exceed privacy.epsilon (local.record.epsilon, for any client). Raises RunError or
    LedgerError if a file is invalid or cannot be written, or if training fails. Files written before such an error are
    valid, and the run can be resumed.
    """
    opened: Run | None = None
    try:
        require_samples_here(experiment.config)
        opened = Run.open(experiment, out, resume=resume, on_round=on_round, project=project, viewers=viewers)
        outcome = opened.run_all_rounds(InProcessClients(seeds=experiment.seeds), stop)
    except TrainingFailed:
        raise  # other processes are waiting for this process's rows, so a message would block; its end ends them
    except BaseException:
        _stop_other_processes(experiment)
        raise
    finally:
        if opened is not None:
            opened.unlock()
    _stop_other_processes(experiment)
    return outcome


def train_share_of_rounds(experiment: Experiment) -> None:
    """Train this process's share of the clients in every round that process 0 leads."""
    method, seeds = experiment.method, experiment.seeds
    with training_errors("a round"):
        for task in method.ranks.received_tasks(experiment.start):
            run_share_of_round(task, method, TrainedClients(seeds=seeds), seeds)


def _stop_other_processes(experiment: Experiment) -> None:
    """Tell the other processes of the run to end; a process that has already ended is ignored."""
    with suppress(RuntimeError):
        experiment.method.ranks.stop()


class Run:
    """A run, executed round by round.

    Its source of rows is the clients of this process, or those of another engine. The claims of `run` hold here, too.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        saved: Checkpoint,
        on_round: OnRound,
        binding: Binding,
        project: ProjectLedger | None = None,
        public_samples_alone: float | None = None,
        *,
        public_code: PublicCode,
        resumed: bool = False,
    ) -> None:
        self._public_samples_alone = public_samples_alone
        self._began = time.monotonic()
        self._public_code, self._fixed = public_code, experiment.model.fixed
        if experiment.for_release:  # training may write to the tensors that all clients share
            self._fixed = {name: tensor.clone() for name, tensor in self._fixed.items()}
        self.experiment, self.state, self._project = experiment, saved.state, project
        self._folder, self._on_round, self._binding = folder, on_round, binding
        privacy_target = experiment.privacy_target
        self._book = _open_book(experiment, privacy_target, folder, saved, binding, project) if privacy_target else None
        self._lines = folder.metrics_lines(saved.state.round)
        written = bool(self._lines) and self._lines[-1].round == saved.state.round
        # The line of the last round is shown again: the process may have ended before.
        self._shown, self._files = len(self._lines) - written, FileWriter(beside=experiment.device.type != "cpu")
        self._spent = spending_account(experiment, self._book, saved.state.round)
        self._uplink = 0
        self._mask_entropy: int | None = 0
        self._stopped_by = "rounds"
        self._exceeded: Callable[[], str] = str
        self._sum_may_be_seen = resumed and experiment.method.randomness.name == "secure"
        if project is not None and not self.finished and self._is_within_own_budget(np.zeros(0, dtype=np.int64)):
            assert self._book is not None
            assert isinstance(privacy_target, PrivacyTarget)
            rounds, spare = experiment.config.federation.rounds, experiment.config.run.spare_rounds
            self._book.require_project_budget(privacy_target, first=saved.state.round, rounds=rounds, spare=spare)
        if (found := saved.report) is not None:
            self._uplink, self._mask_entropy = found.uplink, found.mask_entropy
            if not written:  # a crash prevented these lines
                self._write_report(lambda: found, self._epsilon_after(None))
        scheduled = experiment.method.sampler.law.is_schedule
        if scheduled and self._book is not None and self._book.charged_before_interruption(self.state.round):
            # A round of a participation schedule is not repeated with new noise; it has no result and remains charged.
            self._save_round(skipped_round(self.state, experiment.method), 0.0)

    @classmethod
    def open(
        cls,
        experiment: Experiment,
        out: Path,
        *,
        resume: bool,
        on_round: OnRound = lambda record: None,
        project: ProjectLedger | None = None,
        viewers: Viewers = NO_VIEWERS,
        trains_here: bool = True,
    ) -> Run:
        """Open a run in a new folder, or in the folder of an interrupted run.

        The folder is locked until `unlock`, `close` or the end of this process.

        trains_here: True if clients train in this process. The user's metrics, trackers and progress functions then run
        in another process if the model is for release.
        """
        _check_project(experiment, project)
        if not resume and experiment.privacy_target is not None:
            experiment.privacy_target.require_consistent_bounds(experiment.config.federation.rounds)
        config = experiment.config.to_dict()
        apart = experiment.for_release and trains_here
        with ExitStack() as undo:
            public_code = start_public_code(Evaluation.of(experiment), viewers, apart=apart)
            undo.callback(public_code.close)
            folder = RunFolder.reopen(out, config) if resume else RunFolder.create(out, config)
            undo.callback(folder.discard_new_folder)
            folder.record_own_code(experiment.own_code, resume=resume)
            folder.record_client_ids(experiment.method.sampler.ids, resume=resume)
            folder.record_client_names(public_client_ids(experiment.method.clients.partition))
            if folder.shorter is not None:
                sent = experiment.method.stages.project.choice.sent
                require_same_rounds(
                    folder.shorter, experiment.config, experiment.specification, experiment.privacy_target, sent
                )
            key = folder.population_key(partial(new_population_key, experiment, project))
            alone, start = _train_on_public_samples(experiment, folder)
            binding = binding_of(experiment, folder.configuration, key, start)
            folder.binding = binding
            first = experiment.start if start is None else replace(experiment.start, broadcast=start)
            saved = folder.load_checkpoint(first)
            randomness = experiment.method.randomness
            if isinstance(randomness, Secure) and experiment.method.sampler.law.is_schedule:
                randomness.schedule.key = folder.schedule_key(randomness.schedule.key)
            opened = cls(
                experiment, folder, saved, on_round, binding, project, alone, public_code=public_code, resumed=resume
            )
            if resume and not opened.finished:
                folder.discard_statement()
            if folder.shorter is not None:
                folder.prolong(experiment.config.federation.rounds)
            undo.pop_all()
            return opened

    def unlock(self) -> None:
        """Finish the files, release the lock on the run folder, and close trackers and their process."""
        self._files.close()
        self._folder.unlock()
        self._public_code.close()

    def identity_for_nodes(self) -> tuple[str, int]:
        """Return (identity of the ledger, number of charges of interrupted rounds), for nodes that keep a ledger.

        The identity differs between runs and stays equal on resume; it is empty for noise that can be repeated.
        """
        if self._book is None or self._book.ledger.header.randomness == "simulated":
            return "", 0
        return self._book.ledger.identity, self._book.interrupted_charges(self.state.round)

    @property
    def finished(self) -> bool:
        """True if all rounds are done, or another round would exceed a budget."""
        return self.state.round >= self.experiment.config.federation.rounds or self._stopped_by == "budget"

    def run_all_rounds(self, source: Source, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Run the remaining rounds within the budgets, and write the summary.

        Raises RunInterrupted if `stop`, called before every round, returns True.
        """
        while not self.finished:
            if stop():
                self._wait_for_files()
                done, rounds = self.state.round, self.experiment.config.federation.rounds
                raise RunInterrupted(f"interrupted after round {done} of {rounds}; all finished rounds are saved.")
            self.run_one_round(source)
        return self.close()

    def run_one_round(self, source: Source) -> None:
        """Run one round: check the budgets, charge the round, save its result, report it. Do nothing if a budget is
        spent."""
        experiment, state = self.experiment, self.state
        cohort, started = draw_round_cohort(experiment.method, state.round), time.monotonic()
        if not self._is_affordable(cohort):
            self._stopped_by = "budget"
            return
        self._note_sum_that_may_be_seen()
        try:
            ledger = None if self._book is None else self
            done = run_round(state, experiment.method, source, seeds=experiment.seeds, ledger=ledger, cohort=cohort)
        except BudgetSpent as why:  # another run of the project has spent the budget meanwhile
            assert self._project is not None
            assert experiment.privacy_target is not None
            self._stopped_by = "budget"
            self._exceeded = partial(over_project_budget_text, experiment.privacy_target, self._project, str(why))
            return
        self._save_round(done, time.monotonic() - started)

    def record(self, entry: Entry) -> None:
        """Charge a round to the ledger, after the files of the rounds before are written."""
        assert self._book is not None
        self._wait_for_files()
        self._book.record(entry)

    def _note_sum_that_may_be_seen(self) -> None:
        """Record the round that a resumed run repeats if the server may have seen its sum, with the clients' noise."""
        seen, self._sum_may_be_seen = self._sum_may_be_seen, False
        if seen and epsilon_against_server(self.experiment.config, self.experiment.privacy_target, 1) is not None:
            assert self._book is not None
            self._book.record(Aborted(round=self.state.round, reason=SUM_MAY_BE_SEEN))

    def _save_round(self, done: RoundResult, seconds: float) -> None:
        """Write the checkpoint, which contains the lines of the round; then write these lines into their files."""
        self._wait_for_files()
        self.state, kept = done.state, done.state.on_cpu() if self._files.beside else done.state
        heads = self._book.heads if self._book is not None else LedgerHeads()
        reports: list[CheckpointReport] = []

        def save() -> None:
            record = done.whole_record()
            report = CheckpointReport(
                uplink=self._uplink + (record.uplink_bytes or 0),
                mask_entropy=self._mask_entropy_with(record),
                diagnostics=replace(record, seconds=seconds),
                canaries=record.canaries,
            )
            self._folder.save_checkpoint(Checkpoint(state=kept, report=report, heads=heads))
            reports.append(report)

        self._files.write(save)
        self._write_report(lambda: reports[0], self._epsilon_after(done.release))

    def _epsilon_after(self, release: Release | LocalRelease | None) -> float | None:
        """Charge the release of a round in the running account, and return epsilon so far; None without privacy."""
        return None if self._spent is None else self._spent.charge(release)

    def _mask_entropy_with(self, record: RoundRecord) -> int | None:
        """Return the bits of the uploads of all rounds by FedPM's measure; None if a round was not measured."""
        if self._mask_entropy is None or (record.mask_entropy is None and record.aborted is None):
            return None
        return self._mask_entropy + (record.mask_entropy or 0)

    def _write_report(self, report: Callable[[], CheckpointReport], epsilon: float | None) -> None:
        """Write the lines of a saved round into their files, and pass its public line to `on_round`."""
        experiment, state = self.experiment, self.state
        run, last = experiment.config.run, experiment.config.federation.rounds
        scores: Scores = {"test_accuracy": None, "test_loss": None}
        majority = None
        if state.round % run.evaluate_every == 0 or state.round == last:
            found, majority = self._public_code.scores(evaluated_weights(experiment.readout, state))
            scores |= found

        def write() -> None:
            saved = report()
            self._uplink, self._mask_entropy = saved.uplink, saved.mask_entropy
            aborted = saved.diagnostics.aborted  # the operator's reason; the line has the public one
            line = MetricsLine(
                round=state.round,
                scores=scores,
                epsilon=epsilon,
                clip_norm=state.clip_norm if math.isfinite(state.clip_norm) else None,
                majority_accuracy=majority,
                uplink_megabytes=uplink_megabytes(experiment, state.round, self._uplink),
                aborted=aborted if aborted in (None, INTERRUPTED) else NO_RESULT,
            )
            self._folder.append_round(line, replace(saved.diagnostics, canaries=saved.canaries))
            self._lines.append(line)

        self._files.write(write)
        if not self._files.beside:
            self._wait_for_files()

    def _wait_for_files(self) -> None:
        """Wait until the files of all rounds are written, and pass the new lines to `on_round` and the viewers."""
        self._files.wait()
        while self._shown < len(self._lines):
            line, self._shown = self._lines[self._shown], self._shown + 1
            self._on_round(line.to_dict())
            self._public_code.show(line.to_dict())

    def close(self) -> Outcome:
        """Write the model and the summary. Raises RunError if the budget is too small for a single round."""
        self._wait_for_files()
        experiment, folder = self.experiment, self._folder
        if experiment.privacy_target and self.state.round == 0:
            if self._book is not None and not self._book.ledger.entries:
                folder.discard_new_folder()
            raise RunError(self._exceeded())
        summary = summary_of(
            experiment,
            self.state,
            self._book,
            self._lines,
            scores=scores_of_summary(
                self._lines, lambda: self._public_code.scores(evaluated_weights(experiment.readout, self.state))[0]
            ),
            stopped_by=self._stopped_by,
            seconds=time.monotonic() - self._began,
            binding=self._binding,
            mask_entropy=self._mask_entropy,
            public_samples_alone=self._public_samples_alone,
        )
        digest = folder.save_model(experiment.model.layout, experiment.readout.weights(self.state), self._fixed)
        summary = replace(summary, model_sha256=digest)
        content = experiment.readout.file(self.state)
        if content is not None:
            bits = 8 * len(content) / experiment.model.size
            summary = replace(summary, mask_sha256=folder.save_mask(content), model_bits_per_parameter=bits)
        folder.save_summary(summary)
        self.unlock()
        return Outcome(folder=folder.path, record=summary, lines=self._lines)

    def _is_within_own_budget(self, cohort: NDArray[np.int64]) -> bool:
        """Return True if one more round does not exceed the budget of the run."""
        privacy_target = self.experiment.privacy_target
        if privacy_target is None or self._spent is None:
            return True
        after = self._spent.with_round(cohort, self.state.round)
        self._exceeded = partial(over_budget_text, privacy_target, after)
        return privacy_target.budget is None or after <= privacy_target.budget

    def _is_affordable(self, cohort: NDArray[np.int64]) -> bool:
        """Return True if one more round exceeds neither the budget of the run nor that of its project."""
        privacy_target, project, book = self.experiment.privacy_target, self._project, self._book
        number = self.state.round
        if not self._is_within_own_budget(cohort):
            return False
        if project is None or book is None or book.is_paid_by_project(number):
            return True
        assert isinstance(privacy_target, PrivacyTarget)
        why = project.refusal(privacy_target.mechanism_of_round(number), run=book.run_name, number=number)
        self._exceeded = partial(over_project_budget_text, privacy_target, project, why or "")
        return why is None


def _check_project(experiment: Experiment, project: ProjectLedger | None) -> None:
    if project is not None and (experiment.privacy_target is None or experiment.privacy_target.unit == "record"):
        raise RunError(
            f"{project.ledger.path}: only runs with [privacy], whose unit is the client, are charged to a project. "
            "Remove --ledger, or make the run private."
        )
    if project is not None and requests_certificate(experiment.config):
        raise RunError(
            f"{project.ledger.path}: privacy.certificate='sampled' certifies one run only, but a project accounts "
            "for all runs on its clients. Remove one of them."
        )


def _train_on_public_samples(experiment: Experiment, folder: RunFolder) -> tuple[float | None, torch.Tensor | None]:
    """Return the score of the public samples alone, and the first broadcast if the run starts from them, before any
    client trains."""
    public, server, at = experiment.public, experiment.config.server, experiment.device
    if public is None:
        return None, None
    alone = None
    if replayed.current_replay() is None:  # an audit by replays runs many times, and the score sees no client
        half = (
            torch.from_numpy(one).to(at) for one in (experiment.dataset.test_inputs, experiment.dataset.test_labels)
        )
        initial = experiment.model.initial(experiment.seeds.integer("weights")).to(at)
        alone = public.score_alone(initial, *half, objective=experiment.objective)
    if server.start != "public":
        return alone, None
    made = partial(public.start, experiment.start.broadcast, epochs=server.start_epochs)
    return alone, folder.public_start(made).to(at)


def _open_book(
    experiment: Experiment,
    privacy_target: AnyTarget,
    folder: RunFolder,
    saved: Checkpoint,
    binding: Binding,
    project: ProjectLedger | None,
) -> LedgerBook:
    rounds = experiment.config.federation.rounds
    about = {"package": f"dpfed {__version__}", "method": experiment.specification.name, "delta": privacy_target.delta}
    if project is not None:
        about["run"] = f"{folder.path.name}-{secrets.token_hex(4)}"
        about["project_head"] = project.ledger.head
    header = Header(
        unit=privacy_target.unit,
        clients=experiment.config.federation.clients,
        randomness=experiment.method.randomness.name,
        about=about,
        population=binding.population,
        binding=binding.to_header(),
        plan=privacy_target.planned_releases(rounds, experiment.config.run.spare_rounds),
        solved=privacy_target.solved,
    )
    book = LedgerBook.open(folder.ledger, header, rounds_done=saved.state.round, heads=saved.heads, project=project)
    if privacy_target.unit == "client":
        book.require_own_stream(privacy_target.mechanism)
    return book
