"""The entry points: build a variant, or say what building it would run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kci.builders import native
from kci.builders.nix import build_with_nix, nix_command
from kci.builders.noarch import build_noarch, noarch_commands
from kci.builders.recipe import commands
from kci.builders.request import Built, Request
from kci.errors import KciError, UsageError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.processes.process import Log, shown, silent

BUILDERS = ("auto", "noarch", "native", "nix")


def build_variant(request: Request, log: Log) -> Built:
    """Build one variant into an empty directory, without its metadata.json; of a part, its objects alone.

    The caller makes the directory appear in its place only when everything has gone well; see `kci.files.replace`.

    Raises:
        UsageError: no such builder, or one that cannot make this kind of variant.
        FindingsError: the kernel's files are not as build.toml says.
        UnsafeError: a path leads out of the kernel's directory.
        MissingToolError: this machine lacks a compiler, torch, a toolkit; the message names it.
        BuildFailedError: a compiler failed, or the variant cannot be built at all.
    """
    name = choose_builder(request.options.builder, request.variant)
    if request.part is not None and name != "native":
        raise UsageError(f"{request.variant.name} has no objects to share out", hint="leave out --part")
    started = time.monotonic()
    with placed(request.kernel_dir):
        request = msgspec.structs.replace(request, inputs=request.files())
        match name:
            case "noarch":
                built = build_noarch(request, log)
            case "native":
                built = native.build(request, log)
            case _:
                built = build_with_nix(request, log)
    return msgspec.structs.replace(built, seconds=round(time.monotonic() - started, 3))


def plan_commands(request: Request, log: Log = silent) -> list[str]:
    """The shell lines that `build_variant` would run, in order; lines that start with `#` are what kci does itself.

    Nothing is installed, written or compiled. The arguments and errors are those of `build_variant`.
    """
    match choose_builder(request.options.builder, request.variant):
        case "noarch":
            return noarch_commands(request)
        case "native":
            last = (
                f"copies the module and the package to {request.output}"
                if request.part is None
                else "keeps the objects"
            )
            return [*commands(native.plan(request, log)), f"# kci {last}"]
        case _:
            return [
                f"cd {shown([str(request.kernel_dir)])}",
                shown(nix_command(request)),
                f"# kci copies the result to {request.output}",
            ]


@contextmanager
def placed(kernel_dir: Path) -> Iterator[None]:
    """Name the files of errors as the user would: what refuses a file of the kernel knows it by its place in there."""
    try:
        yield
    except KciError as error:
        error.diagnostics = tuple(
            msgspec.structs.replace(item, path=(kernel_dir / item.path).as_posix())
            if item.rule.startswith("KCI50") and item.path and not item.path.startswith(f"{kernel_dir.as_posix()}/")
            else item
            for item in error.diagnostics
        )
        raise


def choose_builder(builder: str, variant: Variant) -> str:
    """The builder for a variant.

    Raises:
        UsageError: there is no builder of that name.
    """
    if builder not in BUILDERS:
        raise UsageError(f"there is no builder {builder!r}", hint=f"use one of {', '.join(BUILDERS)}")
    if builder != "auto":
        return builder
    return "noarch" if variant.kind is Kind.NOARCH else "native"
