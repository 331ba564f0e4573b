"""A draw belongs to a client's or a record's id: one client or record less changes no other one's draw."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn
from torch.nn import functional

from accounting import cohorts as blocks
from accounting.budget import Allocation, BallsAndBins, MinSeparation, Poisson
from dpfed.aggregation import messages as protocol_steps
from dpfed.aggregation.cryptography import random_circle
from dpfed.aggregation.messages import Dropouts, ProtocolStep
from dpfed.audit.round.round_checks import cohorts_check
from dpfed.clients.optimisers import Sgd
from dpfed.clients.schedule import PoissonBatches
from dpfed.clients.training import LocalTraining
from dpfed.data import Partition
from dpfed.errors import TrainingFailed
from dpfed.mechanisms import records
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models.flat import FlatModel
from dpfed.participation import sampling
from dpfed.participation.sampling import cap_cohort, draw_cohort, fill_cohort
from dpfed.randomness import Secure, Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

SEEDS = Seeds(root=5)
SIMULATED = Simulated(seeds=SEEDS)
CLIENTS = 300
CANARY = CLIENTS + 2


def kept(cohort, number):
    return cap_cohort(cohort[cohort < CLIENTS], 40, CLIENTS, SIMULATED, number)


def filled(cohort, number):
    return fill_cohort(cohort, 120, CLIENTS, SIMULATED, number)


def included(**setting):
    def of(cohort, number):
        gone = Dropouts(randomness=SIMULATED, population=CLIENTS + 3, **setting).draw(cohort, number)
        return [one for one in cohort.tolist() if gone.get(one) in (None, ProtocolStep.UNMASK)]

    return of


# What is drawn, and the most other clients that one client less may move in or out.
DRAWS = {
    "fixed number of uploads": (kept, 1),
    "others that fill up": (filled, 1),
    "dropouts": (included(probability=0.3), 0),
    "dropouts at a step": (included(probability=0.3, before_step=ProtocolStep.UPLOAD), 0),
    "a number of dropouts": (
        included(lost={ProtocolStep.UNMASK: 20, ProtocolStep.SHARE: 9, ProtocolStep.LATE: 9, ProtocolStep.UPLOAD: 9}),
        1,
    ),
}


def others_moved(draw, cohort, client, number):
    """How many other clients are in one of the two results only."""
    both = [set(map(int, draw(one, number))) - {client} for one in (cohort, cohort[cohort != client])]
    return len(both[0] ^ both[1])


def most_moved(draw, rounds):
    cohorts = [np.append(Poisson(cohort=90).cohorts(CLIENTS).sample(SIMULATED, t), CANARY) for t in range(rounds)]
    return max(
        others_moved(draw, cohort, int(client), number)
        for number, cohort in enumerate(cohorts)
        for client in (*cohort[::17], CANARY)
    )


@pytest.mark.parametrize("name", DRAWS)
def test_one_client_less_moves_no_others_but_into_the_place_it_frees(name, monkeypatch):
    draw, allowed = DRAWS[name]
    monkeypatch.setattr(blocks, "BLOCK", 64)
    assert most_moved(draw, 8) == allowed


@pytest.mark.parametrize("name", ["fixed number of uploads", "dropouts", "a number of dropouts"])
def test_values_by_place_would_move_many(name, monkeypatch):
    """The planted fault. Each client in only one of two neighbouring sums moves the sum by up to C: with a dropout of
    .3 of 100 clients, so drawn, one client less moved it by up to 36 C, where epsilon .926 is charged at z = 4."""

    def by_place(ids, clients, randomness, purpose, number):
        return randomness.uniform(len(ids), purpose, number)

    for module in (sampling, protocol_steps):
        monkeypatch.setattr(module, "uniforms_of_ids", by_place)
    assert most_moved(DRAWS[name][0], 8) > 10


@pytest.mark.parametrize("clients", [CLIENTS, CLIENTS - 1])
def test_a_population_without_its_last_client_draws_the_others_alike(clients, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 128)
    for who in (
        Poisson(cohort=30).cohorts(CLIENTS),
        BallsAndBins(cohort=75).cohorts(CLIENTS),
        Allocation(cohort=100, participations=2).cohorts(CLIENTS),
        MinSeparation(cohort=30, separation=3).cohorts(CLIENTS),
    ):
        fewer = replace(who, clients=clients)
        for number in range(6):
            drawn = who.sample(SIMULATED, number)
            assert fewer.sample(SIMULATED, number).tolist() == drawn[drawn < clients].tolist()


def test_neighbours_keep_their_order_without_a_client():
    ids = np.arange(60) * 3
    circle = random_circle(ids, 12, 4).circle
    for client in (0, 90, 177):
        assert random_circle(ids[ids != client], 12, 4).circle == tuple(one for one in circle if one != client)


# Frequencies


def evenness(counts, rounds, sizes):
    """Probability of counts [n] as uneven as these, of `rounds` uniform sets of these sizes: chi-square of
    n - 1 degrees with the covariance of a round."""
    n, mean, square = len(counts), np.mean(sizes), np.mean(np.square(sizes, dtype=float))
    one, two = mean / n, (square - mean) / (n * (n - 1))
    return chi2(n - 1).sf(((counts - counts.mean()) ** 2).sum() / (rounds * (one - two)))


def counted(draw, rounds):
    sets = [draw(number) for number in range(rounds)]
    return np.bincount(np.concatenate(sets), minlength=20), rounds, [len(one) for one in sets]


WHO = Poisson(cohort=10, cohort_cap=10).cohorts(20)


def test_all_clients_are_kept_equally_often_where_more_are_drawn_than_the_cap(monkeypatch, tiny_config):
    """As many uploads as clients expected: two rounds of five are overfull. False alarms: 1e-6. Planted: who keeps the
    lowest ids is found by this test and by the audit's own."""

    def lowest(cohort, cap, clients, randomness, number):
        return cohort[:cap]

    def drawn(number):
        return draw_cohort(WHO, SIMULATED, number)

    fair = counted(drawn, 1000)
    assert max(fair[2]) == 10
    assert evenness(*fair) > 1e-6
    method = build(tiny_config()).method
    assert cohorts_check(method, SEEDS, []).passed
    monkeypatch.setattr("dpfed.participation.sampling.cap_cohort", lowest)
    assert evenness(*counted(drawn, 1000)) < 1e-30
    assert not cohorts_check(method, SEEDS, []).passed


def test_all_clients_fill_up_equally_often():
    """False alarms: 1e-6. Planted: others with the lowest ids."""

    def others(number):
        cohort = WHO.sample(SIMULATED, number)
        return np.setdiff1d(fill_cohort(cohort, 14, 20, SIMULATED, number), cohort)

    def lowest(number):
        cohort = WHO.sample(SIMULATED, number)
        return np.setdiff1d(np.arange(20), cohort)[: max(14 - len(cohort), 0)]

    assert evenness(*counted(others, 1000)) > 1e-6
    assert evenness(*counted(lowest, 1000)) < 1e-30


def step_counts(drawn, rounds, clients):
    """[client, step], the last column: rounds in which the client does not drop out."""
    counts = np.zeros((clients, len(ProtocolStep) + 1))
    counts[:, -1] = rounds
    for gone in drawn:
        for client, step in gone.items():
            counts[client, list(ProtocolStep).index(step)] += 1
            counts[client, -1] -= 1
    return counts


def misfit(counts, chances):
    """Probability of counts [client, step] as far from independent draws with these chances: chi-square."""
    expected = counts.sum(axis=1, keepdims=True) * chances
    return chi2(counts.size - len(counts)).sf(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("source", [SIMULATED, Secure()], ids=lambda one: one.name)
def test_each_client_drops_out_at_each_step_as_often_as_configured(source):
    """3,000 rounds of 12 clients, .3 over five steps; false alarms: 1e-6. Planted: .33, and a step that never is."""
    drops = Dropouts(randomness=source, population=12, probability=0.3)
    counts = step_counts([drops.draw(np.arange(12), number) for number in range(3000)], 3000, 12)
    chances = np.array([0.06] * 5 + [0.7])
    assert misfit(counts, chances) > 1e-6
    assert misfit(counts, np.array([0.066] * 5 + [0.67])) < 1e-6
    counts[:, 0], counts[:, 1] = 0, counts[:, 0] + counts[:, 1]
    assert misfit(counts, chances) < 1e-30


def test_of_a_number_of_dropouts_each_client_is_each_equally_often():
    """2 and 3 of 12 clients at two steps, 3,000 rounds; false alarms: 1e-6 a step. Planted: the lowest ids."""
    lost = {ProtocolStep.UNMASK: 3, ProtocolStep.SHARE: 2}
    drops = Dropouts(randomness=SIMULATED, population=12, lost=lost)
    drawn = [drops.draw(np.arange(12), number) for number in range(3000)]
    assert all(sorted(gone.values()) == ["share"] * 2 + ["unmask"] * 3 for gone in drawn)
    for step, count in lost.items():
        counts = step_counts(drawn, 3000, 12)[:, list(ProtocolStep).index(step)]
        assert evenness(counts, 3000, [count] * 3000) > 1e-6
        assert evenness(np.where(np.arange(12) < count, 3000, 0), 3000, [count] * 3000) < 1e-30


def test_values_of_a_million_clients_are_drawn_once_and_take_no_memory_for_all(monkeypatch):
    """As many uniforms as a Poisson cohort takes."""
    asked = []

    class Counts:
        def uniform(self, count, *name):
            asked.append(count)
            return SIMULATED.uniform(count, *name)

    cohort = Poisson(cohort=1000).cohorts(1_000_000).sample(SIMULATED, 0)
    for draw in (
        lambda: cap_cohort(cohort, 500, 1_000_000, Counts(), 0),
        lambda: fill_cohort(cohort, 1500, 1_000_000, Counts(), 0),
        lambda: Dropouts(randomness=Counts(), population=1_000_000, probability=0.1).draw(cohort, 0),
    ):
        asked.clear()
        draw()
        assert sum(asked) == 1_000_000
        assert max(asked) == 1 << 17


# Records


def batches_of(size, steps):
    one = Partition(indices=np.arange(100, 100 + size), offsets=np.array([0, size]))
    drawn = PoissonBatches(batch_size=10, steps=steps)
    object.__setattr__(drawn, "probability", lambda size: 0.25)  # the rate does not change with a record
    schedule = drawn.draw(one, np.array([0]), SIMULATED, number=2)
    return [set(schedule.samples[0, step][schedule.real[0, step]].tolist()) for step in range(steps)]


def test_a_record_is_in_the_same_batches_without_another_record_and_with_more_steps():
    longer = batches_of(40, 6)
    assert batches_of(39, 6) == [batch - {139} for batch in longer]
    assert batches_of(40, 4) == longer[:4]
    assert len(set().union(*longer)) > 25


class Dropping(nn.Module):
    """Dropout in front of a linear layer, or a draw that is for no single record."""

    def __init__(self, shared=False):
        super().__init__()
        self.layer, self.shared = nn.Linear(6, 3), shared

    def forward(self, inputs):
        dropped = inputs * torch.rand(1, 6) if self.shared else functional.dropout(inputs, 0.5, self.training)
        return self.layer(functional.dropout(dropped, 0.5, self.training))


def record_slopes(monkeypatch, held, *, at_once=50_000_000, shared=False):
    """Clipped slopes of the records of one batch, by row."""
    seen, model = [], FlatModel(lambda: Dropping(shared))

    def clip_rows(rows, norm):
        clipped = real(rows, norm)
        seen.extend(clipped.rows.clone())
        return clipped

    real = records.clip_rows
    generator = torch.Generator().manual_seed(3)
    with monkeypatch.context() as patch:
        patch.setattr(records, "clip_rows", clip_rows)
        patch.setattr(records, "MOST_NUMBERS", at_once)
        training = LocalTraining(
            model=model,
            course=Sgd(size=model.size, learning_rate=0.1),
            inputs=torch.randn(30, 6, generator=generator),
            labels=torch.arange(30) % 3,
            partition=Partition(indices=np.array(held), offsets=np.array([0, len(held)])),
            steps=1,
            batch_size=100,
            record=GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1.0), randomness=SIMULATED),
        )
        training.train(model.initial(0), np.array([0]), number=1, seeds=SEEDS)
    return dict(zip(held, seen, strict=True))


def test_a_record_is_dropped_out_alike_without_another_record(monkeypatch):
    """Seeds of dropout layers are public: drawn by place in the batch, one record less moved all slopes behind it."""
    whole = record_slopes(monkeypatch, [4, 9, 11, 20, 23])
    for held, at_once in (([4, 11, 20, 23], 50_000_000), ([9, 11, 20, 23], 50_000_000), ([4, 9, 11, 20, 23], 45)):
        fewer = record_slopes(monkeypatch, held, at_once=at_once)
        for row, slope in fewer.items():
            assert torch.allclose(slope, whole[row], atol=1e-6)
    assert not torch.allclose(whole[4], whole[9], atol=1e-3)


def test_a_draw_for_a_whole_batch_of_private_records_is_refused(monkeypatch):
    with pytest.raises(TrainingFailed, match=r"shape \[1, 6\] for a batch of private records"):
        record_slopes(monkeypatch, [4, 9, 11], shared=True)
