"""Layers that can take the place of their `torch.nn` namesakes."""

import torch
from torch import nn

from .._ops import ops


class ReLU(nn.Module):
    """`torch.nn.ReLU`; it always returns a new tensor, also where the replaced layer works in
    place.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return ops.relu(input)


__all__ = ["ReLU"]
