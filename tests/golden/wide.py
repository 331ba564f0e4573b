"""Another processor, simulated: products and sums of float32 are computed in float64, and rounded once."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
_OPS = {
    *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default, aten.dot.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.linalg_vector_norm.default),
    *(aten._softmax.default, aten._log_softmax.default, aten.exp.default, aten.log.default, aten.tanh.default),
    *(aten.convolution.default, aten.addmv.default, aten.native_layer_norm.default, aten.var.correction),
}


class Wide(TorchDispatchMode):
    """Context in which the order of summation of torch's products and sums has no effect but in the last bit."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        if func not in _OPS or not any(one.dtype == torch.float32 for one in tensors) or kwargs.get("dtype"):
            return func(*args, **kwargs)
        found = func(*tree_map(_widened, args), **tree_map(_widened, kwargs))
        return tree_map(lambda one: one.float() if _is(one, torch.float64) else one, found)


def _widened(value: Any) -> Any:
    return value.double() if _is(value, torch.float32) else value


def _is(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == dtype
