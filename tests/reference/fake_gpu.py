"""A CUDA device for tests: tensors that report cuda:0, lie on the CPU, and refuse to meet tensors of the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from dpfed.seeds import HostStream

GPU = torch.device("cuda", 0)
COPIES: list[tuple[torch.dtype, int]] = []
"""Types and sizes of all tensors that were copied from the fake device to the CPU."""
_DEVICE = Tensor.device.__get__
_MIX = {"copy_", "__getitem__", "__setitem__", "index_select", "is_set_to"}  # torch, too, takes indices from the CPU


class OnGpu(Tensor):
    """A tensor of the fake device."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return _called(function, args, kwargs or {})


class _OfDevice(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return _called(function, args, kwargs or {})


def _is_gpu(one: object) -> bool:
    named = isinstance(one, torch.device) or (isinstance(one, str) and one.startswith("cuda"))
    return named and torch.device(one).type == "cuda"


def _on_cpu(one):
    return torch.device("cpu") if _is_gpu(one) else one


def _on_gpu(one):
    return one.as_subclass(OnGpu) if isinstance(one, Tensor) and not isinstance(one, OnGpu) else one


def _off_gpu(one):
    return one.as_subclass(Tensor) if isinstance(one, OnGpu) else one


def _called(function, args, kwargs):
    """The result, on the fake device if its inputs are or it is asked for. RuntimeError for tensors of two devices."""
    name, given = getattr(function, "__name__", ""), tree_leaves((args, kwargs))
    there = any(isinstance(one, OnGpu) for one in given)
    if function is torch.device:
        return function(*args, **kwargs)
    if function == _DEVICE:
        return GPU if there else function(*args)
    if name == "__get__" and "is_cuda" in str(function):
        return there
    if name == "_has_compatible_shallow_copy_type":  # asked before a module's tensors are moved in place
        return isinstance(args[0], OnGpu) == isinstance(args[1], OnGpu)
    plain = any(type(one) is Tensor and one.dim() > 0 for one in given)
    moves = name in ("to", "cpu", "type_as", "cuda")
    if there and plain and not moves and name not in _MIX:
        raise RuntimeError(f"{name}: tensors on cuda:0 and on the CPU.")
    if there and name in ("numpy", "__array__"):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu().")
    if there and name in ("multinomial", "random_", "normal_", "uniform_", "bernoulli_") and kwargs.get("generator"):
        raise RuntimeError(f"{name}: a generator of the CPU for a tensor on cuda:0.")
    made = function(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
    if made is None or function is Tensor.data.__set__:
        return made
    asked = [_is_gpu(one) for one in given if isinstance(one, torch.device | str) and _is_device(one)]
    if moves and len(args) > 1 and isinstance(args[1], Tensor):
        asked = [isinstance(args[1], OnGpu)]
    wanted = name != "cpu" and (asked[-1] if asked else there)
    if there and not wanted and isinstance(made, Tensor):
        COPIES.append((made.dtype, made.numel()))
    return tree_map(_on_gpu if wanted else _off_gpu, made)


def _is_device(one: object) -> bool:
    return isinstance(one, torch.device) or one == "cpu" or str(one).startswith("cuda")


@contextmanager
def fake_gpu(free: int = 60 << 30, total: int = 80 << 30) -> Iterator[torch.device]:
    """One fake GPU with so many bytes."""
    properties = mock.Mock(total_memory=total)
    properties.name = "Fake H100"
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "mem_get_info": lambda device=None: (free, total),
        "get_device_properties": lambda device=None: properties,
    }
    draws = mock.patch("dpfed.seeds.CudaStream", HostStream)
    with mock.patch.multiple(torch.cuda, **cuda), draws, _OfDevice():
        yield GPU
