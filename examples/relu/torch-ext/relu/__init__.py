"""The rectified linear unit, with a backward pass, for CPU, CUDA and ROCm tensors."""

# PyTorch calls these functions, and so decides their arguments.

import torch

from . import layers
from ._ops import add_op_namespace_prefix, ops


@torch.library.register_fake(add_op_namespace_prefix("relu"))
def _relu_fake(input: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def _save_output(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def _relu_backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    (output,) = ctx.saved_tensors
    # Where the output is zero the gradient is zero, whatever it was: 0 * inf would be NaN.
    return torch.where(output <= 0, torch.zeros_like(grad), grad)


torch.library.register_autograd(
    add_op_namespace_prefix("relu"), _relu_backward, setup_context=_save_output
)


def relu(input: torch.Tensor) -> torch.Tensor:
    """Return `max(input, 0)`, element by element, as a new contiguous tensor.

    The dtype is float32, float16 or bfloat16; any other raises `TypeError`. NaN stays NaN.
    """
    return ops.relu(input)


__all__ = ["layers", "relu"]
