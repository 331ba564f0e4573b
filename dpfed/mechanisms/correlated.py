"""Noise that later rounds cancel in the model: a banded or buffered factorisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from accounting.mechanisms import CorrelatedRounds


@dataclass(kw_only=True, eq=False)
class Correlated:
    """Noise w_t with C w = z: z_t the fresh noise of round t, C the charged matrix of `law`.

    Banded: w_t = z_t - sum over j of c_j w_(t-j), with the noise of the last bands - 1 rounds in memory. Buffered: w_t
    = z_t - sum over i of weights_i s_i, then s_i = decays_i s_i + w_t. Memory: one vector per band or buffer, for any
    number of rounds. Time: one pass over them. The noise is not stored on disk. If a round other than the next one is
    asked for (in a resumed run or an audit), earlier fresh noise is drawn again from its streams. So a run resumes at
    any round with the same noise; this requires seeded randomness.
    Claim: the released sums are C^-1 (C x + z), the stream that `law` charges. Source: Denisov, McMahan, Rush, Smith,
    Thakurta 2022; McMahan, Xu, Zhang 2024 (buffers). Adjacency: that of the Gaussian noise z.

    past_noise: noise of earlier rounds, [bands - 1 or buffers, k]
    number:     number of the next round

    >>> import torch
    >>> from accounting.mechanisms import CorrelatedRounds
    >>> noise = Correlated(law=CorrelatedRounds(separation=2, coefficients=(1.0, 0.5)))
    >>> fresh = torch.ones(1)
    >>> [float(noise.noise(fresh, number, lambda earlier: fresh)) for number in (0, 1)]
    [1.0, 0.5]
    """

    law: CorrelatedRounds
    number: int = 0
    past_noise: Tensor | None = None

    def noise(self, fresh: Tensor, number: int, drawn_in: Callable[[int], Tensor]) -> Tensor:
        """Return w of round `number` from its fresh noise; `drawn_in` draws the fresh noise of an earlier round
        again."""
        past = self.past_noise
        if past is None or self.number != number or past.shape[1:] != fresh.shape:
            height = len(self.law.weights) or len(self.law.coefficients) - 1
            self.past_noise = past = fresh.new_zeros(height, len(fresh))
            self.number = 0
            for earlier in range(number):
                self._next_noise(drawn_in(earlier), past)
        return self._next_noise(fresh, past)

    def _next_noise(self, fresh: Tensor, past: Tensor) -> Tensor:
        law, place = self.law, self.number
        self.number += 1
        if not len(past):
            return fresh.clone()
        if law.weights:
            noise = fresh - fresh.new_tensor(law.weights) @ past
            past.mul_(fresh.new_tensor(law.decays)[:, None]).add_(noise)
            return noise
        place %= len(past)  # position of the oldest noise, which is overwritten
        back = torch.tensor(law.coefficients[1:], device=fresh.device)  # coefficient of the newest noise first
        ages = (place - 1 - torch.arange(len(past), device=fresh.device)) % len(past)
        noise = fresh - back[ages.to(back.device)].to(fresh.dtype) @ past
        past[place] = noise
        return noise
