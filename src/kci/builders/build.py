"""The entry points: build a variant, or say what building it would run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kci.builders import native, nix, noarch
from kci.builders.job_budget import JobBudget
from kci.builders.process import shown
from kci.builders.request import Built, Log, Request, silent
from kci.config.model import Build
from kci.errors import KciError, UsageError
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.plan.inputs import KernelInputs

BUILDERS = ("auto", "noarch", "native", "nix")


def build_variant(
    kernel_dir: Path,
    build: Build,
    variant: Variant,
    kernel_id: str,
    output: Path,
    *,
    builder: str = "auto",
    isolation: bool = True,
    jobs: int | None = None,
    budget: JobBudget | None = None,
    cache: Path,
    archs: tuple[str, ...] = (),
    mirrors: Mapping[str, str] | None = None,
    log: Log,
    inputs: KernelInputs | None = None,
    fresh: bool = False,
) -> Built:
    """Build one variant into an empty directory, without its metadata.json.

    The caller makes the directory appear in its place only when everything has gone well; see `kci.files.replace`.

    Args:
        kernel_dir: the directory of build.toml.
        build: what build.toml says.
        variant: what to build.
        kernel_id: the kernel's id for the variant's backend, which names the native module and the operators.
        output: the directory to fill; it is made if it is missing.
        builder: one of `BUILDERS`; auto is noarch for a noarch variant and native for every other.
        isolation: compile against a torch of kci's own instead of the one of this Python.
        jobs: how many compilers to run at once; by default as many as cores and memory allow.
        budget: the compilers that this build shares with others that run at once, in place of `jobs`.
        archs: compile for the author's own GPUs only, such as `9.0a`; the result is a part of the variant.
        mirrors: where to get what GitHub has, by name; `[mirrors]` of kci.toml.
        cache: where environments, toolkits and objects are kept; see `default_cache`.
        log: takes lines of progress.
        inputs: the files that the variant's fingerprint covers; by default those of the repository on the disk.
        fresh: compile everything, whatever a compiler cache has.

    Raises:
        UsageError: no such builder, or one that cannot make this kind of variant.
        FindingsError: the kernel's files are not as build.toml says.
        UnsafeError: a path leads out of the kernel's directory.
        MissingToolError: this machine lacks a compiler, torch, a toolkit; the message names it.
        BuildFailedError: a compiler failed, the variant cannot be built at all, or its compilers read a file of the
            repository that its fingerprint does not cover (KCI510).
    """
    request = Request(
        kernel_dir,
        build,
        variant,
        kernel_id,
        output,
        cache.absolute(),
        isolation,
        jobs,
        budget=budget,
        inputs=inputs,
        fresh=fresh,
        archs=archs,
        mirrors=mirrors or {},
    )
    name = choose_builder(builder, variant)
    started = time.monotonic()
    with placed(kernel_dir):
        match name:
            case "noarch":
                built = noarch.build(request, log)
            case "native":
                built = native.build(request, log)
            case _:
                built = nix.build(request, log)
    return msgspec.structs.replace(built, seconds=round(time.monotonic() - started, 3))


def plan_commands(
    kernel_dir: Path,
    build: Build,
    variant: Variant,
    kernel_id: str,
    output: Path,
    *,
    builder: str = "auto",
    isolation: bool = True,
    jobs: int | None = None,
    cache: Path,
    archs: tuple[str, ...] = (),
    mirrors: Mapping[str, str] | None = None,
    log: Log = silent,
) -> list[str]:
    """The shell lines that `build_variant` would run, in order; lines that start with `#` are what kci does itself.

    Nothing is installed, written or compiled. The arguments and errors are those of `build_variant`.
    """
    request = Request(
        kernel_dir,
        build,
        variant,
        kernel_id,
        output,
        cache.absolute(),
        isolation,
        jobs,
        archs=archs,
        mirrors=mirrors or {},
    )
    match choose_builder(builder, variant):
        case "noarch":
            return noarch.commands(request)
        case "native":
            recipe = native.plan(request, log)
            return [*native.commands(recipe), f"# kci copies the module and the package to {output}"]
        case _:
            return [
                f"cd {shown([str(kernel_dir)])}",
                shown(nix.command(request)),
                f"# kci copies the result to {output}",
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
