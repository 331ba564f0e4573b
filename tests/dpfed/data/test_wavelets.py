"""Scattering against its definition, convolution by convolution in the plane."""

import math

import numpy as np
import pytest
import torch
from refusals import refused

from dpfed.config.tables import parse
from dpfed.data.population import fingerprint
from dpfed.data.wavelets import scattering
from dpfed.errors import ConfigError
from dpfed.runs.experiment import build

REACH = 16


def gabor(sigma, angle, frequency, slant):
    """Sampled on a grid of pixels that is wide enough, with sum of the window 1."""
    grid = np.arange(-REACH, REACH + 1)
    y, x = np.meshgrid(grid, grid, indexing="ij")
    along, across = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    return window, window * np.exp(1j * frequency * along)


def morlet(scale, angle, slant):
    window, wave = gabor(0.8 * scale, angle, 0.75 * math.pi / scale, slant)
    return wave - window * (wave.sum() / window.sum())


def convolved(image, kernel):
    """The cyclic convolution of an image with its margin."""
    total = np.zeros(image.shape, dtype=complex)
    reach = len(kernel) // 2
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            total += kernel[dy + reach, dx + reach] * np.roll(image, (dy, dx), (0, 1))
    return total


def slow(image, orientations):
    height, width = image.shape
    down, right = -height % 4 + 8, -width % 4 + 8
    wide = np.pad(image, ((8, down), (8, right)), mode="reflect")
    low, slant = gabor(1.6, 0.0, 0.0, 1.0)[0], 4 / orientations
    turns = [math.pi * turn / orientations for turn in range(orientations)]

    def smooth(values, every):
        """Every fourth pixel of the image, where `values` are on every first or second."""
        rows, columns, step = (height + 3) // 4, (width + 3) // 4, 4 // every
        kernel = low[::every, ::every] * every**2
        return convolved(values, kernel).real[::step, ::step][2 : 2 + rows, 2 : 2 + columns]

    fine = [abs(convolved(wide, morlet(1, turn, slant))) for turn in turns]
    coarse = [abs(convolved(wide, morlet(2, turn, slant)))[::2, ::2] for turn in turns]
    both = [abs(convolved(one, morlet(2, turn, slant)))[::2, ::2] for one in fine for turn in turns]
    groups = [([wide], 1), (fine, 1), (coarse, 2), (both, 2)]
    shown = [np.stack([smooth(one, every) for one in group]) for group, every in groups]
    return np.concatenate([(one - one.mean()) / np.sqrt(one.var() + 1e-5) for one in shown])


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("size", "orientations"), [((14, 17), 3), ((28, 28), 4)])
def test_it_is_the_definition(size, orientations):
    images = np.random.default_rng(1).normal(size=(2, 1, *size)).astype(np.float32)
    images = torch.nn.functional.avg_pool2d(torch.from_numpy(images), 3, 1, 1).numpy()
    got = scattering(images, orientations=orientations)
    assert got.shape == (2, (1 + orientations) ** 2, -(-size[0] // 4), -(-size[1] // 4))
    for one, image in zip(got, images, strict=True):
        expected = slow(image[0], orientations)
        np.testing.assert_allclose(one, expected, atol=5e-3)


def test_a_sample_is_transformed_by_itself():
    images = np.random.default_rng(2).normal(size=(600, 3, 12, 15)).astype(np.float32)
    together = scattering(images, orientations=2)
    np.testing.assert_allclose(scattering(images[300:301], orientations=2)[0], together[300], atol=1e-5)
    assert together.shape == (600, 27, 3, 4)


def test_an_even_image_has_features_of_zero():
    assert np.abs(scattering(np.full((1, 1, 16, 16), 3.0, np.float32), orientations=4)).max() < 0.05


@pytest.mark.parametrize("shape", [(5, 80), (5, 1, 11, 28)])
def test_what_is_no_image_is_refused(shape):
    refused(ConfigError, "at least 12 by 12", scattering, np.zeros(shape, dtype=np.float32))


def tables(**more):
    images = {"name": "images.npz", "features": "scattering", "orientations": 2}
    return {
        "data": {**images, **more},
        "model": {"name": "mlp", "hidden": []},
        "federation": {"clients": 8, "cohort": 8, "rounds": 2, "sampling": "all"},
        "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 4},
        "method": {"name": "dp-fedavg"},
        "privacy": {"epsilon": 5.0, "clip_norm": 1.0},
    }


@pytest.fixture
def images(tmp_path):
    """A file of random images; its folder."""
    generator = np.random.default_rng(3)
    arrays = {
        f"{half}_{what}": values
        for half, count in (("train", 32), ("test", 12))
        for what, values in (
            ("inputs", generator.normal(size=(count, 1, 12, 12)).astype(np.float32)),
            ("labels", generator.integers(0, 3, size=count)),
        )
    }
    np.savez(tmp_path / "images.npz", classes=3, **arrays)
    return tmp_path


def test_a_run_trains_on_features_and_its_clients_are_those_of_the_images(images):
    experiment, plain = (
        build(parse(tables(root=str(images), validation=4, **more), source="test"))
        for more in ({}, {"features": None, "orientations": 8})
    )
    assert experiment.dataset.input_shape == (9, 3, 3)
    assert experiment.model.size == 9 * 9 * 3 + 3
    np.testing.assert_array_equal(
        experiment.dataset.train_inputs, scattering(plain.dataset.train_inputs, orientations=2)
    )
    key = b"k" * 32
    same, again = (
        fingerprint(key, one.dataset, one.method.clients.partition, unit="client", on_nodes=False)
        for one in (experiment, plain)
    )
    assert same == again


def test_images_of_clients_are_not_public_though_their_features_differ_in_the_last_bits(images):
    """Last bits of features depend on the number of images that are transformed together."""
    with np.load(images / "images.npz") as file:
        arrays = dict(file)
    arrays |= {f"train_{name}": arrays[f"train_{name}"][-2:] for name in ("inputs", "labels")}
    np.savez(images / "two.npz", **arrays)
    config = parse(
        tables(root=str(images), public=1, public_from="two.npz") | {"method": {"name": "fed-smp-topk", "k": 3}},
        source="test",
    )
    refused(ConfigError, "1 of its 1 public samples are samples of clients", build, config)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"partition": "nodes"}, "remove data.features"),
        ({"features": None}, "it is for data.features='scattering'"),
        ({"orientations": 1}, "orientations"),
    ],
)
def test_what_cannot_be_is_refused(images, more, said):
    refused(ConfigError, said, lambda: build(parse(tables(root=str(images), **more), source="test")))


def test_other_images_have_other_features(images):
    """What is kept of the last data set is not taken for another."""
    first = build(parse(tables(root=str(images)), source="test")).dataset
    with np.load(images / "images.npz") as file:
        arrays = {**file, "train_inputs": file["train_inputs"].copy()}
        arrays["train_inputs"][5, 0, :6] += 7
    np.savez(images / "images.npz", **arrays)
    second = build(parse(tables(root=str(images)), source="test")).dataset
    changed = np.abs(first.train_inputs - second.train_inputs).max((1, 2, 3)) > 1e-3
    assert changed.sum() == 1
    np.testing.assert_array_equal(first.test_inputs, second.test_inputs)
