"""`dpfed.audit.upload`: the audit of a method by its name, or of anybody's function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dpfed.audit.functions.audit import FunctionAudit, audit_function
from dpfed.audit.others.accountants import AccountantAudit, audit_accountant
from dpfed.config import registered
from dpfed.config.own_code import named_files
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from dpfed.audit.round.round_audit import UploadAudit

Function = TypeVar("Function", bound=Callable[..., Any])

_SETTING = "dpfed_audit_setting"


def claim(claimed: object, **setting: object) -> Callable[[Function], Function]:
    """Say beside a function what is claimed of it, and how it is to be called; see `functions.audit.audit_function`.

    @claim(accounting.Gaussian(noise_multiplier=1.0, adjacency="add-remove"), clip_norm=1.0)
    def clipped_sum(updates, seed): ...
    """

    def mark(function: Function) -> Function:
        setattr(function, _SETTING, {"claim": claimed, **setting})
        return function

    return mark


@overload
def upload(what: str, **setting: object) -> UploadAudit: ...
@overload
def upload(what: Callable[..., object], **setting: object) -> FunctionAudit: ...
def upload(what: str | Callable[..., Any], **setting: Any) -> FunctionAudit | UploadAudit:
    """Audit a method of this package by its name (`round.method_setting.audit_upload`), or a function
    `f(updates, seed)` (`functions.audit.audit_function`, which has the settings; those beside `@claim` are its
    defaults)."""
    if isinstance(what, str):
        from dpfed.audit.round.method_setting import audit_upload

        return audit_upload(what, **setting)
    if not callable(what):
        raise ConfigError(f"dpfed.audit.upload({what!r}): must be a method's name or a function f(updates, seed).")
    given = {**settings_beside(what), **setting}
    if "claim" not in given:
        raise ConfigError(
            "claim: is missing, so that there is nothing to test. Give claim=(epsilon, delta), or a mechanism such as "
            "accounting.Gaussian(noise_multiplier=1.0, adjacency='add-remove'), which a test can say more about."
        )
    return audit_function(what, **given)


def settings_beside(what: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of `@claim` on a function, or on the `__call__` of an object."""
    found: dict[str, Any] = getattr(what, _SETTING, None) or getattr(type(what).__call__, _SETTING, {})
    return found


def accountant(what: str | Callable[..., float | None], **setting: Any) -> AccountantAudit:
    """Audit an accountant: "dp-accounting", "opacus", "flower", "MODULE:FUNCTION" or a function
    (`others.accountants.audit_accountant`)."""
    return audit_accountant(what, **setting)


def loaded_function(name: str) -> Callable[..., Any] | None:
    """The function of this name (a - may stand for a _) in the files that --load named; None if there is none, or if
    the name is that of a method, which is audited as such (the function that makes its stages may have the name)."""
    if name in registered.own("method"):
        return None
    return loaded_functions().get(name.replace("-", "_"))


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


def own_names() -> list[str]:
    """Return the names of these functions that the files define, for a message."""
    files = {str(Path(file.path)) for file in named_files()}
    home = {name for name, module in sys.modules.items() if getattr(module, "__file__", None) in files}
    return sorted(
        name
        for name, one in loaded_functions().items()
        if not name.startswith("_") and getattr(one, "__module__", None) in home
    )
