"""Root mean square normalisation, alone and fused with the addition before it, for CPU and CUDA
tensors.
"""

# PyTorch calls these functions, and so decides their arguments.

import torch

from . import layers
from ._ops import add_op_namespace_prefix, ops


@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _rms_norm_fake(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm"))
def _add_rms_norm_fake(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    output = torch.empty_like(input, memory_format=torch.contiguous_format)
    return output, torch.empty_like(output)


def _gradients(
    x: torch.Tensor, weight: torch.Tensor, eps: float, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the input and of the weight, in float32 inside as the forward pass."""
    value, upstream = x.float(), grad.float()
    rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normal = value * rstd
    scaled = upstream * weight.float()
    grad_x = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    grad_weight = (upstream * normal).reshape(-1, x.shape[-1]).sum(0)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype)


def _save_input(ctx, inputs, output) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    grad_x, grad_weight = _gradients(x, weight, ctx.eps, grad)
    return grad_x, grad_weight, None


def _save_sum(ctx, inputs, output) -> None:
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _add_rms_norm_backward(ctx, grad, grad_sum):
    summed, weight = ctx.saved_tensors
    grad_x, grad_weight = _gradients(summed, weight, ctx.eps, grad)
    grad_x = grad_x + grad_sum
    return grad_x, grad_x, grad_weight, None


torch.library.register_autograd(
    add_op_namespace_prefix("rms_norm"), _rms_norm_backward, setup_context=_save_input
)
torch.library.register_autograd(
    add_op_namespace_prefix("add_rms_norm"), _add_rms_norm_backward, setup_context=_save_sum
)


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return `input / sqrt(mean(input ** 2) + eps) * weight` over the last dimension, as a new
    contiguous tensor.

    `input` is float32, float16 or bfloat16; `weight` has its dtype and the size of its last
    dimension. Sums are taken in float32. Arguments that do not fit raise `RuntimeError`.
    """
    return ops.rms_norm(input, weight, eps)


def add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rms_norm(input + residual, weight, eps)` and `input + residual`, reading the inputs
    once.

    `residual` has the shape and dtype of `input`; for the rest see `rms_norm`.
    """
    return ops.add_rms_norm(input, residual, weight, eps)


__all__ = ["add_rms_norm", "layers", "rms_norm"]
