"""Load built trees of the example kernels and compare their numbers with PyTorch.

    python examples/check_loads.py TREES_DIR

TREES_DIR holds one tree a kernel: TREES_DIR/relu, TREES_DIR/rms-norm, TREES_DIR/swiglu. Each tree that is present is
loaded for the CPU in a fresh Python process without network, so one kernel cannot hide what another one breaks. One
line a kernel goes to stdout; the exit code is 1 on any mismatch, any failure, or if there was nothing to load.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = ("relu", "rms-norm", "swiglu")
# An import, a few small operators; what takes longer hangs.
TIMEOUT_SECONDS = 300
# A child may print whatever it likes; its result is in the lines that start with this.
MARK = "check-loads-result:"


def compare(kernel_name, kernel):
    """Return the largest absolute difference by dtype, and the dtypes in which it is too large."""
    # Here and below: the parent has no use for torch, and starts faster without it.
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
                actual = (kernel.rms_norm(x, weight, 1e-6), *kernel.add_rms_norm(x, other, weight, 1e-6))
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
                    f"expected {tuple(expected.shape)} {dtype}, got {tuple(actual.shape)} {actual.dtype}"
                )
            difference = (actual.double() - expected.double()).abs()
            # torch.max passes NaN on, and NaN is not <= anything.
            largest = max(largest, difference.max().item(), key=lambda value: (value != value, value))
            fine &= bool((difference <= tolerance * (1 + expected.double().abs())).all())
        name = str(dtype).removeprefix("torch.")
        differences[name] = largest
        if not fine:
            wrong.append(name)
    return differences, wrong


def send(**fields):
    """Hand fields of the result to the parent, which takes the last value of each."""
    print(MARK + json.dumps(fields), flush=True)


def announce_variant(tree):
    """Tell the parent which variant the loader chose when its code starts to run: it may never come back."""
    announced = set()

    def hook(event, arguments):
        filename = getattr(arguments[0], "co_filename", None) if event == "exec" else None
        if filename is None or not Path(filename).is_relative_to(tree):
            return
        for parent in Path(filename).parents:
            if (parent / "metadata.json").is_file() and parent.name not in announced:
                announced.add(parent.name)
                send(variant=parent.name)

    sys.addaudithook(hook)


def check_one(kernel_name, tree, seed):
    """Run in the child: load one tree, compare, and report in marked lines of JSON."""
    try:
        import torch
        from kernels import get_local_kernel

        torch.manual_seed(seed)
        announce_variant(tree)
        kernel = get_local_kernel(tree, backend="cpu")
        differences, wrong = compare(kernel_name, kernel)
        send(differences=differences, error=f"differs from torch in {', '.join(wrong)}" if wrong else None)
    except Exception as error:
        send(error=f"{type(error).__name__}: {error}")


def run_child(kernel_name, tree, seed):
    """Check one tree in a fresh process; whatever becomes of that process, a result comes back."""
    command = [sys.executable, str(Path(__file__).resolve()), "--kernel", kernel_name, "--seed", str(seed), str(tree)]
    # LOCAL_KERNELS could put another build in the place of the one under test.
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_KERNELS"}
    environment["HF_HUB_OFFLINE"] = "1"
    # Bytecode in a variant directory would be a file that its digest does not know.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    result = {"variant": None, "differences": {}}
    try:
        child = subprocess.run(command, capture_output=True, env=environment, timeout=TIMEOUT_SECONDS, check=False)
        stdout, stderr, code = child.stdout, child.stderr, child.returncode
    except subprocess.TimeoutExpired as late:
        stdout, stderr, code = late.stdout or b"", late.stderr or b"", None
    for line in stdout.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            result |= json.loads(line.removeprefix(MARK))
    # The last thing a child sends is its error, even if that is none.
    if "error" not in result:
        if code is None:
            how = f"no answer within {TIMEOUT_SECONDS} s"
        elif code < 0:
            how = signal.Signals(-code).name
        else:
            how = f"exit code {code}"
        last = (stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        result["error"] = f"the process ended early ({how}): {last}"
    if result["variant"] is None:
        present = sorted(
            path.parent.name for pattern in ("*", "build/*") for path in tree.glob(f"{pattern}/metadata.json")
        )
        result["error"] = (
            f"{result['error'] or 'nothing was loaded'} (the tree has {', '.join(present) or 'no variant'})"
        )
    return result


def report(kernel_name, result):
    """Print the line of one kernel and say whether it is good."""
    variant = result["variant"] or "-"
    difference = "-"
    if result["differences"]:
        difference = " ".join(f"{dtype}={value:.3g}" for dtype, value in result["differences"].items())
    verdict = "ok" if result["error"] is None else "FAIL: " + " ".join(result["error"].split())
    print(f"{kernel_name}  {variant}  max abs difference {difference}  {verdict}", flush=True)
    return result["error"] is None


def main():
    parser = argparse.ArgumentParser(description="Load built trees of the example kernels and compare with PyTorch.")
    parser.add_argument("trees", metavar="TREES_DIR", type=Path, help="directory with one tree a kernel")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    parser.add_argument("--kernel", choices=KERNELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kernel:
        check_one(arguments.kernel, arguments.trees, arguments.seed)
        return 0
    if not arguments.trees.is_dir():
        parser.error(f"{arguments.trees} is not a directory")

    trees = {name: arguments.trees / name for name in KERNELS}
    for name in (name for name, tree in trees.items() if not tree.is_dir()):
        print(f"{name}: no tree in {arguments.trees}, left out", file=sys.stderr)
    present = {name: tree.resolve() for name, tree in trees.items() if tree.is_dir()}
    # Side by side: most of the time of each goes into importing torch.
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(run_child, present, present.values(), [arguments.seed] * len(present)))
    bad = sum(not report(name, result) for name, result in zip(present, results, strict=True))
    loaded = sum(result["variant"] is not None for result in results)
    if loaded == 0:
        print(f"no kernel was loaded: {arguments.trees} must hold {', '.join(KERNELS)}", file=sys.stderr)
    return 0 if loaded and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
