"""What a stated epsilon does not cover, in words."""

from __future__ import annotations

from collections.abc import Sequence

from dpfed.config.tables import Config
from dpfed.methods.catalogue import method
from dpfed.methods.choices import edge_of, others_of, sends_coins

ALONE = "the secure sum runs in one process: it shows the algebra and the bytes, not secrecy."
ALONE_WITHOUT_NOISE = "uploads, from whoever runs this process: the secure sum is simulated, and its total has no noise"
"""What is not protected by a secure sum in one process."""
_APART = "the secure sum hides uploads from the server only where nodes are other machines, in other hands."
_APART_WITHOUT_NOISE = f"the total of the secure sum, which has no noise; {_APART}"
CHARGED_LOSSES = (
    "losses of clients that depend on data or on earlier results: the noise that arrived is charged "
    "(privacy.missing_shares = 'charged')"
)
"""Limitation of runs that charge the noise that arrived; runs of version 0.2 do not name it."""


def on_nodes(note: str) -> str:
    """Return the note of a run whose clients are an engine's nodes, which may be other machines."""
    return note.replace(ALONE, _APART).replace(ALONE_WITHOUT_NOISE, _APART_WITHOUT_NOISE)


def not_protected(of_samples: Sequence[str], config: Config, decodes_first: bool) -> tuple[str, ...]:
    """What a stated epsilon does not cover, in words: notes on samples (`public_samples`, `validation_samples`), then
    what the configuration says."""
    notes = list(of_samples)
    if decodes_first:
        notes.append(
            "uploads, from the server that sums: it decodes and clips each one, so it must be trusted "
            "(privacy.release = 'uploads' needs no such trust)"
        )
    if method(config.method.name).dithered:
        notes.append(
            "uploads, from the server that sums: it decodes each one and knows the noise on it, so it must be trusted, "
            "and the clients must draw their noise (dp-fedavg with aggregation.kind = 'protocol' needs no such trust)"
        )
    if config.aggregation.kind != "plain":
        notes.append(_of_secure_sums(config))
    if _by_coins(config) and config.privacy is not None and config.privacy.release == "sum":
        notes.extend(_of_other_coins(config))
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


def _of_secure_sums(config: Config) -> str:
    """What a secure sum in one process does not do."""
    if config.privacy is None:
        return ALONE_WITHOUT_NOISE
    coins = _by_coins(config)
    own = coins or config.privacy.placement == "clients"
    notes = [
        "" if own else "the noise is the server's, which sees the sum without it; ",
        ALONE,
        " The server knows who took part: epsilon with sampling is against those who see the models but not the "
        "cohorts",
    ]
    if own:
        randomness = "draw their coins" if coins else "add their noise"
        notes.append(f". Clients must {randomness}, which the server cannot check")
    elif config.federation.sampling != "all":
        notes.append(
            ". Under masks nothing bounds an upload: clients that send what this code would not can show in a sum who "
            "took part, and then hostile_clients_epsilon holds"
        )
    return "".join(notes)


def _of_other_coins(config: Config) -> list[str]:
    """What a client's epsilon relies on of coins that other machines draw: a sum hides a coin among the others."""
    if config.aggregation.kind == "plain" and config.data.partition != "nodes":
        return []
    edge = edge_of(config, method(config.method.name))
    kept = f"in [{edge:.6g}, {1 - edge:.6g}]"
    if others_of(config) == "near-reference":
        kept = "within linf_clip of the round's (privacy.others)"
    return [f"against other clients that deviate: epsilon relies on their coins, of probabilities {kept}"]


def _by_coins(config: Config) -> bool:
    """Whether a private run's randomness is the clients' coins."""
    return config.privacy is not None and sends_coins(config, method(config.method.name))
