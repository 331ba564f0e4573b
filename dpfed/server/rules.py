"""State of the server between rounds, the rules that update it from the released mean, and the network made from it.

FedAvg and FedAvgM add the mean update times a server step size, with optional momentum. FedAdagrad, FedAdam and FedYogi
step adaptively along the mean update. FedPM keeps the Beta posterior of mask probabilities. FedSparsify sets the
smallest weights to zero after another rule's step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from dpfed.compress.sparse import Sparsity, purge
from dpfed.config import own_code
from dpfed.config.own_code import errors_of_user_code
from dpfed.errors import CUSTOM, ConfigError, require_name
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, Recipe, mask_file


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerState:
    """State from which a round starts.

    broadcast: [n], vector from which clients start: weights, or the probabilities of a mask
    memory:    vectors that the server's rule keeps from round to round, by name (velocity, alpha, beta), each [n]
    stages:    tensors that the method's stages keep from round to round, by name (errors: one row per client)
    clip_norm: the clip norm of the next round; infinite if nothing is clipped
    """

    round: int
    broadcast: Tensor
    clip_norm: float
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    stages: Mapping[str, Tensor] = field(default_factory=dict)

    def on_cpu(self) -> ServerState:
        """Return a copy on the CPU, which later rounds on a GPU do not write to."""
        memory, stages = ({name: one.cpu() for name, one in of.items()} for of in (self.memory, self.stages))
        return replace(self, broadcast=self.broadcast.cpu(), memory=memory, stages=stages)


class ServerRule(Protocol):
    """Computation of the next state from the state and the released sum: post-processing."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state after a round whose (noisy) mean over `count` clients was mean_move [n]."""


RULES = ("step", "adam", "yogi", "adagrad", "posterior")
"""Names of the built-in rules."""

MakesRule = Callable[..., ServerRule]
Given = TypeVar("Given", bound=MakesRule)
Kind = Literal["adagrad", "adam", "yogi"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaging:
    """v = momentum v + mean move; w = w + learning_rate v, kept inside [edge, 1 - edge] if `edge` is set.

    The entries `averaged` (running statistics of normalisation) are not a direction to step along: they are set to the
    clients' mean whatever the step size.

    With probabilities and Bernoulli noise (private FedPM) the rule is a noisy step from theta. Replacing theta by the
    mean mask instead would let the sampling noise accumulate. Post-processing of the released sum.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    edge: float | None = None
    averaged: Tensor | None = None

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from."""
        velocity = mean_move
        if self.momentum and "velocity" in state.memory:
            velocity = state.memory["velocity"] * self.momentum + mean_move
        moved = torch.add(state.broadcast, velocity, alpha=self.learning_rate)
        if self.averaged is not None:
            moved[self.averaged] = state.broadcast[self.averaged] + mean_move[self.averaged]
        return replace(
            state,
            round=state.round + 1,
            broadcast=moved if self.edge is None else moved.clamp_(self.edge, 1 - self.edge),
            memory={"velocity": velocity} if self.momentum else {},
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptiveRule:
    """Adaptive step along the mean update D of a round (Reddi et al. 2021, Algorithm 2).

        m = beta1 m + (1 - beta1) D,   from m = 0
        v = v + D^2                                    adagrad
            beta2 v + (1 - beta2) D^2                  adam
            v - (1 - beta2) D^2 sign(v - D^2)          yogi,   from v = tau^2
        w = w + learning_rate m / (sqrt(v) + tau)

    The entries `averaged` (running statistics of normalisation) are not a direction to step along: they are set to the
    clients' mean. If a sum is noised, v includes the noise's variance. Post-processing of the released sum.
    """

    kind: Kind
    learning_rate: float
    beta1: float
    beta2: float
    tau: float
    averaged: Tensor | None = None

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from."""
        first = state.memory.get("first", torch.zeros_like(mean_move))
        second = state.memory.get("second", torch.full_like(mean_move, self.tau**2))
        first = first * self.beta1 + mean_move * (1 - self.beta1)
        second = self._second_moment(second, mean_move.square())
        root = second.double().sqrt().to(second.dtype)  # float32 roots of torch differ among processors
        moved = state.broadcast + self.learning_rate * first / (root + self.tau)
        if self.averaged is not None:
            moved[self.averaged] = state.broadcast[self.averaged] + mean_move[self.averaged]
        return replace(state, round=state.round + 1, broadcast=moved, memory={"first": first, "second": second})

    def _second_moment(self, before: Tensor, squares: Tensor) -> Tensor:
        if self.kind == "adagrad":
            return before + squares
        if self.kind == "adam":
            return before * self.beta2 + squares * (1 - self.beta2)
        return before - (1 - self.beta2) * squares * (before - squares).sign()


@dataclass(frozen=True, kw_only=True)
class BetaPosterior:
    """Masks are draws of Bernoulli(theta) for an unknown theta with prior Beta(prior, prior) on each coordinate.

    A round with `count` received masks and their sum S updates (Isik et al. 2023, Algorithm 2)
        alpha = alpha + S,   beta = beta + count - S,   theta = (alpha - 1) / (alpha + beta - 2),
    the posterior's mode. Every `reset_every` rounds alpha = beta = prior again (0: never; 1: each round, which with
    prior 1 is the plain mean). If the mode is undefined (no masks yet, prior 1), theta is unchanged. A prior below 1
    could move theta out of [0, 1] and is refused. theta is kept in [edge, 1 - edge]. Post-processing of the released
    sum.
    """

    prior: float = 1.0
    reset_every: int = 1
    edge: float = 0.0

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from; mean_move is the mean mask minus the broadcast theta."""
        fresh = self.reset_every and state.round % self.reset_every == 0
        if fresh or "alpha" not in state.memory:
            alpha = beta = torch.full_like(state.broadcast, self.prior)
        else:
            alpha, beta = state.memory["alpha"], state.memory["beta"]
        ones = (state.broadcast + mean_move).mul_(count)
        alpha, beta = alpha + ones, beta + (count - ones)
        draws = alpha + beta - 2
        theta = torch.where(draws > 0, (alpha - 1) / draws, state.broadcast)
        return replace(
            state,
            round=state.round + 1,
            broadcast=theta.clamp_(self.edge, 1 - self.edge),
            memory={"alpha": alpha, "beta": beta},
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Purging:
    """Rule whose model, after a step of `rule`, is purged to sparsity(rounds done) among the entries `prunable` [m].

    Global variant of Stripelis, Gupta, Ver Steeg, Ambite 2022: purged entries are zero for the next round's clients.
    Momentum or noise cannot make them nonzero. Post-processing of the released sum.
    """

    rule: ServerRule
    prunable: Tensor
    sparsity: Sparsity

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from."""
        gone = self.prunable[state.broadcast[self.prunable] == 0]
        state = self.rule.step(state, mean_move, count=count)
        model = state.broadcast.index_fill(0, gone, 0.0)
        return replace(state, broadcast=purge(model[None], self.prunable, self.sparsity(state.round))[0])


def register(name: str) -> Callable[[Given], Given]:
    """Register the decorated function, or class, as server.rule `name` of this process.

    The function is called with learning_rate and momentum (server.learning_rate, server.momentum) and returns a
    `dpfed.server.rules.ServerRule`: a step from state and mean update to the next state, whose `round` is one higher.
    Memory of the rule must be in `state.memory` only, so that a run can resume. A rule receives released numbers only,
    so its step is post-processing. Raises ConfigError for a name that is already registered.
    """

    def add_rule(makes: Given) -> Given:
        if not callable(makes):
            raise ConfigError(f"server rule {name!r}: is {type(makes).__name__}; must be a function that makes a rule.")
        own_code.register_object("server rule", name, makes, taken=RULES)
        return makes

    return add_rule


def check_name(name: str) -> None:
    """Raise ConfigError with the nearest known name if no rule has this name."""
    known = (*RULES, *own_code.objects_of_kind("server rule"))
    require_name(f"server.rule={name!r}: known are", name, known, CUSTOM)


def custom_rule(name: str, *, learning_rate: float, momentum: float) -> ServerRule | None:
    """Return the custom rule of this name, else None; raise ConfigError, with its line, if it cannot be made."""
    makes = own_code.objects_of_kind("server rule").get(name)
    if makes is None:
        return None
    with errors_of_user_code(f"server.rule={name!r}: cannot be made"):
        made: ServerRule = makes(learning_rate=learning_rate, momentum=momentum)
    if not callable(getattr(made, "step", None)):
        raise ConfigError(
            f"server.rule={name!r}: gives {type(made).__name__}, which has no step(state, mean, *, count)."
        )
    return made


NAME = "average"
"""Key of the moving average in a state's memory."""


class Readout(Protocol):
    """Computation of the network from the released state, which is post-processing."""

    def weights(self, state: ServerState) -> Tensor:
        """Return the network's weights [d]."""

    def file(self, state: ServerState) -> bytes | None:
        """Return a mask file with exactly these weights; None if no mask gives them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightsReadout:
    """Readout of a server that broadcasts the network's weights."""

    model: FlatModel

    def weights(self, state: ServerState) -> Tensor:
        return state.broadcast

    def file(self, state: ServerState) -> None:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedReadout:
    """Readout of mask probabilities theta: frozen weights times a mask. The mask is drawn from theta with the seed's
    public dice, or 1[theta >= 1/2], or theta itself, the mean of all masks (which no mask file can hold)."""

    network: FrozenNetwork
    recipe: Recipe
    rule: Literal["sample", "threshold", "mean"]

    def weights(self, state: ServerState) -> Tensor:
        mask = self._mask(state)
        return self.network.weights(state.broadcast if mask is None else mask.to(state.broadcast.dtype))

    def file(self, state: ServerState) -> bytes | None:
        mask = self._mask(state)
        return None if mask is None else mask_file(self.recipe, self.network, mask)

    def _mask(self, state: ServerState) -> Tensor | None:
        theta = state.broadcast
        if self.rule == "mean":
            return None
        if self.rule == "threshold":
            return theta.ge(0.5)
        return self.network.dice.lt(theta.double())


@dataclass(frozen=True, kw_only=True, eq=False)
class MovingAverage:
    """State after `rule`, with an exponential moving average of its broadcasts.

        a = w after the first round, then a = decay a + (1 - decay) w

    Rounds continue from w, as without the average. Post-processing of released models.
    """

    rule: ServerRule
    decay: float

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from."""
        after = self.rule.step(state, mean_move, count=count)
        before = state.memory.get(NAME)
        average = after.broadcast.clone() if before is None else before.lerp(after.broadcast, 1 - self.decay)
        return replace(after, memory={**after.memory, NAME: average})


@dataclass(frozen=True, kw_only=True, eq=False)
class AveragedReadout:
    """Readout `readout`, applied to the moving average in place of the broadcast."""

    readout: Readout

    def weights(self, state: ServerState) -> Tensor:
        return self.readout.weights(_averaged_state(state))

    def file(self, state: ServerState) -> bytes | None:
        return self.readout.file(_averaged_state(state))


def frozen_network_of(readout: Readout) -> FrozenNetwork | None:
    """Return the frozen network under the masks, if masks are trained; else None."""
    last = readout.readout if isinstance(readout, AveragedReadout) else readout
    return last.network if isinstance(last, MaskedReadout) else None


def _averaged_state(state: ServerState) -> ServerState:
    """Return the state with the moving average as its broadcast; before the first round there is only the broadcast."""
    return replace(state, broadcast=state.memory.get(NAME, state.broadcast))
