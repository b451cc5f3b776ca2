"""The nix builder: hands the build to the kernel's own flake."""

from __future__ import annotations

import shutil
from pathlib import Path

from kci.builders.request import Built, Request
from kci.errors import BuildFailedError, MissingToolError
from kci.processes.process import Log, run, shown


def nix_command(request: Request) -> list[str]:
    """The command that builds the variant; it prints the path of the result."""
    flake = f".#redistributable.{request.variant.name}"
    cores = ["--cores", str(request.options.jobs)] if request.options.jobs else []
    return ["nix", "build", flake, "-L", "--no-link", "--print-out-paths", *cores]


def build_with_nix(request: Request, log: Log) -> Built:
    """Run nix and copy what it made. The result already has its metadata.json, with the flake's own id.

    Raises:
        MissingToolError: nix is not here, or the kernel has no flake.
        BuildFailedError: nix failed, or made something else than this variant.
    """
    if shutil.which("nix") is None:
        hint = "install nix, or use --builder native"
        raise MissingToolError("nix is not installed on this machine", hint=hint)
    if not (request.kernel_dir / "flake.nix").is_file():
        raise MissingToolError(f"{request.kernel_dir} has no flake.nix", hint="use --builder native")
    done = run(nix_command(request), log, cwd=request.kernel_dir)
    if done.code != 0:
        raise BuildFailedError(f"{shown(nix_command(request))} failed\n{done.tail()}")
    result = _result(done.output, request.variant.name)
    # Files of the nix store are read-only and may be links into it; the copy is neither.
    shutil.copytree(result, request.output, symlinks=False, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in request.output.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    archs = request.variant.archs
    return Built(builder="nix", archs=archs, sealed=True)


def _result(output: str, variant: str) -> Path:
    """The variant directory in nix's result; the result is either that directory or holds it."""
    lines = [line for line in output.splitlines() if line.startswith("/")]
    top = Path(lines[-1]) if lines else Path()
    for place in (top / variant, top):
        if lines and (place / "metadata.json").is_file():
            return place
    raise BuildFailedError(f"nix built no variant directory for {variant} (result: {top})")
