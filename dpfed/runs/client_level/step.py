"""A round of a custom training loop: its cohort, and the release of the cohort's updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.data.dataset import Numbers
from dpfed.errors import ConfigError


class ReleasingLoop(Protocol):
    """Protocol of the loop to which a step belongs."""

    def release(self, step: Step, updates: object) -> Tensor | dict[str, Tensor]: ...

    def names_of(self, cohort: NDArray[np.int64]) -> tuple[str, ...]: ...


class Step:
    """One round of a custom training loop.

    round:  its number, from 0
    cohort: numbers of the drawn clients, int64 [c], sorted; it may be empty under Poisson sampling. The cohort is
            secret: a guarantee with sampling holds against observers who do not know it
    """

    def __init__(self, loop: ReleasingLoop, number: int, cohort: NDArray[np.int64]) -> None:
        self._loop = loop
        self.round, self.cohort = number, cohort

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the cohort's clients, in the order of `cohort`; their numbers, as text, if clients have no names."""
        return self._loop.names_of(self.cohort)

    @overload
    def release(self, updates: Tensor | Numbers | Iterable[Tensor] | Iterable[Numbers]) -> Tensor: ...

    @overload
    def release(self, updates: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]: ...

    def release(self, updates: object) -> Tensor | dict[str, Tensor]:
        """Return the noisy mean of the cohort's updates, float32 [d], and charge the release.

        Updates are clipped, summed and noised, and the sum is divided by the expected cohort. If updates are
        dictionaries, so is the mean.

        updates: a matrix [c, d], or an iterable with one update per client, in the order of `cohort`. An update is a
                 vector [d], or a dictionary of tensors (the difference of two state dicts). An iterable is read a few
                 updates at a time, so it may be a generator that trains. Updates are not modified. An update with NaN
                 or infinity counts as zeros, because an error would reveal it.

        Claim: the charge is on the disk, in the ledger, before this method returns. Raises ConfigError for updates of
        another form, after which the same round can still be released. Raises RunError for a second release or a round
        that is over, and LedgerError if the charge cannot be written; then nothing was released.
        """
        return self._loop.release(self, updates)

    def __repr__(self) -> str:
        return f"Step(round={self.round}, cohort of {len(self.cohort)})"


@dataclass(frozen=True, kw_only=True)
class UpdateForm:
    """Form of every update of a loop.

    size: number of numbers in an update
    names, shapes, dtypes: of the tensors in an update that is a dictionary, in their order; empty for a vector
    """

    size: int
    device: torch.device
    names: tuple[str, ...] = ()
    shapes: tuple[torch.Size, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()

    @property
    def description(self) -> str:
        if not self.names:
            return f"vectors of {self.size} numbers on {self.device}"
        return f"dictionaries of {len(self.names)} tensors, {self.size} numbers, on {self.device}"

    def matches(self, other: UpdateForm) -> bool:
        """Return True if both forms are equal; their devices may differ."""
        return (self.size, self.names, self.shapes) == (other.size, other.names, other.shapes)

    def with_form(self, vector: Tensor) -> Tensor | dict[str, Tensor]:
        """Return a vector [size] in this form: as a vector, or as a dictionary of tensors."""
        if not self.names:
            return vector
        parts = torch.split(vector, [shape.numel() for shape in self.shapes])
        return {
            name: part.reshape(shape).to(dtype)
            for name, part, shape, dtype in zip(self.names, parts, self.shapes, self.dtypes, strict=True)
        }


def form_and_updates(updates: object) -> tuple[UpdateForm | None, Iterator[object]]:
    """Return the form of the first update, None if there are no updates, and an iterator over all updates."""
    kind = type(updates).__name__
    match updates:
        case Mapping():
            raise ConfigError("updates: one dictionary; must be one for each client, as in release([difference, ...]).")
        case Tensor() | np.ndarray() if updates.ndim != 2:
            raise ConfigError(f"updates: a {kind} of shape {tuple(updates.shape)}; must be [clients of the cohort, d].")
        case Iterable():
            rows = iter(_require_dense(updates, "updates") if isinstance(updates, Tensor) else updates)
        case _:
            raise ConfigError(f"updates: {kind}; must be a matrix [c, d], or an iterable with one update per client.")
    first = next(rows, None)
    if first is None:
        return _form_of_empty_cohort(updates), iter(())
    return _form_and_parts(first)[0], chain([first], rows)


def updates_in_groups(rows: Iterator[object], form: UpdateForm, count: int, *, at_once: int) -> Iterator[Tensor]:
    """Yield copies of exactly `count` updates, `at_once` at a time, as float32 [g, size].

    Raises ConfigError for more or fewer updates, or for an update of another form.
    """
    done = 0
    while done < count:
        height = min(at_once, count - done)
        group = torch.empty(height, form.size, device=form.device)
        for place in range(height):
            update = next(rows, None)
            if update is None:
                raise _wrong_count_error(done + place, count)
            group[place] = _update_vector(update, form)
        yield group
        done += height
    if next(rows, None) is not None:
        raise _wrong_count_error(None, count)


def _form_of_empty_cohort(updates: object) -> UpdateForm | None:
    """Return the form of an empty cohort's updates, from the width of a matrix without rows; None for an empty list."""
    width = updates.shape[1] if isinstance(updates, Tensor | np.ndarray) else 0
    device = updates.device if isinstance(updates, Tensor) else torch.device("cpu")
    return UpdateForm(size=width, device=device) if width else None


def _wrong_count_error(found: int | None, count: int) -> ConfigError:
    words = f"more than {count}" if found is None else str(found)
    return ConfigError(
        f"updates: {words} for a cohort of {count}; must be one for each client of step.cohort, in its order. "
        "The update of a client that has nothing to send is zeros. Nothing of the round was released."
    )


def _form_and_parts(update: object) -> tuple[UpdateForm, list[Tensor]]:
    """Return the form of an update, and its tensors in their order: the vector, or the values of the dictionary."""
    if not isinstance(update, Mapping):
        vector = _float_tensor(update, "an update")
        if vector.dim() != 1 or not len(vector):
            raise ConfigError(
                f"an update of shape {tuple(vector.shape)}: must be a vector [d], or a dictionary of tensors."
            )
        return UpdateForm(size=len(vector), device=vector.device), [vector]
    tensors = {name: _float_tensor(value, f"update[{name!r}]") for name, value in update.items()}
    size = sum(tensor.numel() for tensor in tensors.values())
    if not size:
        raise ConfigError("an update: a dictionary without numbers. Give the differences of the trained tensors.")
    parts = list(tensors.values())
    form = UpdateForm(
        size=size,
        device=parts[0].device,
        names=tuple(tensors),
        shapes=tuple(part.shape for part in parts),
        dtypes=tuple(part.dtype for part in parts),
    )
    return form, parts


def _update_vector(update: object, form: UpdateForm) -> Tensor:
    """Return the update as a vector [size]; raises ConfigError if its form is not `form`."""
    found, parts = _form_and_parts(update)
    if found.names != form.names and sorted(found.names) == sorted(form.names):
        place = next(i for i, name in enumerate(form.names) if found.names[i] != name)
        raise ConfigError(
            f"updates: a dictionary whose tensor {place} is {found.names[place]!r}, after one where it is "
            f"{form.names[place]!r}. Give every dictionary one order of names: {{name: update[name] for name in "
            "first}}. Nothing of the round was released."
        )
    if not found.matches(form) or found.device != form.device:
        raise ConfigError(
            f"updates: {found.description} after {form.description}; all must have one form, one order of names, one "
            "device. Nothing of the round was released."
        )
    return torch.cat([part.reshape(-1).to(torch.float32) for part in parts]) if form.names else parts[0]


def _float_tensor(value: object, what: str) -> Tensor:
    if isinstance(value, np.ma.MaskedArray):
        raise ConfigError(f"{what}: is a masked array, whose mask an upload does not have. Give .filled(0).")
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        native = np.float64 if value.dtype.itemsize > 8 else value.dtype.newbyteorder("=")
        value = torch.from_numpy(np.array(value, dtype=native, order="C"))  # a copy: torch has no negative strides
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = getattr(value, "dtype", type(value).__name__)
        if isinstance(value, list | tuple) and all(isinstance(one, Tensor | np.ndarray) for one in value):
            raise ConfigError(
                f"{what}: is a {kind} of arrays, such as one for each layer. Give a dictionary of arrays by name, or "
                "one vector (torch.cat, numpy.concatenate)."
            )
        raise ConfigError(
            f"{what}: is {kind}; must be a tensor or an array of floating-point numbers. Leave out tensors that "
            "are not trained, such as counters (num_batches_tracked)."
        )
    return _require_dense(value, what).detach()


def _require_dense(value: Tensor, what: str) -> Tensor:
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise ConfigError(f"{what}: has layout {layout}; must be a dense tensor. Use .to_dense().")
    return value
