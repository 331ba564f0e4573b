"""Audit of an accountant: an epsilon below a proven lower bound is refuted by a pair of neighbours.

python experiments/audit-field/accountants.py dp-accounting       # or opacus, flower, MODULE:FUNCTION; --all rows
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from accountant_adapters import BUILT_IN, PACKAGES, AccountantFunction
from accountant_settings import SETTINGS, ProvenBounds, Setting, stored_bounds

from accounting.arrays import Floats
from accounting.rounding import downwards, upwards
from dpfed.audit.functions.process import FunctionProcess
from dpfed.audit.trials import Progress
from dpfed.audit.verdict import verdict_with_scope
from dpfed.errors import ConfigError, RunError

_ROUNDING = 1e-6
"""Largest relative difference between two epsilons that counts as rounding."""
_LOOSE = 1.05
_WITHOUT_MEANING = 100.0
"""Ratio of a stated epsilon to the proven one, above which the stated bound is meaningless."""

VERDICTS = ("refuted", "right", "loose", "no answer", "error")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting: the accountant's epsilon (`stated_epsilon`), the proven bounds, and the verdict.

    verdict: refuted (below the proven lower bound), right (at most 5% above the proven upper bound), loose (more than
    5% above it), no answer (the accountant declares that it does not support the setting), error (the accountant
    raised, exceeded the time limit, or returned no number)
    """

    accountant: str
    setting: Setting
    stated_epsilon: float | None
    proven: ProvenBounds
    verdict: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "accountant": self.accountant,
            "setting": str(self.setting),
            "stated": self.stated_epsilon
            if self.stated_epsilon is None or math.isfinite(self.stated_epsilon)
            else None,
            "at_least": self.proven.at_least,
            "at_most": self.proven.at_most,
            "verdict": self.verdict,
            "detail": self.detail,
        }


@dataclass(frozen=True, kw_only=True)
class AccountantAudit:
    """Outcome of `audit_accountant`: one case for each setting and each accountant of the package `name`."""

    name: str
    cases: tuple[Case, ...]

    def cases_with(self, verdict: str) -> tuple[Case, ...]:
        """Return the cases with this verdict."""
        return tuple(one for one in self.cases if one.verdict == verdict)

    @property
    def verdict(self) -> str:
        """Verdict: fail if a case is refuted, pass if more answers are meaningful bounds than errors, else
        inconclusive.
        """
        if self.cases_with("refuted"):
            return "fail"
        return "pass" if self._number_of_bounds > len(self.cases_with("error")) else "inconclusive"

    @property
    def _number_of_bounds(self) -> int:
        """Number of answers that state a meaningful bound."""
        loose = [one.stated_epsilon or 0.0 for one in self.cases_with("loose")]
        at_most = [one.proven.at_most for one in self.cases_with("loose")]
        said = [one <= _WITHOUT_MEANING * most + _ROUNDING for one, most in zip(loose, at_most, strict=True)]
        return len(self.cases_with("right")) + sum(said)

    @property
    def verdict_in_full(self) -> str:
        """Verdict, and the settings it is limited to."""
        return verdict_with_scope(self.verdict, "on these settings")

    def as_text(self) -> str:
        """Return the verdict in one or two sentences, with the number of settings behind it."""
        failed = len(self.cases_with("error"))
        answered = len(self.cases) - len(self.cases_with("no answer")) - failed
        if self.verdict == "fail":
            wrong = len(self.cases_with("refuted"))
            found = (
                f"{wrong} of {answered} stated epsilons are too small: a pair of neighbours attains a larger epsilon."
            )
        elif not answered:
            found = "it stated no epsilon for any of the settings."
        elif not self._number_of_bounds:
            found = f"all of {answered} stated epsilons are infinite or above a hundred times the proven epsilon."
        else:
            found = f"none of {answered} stated epsilons is below the epsilon that a pair of neighbours attains."
        return f"{found} It failed in {failed} of {len(self.cases)} settings." if failed else found

    in_words = as_text  # its name up to version 0.3

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of `dpfed audit accountant --json`."""
        counts = {kind: len(self.cases_with(kind)) for kind in VERDICTS}
        return {
            "accountant": self.name,
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "words": self.as_text(),
            "counts": counts,
            "cases": [one.to_dict() for one in self.cases],
        }


def audit_accountant(
    what: str | Callable[..., float | None],
    *,
    settings: Sequence[Setting] = SETTINGS,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> AccountantAudit:
    """Request the epsilon of each setting from an accountant, in a separate process.

    what: "dp-accounting", "opacus", "flower", "MODULE:FUNCTION", or a function. A function is called with the fields of
    a `Setting` by name; it returns epsilon, or None if it does not support the setting. seconds: time limit of one
    answer.
    Claim: a correct accountant is never refuted: every lower bound is proven by the neighbours that the case names.
    """
    found: list[Case] = []
    say = progress or (lambda words: None)
    name, asked = _named_accountant(what)
    for label, ask in asked.items():
        found += _cases_of_accountant(label, ask, settings, seconds, say)
    return AccountantAudit(name=name, cases=tuple(found))


@dataclass(frozen=True, kw_only=True)
class KeywordAccountant:
    """User's accountant function, called with the fields of a setting as keyword arguments."""

    function: Callable[..., float | None]

    def __call__(self, given: dict[str, object], seed: int) -> float | None:
        answer: object = self.function(**given)
        return None if answer is None else _number_of_answer(answer)


def _number_of_answer(answer: object) -> float:
    """Return a number, or the element of an array or tensor of one, as float. Errors: ConfigError for anything else."""
    array = np.asarray(answer.detach().cpu() if hasattr(answer, "detach") else answer)
    collected = isinstance(answer, bool | str | bytes | list | tuple | set | frozenset | dict)
    if collected or array.size != 1 or array.dtype.kind not in "iuf":
        raise ConfigError(f"the accountant returned {answer!r:.80}: must return a number or None.")
    return float(array.reshape(()))


def _named_accountant(what: str | Callable[..., float | None]) -> tuple[str, dict[str, AccountantFunction]]:
    if callable(what):
        name = str(getattr(what, "__name__", "accountant"))
        return name, {name: _keyword_accountant(name, what)}
    if what in BUILT_IN:
        module, install = PACKAGES[what]
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"accountant={what!r}: {module} is not installed. Install it: pip install '{install}'.")
        return what, BUILT_IN[what]
    module, _, function = what.partition(":")
    if not function:
        raise ConfigError(f"accountant={what!r}: must be {', '.join(BUILT_IN)}, or MODULE:FUNCTION.")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"accountant={what!r}: {error}. Is the module on the path?") from None
    return what, {what: _keyword_accountant(what, found)}


def _keyword_accountant(name: str, found: object) -> KeywordAccountant:
    """Return the accountant for calls by keyword. Errors: ConfigError if it does not accept a setting's fields."""
    wanted = [field.name for field in fields(Setting)]
    if not callable(found):
        raise ConfigError(
            f"accountant={name!r}: is {type(found).__name__}, must be a function f(*, {', '.join(wanted)})."
        )
    try:
        inspect.signature(found).bind(**dict.fromkeys(wanted))
    except TypeError as error:
        raise ConfigError(
            f"accountant={name!r}: {error}. It is called with keyword arguments, f(*, {', '.join(wanted)}); accept the "
            "arguments that you do not need as **rest."
        ) from None
    except ValueError:  # a function written in C may have no signature
        pass
    return KeywordAccountant(function=found)


class _AskedProcess(FunctionProcess):
    """Process of an accountant, whose time limit is that of one question."""

    def restart_time_limit(self) -> None:
        self._until = time.monotonic() + self._limit

    def numbers_of(self, given: object) -> Floats:
        """Return the numbers in the answer for `given`. ConfigError if the accountant raises."""
        (found,) = self.outputs((given,), [0], [0])
        if found.raised:
            raise ConfigError(f"the function under audit fails: {found.raised}")
        return found.numbers


def _cases_of_accountant(
    label: str, ask: AccountantFunction, settings: Sequence[Setting], seconds: float, say: Progress
) -> list[Case]:
    found: list[Case] = []
    while len(found) < len(settings):
        with _AskedProcess(ask, arrays="numpy", batched=False, time_limit=seconds) as process:
            for k in range(len(found), len(settings)):
                say(f"{label}: {k} of {len(settings)}")
                process.restart_time_limit()
                try:
                    answer = process.numbers_of(settings[k].to_dict())
                except (ConfigError, RunError) as error:
                    found.append(_case_of_setting(label, settings[k], None, f"{error}"))
                    if isinstance(error, RunError):
                        break  # the process has ended or must be killed; a new one serves the remaining settings
                    continue
                found.append(_case_of_setting(label, settings[k], float(answer[0]) if answer.size else None, ""))
    return found


def _case_of_setting(label: str, setting: Setting, stated: float | None, error: str) -> Case:
    known = stored_bounds()[str(setting)]
    verdict, detail = _judged_case(setting, stated, known)
    if error:
        verdict, detail = "error", error
    return Case(accountant=label, setting=setting, stated_epsilon=stated, proven=known, verdict=verdict, detail=detail)


def _judged_case(setting: Setting, stated: float | None, known: ProvenBounds) -> tuple[str, str]:
    if stated is None:
        return "no answer", ""
    if not stated >= known.at_least * (1 - _ROUNDING):  # NaN, too
        return (
            "refuted",
            f"{upwards(stated)} is stated, but epsilon is at least {downwards(known.at_least)}: {setting.neighbours}",
        )
    if stated > _LOOSE * known.at_most + _ROUNDING:
        return "loose", f"{upwards(stated)} is stated, but {upwards(known.at_most)} is proven"
    return "right", ""


def main(words: list[str]) -> int:
    """Audit the named accountant, print the settings that it gets wrong (--all: every setting); return 1 for "fail"."""
    sys.path.insert(0, str(Path.cwd()))
    (what,) = [word for word in words if word != "--all"]
    found = audit_accountant(what)
    print(f"{found.verdict_in_full}: {found.as_text()}")
    for one in found.cases:
        if "--all" in words or one.verdict in ("refuted", "error"):
            stated = "-" if one.stated_epsilon is None else upwards(one.stated_epsilon)
            bounds = f"at least {downwards(one.proven.at_least)}, at most {upwards(one.proven.at_most)}"
            print(f"{one.accountant}, {one.setting}: stated {stated}, {bounds}: {one.verdict} {one.detail}")
    print(", ".join(f"{count} {kind}" for kind, count in found.to_dict()["counts"].items()))
    return int(found.verdict == "fail")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
