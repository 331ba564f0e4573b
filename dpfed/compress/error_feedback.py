"""Error feedback: what a biased scheme left out is added to the next update.

Seide et al. (Interspeech 2014); Karimireddy et al., arXiv:1901.09847. With the error e of the client's last round:

    send encode(x + e),    keep e' = x + e - decode(what was sent)

so that over the rounds everything is sent: Σ decoded = Σ x - e. The error is the client's own state, [clients, d];
the caller keeps it between rounds, zero at first. It carries private data of past rounds into this one: a bound on x
does not bound what is sent, and no privacy guarantee of a single round holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpfed.compress.payload import Payloads, Scheme, Seed, checked_updates
from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback:
    """A scheme that is given each client's own error and gives back the next."""

    scheme: Scheme

    def encode(self, x: Tensor, error: Tensor, *, seed: Seed) -> tuple[Payloads, Tensor]:
        """Payloads of x + error, and the next error [clients, d], a new tensor."""
        x = checked_updates(x)
        if error.shape != x.shape:
            raise ConfigError(
                f"error is {list(error.shape)}: must be {list(x.shape)} like x, zeros in the first round."
            )
        wanted = x + error.to(x)
        payloads = self.scheme.encode(wanted, seed=seed)
        return payloads, wanted.sub_(self.scheme.decode(payloads))
