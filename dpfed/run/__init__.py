"""The loop of a run, its folder, checkpoint, ledger book and summary; and the call `dpfed.run(...)`.

The call is made in `dpfed.api.run`, above this folder, since a run ends with its report. A module is callable if its
class is: so `dpfed.run(...)` and `from dpfed.run import loop` are both what they look like.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """A module that can be called; `inspect.signature` sees the function, pickle the module."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__wrapped__(*arguments, **named)

    @property
    def __wrapped__(self) -> Any:
        return importlib.import_module("dpfed.api.run").run

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableRoom
