"""Calls of a function under audit in this process: an audit without the start of another one."""

from unittest.mock import patch

from dpfed.audit.functions.worker import _CopiedInput, _FunctionUnderAudit


class Here:
    """Outputs of a function, as its worker makes them."""

    def __init__(self, f, *, arrays="numpy", batched=False, time_limit=None):
        self._worker = _FunctionUnderAudit(f, arrays, batched)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def outputs(self, inputs, which, seeds):
        return self._worker.outputs([_CopiedInput(one) for one in inputs], which, seeds)


in_this_process = patch("dpfed.audit.functions.audit.FunctionProcess", Here)
"""Decorator of a test of audits that need no process of their own."""
