"""A round's terms in Flower's messages."""

from __future__ import annotations

from dataclasses import asdict

from flwr.app import ConfigRecord, RecordDict

from dpfed.engines.round_terms import RoundTerms, checked
from dpfed.errors import ConfigError

RECORD = "dpfed"
"""The name of this package's ConfigRecord in messages and replies."""


def to_record(terms: RoundTerms) -> ConfigRecord:
    return ConfigRecord(asdict(terms))


def read_terms(content: RecordDict) -> RoundTerms:
    """On the node, of a message. ConfigError where the server is not a ClientLevelStrategy, WireError for terms that no
    such server sends."""
    if RECORD not in content.config_records:
        raise ConfigError(
            f"a message without the record {RECORD!r}: client_mod needs dpfed's ClientLevelStrategy on the server. "
            "Wrap its strategy, or take the mod out of ClientApp(mods=[...])."
        )
    return checked(dict(content.config_records[RECORD]))
