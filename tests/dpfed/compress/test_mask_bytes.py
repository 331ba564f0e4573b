"""Masks as bytes: round trips, sizes near the cross-entropy, hostile bytes."""

import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dpfed.compress.mask_schemes import mask_from_bytes, mask_to_bytes
from dpfed.errors import WireError


@given(st.integers(1, 400), st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 50.0]))
def test_any_mask_comes_back_whatever_the_probabilities(count, seed, concentration):
    generator = np.random.default_rng(seed)
    probabilities = generator.beta(concentration, concentration, count).astype(np.float32)
    probabilities[generator.random(count) < 0.1] = 0.0
    probabilities[generator.random(count) < 0.1] = 1.0
    mask = generator.random(count) < 0.5
    content = mask_to_bytes(mask, probabilities)
    assert np.array_equal(mask_from_bytes(content, probabilities), mask)
    assert len(content) <= 4 * (count * 13 // 32 + 3)


def test_size_is_the_entropy():
    """Beta(.3, .3) probabilities: .44 bits an entry; the same mask under probability 1/2: 1 bit."""
    generator = np.random.default_rng(0)
    probabilities = generator.beta(0.3, 0.3, 200_000).astype(np.float32)
    mask = generator.random(len(probabilities)) < probabilities
    p = np.clip(probabilities.astype(float), 1 / 4096, 1 - 1 / 4096)
    entropy = float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean())
    assert 8 * len(mask_to_bytes(mask, probabilities)) / len(mask) == pytest.approx(entropy, rel=0.01)
    assert 8 * len(mask_to_bytes(mask, np.full(len(mask), 0.5, np.float32))) / len(mask) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("content", [b"abc", b"\xff" * 4000])
def test_wrong_lengths_are_refused(content):
    refused(WireError, "", mask_from_bytes, content, np.full(1000, 0.5, np.float32))


def test_truncated_and_padded_uploads_do_not_pass_for_the_mask():
    probabilities = np.full(2000, 0.5, np.float32)
    mask = np.random.default_rng(1).random(2000) < 0.5
    content = mask_to_bytes(mask, probabilities)
    refused(WireError, "", mask_from_bytes, content + b"\0\0\0\0" * 3, probabilities)
    for cut in range(4, len(content), 40):
        with contextlib.suppress(WireError):
            assert not np.array_equal(mask_from_bytes(content[:-cut], probabilities), mask)


def test_memory_is_bounded_by_the_mask_not_by_the_bytes():
    probabilities = np.full(1000, 0.5, np.float32)
    tracemalloc.start()
    refused(WireError, "", mask_from_bytes, b"\0" * 50_000_000, probabilities)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000  # the bytes themselves
