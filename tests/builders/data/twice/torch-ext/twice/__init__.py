import torch

from ._ops import ops


def twice(x: torch.Tensor) -> torch.Tensor:
    return ops.twice(x)
