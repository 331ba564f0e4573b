"""Random numbers that a network draws while it trains (in dropout layers and the like), from one seeded stream for each
client.

Torch has one generator for all threads, and under vmap one draw serves all clients. With torch's generator a client's
numbers would depend on the clients that train at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.errors import TrainingFailed
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds

_ATEN = torch.ops.aten
_SEEDED = torch.Tag.nondeterministic_seeded
_HALF = 2.0**-25


class ClientRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Context in which torch draws from streams named by (purpose, round, client, step, number of the draw).

    Streams are independent over all of these names, and do not depend on other clients, nor on the strategy (loop or
    side by side).

    clients: clients in training; the first dimension of every draw, under torch.vmap(randomness="different")
    records: rows of the data set in a batch of one client whose records are private. Each record has separate streams,
             since these seeds are public. Every draw must then have the batch as its first dimension.

    A draw for a padded batch begins with the numbers of its real samples, if samples are its first dimension. On CUDA,
    and if samples are not the first dimension, a loop and side by side draw different numbers from one distribution.

    Claim: uniforms on {0, ..., 2^24 - 1} / 2^24; a Bernoulli(p) is u < p, so p is exact to 2^-24. Normals, exponentials
    and integers are their inverse distribution functions at u + 2^-25. Raises TrainingFailed for other draws (random
    permutations, multinomials).
    """

    def __init__(
        self,
        seeds: Seeds,
        purpose: str,
        *,
        number: int,
        clients: Sequence[int],
        step: int,
        records: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seeds, self._purpose, self._number, self._step = seeds, purpose, number, step
        self._clients, self._draws = clients, 0
        self._records = records

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not _draws(func, args, given) or given.get("generator") is not None:
            return func(*args, **given)
        if func not in _DRAWS:
            raise TrainingFailed(
                f"model: draws random numbers by {func}, which no seed of dpfed controls. Use dropout, torch.rand, "
                "randn, rand_like, randn_like, randint, bernoulli, uniform_, normal_ or exponential_."
            )
        return _DRAWS[func](self._uniforms, *args, **given)

    def _uniforms(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return float32 uniform numbers of this shape."""
        self._draws += 1
        made = torch.empty(tuple(shape), device=device)
        paths: list[tuple[int, ...]] = [(self._number, client, self._step, self._draws) for client in self._clients]
        if self._records is not None:
            if tuple(shape[:1]) != self._records.shape:
                raise TrainingFailed(
                    f"model: draws random numbers of shape {list(shape)} for a batch of private records. Each record "
                    "must have separate draws: make the batch the first dimension, as torch's dropout layers do."
                )
            paths = [(*paths[0], record) for record in self._records.tolist()]
        rows = made.reshape(len(paths), -1)
        for row, path in zip(rows, paths, strict=True):
            self._seeds.tensors(self._purpose, *path, device=str(device)).fill_uniform(row)
        return made


class DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that records whether any random number was drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any: bool = False

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        self.any = self.any or _draws(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _draws(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return True if this operation draws; attention and recurrent layers draw only if they have dropout."""
    if _SEEDED not in func.tags:
        return False
    arguments = func._schema.arguments
    given = {one.name: one.default_value for one in arguments if one.has_default_value()}
    given |= dict(zip((one.name for one in arguments), args, strict=False)) | dict(kwargs)
    return not any(given.get(name, 1) == 0 for name in ("dropout_p", "dropout", "train", "training"))


def draws_random_numbers(model: FlatModel, inputs: Tensor, *, training: bool) -> bool:
    """Return True if a forward pass of the first two of these inputs [n, ...] draws random numbers."""
    module = model.bind(model.initial(0))
    module = module if training else module.eval()
    seen = DrawRecorder()
    with torch.random.fork_rng(devices=[]), torch.no_grad(), seen:
        module(inputs[:2].cpu().clone())
    return seen.any


Uniforms = Callable[[Sequence[int], torch.device], Tensor]
Draw = Callable[[Uniforms, Sequence[int], torch.device], Tensor]
_Kind = torch.dtype | None
_Place = torch.device | None


def _bernoulli_samples(uniforms: Uniforms, like: Tensor, chance: float | Tensor) -> Tensor:
    return uniforms(like.shape, like.device) < chance


def _normals(uniforms: Uniforms, shape: Sequence[int], device: torch.device) -> Tensor:
    normals: Tensor = torch.special.ndtri(uniforms(shape, device).double() + _HALF)
    return normals


def _bernoulli_in_place(uniforms: Uniforms, given: Tensor, chance: float = 0.5, **_: object) -> Tensor:
    return given.copy_(_bernoulli_samples(uniforms, given, chance))


def _bernoulli(uniforms: Uniforms, given: Tensor, chance: float | None = None, **_: object) -> Tensor:
    return _bernoulli_samples(uniforms, given, given if chance is None else chance).to(given.dtype)


def _dropout(uniforms: Uniforms, given: Tensor, dropped: float, _: bool | None) -> tuple[Tensor, Tensor]:
    """Return the kept and scaled values, and the mask of kept ones; outside training no number is drawn (`_draws`)."""
    kept = _bernoulli_samples(uniforms, given, 1 - dropped)
    return given * kept * (1 / (1 - dropped) if dropped < 1 else 0.0), kept


def _rrelu(
    uniforms: Uniforms, given: Tensor, slopes: Tensor, low: float = 1 / 8, high: float = 1 / 3, *_: object
) -> Tensor:
    """Return the inputs, the negative ones times a slope, and write the slopes, which the backward pass reads."""
    drawn = uniforms(given.shape, given.device) * (high - low) + low
    return given * slopes.copy_(torch.where(given <= 0, drawn, 1.0))


def _uniform_in_place(uniforms: Uniforms, given: Tensor, low: float = 0.0, high: float = 1.0, **_: object) -> Tensor:
    return given.copy_(uniforms(given.shape, given.device) * (high - low) + low)


def _normal_in_place(uniforms: Uniforms, given: Tensor, mean: float = 0.0, std: float = 1.0, **_: object) -> Tensor:
    return given.copy_(_normals(uniforms, given.shape, given.device) * std + mean)


def _normal_around(uniforms: Uniforms, mean: Tensor | float, std: Tensor | float = 1.0, **_: object) -> Tensor:
    like = torch.as_tensor(mean) + torch.as_tensor(std)
    return (_normals(uniforms, like.shape, like.device) * std + mean).to(like.dtype)


def _exponential_in_place(uniforms: Uniforms, given: Tensor, rate: float = 1.0, **_: object) -> Tensor:
    return given.copy_(-torch.log1p(-(uniforms(given.shape, given.device).double() + _HALF)) / rate)


def _like_arguments(draw: Draw) -> Callable[..., Tensor]:
    """Return the draw as a function with the arguments of torch.rand_like."""

    def draw_like(uniforms: Uniforms, given: Tensor, *, dtype: _Kind = None, **_: object) -> Tensor:
        return draw(uniforms, given.shape, given.device).to(dtype or given.dtype)

    return draw_like


def _size_arguments(draw: Draw) -> Callable[..., Tensor]:
    """Return the draw as a function with the arguments of torch.rand."""

    def draw_of_size(
        uniforms: Uniforms, size: Sequence[int], *, dtype: _Kind = None, device: _Place = None, **_: object
    ) -> Tensor:
        return draw(uniforms, size, torch.device(device or "cpu")).to(dtype or torch.get_default_dtype())

    return draw_of_size


def _uniform_draw(uniforms: Uniforms, shape: Sequence[int], device: torch.device) -> Tensor:
    return uniforms(shape, device)


def _randint_from(
    uniforms: Uniforms,
    low: int,
    high: int,
    size: Sequence[int],
    *,
    dtype: _Kind = None,
    device: _Place = None,
    **_: object,
) -> Tensor:
    drawn = uniforms(size, torch.device(device or "cpu")).double()
    return (low + (drawn * (high - low)).floor()).to(dtype or torch.int64)


def _randint(uniforms: Uniforms, high: int, size: Sequence[int], **given: Any) -> Tensor:
    return _randint_from(uniforms, 0, high, size, **given)


_DRAWS: dict[object, Callable[..., object]] = {
    _ATEN.bernoulli_.float: _bernoulli_in_place,
    _ATEN.bernoulli.p: _bernoulli,
    _ATEN.bernoulli.default: _bernoulli,
    _ATEN.native_dropout.default: _dropout,
    _ATEN.rrelu_with_noise.default: _rrelu,
    _ATEN.uniform_.default: _uniform_in_place,
    _ATEN.normal_.default: _normal_in_place,
    _ATEN.normal.Tensor_Tensor: _normal_around,
    _ATEN.normal.Tensor_float: _normal_around,
    _ATEN.normal.float_Tensor: _normal_around,
    _ATEN.exponential_.default: _exponential_in_place,
    _ATEN.rand.default: _size_arguments(_uniform_draw),
    _ATEN.randn.default: _size_arguments(_normals),
    _ATEN.rand_like.default: _like_arguments(_uniform_draw),
    _ATEN.randn_like.default: _like_arguments(_normals),
    _ATEN.randint.default: _randint,
    _ATEN.randint.low: _randint_from,
}
