"""Limitations of a stated epsilon, as texts, and the epsilon against parties that see more than the released models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import binom

from accounting.compose import accountant
from accounting.mechanisms import Composed, Subsampled
from accounting.mechanisms.adjacency import Adjacency
from dpfed.config.samples_tables import CustomFederation
from dpfed.config.tables import Config
from dpfed.mechanisms.bernoulli import bound_on_other_clients, edge_of_probabilities
from dpfed.methods.catalogue import method_specification
from dpfed.methods.choices import sends_mask_probabilities
from dpfed.methods.records import AnyTarget
from dpfed.participation.custom import LIMITS as CUSTOM_SAMPLER
from dpfed.participation.custom import custom_sampler

ALONE = "the secure sum runs in one process: it shows the algebra and the bytes, not secrecy."
ALONE_WITHOUT_NOISE = (
    "uploads, from the operator of this process: the secure sum is simulated, and its total has no noise"
)
"""Limitation of a run whose secure sum is simulated in one process and has no noise."""
_APART = "the secure sum hides uploads from the server only where nodes are other machines, in other hands."
_APART_WITHOUT_NOISE = f"the total of the secure sum, which has no noise; {_APART}"
CHARGED_LOSSES = (
    "losses of clients that depend on data or on earlier results, or in sampled cohorts are likelier for some clients "
    "than for others: the noise that arrived is charged (privacy.missing_shares = 'charged')"
)
LOSSES_OF_03 = (
    "losses of clients that depend on data or on earlier results: the noise that arrived is charged "
    "(privacy.missing_shares = 'charged')"
)
"""Limitation of runs that charge the noise that arrived; summaries of version 0.2 lack it, those of 0.3 say less."""


SUM_MAY_BE_SEEN = "interrupted; if the server opened the secure sum before, server_epsilon counts it"
"""Reason in the ledger of a round that a resumed run repeats: an end before the charge may follow the unmasking."""


def limitation_on_nodes(note: str) -> str:
    """Return a limitation of a run, adapted to clients that are nodes of an engine, possibly on other machines."""
    return note.replace(ALONE, _APART).replace(ALONE_WITHOUT_NOISE, _APART_WITHOUT_NOISE)


def limitations_of_guarantee(of_samples: Sequence[str], config: Config, decodes_first: bool) -> tuple[str, ...]:
    """Return the limitations of a stated epsilon, as texts.

    of_samples: limitations for public and validation samples (`public_samples`, `validation_samples`); they come first
    decodes_first: True if a trusted server decodes each upload before it is clipped
    """
    notes = list(of_samples)
    if isinstance(config.federation, CustomFederation) and config.privacy is not None:
        who = custom_sampler(config.federation.sampler)
        notes.append(CUSTOM_SAMPLER.format(name=who.name, distribution=who.distribution))
    if decodes_first:
        notes.append(
            "uploads, from the server that sums: it decodes and clips each one, so it must be trusted "
            "(privacy.release = 'uploads' needs no such trust)"
        )
    if method_specification(config.method.name).dithered:
        notes.append(
            "uploads, from the server that sums: it decodes each one and knows the noise on it, so it must be trusted, "
            "and the clients must draw their noise (dp-fedavg with aggregation.kind = 'protocol' needs no such trust)"
        )
    if config.aggregation.kind != "plain":
        notes.append(_secure_sum_limitation(config))
    if config.privacy is not None and config.privacy.bernoulli and config.privacy.release == "sum":
        notes.extend(_other_clients_assumption(config))
    if config.privacy is not None and config.privacy.missing_shares == "charged":
        notes.append(CHARGED_LOSSES)
    if config.privacy is not None and config.run.randomness == "simulated":
        notes.append("noise and cohorts come from the seed (run.randomness = 'simulated'): do not release this model")
    if config.privacy is not None and config.data.partition == "resampled":
        notes.append(
            "single samples of the pool: clients draw theirs from it (data.partition = 'resampled'), one may be with "
            "many of them, and the unit is a client"
        )
    if config.local.record is not None:
        notes.append(
            "the unit is a record: all of a client's data together, its number of records and who took part are not "
            "protected"
        )
        if config.run.randomness == "simulated":
            notes.append(
                "noise and batches come from the seed (run.randomness = 'simulated'): do not release this model"
            )
    return tuple(notes)


def _secure_sum_limitation(config: Config) -> str:
    """Return the limitation of a secure sum that is simulated in one process."""
    if config.privacy is None:
        return ALONE_WITHOUT_NOISE
    coins, own = config.privacy.bernoulli, config.privacy.bernoulli or config.privacy.placement == "clients"
    notes = [
        "" if own else "the noise is the server's, which sees the sum without it; ",
        ALONE,
        " The server knows who took part: epsilon with sampling is against those who see the models but not the "
        "cohorts",
    ]
    if own:
        randomness = "draw their Bernoulli samples" if coins else "add their noise"
        notes.append(f". Clients must {randomness}, which the server cannot check")
    elif config.federation.sampling != "all":
        notes.append(
            ". Under masks nothing bounds an upload: clients that send what this code would not can show in a sum who "
            "took part, and then hostile_clients_epsilon holds"
        )
        if config.federation.sampling == "poisson" and config.privacy.adjacency in (None, "add-remove"):
            notes.append(", which add-remove neighbours do not have")
    return "".join(notes)


def _other_clients_assumption(config: Config) -> list[str]:
    """Return the assumption of epsilon on the Bernoulli samples of other clients, as a list of at most one text."""
    if config.aggregation.kind == "plain" and config.data.partition != "nodes":
        return []
    masks = sends_mask_probabilities(config, method_specification(config.method.name))
    edge = edge_of_probabilities(config, masks=masks)
    kept = f"in [{edge:.6g}, {1 - edge:.6g}]"
    if bound_on_other_clients(config) == "near-reference":
        kept = "within linf_clip of the round's (privacy.others)"
    kept += "" if config.federation.sampling == "all" else ", and on their clip norms, because cohorts are sampled"
    return [f"against other clients that deviate: epsilon relies on their Bernoulli samples, of probabilities {kept}"]


_SHARE_OF_DELTA = 0.02
"""Fraction of delta that is charged for clients drawn in more rounds than the account assumes."""


@dataclass(frozen=True, kw_only=True)
class EpsilonWithKnownCohorts:
    """Epsilon of a client, at the run's delta, against an observer who knows all cohorts.

    It composes `rounds` rounds without sampling.

    charged: part of delta for clients that are drawn in more than `rounds` rounds
    """

    epsilon: float
    rounds: int
    charged: float


def epsilon_against_server(
    config: Config, privacy_target: AnyTarget | None, released: int
) -> EpsilonWithKnownCohorts | None:
    """Return epsilon against the server; None unless the run has a secure sum with the clients' noise.

    Claim: epsilon holds against a server that is honest but curious and colludes with no client. It sees all but the
    uploads: drawn clients, dropped clients, every sum. Its view of a client is therefore the rounds in which the client
    was drawn, without their sampling. `released` counts interrupted rounds, too, whose sums it may have seen
    (`SUM_MAY_BE_SEEN`). Adjacency: that of the run. Direction of error: upper bound.
    """
    return _epsilon_without_sampling(config, privacy_target, released, noise_of="clients")


def epsilon_against_hostile_clients(
    config: Config, privacy_target: AnyTarget | None, released: int
) -> EpsilonWithKnownCohorts | None:
    """Return epsilon against observers of the models if all other clients may send arbitrary uploads.

    Returns None unless the run has a secure sum with the server's noise. A trusted sum bounds every upload, so the
    stated epsilon itself holds there. With noise shares or Bernoulli samples, clients that deviate may omit the noise.
    Returns None for sampled cohorts under add-remove: a client that takes part displaces another client, whose upload
    has no bound, in every sum that is filled up to a fixed number of uploads.

    Claim: masked uploads have no enforced bound, so other clients may reveal in a sum who took part, including the
    differing client, but no more. Given who took part, the release is post-processing of this client's integers with
    the server's noise (docs/theory.md, section 7). Adjacency: that of the run. Direction of error: upper bound.
    """
    return _epsilon_without_sampling(config, privacy_target, released, noise_of="server")


def _epsilon_without_sampling(
    config: Config,
    privacy_target: AnyTarget | None,
    released: int,
    *,
    noise_of: Literal["clients", "server"],
) -> EpsilonWithKnownCohorts | None:
    """Return epsilon of m rounds without sampling, at the run's delta less the charged probability.

    A client is drawn in more than m rounds with probability at most delta / 50, which is charged to delta. Draws do not
    depend on data, so delta(m rounds) + P(more than m rounds) is a valid delta for every client.

    noise_of: the party whose noise is in the secure sum; for other runs the result is None
    """
    if config.aggregation.kind == "plain" or privacy_target is None or not released:
        return None
    if privacy_target.unit == "record" or privacy_target.integer_rows is None:
        return None
    if privacy_target.private.in_rows != (noise_of == "clients"):
        return None
    most, charged, once = released, 0.0, privacy_target.mechanism
    if isinstance(once, Subsampled):
        if once.adjacency is Adjacency.ADD_REMOVE:
            return None
        chance = config.federation.cohort / config.federation.clients
        most = max(int(binom.isf(_SHARE_OF_DELTA * privacy_target.delta, released, chance)), 1)
        charged = float(binom.sf(most, released, chance))
        once = once.mechanism
    if charged >= privacy_target.delta:
        return None
    run = Composed(parts=((once, most),))
    epsilon = accountant.epsilon(run, delta=privacy_target.delta - charged)
    return EpsilonWithKnownCohorts(epsilon=epsilon, rounds=most, charged=charged)
