"""Layers without parameters that can take the place of a model's own."""

import torch
from torch import nn

from .._swiglu import silu_and_mul


class SiluAndMul(nn.Module):
    """`silu(gate) * up` of the two halves of the last dimension."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(input)


__all__ = ["SiluAndMul"]
