"""State of a network and a loss besides the trained weights: collected, compared, and restored before each client."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "opacus", "dpfed", "accounting"}
_INSTALLED = "-packages"
"""Parts of paths that mark installed packages: site-packages and dist-packages."""
_EMPTY = object()
"""Content of an empty closure cell, and value of a missing entry."""
OUTSIDE = ("global ", "class ")
"""Prefixes of names that are compared and not restored."""
_HOLDERS = ("._modules", "._parameters", "._buffers")
"""Dictionaries of a module whose entries are its attributes."""


@dataclass
class StateChanges:
    """Differences that `State.restore` found.

    names:      paths of the objects that differed
    objects:    ids of the objects that differed, to find the ones which several modules share
    generators: paths of random generators that were drawn from; a generator is not restored
    escaped_tensors: paths of tensors of torch.vmap that outlived the call
    """

    names: dict[str, None] = field(default_factory=dict)
    objects: set[int] = field(default_factory=set)
    generators: dict[str, None] = field(default_factory=dict)
    escaped_tensors: dict[str, None] = field(default_factory=dict)


class State:
    """Contents of the mutable objects reachable from `roots` (name, object), saved when the instance is made.

    Followed are attributes and `__slots__`, lists, dictionaries, sets, deques, tensors, arrays, and the objects that
    functions (hooks, losses) hold in closures, defaults and attributes. The globals that a user's function names, and
    the attributes of a user's classes, are compared but not restored. Iterators, files and objects held by libraries
    are not followed.

    trained: tensors whose numbers belong to a client and are not changed
    """

    def __init__(self, *roots: tuple[str, object], trained: Iterable[Tensor] = ()) -> None:
        self._trained = {id(tensor) for tensor in trained}
        self.reached: dict[int, object] = {}
        """Objects reachable from the roots, by their ids."""
        self._kept: list[_SavedContent] = []
        self._outside: deque[tuple[str, object]] = deque()
        self._collect_contents(deque(roots), outside=False)
        self._collect_contents(self._outside, outside=True)

    @torch.no_grad()
    def restore(self, moved: StateChanges | None = None) -> None:
        """Restore changed contents, and record the differences in `moved`."""
        for kept in self._kept:
            if kept.kind.is_same(kept.content, kept.saved):
                continue
            if moved is not None:
                _record_change(moved, kept)
            if kept.kind.write is not None and not kept.is_outside:
                kept.kind.write(kept.content, kept.saved)

    def _collect_contents(self, waiting: deque[tuple[str, object]], *, outside: bool) -> None:
        while waiting:
            name, thing = waiting.popleft()
            skipped = isinstance(thing, type) and (not outside or _is_of_library(thing))
            if skipped or isinstance(thing, _ATOMS) or id(thing) in self.reached:
                continue
            self.reached[id(thing)] = thing
            for kind in _content_kinds(thing, numbers=id(thing) not in self._trained):
                self._kept.append(_SavedContent(name, thing, kind, kind.read(thing), outside))
            waiting.extend(_references(name, thing))
            self._outside.extend(_outside_objects(thing))


@dataclass(frozen=True)
class _ContentKind:
    """Kind of content: functions that read it, compare it with its saved value, and restore it (None: not restored)."""

    read: Callable[..., object]
    is_same: Callable[..., bool]
    write: Callable[..., None] | None


@dataclass(frozen=True)
class _SavedContent:
    name: str
    content: object
    kind: _ContentKind
    saved: object
    is_outside: bool


_ATOMS = (type(None), str, bytes, int, float, complex, ModuleType, CodeType, torch.dtype, torch.device, torch.Size)
_GENERATORS: dict[type, Callable[..., object]] = {
    torch.Generator: lambda generator: generator.get_state().tolist(),
    np.random.Generator: lambda generator: repr(generator.bit_generator.state),
    np.random.RandomState: lambda generator: repr(generator.get_state()[1].tolist()) + repr(generator.get_state()[2:]),
    random.Random: lambda generator: generator.getstate(),
}


def _content_kinds(thing: object, *, numbers: bool) -> Iterator[_ContentKind]:
    read = next((read for cls, read in _GENERATORS.items() if isinstance(thing, cls)), None)
    if read is not None:
        yield _ContentKind(read, lambda generator, saved: bool(read(generator) == saved), None)
        return
    if isinstance(thing, Tensor):
        if thing.is_leaf:
            yield _FLAGS
        if numbers and thing.layout is torch.strided and not thing.is_meta:
            yield _NUMBERS
    elif isinstance(thing, np.ndarray) and thing.flags.writeable:
        yield _ARRAY
    elif isinstance(thing, dict):
        yield _DICTIONARY
    elif isinstance(thing, list | deque | bytearray):
        yield _LIST
    elif isinstance(thing, set):
        yield _SET
    elif isinstance(thing, CellType):
        yield _CELL
    if isinstance(thing, type):
        yield _CLASS
    elif not isinstance(thing, MethodType) and (hasattr(thing, "__dict__") or _slot_names(type(thing))):
        yield _ATTRIBUTES


def _references(name: str, thing: object) -> Iterator[tuple[str, object]]:
    """Yield (name, object) for the objects that an object refers to."""
    if isinstance(thing, dict):
        yield from ((_entry_path(name, key), value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | deque | set | frozenset):
        yield from ((f"{name}[{place}]", value) for place, value in enumerate(thing))
    elif isinstance(thing, CellType):
        yield name, _cell_content(thing)
    elif isinstance(thing, MethodType):
        yield from ((f"{name}.{part}", getattr(thing, part)) for part in ("__self__", "__func__"))
    elif isinstance(thing, partial):
        yield from ((f"{name}.{part}", getattr(thing, part)) for part in ("func", "args", "keywords"))
    elif isinstance(thing, FunctionType):
        inside = f"{thing.__qualname__}: "
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        yield from ((inside + free, cell) for free, cell in cells)
        yield from ((f"{inside}defaults", defaults) for defaults in (thing.__defaults__, thing.__kwdefaults__))
    if isinstance(thing, type):
        yield from (
            (f"class {thing.__qualname__}.{key}", _undecorated(value)) for key, value in list(vars(thing).items())
        )
    else:
        yield from ((f"{name}.{key}", value) for key, value in _attributes(thing).items())


def _outside_objects(thing: object) -> Iterator[tuple[str, object]]:
    """Yield (name, object) for the classes of a user's object, and the globals of a user's function."""
    if isinstance(thing, FunctionType):
        if not _is_of_library(thing):
            known = thing.__globals__
            yield from ((f"global {name}", known[name]) for name in _global_names(thing.__code__) if name in known)
    elif not isinstance(thing, type):
        yield from ((f"class {one.__qualname__}", one) for one in type(thing).__mro__)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _undecorated(value: object) -> object:
    """Return the function inside a decorated entry of a class."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _is_of_library(thing: object) -> bool:
    """Return True if a function or class is defined in an installed package, whose globals are not followed."""
    name = str(getattr(thing, "__module__", None) or "builtins")
    if name.partition(".")[0] in _LIBRARIES:
        return True
    return _INSTALLED in str(getattr(sys.modules.get(name), "__file__", None) or "")


def _entry_path(name: str, key: object) -> str:
    owner = next((name.removesuffix(end) for end in _HOLDERS if name.endswith(end)), None)
    return f"{name}[{key!r}]" if owner is None else f"{owner}.{key}"


def _record_change(moved: StateChanges, kept: _SavedContent) -> None:
    if isinstance(kept.content, tuple(_GENERATORS)):
        moved.generators[f"{kept.name} ({type(kept.content).__name__})"] = None
        return
    moved.objects.add(id(kept.content))
    saved, current = kept.saved, kept.kind.read(kept.content)
    changed = {kept.name: current}
    if isinstance(saved, dict) and isinstance(current, dict):
        keys = [key for key in saved | current if saved.get(key, _EMPTY) is not current.get(key, _EMPTY)]
        named = _entry_path if kept.kind is _DICTIONARY else "{}.{}".format
        changed = {named(kept.name, key): current.get(key) for key in keys}
    moved.names |= dict.fromkeys(changed)
    moved.escaped_tensors |= dict.fromkeys(name for name, value in changed.items() if _is_escaped_tensor(value))


def _is_escaped_tensor(value: object) -> bool:
    if isinstance(value, Tensor):
        return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(map(_is_escaped_tensor, values))


def _same_items(saved: Iterable[object], current: Iterable[object]) -> bool:
    before, now = list(saved), list(current)
    return len(before) == len(now) and all(map(lambda a, b: a is b, before, now))


def _same_entries(saved: Mapping[Any, object], current: Mapping[Any, object]) -> bool:
    return saved.keys() == current.keys() and all(current[key] is value for key, value in saved.items())


def _refill(thing: Any, saved: Any) -> None:
    thing.clear()
    thing.update(saved)


def _refill_list(thing: MutableSequence[object], saved: list[object]) -> None:
    thing.clear()
    thing.extend(saved)


def _cell_content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _refill_cell(cell: CellType, saved: object) -> None:
    if saved is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = saved


def _slot_names(cls: type) -> tuple[str, ...]:
    """Return the names in `__slots__` of a user's classes."""
    if not hasattr(cls, "__slots__"):
        return ()
    named = [vars(one).get("__slots__", ()) for one in cls.__mro__ if not _is_of_library(one)]
    slots = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def _attributes(thing: object) -> dict[str, object]:
    inside = {name: getattr(thing, name) for name in _slot_names(type(thing)) if hasattr(thing, name)}
    return inside | getattr(thing, "__dict__", {})


def _set_attributes(thing: object, saved: dict[str, object]) -> None:
    slots = _slot_names(type(thing))
    for name in slots:
        if name in saved:
            object.__setattr__(thing, name, saved[name])
        elif hasattr(thing, name):
            object.__delattr__(thing, name)
    if hasattr(thing, "__dict__"):
        _refill(vars(thing), {name: value for name, value in saved.items() if name not in slots})


def _set_flags(tensor: Tensor, saved: tuple[Tensor | None, bool]) -> None:
    tensor.grad = saved[0]
    if tensor.is_leaf:
        tensor.requires_grad_(saved[1])


def _memory_layout(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _same_numbers(tensor: Tensor, saved: tuple[Tensor, Tensor]) -> bool:
    return _memory_layout(tensor) == _memory_layout(saved[0]) and torch.equal(tensor, saved[1])


def _set_numbers(tensor: Tensor, saved: tuple[Tensor, Tensor]) -> None:
    # Other tensors may be views of the old memory: numbers are copied there, then the tensor is set to that memory.
    saved[0].copy_(saved[1])
    tensor.data = saved[0]


def _set_array(array: NDArray[np.generic], saved: NDArray[np.generic]) -> None:
    array[...] = saved


_FLAGS = _ContentKind(
    lambda tensor: (tensor.grad, tensor.requires_grad),
    lambda tensor, saved: tensor.grad is saved[0] and tensor.requires_grad == saved[1],
    _set_flags,
)
_NUMBERS = _ContentKind(lambda tensor: (tensor.detach(), tensor.detach().clone()), _same_numbers, _set_numbers)
_ARRAY = _ContentKind(lambda array: array.copy(), lambda array, saved: array.tobytes() == saved.tobytes(), _set_array)
_DICTIONARY = _ContentKind(dict, lambda entries, saved: _same_entries(saved, entries), _refill)
_LIST = _ContentKind(list, lambda items, saved: _same_items(saved, items), _refill_list)
_SET = _ContentKind(set, lambda items, saved: bool(items == saved), _refill)
_CELL = _ContentKind(_cell_content, lambda cell, saved: _cell_content(cell) is saved, _refill_cell)
_CLASS = _ContentKind(lambda cls: dict(vars(cls)), lambda cls, saved: _same_entries(saved, vars(cls)), None)
_ATTRIBUTES = _ContentKind(_attributes, lambda thing, saved: _same_entries(saved, _attributes(thing)), _set_attributes)
