"""What is on the wire decodes the same way in a second implementation, in numpy and float64, one client at a time.

A change here is a change of the wire format: raise its version.
"""

import numpy as np
import pytest
import torch
from reference import counter_stream as stream
from refusals import refused
from scipy.linalg import hadamard

from dpfed import compress
from dpfed.compress.rotated_levels import POSITIVE_CENTROIDS

X = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
SEED = 2**64 - 3


def parsed(name, x=X, **options):
    scheme = compress.get(name, **options)
    payloads = [compress.from_bytes(payload.to_bytes()) for payload in scheme.encode(x, seed=[5, SEED])]
    return scheme.decode(payloads)[1].numpy(), payloads[1].fields, payloads[1].seed


def close(decoded, expected, tolerance=2e-6):
    np.testing.assert_allclose(decoded, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def rotated_back(levels, scales, seed, dimension, sizes, rounds):
    whole, first = [], 0
    for size, scale in zip(sizes, scales, strict=True):
        part = levels[first : first + size]
        in_block = 1 if rounds == 1 else {64: 6, 1024: 3, 2048: 3}.get(size, 0)
        for round in reversed(range(in_block)):
            signs = stream.signs(seed, f"rotation.{round}", first + size)[first:]
            part = signs * (hadamard(size) @ part) / size**0.5 if size > 1 else part
        whole.append(scale * part)
        first += size
    return np.concatenate(whole)[:dimension]


@pytest.mark.parametrize(
    ("dimension", "block", "sizes"),
    [(1, 64, [1]), (1025, 1 << 16, [1024, 1]), (3000, 1 << 16, [2048, 1024]), (3000, 1024, [1024, 1024, 1024])],
)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.slow_but_one_in(3)
def test_drive(dimension, block, sizes, rounds):
    decoded, fields, seed = parsed("drive", X[:, :dimension], block=block, rounds=rounds)
    signs = 2.0 * fields["symbols"] - 1
    assert seed == SEED
    close(decoded, rotated_back(signs, fields["scales"], seed, dimension, sizes, rounds))


@pytest.mark.parametrize("bits", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_eden(bits):
    decoded, fields, seed = parsed("eden", bits=bits)
    levels = np.array([-level for level in reversed(POSITIVE_CENTROIDS[bits])] + list(POSITIVE_CENTROIDS[bits]))
    close(decoded, rotated_back(levels[fields["symbols"]], fields["scales"], seed, 3000, [2048, 1024], 2))


def test_eden_below_one_bit():
    decoded, fields, seed = parsed("eden", bits=0.25)
    levels, before, first = np.zeros(3072), 0, 0
    for number, size in enumerate([2048, 1024]):
        kept = size // 4
        chosen = stream.subset(seed, f"rotated_levels.kept.{number}", size, kept)
        levels[first + chosen] = (2.0 * fields["symbols"][before : before + kept] - 1) * POSITIVE_CENTROIDS[1][0]
        before, first = before + kept, first + size
    close(decoded, rotated_back(levels, fields["scales"], seed, 3000, [2048, 1024], 2))


LONG = torch.randn(2, 70_000, generator=torch.Generator().manual_seed(1))  # more than is drawn at once


@pytest.mark.parametrize(("vectors", "draw"), [("rademacher", stream.signs), ("gaussian", stream.normals)])
def test_fedscalar(vectors, draw):
    decoded, fields, seed = parsed("fedscalar", LONG, vectors=vectors)
    close(decoded, fields["scalars"][0] * draw(seed, "projection", 70_000))
    close(fields["scalars"][0], (LONG[1].double().numpy() * draw(SEED, "projection", 70_000)).sum(), 1e-4)


@pytest.mark.parametrize("shared_seed", [None, 77])
@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize(
    ("noise", "draw"),
    [
        ("uniform", lambda *stream_of: 2 * stream.uniforms(*stream_of) - 1 + 2.0**-24),
        ("gaussian", stream.normals),
        ("bernoulli", stream.signs),
    ],
)
def test_masked_noise(name, noise, draw, shared_seed):
    decoded, fields, seed = parsed(name, noise=noise, alpha=0.5, shared_seed=shared_seed)
    weights = 2.0 * fields["mask"] - 1 if name == "fedmrns" else fields["mask"]
    close(decoded, weights * 0.5 * draw(seed if shared_seed is None else shared_seed, "masked_noise", 3000))


@pytest.mark.parametrize("shared_seed", [None, 77])
@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
def test_the_coins_of_a_mask(name, shared_seed):
    _, fields, _ = parsed(name, LONG, alpha=1.0, shared_seed=shared_seed)
    noise = 2 * stream.uniforms(SEED if shared_seed is None else shared_seed, "masked_noise", 70_000) - 1 + 2.0**-24
    ratio = LONG[1].double().numpy() / noise
    chance = np.clip((ratio + 1) / 2 if name == "fedmrns" else ratio, 0, 1)
    expected = stream.uniforms(SEED, "masked_noise.coins", 70_000) < chance
    assert (fields["mask"] == expected).mean() > 0.9999  # a coin at its probability may fall either way


@pytest.mark.parametrize(("name", "shared"), [("randk", False), ("shared-randk", True)])
def test_random_coordinates(name, shared):
    scheme = compress.get(name, k=100)
    payload = compress.from_bytes(scheme.encode(X[:1], seed=[SEED])[0].to_bytes())
    expected = np.zeros(3000)
    chosen = stream.subset(payload.seed, name, 3000, 100)
    expected[chosen] = 30 * X[0].numpy()[chosen]
    close(scheme.decode([payload])[0].numpy(), expected)


def test_seeds_of_clients():
    hashed = compress.get("drive").encode(X, seed=7)
    assert [payload.seed for payload in hashed] == stream.words(7, "client", 2).tolist()


def test_these_checks_see_another_stream(monkeypatch):
    """One other bit in the first word of a stream is enough."""
    decoded, fields, seed = parsed("fedscalar")
    monkeypatch.setattr(stream, "GOLDEN", np.uint64(0x9E3779B97F4A7C17))
    refused(AssertionError, "", lambda: close(decoded, fields["scalars"][0] * stream.signs(seed, "projection", 3000)))
