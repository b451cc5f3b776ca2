"""Layers that can take the place of their `torch.nn` namesakes."""

from typing import Optional

import torch
from torch import nn

from .._ops import ops


class RMSNorm(nn.Module):
    """`torch.nn.RMSNorm` over one dimension, with a weight; both come from the layer that is
    replaced.
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    eps: Optional[float]  # noqa: UP045 - kernels keep to the Python 3.9 that their binaries promise

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        eps = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return ops.rms_norm(input, self.weight, eps)


__all__ = ["RMSNorm"]
