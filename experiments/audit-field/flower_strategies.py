"""Audit of Flower's differentially private strategies and mods: each runs on given updates and its claim is tested.

python experiments/audit-field/flower_strategies.py [NAME]        # in .venv-flower; without NAME: all
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from accounting.mechanisms import Gaussian
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit import Verdict
from dpfed.audit.functions.audit import audit_function
from dpfed.audit.functions.claim import equivalent_shift
from dpfed.audit.functions.outputs import pairs_of_updates
from dpfed.audit.others.flower import StrategyRound
from dpfed.audit.trials import Progress
from dpfed.errors import ConfigError

CLIP_NORM = 1.0

NOISE_MULTIPLIER = 1.0

LOCAL_EPSILON, LOCAL_DELTA = 4.0, 1e-5

_UNSAMPLED = (
    "zero-out neighbours (a client's update is replaced by zeros), exactly num_sampled_clients replies, equal "
    "num-examples, and no claim from sampling: Flower draws a fixed number of clients, which is not Poisson sampling"
)

_REPLACE = "replace-one neighbours with twice the noise multiplier: one client may move the sum by 2 clipping_norm"


@dataclass(frozen=True, kw_only=True)
class FlowerCase:
    """One way of using a strategy or mod, and its claim.

    make: function that returns the round under audit.
    true_where: adjacency and sampler for which the claim is true. sound: True if the claim is true in this use,
    according to Flower's code."""

    name: str
    make: Callable[[], StrategyRound]
    claim: object
    adjacency: str
    sound: bool
    true_where: str
    trials: int = 6_000


def _all_cases() -> list[FlowerCase]:
    def gaussian(adjacency: str) -> Gaussian:
        """Return the claim that one client moves the sum by one clipping_norm only, for any adjacency."""
        moves = Adjacency.of(adjacency).sensitivity_in_clips
        return Gaussian(noise_multiplier=moves * NOISE_MULTIPLIER, adjacency=Adjacency.of(adjacency))

    def fixed(name: str, make: Callable[[], StrategyRound], adjacency: str, sound: bool, where: str) -> FlowerCase:
        return FlowerCase(
            name=name,
            make=make,
            claim=gaussian(adjacency),
            adjacency=adjacency,
            sound=sound,
            true_where=where,
        )

    adaptive = (
        "nowhere in 1.41: the clip norm is updated before the noise is drawn, so the noise is scaled to the next clip "
        "norm, the rows to the last one; if few rows are clipped the noise is above the claim, if many are, below it"
    )
    local = (
        "zero-out neighbours with sensitivity = clipping_norm (an update against zeros); any two updates need "
        "sensitivity = 2 clipping_norm"
    )
    return [
        fixed("server-fixed", lambda: _server_fixed_round(), "zero-out", True, _UNSAMPLED),
        fixed("server-fixed, add-remove", lambda: _server_fixed_round(expected=4), "add-remove", False, _UNSAMPLED),
        fixed("server-fixed, replace-one", lambda: _server_fixed_round(), "replace-one", False, _REPLACE),
        fixed("server-fixed, unequal examples", lambda: _server_fixed_round(examples=(1, 1, 1, 3)), "zero-out", False,
              _UNSAMPLED),
        fixed("client-fixed", lambda: _client_fixed_round(), "zero-out", True, _UNSAMPLED),
        fixed("client-fixed, mod forgotten", lambda: _client_fixed_round(mods=False), "zero-out", False,
              "nowhere: without fixedclipping_mod nothing is clipped"),
        fixed("server-adaptive", lambda: _adaptive_round("Server"), "zero-out", False, adaptive),
        fixed("client-adaptive", lambda: _adaptive_round("Client"), "zero-out", False, adaptive),
        FlowerCase(name="local-dp", make=_local_dp_round, claim=_local_dp_claim("zero-out"), adjacency="zero-out",
                   sound=True, true_where=local),
        FlowerCase(name="local-dp, any two updates", make=_local_dp_round, claim=_local_dp_claim("replace-one"),
                   adjacency="replace-one", sound=False, true_where=local),
    ]  # fmt: skip


def _local_dp_claim(adjacency: str) -> Gaussian:
    """Return the claim of local DP as a Gaussian mechanism, which trials test better than (epsilon, delta)."""
    moves = Adjacency.of(adjacency).sensitivity_in_clips
    return Gaussian(
        noise_multiplier=moves / equivalent_shift(LOCAL_EPSILON, LOCAL_DELTA), adjacency=Adjacency.of(adjacency)
    )


def audit_flower(
    case: FlowerCase,
    *,
    trials: int | None = None,
    only: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Verdict:
    """Audit one case. only: name of the pair of neighbours to test (`functions.outputs`); None for all pairs.

    Errors: ConfigError if flwr is not installed.
    """
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError(
            "flwr is not installed: pip install 'dpfed[flower]', or run `make test-flower` once and use .venv-flower."
        ) from None
    pairs = pairs_of_updates(Adjacency.of(case.adjacency), clients=4, dimension=16, clip_norm=CLIP_NORM)
    return audit_function(
        case.make(),
        claim=case.claim,
        adjacency=case.adjacency,
        worlds=[pair for pair in pairs if only in (None, pair.name)],
        trials=trials or case.trials,
        arrays="numpy",
        seed=seed,
        name=f"flower {case.name}",
        progress=progress,
    )


def _fed_avg(clients: int) -> object:
    from flwr.serverapp.strategy import FedAvg

    return FedAvg(fraction_train=1.0, min_train_nodes=clients, min_available_nodes=clients)


def _server_fixed_round(examples: tuple[int, ...] = (1,), expected: int | None = None) -> StrategyRound:
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    def make(clients: int) -> object:
        return DifferentialPrivacyServerSideFixedClipping(_fed_avg(clients), NOISE_MULTIPLIER, CLIP_NORM, clients)

    return StrategyRound(make_strategy=make, examples=examples, expected_clients=expected)


def _client_fixed_round(mods: bool = True) -> StrategyRound:
    from flwr.clientapp.mod import fixedclipping_mod
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

    def make(clients: int) -> object:
        return DifferentialPrivacyClientSideFixedClipping(_fed_avg(clients), NOISE_MULTIPLIER, CLIP_NORM, clients)

    return StrategyRound(make_strategy=make, mods=(fixedclipping_mod,) if mods else ())


def _adaptive_round(side: str) -> StrategyRound:
    import flwr.serverapp.strategy as strategies
    from flwr.clientapp.mod import adaptiveclipping_mod

    wrapper = getattr(strategies, f"DifferentialPrivacy{side}SideAdaptiveClipping")

    def make(clients: int) -> object:
        return wrapper(
            _fed_avg(clients),
            NOISE_MULTIPLIER,
            clients,
            initial_clipping_norm=CLIP_NORM,
            clip_norm_lr=1.0,
            clipped_count_stddev=2.0,
        )

    mods = (adaptiveclipping_mod,) if side == "Client" else ()
    return StrategyRound(make_strategy=make, mods=mods, shown_attributes=("clipping_norm",))


def _local_dp_round() -> StrategyRound:
    from flwr.clientapp.mod import LocalDpMod

    mod = LocalDpMod(clipping_norm=CLIP_NORM, sensitivity=CLIP_NORM, epsilon=LOCAL_EPSILON, delta=LOCAL_DELTA)
    return StrategyRound(make_strategy=_fed_avg, mods=(mod,), returns_upload=True)


CASES = tuple(_all_cases())
"""Fixed and adaptive clipping at server and client, and local DP, each with uses in which its claim is false."""


def main(names: list[str]) -> int:
    """Audit the named cases, or all; return 1 if a claim is refuted."""
    from dpfed.cli.audit import show_verdict

    found = []
    for case in CASES:
        if not names or case.name in names:
            found.append(audit_flower(case))
            show_verdict(found[-1])
            print(f"the claim is true for: {case.true_where}")
    return int(any(one.verdict == "fail" for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
