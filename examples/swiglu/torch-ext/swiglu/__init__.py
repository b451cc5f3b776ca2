"""SwiGLU, the gated activation `silu(gate) * up`, in plain PyTorch for CPU, CUDA and ROCm
tensors.
"""

from . import layers
from ._swiglu import silu_and_mul, swiglu

__all__ = ["layers", "silu_and_mul", "swiglu"]
