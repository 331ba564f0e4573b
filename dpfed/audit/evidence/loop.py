"""The audit of a training loop of one's own: which checks of a run's apply to its ledger and its diagnostics."""

from __future__ import annotations

from dpfed.audit.evidence import conformance, loop_checks, step_evidence, sum_evidence
from dpfed.audit.evidence.loop_files import LoopFiles
from dpfed.audit.evidence.release_checks import checks_of_releases
from dpfed.audit.verdict import Check, check


def checks_of_loop(files: LoopFiles, alpha: float) -> list[Check]:
    """`alpha`: of each check that may fail by chance."""
    follows = check(
        "ledger follows the plan", lambda: loop_checks.ledger_follows_the_plan(files), smoke=files.own_stages
    )
    checks = [
        check("ledger is intact", lambda: conformance.ledger_intact(files)),
        check("epsilon keeps to the plan", lambda: loop_checks.epsilon_keeps_to_the_plan(files)),
        check("epsilon is possible", lambda: conformance.epsilon_is_possible(files)),
        check("every round is charged once", lambda: loop_checks.rounds_are_charged_once(files)),
        follows,
        *checks_of_releases(files, alpha),
    ]
    if follows.passed is not None:  # what rests on the plan's own chain
        checks += [
            check("rows are bounded", lambda: sum_evidence.rows_are_bounded(files)),
            check("sums are of what went in", lambda: step_evidence.sums_are_of_what_went_in(files)),
            check("uploads are as accounted", lambda: sum_evidence.uploads_are_as_accounted(files)),
        ]
    return checks


def notes_of_loop(files: LoopFiles) -> tuple[str, ...]:
    """What a pass does not show."""
    notes = [
        "The files are the loop's own account: hashes find accidents and careless edits, not a forger who writes "
        "everything anew.",
        "What the loop did with clients' data beside its releases leaves no trace here: epsilon is of what went "
        "through release(), if rounds were skipped without regard to who was drawn.",
        "Not looked at: whether the loop or a stage of yours mixes clients' rows, or keeps a state from one client or "
        "round to the next. `dpfed audit upload FUNCTION --load FILE.py` tests one round as a function.",
    ]
    if files.config.run.randomness == "simulated":
        notes.append("Noise and cohorts come from the seed (randomness='simulated'): not for release.")
    if files.own_stages:
        notes.append("The chain of stages is one's own: which bound its rows keep to is not in these files.")
    return tuple(notes)
