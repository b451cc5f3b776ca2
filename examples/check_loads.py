"""Load built trees of the example kernels and compare their numbers with PyTorch.

    python examples/check_loads.py TREES_DIR

TREES_DIR holds one tree a kernel: TREES_DIR/relu, TREES_DIR/rms-norm, TREES_DIR/swiglu. Each tree
that is present is loaded for the CPU, without network. One line a kernel goes to stdout; the exit
code is 1 on any mismatch, any failure, or if there was nothing to load. `kci run` has loaded each
in a process of its own before.
"""

import argparse
import os
import sys
from pathlib import Path

KERNELS = ("relu", "rms-norm", "swiglu")


def compare(kernel_name, kernel):
    """Return the largest absolute difference by dtype, and the dtypes in which it is too large."""
    import torch
    import torch.nn.functional as F

    # Relative to values of about 1: two units in the last place of the dtype.
    tolerances = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    differences, wrong = {}, []
    for dtype, tolerance in tolerances.items():
        x, other = (torch.randn(37, 130).to(dtype) for _ in range(2))
        weight = torch.randn(130).to(dtype)
        match kernel_name:
            case "relu":
                pairs = [(kernel.relu(x), torch.relu(x)), (kernel.relu(x.t()), torch.relu(x.t()))]
            case "rms-norm":
                summed = x + other
                actual = (
                    kernel.rms_norm(x, weight, 1e-6),
                    *kernel.add_rms_norm(x, other, weight, 1e-6),
                )
                expected = (
                    F.rms_norm(x.double(), (130,), weight.double(), 1e-6),
                    F.rms_norm(summed.double(), (130,), weight.double(), 1e-6),
                    summed,
                )
                pairs = zip(actual, expected, strict=True)
            case "swiglu":
                gate, up = x.double().chunk(2, dim=-1)
                pairs = [
                    (kernel.swiglu(x, other), F.silu(x.double()) * other.double()),
                    (kernel.silu_and_mul(x), F.silu(gate) * up),
                ]
        largest, fine = 0.0, True
        for actual, expected in pairs:
            if actual.shape != expected.shape or actual.dtype != dtype:
                raise AssertionError(
                    f"expected {tuple(expected.shape)} {dtype}, got {tuple(actual.shape)} "
                    f"{actual.dtype}"
                )
            difference = (actual.double() - expected.double()).abs()
            # torch.max passes NaN on, and NaN is not <= anything.
            largest = max(
                largest, difference.max().item(), key=lambda value: (value != value, value)
            )
            fine &= bool((difference <= tolerance * (1 + expected.double().abs())).all())
        name = str(dtype).removeprefix("torch.")
        differences[name] = largest
        if not fine:
            wrong.append(name)
    return differences, wrong


def check(kernel_name, tree):
    """Load one tree, compare, print its line, and say whether it is good."""
    from kernels import get_local_kernel

    variant, shown, verdict = "-", "-", "ok"
    try:
        kernel = get_local_kernel(tree, backend="cpu")
        variant = Path(kernel.__file__).parent.name
        differences, wrong = compare(kernel_name, kernel)
        shown = " ".join(f"{dtype}={value:.3g}" for dtype, value in differences.items())
        if wrong:
            verdict = f"FAIL: differs from torch in {', '.join(wrong)}"
    except Exception as error:
        verdict = f"FAIL: {type(error).__name__}: {' '.join(str(error).split())}"
    print(f"{kernel_name}  {variant}  max abs difference {shown}  {verdict}", flush=True)
    return verdict == "ok"


def main():
    parser = argparse.ArgumentParser(
        description="Load built trees of the example kernels and compare with PyTorch."
    )
    parser.add_argument(
        "trees", metavar="TREES_DIR", type=Path, help="directory with one tree a kernel"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    # LOCAL_KERNELS could put another build in the place of the one under test.
    os.environ.pop("LOCAL_KERNELS", None)
    # Bytecode in a variant directory would be a file that its digest does not know.
    sys.dont_write_bytecode = True

    import torch

    torch.manual_seed(arguments.seed)
    trees = {name: (arguments.trees / name).resolve() for name in KERNELS}
    for name in (name for name, tree in trees.items() if not tree.is_dir()):
        print(f"{name}: no tree in {arguments.trees}, left out", file=sys.stderr)
    results = [check(name, tree) for name, tree in trees.items() if tree.is_dir()]
    if not results:
        print(
            f"no kernel was loaded: {arguments.trees} must hold {', '.join(KERNELS)}",
            file=sys.stderr,
        )
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
