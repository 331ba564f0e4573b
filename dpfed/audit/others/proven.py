"""What is proven of each setting: a lower bound by a pair of neighbours, an upper bound by an account.

They are kept in proven.json, as computing them takes minutes: python -m dpfed.audit.others.proven
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accounting import AccountingError, guarantee
from accounting.compose import lower_bound
from dpfed.audit.others.accountant_settings import SETTINGS, Setting

_FILE = Path(__file__).parent / "proven.json"


@dataclass(frozen=True, kw_only=True)
class Proven:
    """Of a setting's epsilon: no account can state less than at_least, and at_most is a guarantee."""

    at_least: float
    at_most: float


def computed(setting: Setting) -> Proven:
    """Both bounds by `accounting`. Direction of error: outwards."""
    above = guarantee(setting.mechanism, delta=setting.delta, with_lower_bound=False)
    try:
        below = lower_bound.epsilon(setting.mechanism, delta=setting.delta)
    except AccountingError:
        below = 0.0
    return Proven(at_least=min(below, above.epsilon), at_most=above.epsilon)


@cache
def proven() -> dict[str, Proven]:
    """Of every setting, by its words."""
    return {words: Proven(**bounds) for words, bounds in json.loads(_FILE.read_text()).items()}


def write() -> None:
    """Compute what the file does not have yet; delete it to compute all anew."""
    found = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    known: dict[object, Proven] = {}
    for setting in SETTINGS:
        same = (str(setting.mechanism), setting.delta)
        if str(setting) in found:
            known[same] = Proven(**found[str(setting)])
            continue
        bounds = known[same] = known.get(same) or computed(setting)
        found[str(setting)] = {"at_least": bounds.at_least, "at_most": bounds.at_most}
        print(setting, bounds, flush=True)
        _FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()
