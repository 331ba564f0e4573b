"""Wavelet scattering of images: fixed features, on which a private run trains a small model."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError

_AT_ONCE = 250
_MARGIN = 8
_STRIDE = 4
_SMALLEST = _MARGIN + _STRIDE  # the margin mirrors the image, which must be at least this large


def with_scattering(dataset: Dataset, *, orientations: int) -> Dataset:
    """Return the data set with `scattering` in place of its images. Raise ConfigError if inputs are not images.

    The features of the last data set are cached for the other runs of a sweep.
    """
    dataset, before = dataset.as_floats(), dict(_kept)
    _kept.clear()
    features = []
    for images in (dataset.train_inputs, dataset.test_inputs):
        key = _images_digest(images), orientations
        features.append(before[key] if key in before else scattering(images, orientations=orientations))
        _kept[key] = features[-1]
    return replace(dataset, raw_inputs=dataset.train_inputs, train_inputs=features[0], test_inputs=features[1])


_kept: dict[tuple[str, int], NDArray[np.float32]] = {}


def _images_digest(images: NDArray[np.float32]) -> str:
    found = hashlib.sha256(str(images.shape).encode())
    found.update(np.ascontiguousarray(images).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def scattering(images: NDArray[np.float32], *, orientations: int = 8) -> NDArray[np.float32]:
    """Return features [N, channels (1 + L)^2, height / 4, width / 4] of images [N, channels, height, width], L
    orientations.

    The scattering transform of depth 2 over two octaves (Bruna and Mallat 2013; for private learning Tramer and Boneh
    2021). With Morlet wavelets psi of scale 1 and 2 and a Gaussian low-pass phi, it has every fourth pixel of

        x * phi,   |x * psi_1| * phi,   |x * psi_2| * phi,   ||x * psi_1| * psi_2'| * phi,

    with moduli of psi_2 on every second pixel. Within a sample each of these four groups is standardised: minus its
    mean, over the root of its variance + 1e-5. The features of a sample depend on that sample only. No filter is learnt
    from data, so a client's features depend on that client only, and no privacy is spent. Raises ConfigError unless
    inputs are images of at least 12 by 12 pixels.
    """
    if images.ndim != 4 or min(images.shape[2:]) < _SMALLEST:
        raise ConfigError(
            f"data.features='scattering' with inputs of shape {images.shape[1:]}: must be [channels, height, width] "
            f"of at least {_SMALLEST} by {_SMALLEST} pixels. Remove data.features."
        )
    filters = _Filters(images.shape[2], images.shape[3], orientations)
    channels = images.shape[1] * (1 + orientations) ** 2
    features = np.empty((len(images), channels, filters.rows, filters.columns), dtype=np.float32)
    for start in range(0, len(images), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        features[some] = filters.features(torch.from_numpy(images[some])).numpy()
    return features


class _Filters:
    """Wavelets as spectra on the image with its margin, and the low-pass filter as matrices."""

    def __init__(self, height: int, width: int, orientations: int) -> None:
        self.rows, self.columns = -(-height // _STRIDE), -(-width // _STRIDE)
        self.wide = tuple(_STRIDE * side + 2 * _MARGIN for side in (self.rows, self.columns))
        self.pads = (_MARGIN, self.wide[1] - width - _MARGIN, _MARGIN, self.wide[0] - height - _MARGIN)
        turns = [math.pi * turn / orientations for turn in range(orientations)]
        self.fine, self.coarse = (
            torch.stack([_morlet(self.wide, scale, turn, _STRIDE / orientations) for turn in turns]) for scale in (1, 2)
        )

    def features(self, images: Tensor) -> Tensor:
        """Return features [n, channels (1 + L)^2, height / 4, width / 4] of images [n, channels, height, width]."""
        image = torch.nn.functional.pad(images, self.pads, mode="reflect")[:, :, None]
        spectrum = torch.fft.fft2(image)
        first = torch.fft.ifft2(spectrum * self.fine).abs()
        second = torch.fft.ifft2(_fold_spectrum(spectrum, self.coarse)).abs()
        of_first = torch.fft.fft2(first)[:, :, :, None]
        both = torch.fft.ifft2(_fold_spectrum(of_first, self.coarse)).abs().flatten(2, 3)
        groups = (self._smooth(image, 1), self._smooth(first, 1), self._smooth(second, 2), self._smooth(both, 2))
        return torch.cat([_standardise(one) for one in groups], 2).flatten(1, 2)

    def _smooth(self, image: Tensor, every: int) -> Tensor:
        """Return every fourth pixel of image * phi without its margin; `every` is the pixel spacing of the image, 1
        or 2."""
        down, right = (_low_pass(wide, every) for wide in self.wide)
        smoothed: Tensor = down @ image @ right.T
        return smoothed


def _low_pass(wide: int, every: int) -> Tensor:
    """Return phi along one side as a matrix [wide / 4 without the margin, wide / every]."""
    kernel = torch.fft.ifft(_wave_spectrum((wide, 1), 1.6, 0.0, 0.0, 1.0).flatten()).real
    kernel /= kernel.sum()
    to = torch.arange(_MARGIN, wide - _MARGIN, _STRIDE)
    matrix: Tensor = every * kernel[(to[:, None] - torch.arange(0, wide, every)) % wide]
    return matrix.float()


def _standardise(group: Tensor) -> Tensor:
    """Return features with mean 0 and variance 1 over a sample's values in all channels and places of the group."""
    flat = group.flatten(1)
    deviation = (flat.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    return ((flat - flat.mean(1, keepdim=True)) / deviation).view_as(group)


def _fold_spectrum(spectrum: Tensor, filters: Tensor) -> Tensor:
    """Return the spectrum of every second pixel, in both directions, of the filtered image: four frequencies are added
    to one.
    """
    height, width = (side // 2 for side in spectrum.shape[-2:])
    total = torch.zeros((), dtype=spectrum.dtype)
    for row in (slice(None, height), slice(height, None)):
        for column in (slice(None, width), slice(width, None)):
            total = total + spectrum[..., row, column] * (filters[..., row, column] / 4)
    return total


def _morlet(size: tuple[int, ...], scale: int, angle: float, slant: float) -> Tensor:
    """Return a Gabor wave of centre frequency 3 pi / (4 scale) without its mean."""
    wave = _wave_spectrum(size, 0.8 * scale, 0.75 * math.pi / scale, angle, slant)
    bump = _wave_spectrum(size, 0.8 * scale, 0.0, angle, slant)
    return (wave - bump * (wave[0, 0] / bump[0, 0])).float()


def _wave_spectrum(size: tuple[int, ...], sigma: float, frequency: float, angle: float, slant: float) -> Tensor:
    """Return the spectrum [height, width] of a Gaussian window times a plane wave.

    The window has deviation `sigma` (`sigma / slant` across). Sampling on pixels adds copies of the continuous
    spectrum, 2 pi apart.
    """
    row, column = (2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64) for side in size)
    copies = 2 * math.pi * torch.arange(-2, 3, dtype=torch.float64)
    y, x = row[:, None, None, None] + copies[:, None], column[None, :, None, None] + copies
    along = math.cos(angle) * x + math.sin(angle) * y - frequency
    across = math.cos(angle) * y - math.sin(angle) * x
    return torch.exp(-(sigma**2) / 2 * (along**2 + (across / slant) ** 2)).sum((-2, -1))
