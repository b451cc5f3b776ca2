"""Timings against the same formula in eager PyTorch; run with `kernels benchmark
kci-examples/swiglu`.
"""

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark


class SwigluBenchmark(Benchmark):
    seed = 0

    def setup(self) -> None:
        self.x = torch.randn(1024, 8192, device=self.device)

    def benchmark_silu_and_mul(self) -> None:
        self.out = self.kernel.silu_and_mul(self.x)

    def verify_silu_and_mul(self) -> torch.Tensor:
        gate, up = self.x.chunk(2, dim=-1)
        return F.silu(gate) * up
