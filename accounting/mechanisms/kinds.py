"""The kinds of releases: each with its description, and the module that has its account.

A new kind is a file with both and an entry here. Modules of accounts are loaded when an account is asked for, since
they bring the numerics.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.account import Account
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.gaussian import Gaussian
from accounting.mechanisms.integers import DiscreteGaussian, Skellam
from accounting.mechanisms.shares import GaussianShares


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A description, and where its `Account` is: "module:NAME"."""

    description: type[Any]
    account: str


KINDS: dict[str, Kind] = {
    kind.description.kind: kind
    for kind in (
        Kind(description=Gaussian, account="accounting.gaussian.account:GAUSSIAN"),
        Kind(description=GaussianShares, account="accounting.gaussian.account:SHARES"),
        Kind(description=DiscreteGaussian, account="accounting.integers.discrete_gaussian:ACCOUNT"),
        Kind(description=Skellam, account="accounting.integers.skellam:ACCOUNT"),
        Kind(description=BernoulliChannel, account="accounting.bernoulli.accounts:CHANNEL"),
        Kind(description=BernoulliAggregate, account="accounting.bernoulli.accounts:AGGREGATE"),
    )
}


def account_of(release: Any) -> Account:
    """The account of an unsampled release. UnsupportedMechanism where its kind has none."""
    kind = getattr(type(release), "kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedMechanism(f"{type(release).__name__}: no Renyi curve is implemented.")
    return _account(kind)


@cache
def _account(kind: str) -> Account:
    module, name = KINDS[kind].account.split(":")
    found: Account = getattr(import_module(module), name)
    return found
