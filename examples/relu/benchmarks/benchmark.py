"""Timings against `torch.relu`; run with `kernels benchmark kci-examples/relu`."""

import torch
from kernels.benchmark import Benchmark


class ReluBenchmark(Benchmark):
    seed = 0

    def setup(self) -> None:
        self.x = torch.randn(4096, 4096, device=self.device)

    def benchmark_relu(self) -> None:
        self.out = self.kernel.relu(self.x)

    def verify_relu(self) -> torch.Tensor:
        return torch.relu(self.x)
