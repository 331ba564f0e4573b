"""The checks of noise, cohorts and denominators, which a run's files and a loop's have in common."""

from __future__ import annotations

from dpfed.audit.evidence import noise_evidence, sum_evidence
from dpfed.audit.evidence.cohort_law import cohorts_follow_sampler
from dpfed.audit.evidence.cohort_members import members_follow_sampler
from dpfed.audit.evidence.cohort_seeds import cohorts_and_the_seed
from dpfed.audit.evidence.noise_shape import noise_is_shaped_as_charged
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Check, check


def checks_of_releases(files: RunFiles, alpha: float) -> list[Check]:
    """`alpha`: of each check that may fail by chance."""
    return [
        check("noise is as large as charged", lambda: noise_evidence.noise_is_as_charged(files, alpha=alpha)),
        check("noise is fresh in every round", lambda: noise_evidence.noise_is_fresh(files, alpha=alpha)),
        check("noise is shaped as charged", lambda: noise_is_shaped_as_charged(files, alpha=alpha)),
        check("cohort sizes follow the sampler", lambda: cohorts_follow_sampler(files, alpha=alpha)),
        check("members follow the sampler", lambda: members_follow_sampler(files, alpha=alpha)),
        check("cohorts are the seed's, or not", lambda: cohorts_and_the_seed(files)),
        check("denominator is public", lambda: sum_evidence.denominator_is_public(files)),
    ]
