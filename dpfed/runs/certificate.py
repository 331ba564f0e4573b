"""Certificate by simulation of a finished run: an epsilon beside the one that always holds, never in its place."""

from __future__ import annotations

from accounting.budget import certificates
from accounting.budget.certificates import Certificate, Claim
from accounting.compose.accountant import Guarantee
from accounting.errors import CalibrationError
from accounting.ledger import Ledger
from dpfed.config.privacy_tables import GaussianPrivacy
from dpfed.config.tables import Config


def certified(config: Config) -> bool:
    """Return True if a run is configured to have a certificate (privacy.certificate)."""
    return isinstance(config.privacy, GaussianPrivacy) and config.privacy.certificate == "sampled"


def claim_of(config: Config, ledger: Ledger, stated: Guarantee) -> Claim | None:
    """Return the claim of the ledger's releases; None if there is no certificate of them.

    There is one if privacy.certificate is set, the planned rounds and no others are released, and no project is
    charged. A run that ended early or was prolonged may have been so by its results, which the epsilon of its releases
    does not cover.
    """
    if not certified(config) or "run" in ledger.header.about or not ledger.releases:
        return None
    mechanism, rounds = ledger.mechanism(), config.federation.rounds
    if ledger.header.plan is None or ledger.header.plan.rounds != rounds:
        return None
    if mechanism is None or [count for _, count in mechanism.parts] != [rounds] or len(ledger.releases) != rounds:
        return None
    return Claim(mechanism=mechanism, delta=stated.delta, deterministic=stated.epsilon)


def certificate_of(config: Config, ledger: Ledger, stated: Guarantee) -> Certificate | None:
    """Return the certificate of a finished run; None if it has none, or none is below its epsilon."""
    claim = claim_of(config, ledger, stated)
    if claim is None:
        return None
    try:
        return certificates.cached_or_new_certificate(claim, samples=certificates.SAMPLES)
    except CalibrationError:
        return None
