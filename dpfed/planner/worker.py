"""The process that computes what takes long: `python -m dpfed.planner.worker`, a line of JSON in, one out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from accounting.errors import AccountingError, CalibrationError, UnsupportedMechanism
from dpfed.planner.answers import answer, curve, grid
from dpfed.planner.question import question_of
from dpfed.errors import DpfedError

_LIGHT = {"clients": 100, "cohort": 1, "rounds": 1, "epsilon": 1}


def done(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a job comes to; {"error": words} for what has no answer; with {"unknown": True} where another account may
    have one."""
    account = job["account"]
    try:
        question = question_of(job["options"])
        match job["kind"]:
            case "curve":
                return curve(question, account=account)
            case "noise-multiplier" | "cohort" as over:
                return grid(question, over, account=account)
            case _:
                return answer(question, account=account)
    except (CalibrationError, UnsupportedMechanism) as error:
        return {"error": str(error)} if account == "best" else {"unknown": True}
    except (AccountingError, DpfedError) as error:
        return {"error": str(error)}
    except (ArithmeticError, MemoryError) as error:
        return {"error": f"no account for such numbers ({type(error).__name__}). Change one."}


def main() -> None:
    done({"kind": "answer", "options": _LIGHT, "account": "best"})  # loads what the first question needs
    for line in sys.stdin:
        print(json.dumps(done(json.loads(line)), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
