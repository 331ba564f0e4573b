"""FedSparsify's server: a rule, and after it the smallest weights are purged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dpfed.models.purge import Sparsity, purge
from dpfed.server.state import ServerRule, ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class Purging:
    """The state after `rule`, its model purged to sparsity(rounds done) among the entries `prunable` [m].

    Global variant of Stripelis, Gupta, Ver Steeg, Ambite 2022: the next round's clients keep these zeros, and so does
    the rule, whatever momentum or noise would make of them. Post-processing of the released sum.
    """

    rule: ServerRule
    prunable: Tensor
    sparsity: Sparsity

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """The state that the next round starts from."""
        gone = self.prunable[state.broadcast[self.prunable] == 0]
        state = self.rule.step(state, mean_move, count=count)
        model = state.broadcast.index_fill(0, gone, 0.0)
        return replace(state, broadcast=purge(model[None], self.prunable, self.sparsity(state.round))[0])
