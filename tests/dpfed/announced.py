"""Rounds for tests of single stages."""

from dataclasses import replace

import numpy as np
import torch

from accounting.mechanisms import Adjacency, BernoulliAggregate, BernoulliChannel, FullParticipation
from dpfed.aggregation.ranks import Task
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.server.rules import ServerState
from dpfed.stages.project import Identity
from dpfed.stages.stage import Round, Tally


def a_round(reference, *, number=0, clip_norm=1.0, uploads=0):
    """A round in which everything is sent, whose reference point is given."""
    state = ServerState(round=number, broadcast=reference, clip_norm=clip_norm)
    no_clients = np.zeros(0, dtype=np.int64)
    return Round(
        task=Task(state=state, cohort=no_clients, participants=no_clients),
        projection=Identity(size=len(reference)),
        reference=reference,
        uploads=uploads,
    )


def announced(experiment, *, number=0, clip_norm=None, uploads=0):
    """A round of the experiment, with its own map."""
    state = replace(experiment.start, round=number)
    state = state if clip_norm is None else replace(state, clip_norm=clip_norm)
    no_clients = np.zeros(0, dtype=np.int64)
    now = experiment.method.announce(Task(state=state, cohort=no_clients, participants=no_clients), experiment.seeds)
    return replace(now, uploads=uploads)


def bound(experiment, rows, norm):
    """Rows, mapped already, after the stage that bounds them."""
    clip = experiment.method.stages.up_to_the_clip[-1]
    return clip.client(rows, np.arange(len(rows)), announced(experiment, clip_norm=norm))


def from_the_wire_on(stages):
    """The stages that make what is summed of what was bounded: integers, coins, schemes, and their wire."""
    kinds = ("Encode", "Integers", "Symbols", "Coins", "PrivateCoins", "MaskWire", "Words")
    return [stage for stage in stages if type(stage).__name__ in kinds]


def arrive(stages, rows, ids, now):
    """Rows as they are summed, and what was counted."""
    now = replace(now, tally=Tally())
    for stage in from_the_wire_on(stages):
        rows = stage.client(rows, ids, now)
    return rows, now.tally


def messages(stages, rows, ids, now):
    """The bytes that each client sends."""
    *before, wire = from_the_wire_on(stages)
    for stage in before:
        rows = stage.client(rows, ids, now)
    return wire.messages(rows, ids, now)


def read(stages, sent, ids, now):
    """Rows as they are read from messages, and what was counted."""
    now = replace(now, tally=Tally())
    return stages.wire.read(sent, ids, now), now.tally


def decoded(stages, total, now):
    """A sum of what arrived, back to the sum of rows."""
    for stage in reversed(from_the_wire_on(stages)):
        total = stage.server(total, now)
    return total


class Recorder:
    """A stage that keeps what passes: rows by client, and the sum."""

    def __init__(self):
        self.rows, self.totals = {}, []

    def client(self, rows, ids, now):
        self.rows |= {int(one): row.clone() for one, row in zip(ids, rows, strict=True)}
        return rows

    def server(self, total, now):
        self.totals.append(total.clone())
        return total

    @property
    def uploads(self):
        return torch.stack(list(self.rows.values()))


def private_coins(randomness, edge, *, slots=None, noise_std=0.0, correction="linear", bits=None):
    """Coins of one coordinate's account, which the tests do not look at; `slots`: summed, so many."""
    about = {"dimension": 1, "floor": edge, "adjacency": Adjacency.ZERO_OUT, "l2_clip": 1.0, "noise_std": noise_std}
    coins = BernoulliChannel(**about) if slots is None else BernoulliAggregate(**about, cohort=slots)
    return PrivateCoins(
        coins=coins, sampling=FullParticipation(), randomness=randomness, correction=correction, bits=bits
    )
