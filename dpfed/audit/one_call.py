"""Audits of a method by its name, and of a user's function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dpfed.audit.functions.audit import audit_function
from dpfed.audit.verdict import Verdict
from dpfed.config.own_code import named_files
from dpfed.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., object])

_SETTING = "dpfed_audit_setting"


def claim(claimed: object, **setting: object) -> Callable[[Function], Function]:
    """Declare the claim about a function, and the settings of its audit (those of `functions.audit.audit_function`).

    >>> import accounting, dpfed.audit
    >>> @dpfed.audit.claim(accounting.Gaussian(noise_multiplier=1.0, adjacency="add-remove"), clip_norm=1.0)
    ... def clipped_sum(updates, seed): ...
    >>> settings_beside(clipped_sum)["clip_norm"]
    1.0
    """

    def mark(function: Function) -> Function:
        setattr(function, _SETTING, {"claim": claimed, **setting})
        return function

    return mark


def upload(what: str | Callable[..., Any], **setting: Any) -> Verdict:
    """Audit a method of this package by its name, or a function `f(updates, seed)`.

    Settings: those of `round.method_setting.audit_upload` for a method, of `functions.audit.audit_function` for a
    function. Settings of `@claim` on the function are its defaults.
    Claim: a sound mechanism fails with probability at most 1 - confidence; a pass is no proof.
    Source: `dpfed.audit.statistics` (exact tests with a stated error probability); docs/audit.md.
    Adjacency: that of the claim. Direction of error: an epsilon that the audit finds is a lower bound.
    Errors: ConfigError for a name, function or claim that cannot be audited; RunError if the time limit is exceeded.

    >>> import accounting, dpfed.audit
    >>> noise = accounting.Gaussian(noise_multiplier=1.0, adjacency="add-remove")
    >>> found = dpfed.audit.upload(lambda updates, seed: updates.sum(axis=0), claim=noise, trials=100, arrays="numpy")
    >>> found.verdict  # no noise is added
    'fail'
    """
    if isinstance(what, str):
        from dpfed.audit.round.method_setting import audit_upload

        return audit_upload(what, **setting)
    if not callable(what):
        raise ConfigError(f"dpfed.audit.upload({what!r}): must be a method's name or a function f(updates, seed).")
    given = {**settings_beside(what), **setting}
    if "claim" not in given:
        raise ConfigError(
            "claim: is missing, so that there is nothing to test. Give claim=(epsilon, delta), or a mechanism such as "
            "accounting.Gaussian(noise_multiplier=1.0, adjacency='add-remove'); a test of a mechanism is stronger."
        )
    return audit_function(what, **given)


def settings_beside(what: Callable[..., object]) -> dict[str, Any]:
    """Return the settings of `@claim` on a function, or on the `__call__` of an object."""
    found: dict[str, object] = getattr(what, _SETTING, None) or getattr(type(what).__call__, _SETTING, {})
    return found


def accountant(*_: object, **__: object) -> None:
    """Raise ConfigError: audits of other accountants have moved to the project's experiments."""
    raise ConfigError("dpfed.audit.accountant has moved: `python experiments/audit-field/accountants.py NAME`.")


def loaded_functions() -> dict[str, Callable[..., object]]:
    """Return the callables in the files of --load."""
    files = {str(Path(file.path)) for file in named_files()}
    found: dict[str, Callable[..., object]] = {}
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in files:
            for name, one in vars(module).items():
                if callable(one) and not isinstance(one, type):
                    found.setdefault(name, one)
    return found


def names_of_loaded_functions() -> list[str]:
    """Return the names of the public functions that the files of --load define, for a message."""
    files = {str(Path(file.path)) for file in named_files()}
    home = {name for name, module in sys.modules.items() if getattr(module, "__file__", None) in files}
    return sorted(
        name
        for name, one in loaded_functions().items()
        if not name.startswith("_") and getattr(one, "__module__", None) in home
    )
