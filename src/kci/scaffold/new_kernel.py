"""A new kernel: its options, and its files from templates."""

from __future__ import annotations

import errno
import keyword
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from kci.config.discovery import find_root
from kci.config.facts import BACKENDS
from kci.config.file_lints import repo_id_problem
from kci.config.reader import BUILD_TOML
from kci.config.settings import KCI_TOML
from kci.config.values import (
    PLACEHOLDER_OWNER,
    Backend,
    KernelName,
    Version,
    python_name,
    suggest_kernel_name,
)
from kci.diagnostics import Diagnostic, errors_in
from kci.errors import FindingsError, UsageError
from kci.matrix.catalog.loading import load_catalog
from kci.plan.check import check_kernels
from kci.plan.workspace import open_workspace
from kci.utils.atomic import flush, replacing
from kci.utils.frozen import Frozen
from kci.utils.shipped import template_environment
from kci.utils.suggest import nearest
from kci.workflows.repository import render_workflows

FRAMEWORKS = {
    "torch": "C++ and CUDA, compiled against PyTorch",
    "torch-noarch": "Python only: PyTorch, Triton or another DSL",
    "tvm-ffi": "C++ and CUDA without PyTorch, for every framework that speaks DLPack",
}

OFFERED = {
    name: tuple(one for one in Backend if name == "torch-noarch" or name in BACKENDS[one].templates)
    for name in FRAMEWORKS
}

USUAL = {name: tuple(one for one in Backend if name in BACKENDS[one].usual) for name in FRAMEWORKS}
"""The backends by default."""

OLDEST_STABLE_ABI = Version.parse("2.11")
"""The first stable ABI that has all that the template uses."""

USUAL_LICENSE = "Apache-2.0"


class NewKernel(Frozen, kw_only=True):
    """The options of a new kernel; see `choose`."""

    name: str
    framework: str = "torch"
    backends: tuple[str, ...] = ()
    stable_abi: str | None = None
    repo_id: str = ""

    @property
    def placeholder(self) -> bool:
        """True if `repo_id` needs an owner."""
        return self.repo_id.startswith(f"{PLACEHOLDER_OWNER}/")


def choose(name: str, **fields: Any) -> NewKernel:
    """A new kernel from its name and options, completed with defaults; UsageError for options that
    do not fit.
    """
    require_name(name)
    new = NewKernel(name=name, **fields)
    if new.framework not in FRAMEWORKS:
        raise UsageError(
            f"there is no framework {new.framework[:60]!r}", nearest(new.framework, FRAMEWORKS)
        )
    for backend in new.backends:
        if backend not in OFFERED[new.framework]:
            hint = f"for {new.framework}: {', '.join(OFFERED[new.framework])}"
            raise UsageError(
                f"there is no template for {backend[:60]!r} with {new.framework}", hint
            )
    if new.stable_abi is not None:
        _check_stable_abi(new.stable_abi, new.framework)
    if problem := new.repo_id and repo_id_problem(new.repo_id):
        raise UsageError(
            f"{new.repo_id[:100]!r} is not a repository id: {problem}", "such as acme/my-kernel"
        )
    backends = tuple(dict.fromkeys(new.backends)) or USUAL[new.framework]
    return replace(new, backends=backends, repo_id=new.repo_id or f"{PLACEHOLDER_OWNER}/{name}")


def require_name(name: str) -> None:
    """Raise UsageError, with a proposal, for a name that is no kernel name or cannot be
    imported.
    """
    try:
        KernelName.parse(name)
    except ValueError as error:
        raise UsageError(
            str(error), f"such as {suggest_kernel_name(name) or 'my-kernel'}"
        ) from None
    if keyword.iskeyword(python_name(name)):
        raise UsageError(
            f"{name!r} is a keyword of Python, not a name for a package", f"such as {name}-kernel"
        )


def _check_stable_abi(text: str, framework: str) -> None:
    if framework != "torch":
        raise UsageError(
            f"{framework} has no stable ABI: it does not compile against PyTorch", "leave it out"
        )
    try:
        version = Version.parse(text)
    except ValueError as error:
        raise UsageError(f"the stable ABI version: {error}", "such as 2.11") from None
    newest = max(row.torch for row in load_catalog().rows)
    if not OLDEST_STABLE_ABI <= version <= newest:
        message = (
            f"the template needs a stable ABI from {OLDEST_STABLE_ABI.text} to {newest.text}, not "
            f"{text}"
        )
        raise UsageError(
            message, f"--stable-abi {OLDEST_STABLE_ABI.text} supports the most versions of torch"
        )


def new_kernel_files(new: NewKernel, *, standalone: bool) -> dict[str, str]:
    """The files of a new kernel by path; `standalone` adds those of a repository."""
    package, noarch = python_name(new.name), new.framework == "torch-noarch"
    op = f"{package}_op" if package in _TAKEN else package
    *others, last = (BACKENDS[backend].title for backend in new.backends)
    shown = f"{', '.join(others)} and {last}" if others else last
    values = {
        **asdict(new),
        "license": USUAL_LICENSE,
        "package": package,
        "gpu": any(
            BACKENDS[backend].device and BACKENDS[backend].templates for backend in new.backends
        ),
        "op": op,
        "layer": "".join(part.capitalize() for part in op.split("_")),
        "summary": f"A new kernel for {shown} tensors: SiLU, until its author replaces it.",
        "standalone": standalone,
        "edition": load_catalog().name,
        "ops_from": f".._{op}" if noarch else ".._ops",
        "ops_name": op if noarch else "ops",
        "call": op if noarch else f"ops.{op}",
    }
    return render_templates(_templates(new, package, op, standalone=standalone), values)


def render_templates(templates: Mapping[str, str], values: Mapping[str, object]) -> dict[str, str]:
    """Render kernel templates, by path."""
    environment = template_environment()
    return {
        path: environment.get_template(f"kernel/{template}").render(values).rstrip() + "\n"
        for path, template in sorted(templates.items())
    }


def _templates(new: NewKernel, package: str, op: str, *, standalone: bool) -> dict[str, str]:
    tvm_ffi, noarch = new.framework == "tvm-ffi", new.framework == "torch-noarch"
    folder = "tvm_ffi" if tvm_ffi else "torch"
    code = "stable" if new.stable_abi else folder
    place = f"{folder.replace('_', '-')}-ext"
    files = {
        "build.toml": "common/build.toml.j2",
        "CARD.md": "common/CARD.md.j2",
        "README.md": "common/README.md.j2",
        ".gitignore": "common/gitignore.j2",
        "benchmarks/benchmark.py": "common/benchmark.py.j2",
        "tests/conftest.py": "common/conftest.py.j2",
        f"tests/test_{package}.py": f"{folder}/test.py.j2",
        f"{place}/{package}/__init__.py": f"{'noarch' if noarch else folder}/package.py.j2",
    }
    if standalone:
        files["kci.toml"] = "common/kci.toml.j2"
    if not tvm_ffi:
        files[f"{place}/{package}/layers/__init__.py"] = "torch/layers.py.j2"
    if noarch:
        return files | {f"{place}/{package}/_{op}.py": "noarch/_op.py.j2"}
    endings = {BACKENDS[backend].templates[new.framework] for backend in new.backends}
    files |= {f"csrc/{op}{ending}": f"{code}/op{ending}.j2" for ending in endings}
    if tvm_ffi:
        header, binding = f"csrc/{op}.h", f"{place}/binding.cpp"
        return files | {header: "tvm_ffi/op.h.j2", binding: "tvm_ffi/binding.cpp.j2"}
    return files | {
        f"{place}/torch_binding.cpp": "torch/torch_binding.cpp.j2",
        f"{place}/torch_binding.h": f"{code}/torch_binding.h.j2",
    }


# Reserved in the generated Python: a module, an attribute of each `ops`, and `ops` itself.
_TAKEN = {"layers", "name", "ops"}


def require_new(target: Path) -> None:
    """Raise UsageError unless the target is absent or an empty directory."""
    directory = target.is_dir() and not target.is_symlink()
    if any(target.iterdir()) if directory else os.path.lexists(target):
        hint = "name a directory that does not exist, or an empty one; nothing was written"
        raise UsageError(f"{target} exists and is not an empty directory", hint)


def kernels_beside(target: Path, origin: Path | None) -> list[Path]:
    """The other kernels in the folder of a new one, without the one that it is made from."""
    these = [place.resolve() for place in (target, origin) if place]
    found = (place.parent for place in target.absolute().parent.glob(f"*/{BUILD_TOML}"))
    return sorted(place for place in found if place.resolve() not in these)


def enclosing_repository(target: Path) -> Path | None:
    """The root of the repository around a new directory; None without one."""
    parent = next(folder for folder in target.absolute().parents if folder.is_dir())
    root, settings = find_root(parent)
    return root if settings or (root / ".git").exists() else None


def create(
    target: Path, files: Mapping[str, bytes], *, workflows: bool
) -> tuple[list[str], tuple[Diagnostic, ...]]:
    """Write a kernel to a staging directory and rename it; returns the paths and the findings of
    `kci check`.
    """
    with replacing(target) as replacement:
        root = replacement.staging
        for path, content in sorted(files.items()):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        workflow_files: list[str] = []
        found = check_kernels([str(root)]).diagnostics
        findings = tuple(item for item in found if item.rule != "KCI217")  # see `built_backends`
        if workflows and not errors_in(findings):
            workflow_render = render_workflows(open_workspace([str(root)]), root, short=True)
            workflow_render.write()
            workflow_files = list(workflow_render.files)
            findings = (*findings, *workflow_render.notes)
        flush(root)
        try:
            if (
                target.is_dir() and not target.is_symlink()
            ):  # perhaps the working directory, which has to stay
                _fill(target, root)
            else:
                root.rename(target)
        except OSError as error:
            raise FindingsError(
                f"cannot write {target}: {error.strerror}", "nothing was written"
            ) from error
    return sorted([*files, *workflow_files]), tuple(
        _shown_at(item, root, target) for item in findings
    )


def _fill(target: Path, root: Path) -> None:
    if any(target.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    moved: list[Path] = []
    try:
        for place in sorted(root.iterdir()):
            moved.append(place.rename(target / place.name))
    except BaseException:
        for place in moved:
            place.rename(root / place.name)
        raise


def built_backends(target: Path) -> set[str]:
    """The backends with variants of a kernel."""
    (kernel,) = open_workspace([str(target)]).matrix().kernels
    return {variant.backend for variant in kernel.variants}


def add_settings(target: Path, text: str) -> tuple[Path, bool]:
    """Write kci.toml unless the repository has one; returns its path, and whether it was
    written.
    """
    root, settings = find_root(target)
    if settings:
        return settings, False
    path = root / KCI_TOML
    try:
        with path.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        return path, False
    except OSError as error:
        raise FindingsError(
            f"cannot write {path}: {error.strerror}", "the kernel itself is written"
        ) from error
    return path, True


def _shown_at(item: Diagnostic, staging: Path, target: Path) -> Diagnostic:
    inside = os.path.relpath(item.path, staging) if item.path else os.pardir
    return replace(item, path=os.path.join(target, inside)) if not inside.startswith("..") else item  # noqa: PTH118
