"""A fingerprint of the clients: every sample, label and holder counts, and without the key it says nothing."""

import hashlib
import hmac
import time
from dataclasses import replace

import numpy as np
import pytest

from dpfed.data import Dataset, Partition
from dpfed.data.partition import partition_of_lists
from dpfed.data.population import Resampled, fingerprint
from dpfed.seeds import Seeds

KEY = bytes(range(32))
GENERATOR = np.random.default_rng(1)
DATA = Dataset(
    name="own",
    train_inputs=GENERATOR.normal(size=(12, 3)).astype(np.float32),
    train_labels=np.arange(12) % 3,
    test_inputs=np.zeros((2, 3), np.float32),
    test_labels=np.arange(2),
    classes=3,
)


def holdings(*rows):
    return partition_of_lists([np.array(one, dtype=np.int64) for one in rows])


REST = [5, 6, 7, 8, 9, 10, 11]
HELD = holdings([0, 1, 2], [3, 4], [], REST)
POOL = Resampled(samples=12, clients=1_000_000, samples_per_client=5, seeds=Seeds(root=3))


def of(dataset=DATA, held=HELD, *, key=KEY, unit="client", on_nodes=False):
    return fingerprint(key, dataset, held, unit=unit, on_nodes=on_nodes)


def changed(**arrays):
    return replace(DATA, **{name: change(getattr(DATA, name).copy()) for name, change in arrays.items()})


def put(place, value):
    def change(array):
        array[place] = value
        return array

    return change


def test_every_sample_label_and_holder_counts():
    others = {
        "a sample": of(changed(train_inputs=put((11, 2), np.nextafter(DATA.train_inputs[11, 2], np.float32(9))))),
        "a label": of(changed(train_labels=put(7, 0))),
        "a sample fewer": of(changed(train_inputs=lambda a: a[:11], train_labels=lambda a: a[:11])),
        "another shape": of(changed(train_inputs=lambda a: a[:, None], test_inputs=lambda a: a[:, None])),
        "who holds it": of(held=holdings([0, 1], [2, 3, 4], [], REST)),
        "whose number": of(held=holdings([3, 4], [0, 1, 2], [], REST)),
        "a client more": of(held=holdings([0, 1, 2], [3, 4], [], REST, [])),
        "the unit": of(unit="record"),
        "a rule": of(held=POOL),
        "nodes": of(on_nodes=True),
    }  # fmt: skip
    assert len({of(), *others.values()}) == 1 + len(others)
    assert of() == of(changed(train_inputs=lambda a: np.asfortranarray(a)))
    assert of() == of(changed(test_labels=put(0, 1)))  # who is tested on is not who the clients are


def test_rules_are_known_by_their_terms():
    assert of(held=POOL) == of(held=replace(POOL))
    others = [replace(POOL, seeds=Seeds(root=4)), replace(POOL, clients=999_999), replace(POOL, samples_per_client=6)]
    assert len({of(held=one) for one in (POOL, *others)}) == 4


def test_nodes_are_known_by_their_names_alone():
    nobody = Partition(indices=np.zeros(0, np.int64), offsets=np.zeros(5, np.int64))
    assert of(held=nobody, on_nodes=True) == of(changed(train_labels=put(7, 0)), nobody, on_nodes=True)
    more = Partition(indices=np.zeros(0, np.int64), offsets=np.zeros(6, np.int64))
    assert of(held=nobody, on_nodes=True) != of(held=more, on_nodes=True)


def test_it_is_the_keyed_hash_of_the_arrays():
    """Put together by hand, and another one under another key: nobody can try out data without it."""
    content = b'["dpfed-population-1", "client"]\n'
    for name, array in (
        ("inputs", DATA.train_inputs),
        ("labels", DATA.train_labels),
        ("indices", HELD.indices),
        ("offsets", HELD.offsets),
    ):
        shape = ", ".join(map(str, array.shape))
        content += f'["{name}", "{array.dtype.str}", [{shape}]]\n'.encode() + array.tobytes()
    inner = hashlib.sha256(bytes(k ^ 0x36 for k in KEY + bytes(32)) + content).digest()
    assert of() == hashlib.sha256(bytes(k ^ 0x5C for k in KEY + bytes(32)) + inner).hexdigest()
    assert of(key=bytes(32)) not in (of(), hashlib.sha256(content).hexdigest())
    assert of() == hmac.new(KEY, content, "sha256").hexdigest()


@pytest.mark.parametrize("clients", [100, 6000])
def test_it_takes_a_part_of_a_second_once_a_run(clients):
    """60,000 images: 188 MB, at some 0.5 to 2 GB a second. The bound is wide: other work may go on."""
    images = np.zeros((60_000, 28, 28), np.float32)
    labels = np.zeros(60_000, np.int64)
    whole = replace(DATA, train_inputs=images, train_labels=labels, test_inputs=images[:2])
    held = partition_of_lists(np.array_split(np.arange(60_000), clients))
    began = time.process_time()
    of(whole, held)
    assert time.process_time() - began < 3
