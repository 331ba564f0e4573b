"""Rows of docs/settings.md, one for each kind of settings, answered by `dpfed explain`.

python docs/your_settings.py            print them
python docs/your_settings.py --write    put them into the page
"""

import math
import sys
import tempfile
import tomllib
from pathlib import Path

from accounting.rounding import downwards, upwards
from dpfed.explain.account import Explanation
from dpfed.explain.settings import explain

PAGE = Path(__file__).with_name("settings.md")
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"
FLOWER = "noise_multiplier = 1.0\nclipping_norm = 1.0\nnum_sampled_clients = 20\n"
OPACUS = (
    "noise_multiplier = 1.0\nmax_grad_norm = 1.0\nbatch_size = 256\nnum_samples = 60000\nepochs = 10\ndelta = 1e-5\n"
)
TFF = "noise_multiplier = 1.0\nclip = 0.1\nclients_per_round = 100\n"
PFL = (
    "noise_parameter = 1.0\nclipping_bound = 0.4\ncohort_size = 50\npopulation = 1000\ncentral_num_iterations = 40\n"
    'user_sampler = "minimize_reuse"\n'
)
JAX = "noise_multiplier = 1.0\nclipping_norm = 1.0\nbatch_size = 256\nnum_examples = 60000\n"
KINDS = {
    "Flower: fixed clipping, at server or clients": FLOWER + "num_clients = 100\nnum_server_rounds = 100",
    "Flower: with `accountant=`, which refuses unequal weights": FLOWER + "accountant = true\nnum_server_rounds = 100",
    "Flower: adaptive clipping": (
        "noise_multiplier = 1.0\nnum_sampled_clients = 20\ninitial_clipping_norm = 0.1\ntarget_clipped_quantile = 0.5\n"
        "num_server_rounds = 100"
    ),
    "Flower: a wrapper around FedMedian, Krum or a trimmed mean": FLOWER + 'strategy = "FedMedian"',
    "Flower: a wrapper around FedAdam, FedYogi, FedAdagrad or FedAvgM": FLOWER + 'strategy = "FedAdam"',
    "Flower: `LocalDpMod`": (
        "clipping_norm = 1.0\nsensitivity = 1.0\nepsilon = 1.0\ndelta = 1e-5\nnum_server_rounds = 50"
    ),
    "FLIP: its defaults": "clip = 1.0\nsensitivity = 1e-4\nepsilon = 10\ndelta = 1e-5",
    "NVFlare: PercentilePrivacy, SVTPrivacy": "percentile = 10\ngamma = 0.01",
    "Opacus: `make_private`, the loader not stated": OPACUS,
    "Opacus: with its own Poisson loader": OPACUS + "poisson_sampling = true",
    "Opacus, TF Privacy: shuffled epochs": OPACUS + "poisson_sampling = false\nshuffle = true",
    "TF Privacy: microbatches": (
        "noise_multiplier = 1.0\nl2_norm_clip = 1.0\nnum_microbatches = 16\nbatch_size = 256\nn = 60000\nepochs = 10\n"
        "poisson_sampling = false\nshuffle = true"
    ),
    "Opacus: `make_private_with_epsilon`": "target_epsilon = 3.0\nmax_grad_norm = 1.0\nepochs = 10",
    "Opacus on clients, in federated rounds": (
        "noise_multiplier = 1.0\nmax_grad_norm = 1.0\nbatch_size = 32\nnum_samples = 640\nlocal_epochs = 1\n"
        "num_rounds = 20\npoisson_sampling = true"
    ),
    "TFF: `gaussian_fixed`": TFF + "num_clients = 3400\nnum_rounds = 1500",
    "TFF: DP-FTRL, tree aggregation": TFF + 'num_rounds = 64\naggregator = "tree_aggregation"',
    "pfl: users in turn": PFL,
    "pfl: noise of a larger cohort": PFL + "noise_cohort_size = 1000",
    "jax_privacy: DP-SGD": JAX + 'num_training_updates = 2340\nbatch_selection_strategy = "poisson"',
    "jax_privacy: BandMF, cyclic Poisson": JAX + "num_bands = 4\niterations = 2340",
}
"""Settings in TOML, by kind."""


def answer(settings: str) -> Explanation:
    """Return what `dpfed explain` answers to a file of these settings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(settings)
        return explain(str(path))


def words(found: Explanation) -> str:
    """Return the answer in one cell of a table."""
    if found.unbounded:
        return f"**none**: {'; '.join(found.unbounded)}"
    of_one = " of one round" if any("one round" in one for one in found.missing) else ""
    text = f"one {found.worst.unit}; epsilon{of_one} at most **{upwards(found.epsilon)}** "
    text += f"({found.worst.adjacency}, {found.worst.sampling}, delta {upwards(found.worst.delta)})"
    if 0 < found.at_least < math.inf:
        text += f", at least {downwards(found.at_least)}"
    for closed, epsilon in found.steps:
        text += f"; {'' if closed.startswith('and') else 'if '}{closed.partition(':')[0]}: {upwards(epsilon)}"
    return text + "".join(f". But {one}" for one in found.contradictions)


def table() -> str:
    """Return the table of the page."""
    lines = ["| settings | in `settings.toml` | `dpfed explain settings.toml` | with dpfed |", "|---|---|---|---|"]
    for kind, settings in KINDS.items():
        assert tomllib.loads(settings)
        found = answer(settings)
        given = "<br>".join(f"`{line}`" for line in settings.splitlines())
        commands = "<br>".join(
            f"`{one}`" if one.startswith("dpfed") else f"{one.partition(': ')[0]}: `{one.partition(': ')[2]}`"
            for one in found.dpfed.split("; ")
        )
        lines.append(f"| {kind} | {given} | {words(found)} | {commands} |")
    return "\n".join(lines) + "\n"


def page_with(rows: str) -> str:
    """Return the page with these rows between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{rows}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page_with(table()))
    else:
        print(table(), end="")
