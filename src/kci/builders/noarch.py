"""The noarch builder: a variant of Python files only."""

from __future__ import annotations

from kci.builders.generate import noarch_ops
from kci.builders.kernel_files import all_files, package_dir, refused, write_package
from kci.builders.read_files import Watch
from kci.builders.request import Built, Request
from kci.errors import BuildFailedError, UsageError
from kci.matrix.names import Kind
from kci.plurals import count
from kci.processes.process import Log


def build(request: Request, log: Log) -> Built:
    """Copy the package and generate its `_ops.py` (docs/format.md#noarch-build).

    Raises:
        UsageError: the variant is not a noarch one.
        BuildFailedError: the kernel is one of compiled code, and this backend merely has no component.
        FindingsError: the package is missing or wrong.
        UnsafeError: a link in it leads out of the kernel's directory.
    """
    check(request)
    package = package_dir(request.kernel_dir, request.build)
    files = all_files(request.kernel_dir, package)
    watch = Watch(request)
    ops = noarch_ops(request.build.name, request.variant.backend, request.kernel_id)
    write_package(request.output, files, {"_ops.py": ops})
    log(f"copied {count(len(files), 'file')} of {package.name}")
    return Built(output=request.output, builder="noarch", archs=request.variant.archs, inputs=watch.copied())


def check(request: Request) -> None:
    """Refuse variants that have compiled code.

    Raises:
        UsageError: the variant's name says that it is compiled.
        BuildFailedError: only its framework says so (docs/format.md#noarch-build).
    """
    variant = request.variant
    if variant.kind is not Kind.NOARCH:
        raise UsageError(f"{variant.name} is compiled; the noarch builder cannot make it", hint="use --builder native")
    if request.build.torch_noarch is None:
        framework = request.build.framework_name
        message = f"{variant.name}: [{framework}] declares {variant.backend} without a component for it"
        raise refused("KCI507", message, kind=BuildFailedError)


def commands(request: Request) -> list[str]:
    """What a build does, for `--dry-run`: nothing is run.

    Raises:
        KciError: as `build`.
    """
    check(request)
    package = package_dir(request.kernel_dir, request.build)
    files = all_files(request.kernel_dir, package)
    return [
        f"# kci copies {count(len(files), 'file')} of {package} to {request.output}",
        f"# kci writes {request.output / '_ops.py'}",
    ]
