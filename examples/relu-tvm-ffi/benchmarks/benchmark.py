"""Timings against `torch.relu`; run with `kernels benchmark kci-examples/relu-tvm-ffi`."""

import torch
from kernels.benchmark import Benchmark


class ReluBenchmark(Benchmark):
    seed = 0

    def setup(self) -> None:
        self.x = torch.randn(1024, 4096, device=self.device)
        self.out = torch.empty_like(self.x)

    def benchmark_relu(self) -> None:
        self.kernel.relu(self.x, self.out)

    def verify_relu(self) -> torch.Tensor:
        return torch.relu(self.x)
