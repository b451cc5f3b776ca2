"""The noarch builder: a variant of Python files only."""

from __future__ import annotations

from pathlib import Path

from kci.builders.generate import noarch_ops
from kci.builders.kernel_files import package_files, refused, write_package
from kci.builders.request import Built, Request
from kci.builders.visible_files import VisibleFiles
from kci.config.values import python_name
from kci.errors import BuildFailedError, UsageError
from kci.inputs.kernel_inputs import package_path
from kci.matrix.names import Kind
from kci.plurals import count
from kci.processes.process import Log


def build_noarch(request: Request, log: Log) -> Built:
    """Copy the package and generate its `_ops.py` (docs/format.md#noarch-build).

    Raises:
        UsageError: the variant is not a noarch one.
        BuildFailedError: the kernel is one of compiled code, and this backend merely has no component.
        FindingsError: the package is missing or wrong.
        UnsafeError: a link in it leads out of the kernel's directory.
    """
    files = _files(request)
    visible = VisibleFiles(request)
    ops = noarch_ops(request.build.name, request.variant.backend, request.kernel_id)
    write_package(request.output, files, {"_ops.py": ops})
    log(f"copied {count(len(files), 'file')} of {python_name(request.build.name)}")
    visible.require_unchanged()
    return Built(builder="noarch", archs=request.variant.archs)


def _files(request: Request) -> dict[str, Path]:
    """What is copied; refused for a variant that has compiled code, or whose framework says so alone."""
    variant = request.variant
    if variant.kind is not Kind.NOARCH:
        raise UsageError(f"{variant.name} is compiled; the noarch builder cannot make it", hint="use --builder native")
    if request.build.torch_noarch is None:
        framework = request.build.framework_name
        message = f"{variant.name}: [{framework}] declares {variant.backend} without a component for it"
        raise refused("KCI507", message, kind=BuildFailedError)
    return package_files(request.kernel_dir, request.build, compiled=False)


def noarch_commands(request: Request) -> list[str]:
    """What a build does, for `--dry-run`: nothing is run.

    Raises:
        KciError: as `build_noarch`.
    """
    package = request.kernel_dir / package_path(request.build)
    return [
        f"# kci copies {count(len(_files(request)), 'file')} of {package} to {request.output}",
        f"# kci writes {request.output / '_ops.py'}",
    ]
