"""Builds a variant with the builder that fits, or lists the commands."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from msgspec.structs import replace

from kci.builders.kernel_files import (
    VisibleFiles,
    kernel_error,
    noarch_ops,
    package_files,
    write_package,
)
from kci.builders.native import builder as native
from kci.builders.native.recipe import recipe_commands
from kci.builders.process.run import Log, run, shell_line, silent
from kci.builders.request import BuildResult, Request
from kci.config.values import python_name
from kci.errors import BuildFailedError, KciError, MissingToolError, UsageError
from kci.matrix.variants import Kind, Variant
from kci.plan.inputs.kernel_inputs import package_path
from kci.utils.suggest import count


def build_noarch(request: Request, log: Log) -> BuildResult:
    """Copy the package and generate `_ops.py` (docs/format.md#noarch-build).

    Raises KciError as `build_variant`.
    """
    files = _files(request)
    visible = VisibleFiles(request)
    ops = noarch_ops(request.build.name, request.variant.backend, request.kernel_id)
    write_package(request.output, files, ops, visible)
    log(f"copied {count(len(files), 'file')} of {python_name(request.build.name)}")
    return BuildResult("noarch", request.variant.archs)


def _files(request: Request) -> dict[str, Path]:
    # a framework table without components makes a variant noarch; one with compiled code is refused
    variant = request.variant
    if variant.kind is not Kind.NOARCH:
        raise UsageError(
            f"{variant.name} is compiled; the noarch builder cannot make it", "use --builder native"
        )
    if not request.build.torch_noarch:
        framework = request.build.framework_name
        raise kernel_error(
            "KCI507",
            f"{variant.name}: [{framework}] declares {variant.backend} without a component for it",
            kind=BuildFailedError,
        )
    return package_files(request, compiled=False)


def nix_command(request: Request) -> list[str]:
    """The command that builds the variant and prints the result's path."""
    flake = f".#redistributable.{request.variant.name}"
    cores = ["--cores", str(request.options.jobs)] if request.options.jobs else []
    return ["nix", "build", flake, "-L", "--no-link", "--print-out-paths", *cores]


def build_with_nix(request: Request, log: Log) -> BuildResult:
    """Run nix and copy its result, which is sealed. Raises MissingToolError or BuildFailedError."""
    if not shutil.which("nix"):
        raise MissingToolError(
            "nix is not installed on this machine", "install nix, or use --builder native"
        )
    if not (request.kernel_dir / "flake.nix").is_file():
        raise MissingToolError(f"{request.kernel_dir} has no flake.nix", "use --builder native")
    visible = VisibleFiles(request, everything=True)
    done = run(command := nix_command(request), log, cwd=request.kernel_dir)
    if done.code != 0:
        raise BuildFailedError(f"{shell_line(command)} failed\n{done.tail()}")
    visible.require_unchanged()
    # the result is the variant directory or holds it
    top = Path(next((line for line in done.output.splitlines()[::-1] if line[:1] == "/"), "/"))
    places = (top / request.variant.name, top)
    result = next((place for place in places if (place / "metadata.json").is_file()), None)
    if not result:
        raise BuildFailedError(
            f"nix built no variant directory for {request.variant.name} (result: {top})"
        )
    # the nix store is read-only and has links
    shutil.copytree(result, request.output, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in request.output.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    return BuildResult("nix", request.variant.archs, sealed=True)


BUILDERS = ("auto", "noarch", "native", "nix")


def build_variant(request: Request, log: Log) -> BuildResult:
    """Build one variant, unsealed, into an empty directory; a part makes only objects.

    Raises UsageError: no such builder, or none for this variant. FindingsError or UnsafeError:
    faulty files. MissingToolError: a tool is missing. BuildFailedError: a compiler failed, or the
    variant cannot be built.
    """
    name = choose_builder(request.options.builder, request.variant)
    if request.part and name != "native":
        raise UsageError(
            f"{request.variant.name} has no objects to split into parts", "leave out --part"
        )
    started = time.monotonic()
    try:
        request = replace(request, inputs=request.files())
        match name:
            case "noarch":
                built = build_noarch(request, log)
            case "native":
                built = native.build(request, log)
            case _:
                built = build_with_nix(request, log)
    except KciError as error:
        # paths relative to the working directory, as the user writes them
        folder = request.kernel_dir
        error.diagnostics = tuple(
            replace(item, path=(folder / item.path).as_posix())
            if item.rule.startswith("KCI50")
            else item
            for item in error.diagnostics
        )
        raise
    return replace(built, seconds=round(time.monotonic() - started, 3))


def plan_commands(request: Request, log: Log = silent) -> list[str]:
    """List the shell lines of `build_variant`; `#` lines are kci's own steps.

    Raises KciError as `build_variant`.
    """
    match choose_builder(request.options.builder, request.variant):
        case "noarch":
            package = request.kernel_dir / package_path(request.build)
            files = count(len(_files(request)), "file")
            return [
                f"# kci copies {files} of {package} to {request.output}",
                f"# kci writes {request.output / '_ops.py'}",
            ]
        case "native":
            last = (
                "keeps the objects"
                if request.part
                else f"copies the module and the package to {request.output}"
            )
            return [*recipe_commands(native.plan(request, log)), f"# kci {last}"]
        case _:
            return [
                f"cd {shell_line([str(request.kernel_dir)])}",
                shell_line(nix_command(request)),
                f"# kci copies the result to {request.output}",
            ]


def choose_builder(builder: str, variant: Variant) -> str:
    """The builder of a variant. Raises UsageError for an unknown one."""
    if builder not in BUILDERS:
        raise UsageError(f"there is no builder {builder!r}", f"use one of {', '.join(BUILDERS)}")
    if builder != "auto":
        return builder
    return "noarch" if variant.kind is Kind.NOARCH else "native"
