"""Every epoch visits each of a client's samples once, in an order that is the client's own."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_training import partition_of

from dpfed.clients.schedule import Schedule, draw_schedule
from dpfed.data import Partition
from dpfed.seeds import Seeds

SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=8)


def draw(
    partition: Partition,
    clients: list[int],
    batch_size: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    number: int = 0,
    purpose: str = "local.shuffle",
) -> Schedule:
    return draw_schedule(
        partition,
        np.array(clients, dtype=np.int64),
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        number=number,
        seeds=Seeds(root=1),
        purpose=purpose,
    )


def batches(schedule: Schedule, client: int) -> list[list[int]]:
    return [
        schedule.samples[client, step][schedule.real[client, step]].tolist() for step in range(schedule.steps[client])
    ]


@settings(deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(1, 4))
def test_every_epoch_visits_each_sample_once(sizes: list[int], batch_size: int, epochs: int) -> None:
    partition = partition_of(sizes, mixed=True)
    schedule = draw(partition, list(range(len(sizes))), batch_size, epochs=epochs)
    for client, size in enumerate(sizes):
        served = batches(schedule, client)
        per_epoch = -(-size // batch_size)
        assert len(served) == schedule.steps[client] == epochs * per_epoch
        for epoch in range(epochs):
            own = served[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert all(len(batch) == batch_size for batch in own[:-1])
            assert sorted(chain.from_iterable(own)) == sorted(partition.of(client).tolist())


@settings(deadline=None)
@given(SIZES, st.integers(1, 9), st.integers(1, 12))
def test_steps_are_the_first_batches_of_enough_epochs(sizes: list[int], batch_size: int, steps: int) -> None:
    partition, clients = partition_of(sizes, mixed=True), list(range(len(sizes)))
    by_steps = draw(partition, clients, batch_size, steps=steps)
    by_epochs = draw(partition, clients, batch_size, epochs=steps)
    for client, size in enumerate(sizes):
        assert batches(by_steps, client) == batches(by_epochs, client)[:steps]
        assert by_steps.steps[client] == (steps if size else 0)


@settings(deadline=None)
@given(SIZES, st.integers(1, 9))
def test_batches_of_a_client_do_not_depend_on_the_others(sizes: list[int], batch_size: int) -> None:
    partition = partition_of(sizes, mixed=True)
    together = draw(partition, list(range(len(sizes))), batch_size, epochs=2)
    for client in range(len(sizes)):
        assert batches(draw(partition, [client], batch_size, epochs=2), 0) == batches(together, client)


def test_padding_repeats_the_batchs_own_first_sample() -> None:
    schedule = draw(partition_of([7, 3], mixed=True), [0, 1], 5, epochs=1)
    first = np.broadcast_to(schedule.samples[..., :1], schedule.samples.shape)
    padded = ~schedule.real & schedule.real.any(axis=-1, keepdims=True)
    assert padded.any()
    np.testing.assert_array_equal(schedule.samples[padded], first[padded])


@pytest.mark.parametrize("change", [{"number": 1}, {"purpose": "server.public"}])
def test_order_changes_with_round_and_purpose(change: dict[str, int | str]) -> None:
    partition = partition_of([20], mixed=True)
    assert batches(draw(partition, [0], 20, epochs=1), 0) != batches(
        draw(partition, [0], 20, epochs=1, **change),  # type: ignore[arg-type]
        0,
    )


def test_orders_differ_between_epochs_and_clients() -> None:
    schedule = draw(partition_of([20, 20], mixed=True), [0, 1], 20, epochs=2)
    places = np.argsort(np.argsort(schedule.samples, axis=-1), axis=-1).reshape(4, 20)
    assert len(np.unique(places, axis=0)) == 4


def test_no_clients_or_no_samples_give_an_empty_schedule() -> None:
    assert draw(partition_of([3], mixed=True), [], 2, epochs=1).samples.shape[0] == 0
    assert draw(partition_of([0, 3], mixed=True), [0], 2, steps=4).samples.shape[1] == 0
