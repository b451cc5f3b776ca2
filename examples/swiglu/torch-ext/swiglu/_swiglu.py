"""The operator.

It is one node for autograd, which so keeps its two inputs and none of the float32 steps between.
"""

# PyTorch calls these functions, and so decides their arguments.

import torch

from ._ops import add_op_namespace_prefix, ops


@torch.library.custom_op(add_op_namespace_prefix("swiglu"), mutates_args=())
def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    value = gate.float()
    return (value * torch.sigmoid(value) * up.float()).to(gate.dtype).contiguous()


@torch.library.register_fake(add_op_namespace_prefix("swiglu"))
def _swiglu_fake(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gate, memory_format=torch.contiguous_format)


def _save_inputs(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = ctx.saved_tensors
    value, upstream = gate.float(), grad.float()
    sigmoid = torch.sigmoid(value)
    grad_gate = upstream * up.float() * sigmoid * (1 + value * (1 - sigmoid))
    grad_up = upstream * value * sigmoid
    return grad_gate.to(gate.dtype), grad_up.to(up.dtype)


torch.library.register_autograd(
    add_op_namespace_prefix("swiglu"), _swiglu_backward, setup_context=_save_inputs
)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up` as a new contiguous tensor, computed in float32 whatever the dtype.

    Raises `TypeError` for a dtype other than float32, float16 and bfloat16 or two different dtypes,
    and `ValueError` for two different shapes or devices.
    """
    if gate.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"swiglu: gate must be float32, float16 or bfloat16, got {gate.dtype}")
    if up.dtype != gate.dtype:
        raise TypeError(f"swiglu: up has dtype {up.dtype} but gate has dtype {gate.dtype}")
    if up.shape != gate.shape:
        raise ValueError(
            f"swiglu: up has shape {tuple(up.shape)} but gate has shape {tuple(gate.shape)}"
        )
    if up.device != gate.device:
        raise ValueError(f"swiglu: up is on {up.device} but gate is on {gate.device}")
    return ops.swiglu(gate, up)


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """Return `swiglu(gate, up)` of the two halves of the last dimension, `gate` being the first.

    Raises `ValueError` when there is no last dimension of an even size; for the rest see `swiglu`.
    """
    if input.dim() == 0 or input.shape[-1] % 2 != 0:
        raise ValueError(
            "silu_and_mul: the last dimension must have an even size, got the shape "
            f"{tuple(input.shape)}"
        )
    gate, up = input.chunk(2, dim=-1)
    return swiglu(gate, up)
