"""One client that sends what no client should: for every private method the sum keeps its sensitivity, and the round
goes on."""

import math

import pytest
import torch

from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.integers import Integers
from dpfed.round import draw_round_cohort
from dpfed.runs.experiment import build
from dpfed.stages.clip import ClipMoves

from ...rounds import Book, configured, random_updates, watched_round, with_updates
from ..announced import bound

pytestmark = pytest.mark.slow_but_one_in(3)

CLIP = 0.5
SHARES = ("privacy.placement=clients", "privacy.adjacency=zero-out")
UPLOADS = ("privacy.release=uploads",)
COINS = ("method.name=fedpm", "mask.edge=0.1", "server.rule=posterior")
SIGNS = ("privacy.noise=coins", "privacy.adjacency=zero-out")
WAYS = {
    "server": (),
    "poisson": ("federation.sampling=poisson",),
    "adaptive": ("privacy.adaptive.quantile=0.5",),
    "shares": SHARES,
    "uploads": UPLOADS,
    "randk": ("method.name=fed-smp-randk", "method.keep=0.2"),
    "topk": ("method.name=fed-smp-topk", "method.keep=0.2", "data.public=50"),
    "projection": ("method.name=fedscalar", "method.shared=true"),
    "discrete": ("privacy.noise=discrete-gaussian",),
    "discrete-not-rotated": ("privacy.noise=discrete-gaussian", "aggregation.rotation=false"),
    "discrete-shares": ("privacy.noise=discrete-gaussian", *SHARES),
    "skellam-masked": ("privacy.noise=skellam", *SHARES, "aggregation.kind=masked"),
    "server-masked": ("aggregation.kind=masked",),
    **{f"{name}-decoded": (f"method.name={name}",) for name in ("signsgd", "terngrad", "qsgd", "drive", "eden")},
    "dithered": ("method.name=dp-dithered", "privacy.adjacency=zero-out"),
    "qsgd-uploads": ("method.name=qsgd", *UPLOADS),
    "coins": COINS,
    "coins-linf": (*COINS, "privacy.linf_clip=0.1"),
    "coins-seen": (*COINS, *UPLOADS),
    "signs": ("method.name=stochastic-sign", "method.options.bound=0.5", *SIGNS),
}  # fmt: skip
TINY = torch.finfo(torch.float32).smallest_normal


def at_the_end(row, *values):
    """The row, its last entries replaced."""
    values = torch.tensor(values)[-len(row) :]
    return torch.cat([row[: len(row) - len(values)], values])


HOSTILE = {
    "1e6": lambda row: row * 1e6,
    "1e30": lambda row: row * 1e30,
    "largest": lambda row: torch.full_like(row, torch.finfo(torch.float32).max),
    "nan": lambda row: torch.full_like(row, math.nan),
    "one-nan": lambda row: at_the_end(row, math.nan),
    "one-inf": lambda row: at_the_end(row, math.inf),
    "both-infs": lambda row: at_the_end(row, math.inf, -math.inf),
    "denormal": lambda row: torch.full_like(row, TINY / 1024),
    "denormal-and-huge": lambda row: at_the_end(torch.full_like(row, TINY / 1024), 3e38),
}


def built(way):
    coins = "coins" in way or way == "signs"
    privacy = {"clip_norm": CLIP, "noise_multiplier": None if coins else 1.0}
    return build(configured(*WAYS[way], federation={"sampling": "fixed"}, privacy=privacy))


def drawn(experiment):
    return int(draw_round_cohort(experiment.method, 0)[0])


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_client_moves_the_sum_by_at_most_its_bound(way):
    """The noise, coins and rounding of both rounds are the same, so that only the client's part differs."""
    experiment = built(way)
    method, client = experiment.method, drawn(experiment)
    updates = random_updates(experiment, scale=0.05, seed=1)
    updates = updates[:, : method.clients.course.size]
    sums = {}

    def noisy_sum(name, row):
        changed = updates.clone()
        changed[client] = row
        made = with_updates(experiment, changed)
        state, observed = watched_round(experiment.start, made, seeds=experiment.seeds, ledger=Book())
        assert bool(torch.isfinite(state.broadcast).all())
        assert math.isfinite(state.clip_norm)
        sums[name] = state.broadcast.double() * method.divisor
        return observed

    noisy_sum("zero", torch.zeros_like(updates[0]))
    for name, hostile in HOSTILE.items():
        observed = noisy_sum(name, hostile(updates[client]))
        moved = float((sums[name] - sums["zero"]).norm())
        if method.stages.find(ClipMoves) is not None:
            continue  # what is bounded there is the move of the probabilities, not the sum of coins: see below
        assert observed.largest_norm <= 1.0
        if method.stages.find(DitheredNoise) is not None:
            continue  # the quantiser's error has the same law for every row, but is not the same numbers
        assert moved <= CLIP * _lengthened(method.stages) * _stretched(way, experiment) * (1 + 1e-4) + 1e-4, name
    if way not in ("coins", "coins-linf", "coins-seen", "signs", "qsgd-uploads"):  # the test has power
        moved = float((sums["1e6"] - sums["zero"]).norm())
        assert moved > 0.9 * CLIP


def _lengthened(stages):
    """What rounding to whole numbers adds, as it is charged."""
    integers = stages.find(Integers)
    if integers is None:
        return 1.0
    steps = integers.fixed_point
    return math.sqrt(steps.largest_squared_norm(CLIP)) / (steps.steps_per_unit * CLIP)


def _stretched(way, experiment):
    """From the space that is sent, where the bound is, back to weights: only a projection on one vector changes norms;
    and compression after the bound, which is post-processing of every upload."""
    if way == "projection":
        chosen = experiment.method.stages.project.choice.for_round(experiment.start.broadcast, 0, experiment.seeds)
        return float(chosen.adjoint(torch.ones(1)).norm())
    return math.inf if way == "qsgd-uploads" else 1.0


@pytest.mark.slow_but_one_in(60)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_bound_itself_holds_exactly(way, hostile):
    """In rational arithmetic's stead: float64 sums of float32 squares, whose error is far below ROOM_FOR_ROUNDING."""
    experiment = built(way)
    row = HOSTILE[hostile](random_updates(experiment, seed=2)[:1, : experiment.method.stages.project.sent][0])
    bounded = bound(experiment, row[None].clone(), CLIP)[0].double()
    assert float(bounded.square().sum().sqrt()) <= CLIP
    moves = experiment.method.stages.find(ClipMoves)
    linf = None if moves is None else moves.linf
    assert linf is None or float(bounded.abs().max()) <= linf
    if not bool(torch.isfinite(row).all()):
        assert not bounded.any()


def test_a_clip_without_its_nan_check_is_caught():
    """The planted fault: the sum is lost to one client."""
    experiment = built("server")
    rows = random_updates(experiment)
    rows[0] = math.nan
    rows *= torch.clamp(CLIP / torch.linalg.vector_norm(rows, dim=1), max=1.0)[:, None]
    assert not bool(torch.isfinite(rows.sum(dim=0)).all())
