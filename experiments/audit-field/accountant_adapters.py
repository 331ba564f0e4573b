"""Functions from the fields of a setting to the epsilon of a published accountant, called as its documentation says.

They return None if the accountant declares that it does not support the setting. They pass `noise_multiplier`
unchanged: as int for whole numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

AccountantFunction = Callable[[dict[str, Any], int], float | None]
"""Function from a setting's fields and an ignored seed to an epsilon, or None."""


def dp_accounting_pld(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by dp-accounting's PLDAccountant with its defaults."""
    from dp_accounting.pld import PLDAccountant

    return _dp_accounting_epsilon(PLDAccountant, given)


def dp_accounting_rdp(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by dp-accounting's RdpAccountant with its defaults."""
    from dp_accounting.rdp import RdpAccountant

    return _dp_accounting_epsilon(lambda relation: RdpAccountant(neighboring_relation=relation), given)


def opacus_rdp(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by opacus.accountants.RDPAccountant with its defaults."""
    return _opacus_epsilon("rdp", given)


def opacus_prv(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by opacus.accountants.PRVAccountant at its default error."""
    return _opacus_epsilon("prv", given)


def opacus_gdp(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by opacus.accountants.GaussianAccountant, which warns that it can underestimate."""
    return _opacus_epsilon("gdp", given)


def flower_rdp(given: dict[str, Any], seed: int = 0) -> float | None:
    """Return epsilon by Flower's RdpAccountant (flwr[dp])."""
    from flwr.supercore.privacy_accounting import (
        GaussianPrivacyEvent,
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    if given["releases_per_cohort"] > 1:
        return None
    methods = {"all": "NO_AMPLIFICATION", "poisson": "POISSON", "fixed": "WITHOUT_REPLACEMENT"}
    relations = {"add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}
    try:
        config = PrivacyConfig(
            target_delta=given["delta"],
            population_size=given["clients"],
            neighboring_relation=NeighboringRelation[relations[given["adjacency"]]],
            sampling_method=SamplingMethod[methods[given["sampling"]]],
        )
        accountant = RdpAccountant(config)
        event = GaussianPrivacyEvent(given["noise_multiplier"], given["cohort"], given["clients"])
        accountant.compose(event, given["rounds"])
    except (ValueError, KeyError):
        return None
    return float(accountant.get_epsilon(given["delta"]))


BUILT_IN: dict[str, dict[str, AccountantFunction]] = {
    "dp-accounting": {"dp-accounting PLD": dp_accounting_pld, "dp-accounting RDP": dp_accounting_rdp},
    "opacus": {"opacus RDP": opacus_rdp, "opacus PRV": opacus_prv, "opacus GDP": opacus_gdp},
    "flower": {"flower RDP": flower_rdp},
}


PACKAGES = {
    "dp-accounting": ("dp_accounting", "dpfed[train]"),
    "opacus": ("opacus", "dpfed[train]"),
    "flower": ("flwr", "dpfed[flower]"),
}
"""Module of each accountant, and the extra of this package that installs it."""


def _dp_accounting_epsilon(make: Callable[[Any], Any], given: dict[str, Any]) -> float | None:
    import dp_accounting
    from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError

    relation = {
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }[given["adjacency"]]
    event: Any = dp_accounting.GaussianDpEvent(given["noise_multiplier"])
    if given["releases_per_cohort"] > 1:
        event = dp_accounting.SelfComposedDpEvent(event, given["releases_per_cohort"])
    if given["sampling"] == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(given["cohort"] / given["clients"], event)
    elif given["sampling"] == "fixed":
        event = dp_accounting.SampledWithoutReplacementDpEvent(given["clients"], given["cohort"], event)
    accountant = make(relation)
    try:
        accountant.compose(event, given["rounds"])
    except (UnsupportedEventError, NotImplementedError):
        return None
    return float(accountant.get_epsilon(given["delta"]))


def _opacus_epsilon(kind: str, given: dict[str, Any]) -> float | None:
    from opacus.accountants import create_accountant

    if given["sampling"] == "fixed" or given["adjacency"] != "add-remove" or given["releases_per_cohort"] > 1:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant = create_accountant(kind)
        accountant.history = [(given["noise_multiplier"], given["cohort"] / given["clients"], given["rounds"])]
        return float(accountant.get_epsilon(given["delta"]))
