"""A device that is not the CPU, made of the CPU's memory: what would fail on a GPU for mixing devices fails here.

Tensors on it compute what the CPU computes, so results must be equal bit for bit. An operation on tensors of both
places is refused, but for those that CUDA takes: numbers without dimension, indices, copies. Generators stay the CPU's.
`register` must come before a process's first backward pass, so this belongs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

NAME = "far"
_TAKES_INDICES_FROM_CPU = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Far(torch.Tensor):
    """A tensor on the device; `near` holds its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, near: torch.Tensor) -> None:
        self.near = near

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Far) -> None:
        self.near = other.near

    def tolist(self) -> Any:
        return self.near.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"Far({self.near!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Everything(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _CpuGenerator:
    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return _generator("cpu")


_generator = torch.Generator
_library: Any = None


@contextmanager
def other_device() -> Iterator[torch.device]:
    """The device, usable inside."""
    register()
    torch.Generator = _CpuGenerator
    try:
        with _Everything():
            yield torch.device(NAME, 0)
    finally:
        torch.Generator = _generator


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name
    tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    far = any(isinstance(one, Far) for one in tensors)
    _refuse_mixed(name, args, tensors, far)
    goes_far = far
    if kwargs.get("device") is not None:
        goes_far = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    near_args, near_kwargs = pytree.tree_map_only(Far, lambda one: one.near, (args, kwargs))
    result = func(*near_args, **near_kwargs)
    if name == "aten::_to_copy" and result is near_args[0]:
        result = result.clone()
    if name == "aten::copy_":
        return args[0]
    if not goes_far or name == "aten::_local_scalar_dense":
        return result
    return return_and_correct_aliasing(func, args, kwargs, pytree.tree_map_only(torch.Tensor, Far, result))


def _refuse_mixed(name: str, args: Any, tensors: list[torch.Tensor], far: bool) -> None:
    near = [tuple(one.shape) for one in tensors if not isinstance(one, Far) and one.dim() > 0]
    if not far or not near or name == "aten::copy_":
        return
    if name in _TAKES_INDICES_FROM_CPU and isinstance(args[0], Far):
        return
    raise RuntimeError(f"{name}: tensors on {NAME!r} together with some on the cpu of shapes {near}")


def register() -> None:
    """Tell torch of the device, once."""
    global _library
    if _library is not None:
        return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    _library = torch.library.Library("aten", "IMPL")
    for name, op in (
        ("empty_strided", torch.ops.aten.empty_strided.default),
        ("empty.memory_format", torch.ops.aten.empty.memory_format),
    ):
        _library.impl(name, lambda *a, op=op, **k: _run(op, a, {**k, "device": NAME}), "PrivateUse1")
    _library.impl("_copy_from", lambda src, dst, *_: _run(torch.ops.aten.copy_.default, (dst, src), {}), "PrivateUse1")
