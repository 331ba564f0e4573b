"""Do all coins of a sum lie near the public probabilities, where the account relies on it?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from accounting.mechanisms import BernoulliAggregate
from dpfed.audit.round.claims import Claim
from dpfed.audit.round.clip_check import adversarial_updates, in_metric
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.stages.coins import PrivateCoins

_ROUNDING = 1e-5


def window_check(one: OneRound, claim: Claim, size: int) -> Check | None:
    """No client's move, however wrong, leaves the clip in any coordinate, and the coins that fill up a sum are those of
    the public probabilities. None where the account relies on neither, or the coins have noise before them.

    Rows of every client: exact but for float32. Coins that fill up: the sum of squared standard scores of all counts of
    a round without uploads, against a chi-squared law (false alarm nearly 1e-6). Canaries come on top of the slots:
    independent coins that are added to a sum are a post-processing of it, wherever they lie.
    """
    stage, coins = one.method.stages.find(PrivateCoins), claim.coins
    if stage is None or not isinstance(coins, BernoulliAggregate) or coins.others != "near-reference":
        return None
    l2_clip = None if coins.l2_clip is None else coins.l2_clip / stage.trials**0.5
    reach = min(clip for clip in (coins.linf_clip, l2_clip) if clip is not None)
    ids = np.arange(one.clients)
    farthest = max(
        float(in_metric(one, claim, one.upload(update.expand(one.clients, -1), ids).bounded).abs().max()) / reach
        for update in adversarial_updates(one, size).values()
    )
    chance = None if coins.noise_std else _chance_of_padding(one, stage)
    return Check(
        name="window",
        passed=farthest <= 1 + _ROUNDING and (chance is None or chance >= FALSE_ALARM),
        detail=f"farthest coin of any client: {farthest:.6f} of the clip in a coordinate"
        + ("" if chance is None else f"; coins that fill up a sum are as likely as {chance:.2g}"),
    )


def _chance_of_padding(one: OneRound, stage: PrivateCoins) -> float:
    """How likely counts at least as far from the public probabilities as those of a round without uploads are."""
    from scipy.stats import chi2

    now = replace(one.announced, uploads=0)
    count = (stage.slots or 0) + (0 if stage.canaries is None else stage.canaries(now.number))
    off = stage.server(torch.zeros_like(one.reference), now).double()
    theta = one.reference.double().clamp(stage.edge, 1 - stage.edge)
    scores = stage.trials * off.square() / (count * theta * (1 - theta))
    return float(chi2.sf(float(scores.sum()), len(scores)))
