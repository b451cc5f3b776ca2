import json
from pathlib import Path

import torch

from ._ops import add_op_namespace_prefix, ops

STEPS = json.loads((Path(__file__).parent / "deep" / "steps.json").read_text())


@torch.library.register_fake(add_op_namespace_prefix("plus_one"))
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return ops.plus_one(x)
