"""Certificate of a finished run: an epsilon by simulation, stated in addition to the deterministic upper bound."""

from __future__ import annotations

from accounting.budget import certificates
from accounting.budget.certificates import Certificate, Claim
from accounting.compose.accountant import Guarantee
from accounting.errors import CalibrationError
from accounting.ledger import Ledger
from dpfed.config.privacy_tables import GaussianPrivacy
from dpfed.config.tables import Config


def requests_certificate(config: Config) -> bool:
    """Return True if privacy.certificate requests a certificate by simulation."""
    return isinstance(config.privacy, GaussianPrivacy) and config.privacy.certificate == "sampled"


def certificate_claim(config: Config, ledger: Ledger, stated: Guarantee) -> Claim | None:
    """Return the claim about the ledger's releases that a certificate proves; None if the run cannot have a
    certificate.

    It can have one if privacy.certificate is set, the planned rounds are released, each once, and no project is
    charged. A run may have ended early or been prolonged because of its results, which its certificate would not cover.
    """
    if not requests_certificate(config) or "run" in ledger.header.about or not ledger.releases:
        return None
    mechanism, rounds = ledger.mechanism(), config.federation.rounds
    if ledger.header.plan is None or ledger.header.plan.rounds != rounds:
        return None
    exact = ledger.released_rounds.is_exact and len(ledger.releases) == rounds
    if mechanism is None or [count for _, count in mechanism.parts] != [rounds] or not exact:
        return None
    return Claim(mechanism=mechanism, delta=stated.delta, deterministic=stated.epsilon)


def certificate_of(config: Config, ledger: Ledger, stated: Guarantee) -> Certificate | None:
    """Return the certificate of a finished run; None if it cannot have one, or no certified epsilon is below its
    epsilon."""
    claim = certificate_claim(config, ledger, stated)
    if claim is None:
        return None
    try:
        return certificates.cached_or_new_certificate(claim, samples=certificates.SAMPLES)
    except CalibrationError:
        return None
