"""Rounds that may end without a result: only those where the end does not reveal who took part.

Whether a round ends is published (ledger, metrics, summary), so it is a release. It depends on dropouts, which do not
depend on data, and on the number of participants. Claim: in every private run that is accepted, the distribution of
"this round ended", and of every published count, is equal for all neighbours, given the drawn clients:

- A plain sum with the server's noise, or of Bernoulli samples, never ends without a result: the uploads that arrived,
even none, are summed, noised or padded, divided by a public number, and charged. - Shares of noise of the clients (too
few of them are too little noise) and secure sums (too few survivors) may end without a result. Their number of
participants is fixed: the cohort under fixed-size sampling; K under Poisson sampling with a cap of K (clients that were
not drawn fill the sum up; beyond K some are left out, which the account includes); all clients with federation.sampling
= "all" if neighbours have equally many clients (zero-out, replace-one). - So add-remove is refused if one client less
is one participant less: with "all", with a fixed number of uploads equal to that of clients, and with shares of noise.
- privacy.release = "uploads" and [local.record] charge every upload before any client trains, and participation counts
as public there.

Realised counts go to diagnostics.jsonl, which no epsilon covers. The exception is privacy.missing_shares = "charged",
whose ledger lines say how many shares arrived of a fixed number: a count that depends on dropouts alone, and is the
charge.
"""

from __future__ import annotations

from accounting.mechanisms.adjacency import Adjacency
from dpfed.config.tables import Config
from dpfed.errors import ConfigError


def may_end(config: Config, tolerance: float | None) -> bool:
    """Return True if a round can end without a result. `tolerance`: fraction of uploads that may be missing; None:
    any."""
    return config.aggregation.kind != "plain" or tolerance is not None


def participants_follow_clients(config: Config, slots: int | None) -> bool:
    """Return True if one client removed is one participant removed from every sum.

    slots: number of uploads of every sum under Poisson sampling; None: one for each drawn client
    """
    federation = config.federation
    all_take_part = federation.sampling == "all" or (slots is not None and slots >= federation.clients)
    return all_take_part or (config.privacy is not None and config.privacy.placement == "clients")


def check_aborts(config: Config, *, adjacency: Adjacency, slots: int | None, tolerance: float | None) -> None:
    """Raise ConfigError for a private sum whose missing result would reveal who took part (the module lists the safe
    ones).
    """
    privacy, federation, kind = config.privacy, config.federation, config.aggregation.kind
    assert privacy is not None
    if kind == "plain" and privacy.placement == "server" and tolerance is not None:
        raise ConfigError(
            f"aggregation.tolerance={tolerance:g} with [privacy] and noise that is not the clients': a plain sum never "
            "has to end, since its noise does not get lost; ending would tell how many took part. Remove "
            "aggregation.tolerance, or let the clients add the noise (privacy.placement='clients')."
        )
    if not may_end(config, tolerance):
        return
    if federation.sampling not in ("fixed", "all") and slots is None:
        raise ConfigError(
            f"federation.sampling={federation.sampling!r} with privacy.placement={privacy.placement!r} and "
            f"privacy.noise={privacy.noise or 'gaussian'!r}: whether there is a sum, and its noise, would "
            "depend on the secret cohort size. Use privacy.placement='server', federation.sampling 'fixed' or 'all', "
            "or privacy.noise='discrete-gaussian', whose sums have a fixed number of uploads."
        )
    if adjacency is Adjacency.ADD_REMOVE and privacy.placement == "clients":
        raise ConfigError(
            "privacy.adjacency='add-remove' with privacy.placement='clients': adding or removing a client adds or "
            "removes a share of noise, which no account covers. Use privacy.adjacency 'zero-out' or 'replace-one'."
        )
    if adjacency is Adjacency.ADD_REMOVE and participants_follow_clients(config, slots):
        raise ConfigError(
            f"privacy.adjacency='add-remove' with aggregation.kind={kind!r} and federation.sampling="
            f"{federation.sampling!r}, where all {federation.clients} clients take part in every sum: removing a "
            "client removes a participant, and a missing sum would reveal it. Use privacy.adjacency 'zero-out', or "
            "aggregation.kind='plain'."
        )
    if slots is not None and slots > federation.clients:
        raise ConfigError(
            f"federation.cohort_cap={slots} with aggregation.kind={kind!r}: every upload needs a client, and there "
            f"are {federation.clients}. Use at most as many, or kind 'plain'."
        )
