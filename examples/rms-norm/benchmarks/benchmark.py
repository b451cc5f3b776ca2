"""Timings against `torch.nn.functional.rms_norm`; run with `kernels benchmark
kci-examples/rms-norm`.
"""

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark


class RmsNormBenchmark(Benchmark):
    seed = 0

    def setup(self) -> None:
        self.x = torch.randn(2048, 4096, device=self.device)
        self.residual = torch.randn_like(self.x)
        self.weight = torch.randn(4096, device=self.device)

    def benchmark_rms_norm(self) -> None:
        self.out = self.kernel.rms_norm(self.x, self.weight, 1e-6)

    def verify_rms_norm(self) -> torch.Tensor:
        return F.rms_norm(self.x, (4096,), self.weight, 1e-6)

    def benchmark_add_rms_norm(self) -> None:
        self.out, _ = self.kernel.add_rms_norm(self.x, self.residual, self.weight, 1e-6)

    def verify_add_rms_norm(self) -> torch.Tensor:
        return F.rms_norm(self.x + self.residual, (4096,), self.weight, 1e-6)
