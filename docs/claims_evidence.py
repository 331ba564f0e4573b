"""Evidence of docs/claims.yaml: functions that return a value of the code, a plan, a file of results or a replay.

Every function computes; none has a number of the documentation in it.
"""

import contextlib
import csv
import importlib
import io
import json
import math
import re
import shlex
import tempfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from accounting.rounding import downwards, upwards

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = "--clients 6000 --cohort 100 --rounds 180 --noise-multiplier 1.4"


# ---- text of values


def up(value: float, digits: int = 4) -> str:
    """Return a number rounded upwards, as the commands print epsilon."""
    return upwards(value, digits=digits)


def down(value: float, digits: int = 4) -> str:
    return downwards(value, digits=digits)


def near(value: float, decimals: int = 2) -> str:
    return f"{value:,.{decimals}f}"


def percent(value: float, decimals: int = 0) -> str:
    return f"{100 * value:.{decimals}f}%"


def number(value: float) -> str:
    """Return an integer with commas, a power of ten as 1e-5, any other number as Python writes it."""
    if value and not 1e-4 <= abs(value) < 1e15:
        return re.sub(r"e-0*", "e-", f"{value:g}")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def where(condition: bool, phrase: str) -> str:
    """Return the phrase if the condition holds, else a text that no sentence contains."""
    return phrase if condition else f"(not so: {phrase})"


# ---- commands, plans, settings


@cache
def printed(command: str) -> tuple[int, str]:
    """Return exit status and output of a dpfed command, run in this process in an empty folder."""
    from dpfed.cli import status

    out = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        found = status(shlex.split(command))
    return found, out.getvalue()


@cache
def budget(options: str = "", plan: str = GOLDEN) -> Mapping[str, Any]:
    """Return the answer of `dpfed budget --json` for a plan, by default the golden one, with more options."""
    found, text = printed(f"budget {plan} {options} --json")
    assert found == 0, text
    answer: Mapping[str, Any] = json.loads(text)
    return answer


def eps(options: str = "", plan: str = GOLDEN) -> float:
    return float(budget(options, plan)["epsilon"])


def low(options: str = "", plan: str = GOLDEN) -> float:
    return float(budget(options, plan)["lower_bound"])


def paper(options: str = "") -> Mapping[str, Any]:
    """Return the answer for the golden plan by Rényi orders and the classical conversion, as papers use it."""
    return budget(f"--accountant rdp --conversion classical {options}")


def without(options: str, *removed: str) -> str:
    """Return the golden plan's options without some of them."""
    words = shlex.split(GOLDEN)
    kept = [w for i, w in enumerate(words) if w not in removed and (i == 0 or words[i - 1] not in removed)]
    return " ".join([*kept, options])


def budget_line(options: str) -> str:
    """Return the command with the options that its answer names: clients, cohort, rounds, and the target it keeps."""
    found, words = budget("", options), shlex.split(options)
    target = words[words.index("--epsilon") + 1]
    assert float(target) * 0.999 < found["epsilon"] <= float(target)
    return f"--clients {found['clients']} --cohort {found['cohort']} --rounds {found['rounds']} --epsilon {target}"


def plan_accepts(options: str) -> bool:
    """Return True if `dpfed budget` accepts these options, and False if it refuses them (exit status 2)."""
    found, text = printed(f"budget {options} --json")
    assert found in (0, 2), text
    return found == 0


def setting(preset: str, key: str) -> Any:
    """Return the value of a key of a preset."""
    from dpfed.config.tables import parse
    from dpfed.methods.catalogue import preset_tables

    found: Any = parse(preset_tables(preset), source=preset)
    for name in key.split("."):
        found = getattr(found, name)
    return found


@cache
def refuses(preset: str, **settings: Any) -> bool:
    """Return True if a preset with these settings (a double underscore for a dot) is refused before it runs."""
    from dpfed.config.tables import override, parse
    from dpfed.errors import DpfedError
    from dpfed.methods.catalogue import method_specification, preset_tables
    from dpfed.methods.refusals import refusal_messages
    from dpfed.runs.experiment import build

    try:
        words = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in settings.items()]
        config = parse(override(preset_tables(preset), words), source=preset)
        build(config)
        return any(refusal_messages(config, method_specification(config.method.name)))
    except DpfedError:
        return True


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def capped_cohort(options: str) -> int:
    """Return the cap of the cohort, given or by default, of the golden plan with these options."""
    from accounting import Plan

    kind = dict(zip(shlex.split(options)[::2], shlex.split(options)[1::2], strict=True))
    named = {key.removeprefix("--").replace("-", "_"): value for key, value in kind.items()}
    numbers: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in named.items()}
    plan = Plan(clients=6000, cohort=100, rounds=180, **numbers)
    assert plan.cohort_cap is not None
    return int(plan.cohort_cap)


def mu_down_to(delta: float) -> float:
    return float(budget(f"--delta {delta}")["gaussian_dp"]["mu"])


def mu_everywhere(noise_multiplier: float, rounds: int) -> float:
    """Return mu of a client that takes part in all rounds, whose Gaussian profile bounds that of any sampling."""
    return math.sqrt(rounds) / noise_multiplier


def independent_error(options: str, epsilon: float) -> float:
    """Return the root mean square error of sums over 1, ..., T rounds, T = 180, of independent noise."""
    found = budget(f"{options} --epsilon {epsilon}", "--clients 6000 --cohort 100 --rounds 180")
    return float(found["noise_multiplier"]) * math.sqrt((180 + 1) / 2)


def best_of(runs: int) -> float:
    """Return epsilon of the best of a random number of runs of the golden plan, `runs` in the mean."""
    from accounting import Composed, Gaussian, PoissonSampling, subsample
    from accounting.compose import selection
    from accounting.compose.selection import RandomRuns

    found = budget()
    round_ = subsample(
        Gaussian(noise_multiplier=1.4, adjacency="add-remove"),
        PoissonSampling(probability=found["sampling_probability"]),
    )
    plan = Composed(parts=((round_, found["rounds"]),))
    return selection.epsilon(plan, runs=RandomRuns(mean=runs), delta=found["delta"])


def planner_offers(options: str) -> bool:
    """Return True if `dpfed plan --static` writes a page for these options."""
    return printed(f"plan --static page.html {options}")[0] == 0


@cache
def demo() -> list[str]:
    """Return the table with which the demo's run ends, row by row, without its report's path."""
    found, text = printed("run fed-smp-randk-digits")
    assert found == 0, text
    plain = " ".join(text.split("In one sentence")[1].replace("│", " ").split())
    first = (
        "In one sentence " + plain[: plain.index(" noise multiplier")] + plain[plain.index(" noise multiplier") :][:24]
    )
    return [first, plain[plain.index("Epsilon, at most") : plain.index(" Time ")]]


# ---- code


def constant(module: str, name: str) -> Any:
    """Return a constant or default of the code: "CLASS.field" and "function.parameter" have a dot."""
    import inspect

    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if inspect.isfunction(found) or (inspect.isclass(found) and part not in vars(found)):
            found = inspect.signature(found).parameters[part].default
        else:
            found = getattr(found, part)
    return found


def parameters(model: str, shape: tuple[int, ...], classes: int, **named: Any) -> int:
    """Return the number of parameters of a network."""
    from dpfed.models import build

    return int(build(model, shape, classes, **named).parameters_size)


def python_version() -> str:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return str(wanted).removeprefix(">=")


def file_lines(file: str) -> int:
    return len((ROOT / file).read_text().splitlines())


def digits_sizes() -> list[str]:
    """Return sizes of the data set that the package contains: training + test samples, shape, classes."""
    import numpy as np

    from dpfed.data.mnist import load_digits

    found = load_digits()
    shape = "×".join(str(n) for n in np.shape(found.train_inputs)[1:])
    return [f"{len(found.train_labels):,} + {len(found.test_labels):,}", f"{shape}, {found.classes}"]


def app_default(name: str) -> str:
    """Return a default of the configuration that `dpfed deploy` writes to the app's pyproject.toml."""
    return text_of("dpfed/engines/flower/app_folder.py", rf'"{name}": ([\d.]+)')


def biased(theta: float, c: float, noise_std: float) -> float:
    from accounting.bernoulli import debias

    return float(debias.clipped_mean(theta, c=c, noise_std=noise_std))


def note_limit() -> str:
    """Return the largest epsilon that gets no note."""
    return number(int(constant("accounting.caveats", "LARGE_EPSILON")))


# ---- stored results


def rows(file: str, **where_: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of results in which these columns have these values."""
    with (ROOT / file).open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if all(row[k] == v for k, v in where_.items())]


def mean(file: str, column: str, **where_: str) -> float:
    found = [float(row[column]) for row in rows(file, **where_)]
    return math.fsum(found) / len(found)


def text_of(file: str, pattern: str) -> str:
    """Return what a pattern's group finds in a file that a command has written."""
    found = re.search(pattern, (ROOT / file).read_text())
    assert found, (file, pattern)
    return found[1]


# ---- audits


@cache
def replayed_faults() -> Mapping[str, Any]:
    """Return the verdicts of a replay of small faulty calls, by name."""
    import numpy as np

    from dpfed.audit import mechanism, replay

    clients = [np.random.default_rng(i).normal(size=(6, 3)) for i in range(8)]

    def call(step: Any) -> Any:
        def train(data: Any, out: Path) -> Any:
            own = data(clients)
            rows_ = [one.mean(axis=0) / max(1.0, float(np.linalg.norm(one.mean(axis=0)))) for one in own]
            noise = mechanism(lambda t: t + np.random.normal(size=3), sensitivity=1.0)  # noqa: NPY002
            return step(noise, sum(rows_), len(rows_))

        return train

    calls = {
        "sound": lambda noise, total, n: noise(total),
        "no noise": lambda noise, total, n: (noise(total), total),
        "divided by the number": lambda noise, total, n: noise(total) / n,
    }
    return {name: str(replay(call(step), seed=0).verdict) for name, step in calls.items()}


def replay_found(name: str) -> str:
    """Return "yes" or "no": whether the replay of a planted fault found it, from the stored results."""
    lines = (ROOT / "experiments/audit-replay/results.jsonl").read_text().splitlines()
    (found,) = {json.loads(line)["verdict"] == "fail" for line in lines if json.loads(line)["name"] == name}
    return "yes" if found else "no"


def outside_run_is_refused() -> bool:
    """Return True if a replay refuses a ledger outside the run's folder."""
    import accounting
    from dpfed.audit import replay
    from dpfed.errors import DpfedError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        plan = accounting.Plan(clients=10, cohort=5, rounds=1)

        def train(data: Any, out: Path) -> None:
            import dpfed

            dpfed.ClientLevel(clients=plan.clients, cohort=5, clip_norm=1.0, epsilon=3.0, rounds=1, ledger=path)

        try:
            replay(train)
        except DpfedError as error:
            return "outside" in str(error) or "ledger" in str(error)
    return False


def sizes_of_pairs() -> list[str]:
    """Return the numbers of samples of a client with 1 sample in the pairs of sizes, as the text names them."""
    import numpy as np

    from dpfed.audit.replays.pairs import SIZES

    times = sorted(len(change(np.arange(1))) for change in SIZES.values())
    return [f"one, {times[-2]} and {times[-1]} times"]
