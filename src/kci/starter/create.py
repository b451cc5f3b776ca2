"""Writing a new kernel: all of it or nothing, and never over what is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from kci.config.find_settings import locate
from kci.config.settings import KCI_TOML
from kci.diagnostics import Diagnostic, Severity
from kci.errors import FindingsError, UsageError
from kci.files.replace import flush, replacing
from kci.render.repository import render_workflows
from kci.workspace.check import check_kernels
from kci.workspace.workspace import open_workspace


def require_new(target: Path) -> None:
    """Refuse a place that has something; an empty directory is fine."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"{target} exists", hint="name a directory that does not exist; nothing was written")
    if any(target.iterdir()):
        hint = "name a directory that does not exist, or an empty one; nothing was written"
        raise UsageError(f"{target} exists and is not empty", hint=hint)


def repository_of(target: Path) -> Path | None:
    """The root of the repository that a new directory would be part of, if there is one."""
    parent = next(folder for folder in target.absolute().parents if folder.is_dir())
    root, settings = locate(parent)
    return root if settings is not None or (root / ".git").exists() else None


def create(target: Path, files: Mapping[str, bytes], *, workflows: bool) -> tuple[list[str], tuple[Diagnostic, ...]]:
    """Write a kernel to a temporary place beside its own, and move it there once it is complete.

    Returns the paths that were written, those of workflow files too if asked for, and what `kci check` says of them.
    """
    with replacing(target) as replacement:
        root = replacement.staging
        for path, content in sorted(files.items()):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        rendered: list[str] = []
        found = check_kernels([str(root)]).diagnostics
        if workflows and not any(item.severity is Severity.ERROR for item in found):
            made = render_workflows(open_workspace([str(root)]), root)
            made.write()
            rendered = list(made.files)
        flush(root)
        try:
            if target.is_dir() and not target.is_symlink():
                target.rmdir()  # fails if another process has written into it
            root.rename(target)
        except OSError as error:
            raise FindingsError(f"cannot write {target}: {error.strerror}", hint="nothing was written") from error
    return sorted([*files, *rendered]), tuple(_shown_at(item, root, target) for item in found)


def built_backends(target: Path) -> set[str]:
    """The backends for which a kernel has variants."""
    (kernel,) = open_workspace([str(target)]).matrix().kernels
    return {variant.backend for variant in kernel.variants}


def add_settings(target: Path, text: str) -> tuple[Path, bool]:
    """Write the kci.toml of a kernel's repository, unless there is one; its path, and whether kci wrote it."""
    root, settings = locate(target)
    if settings is not None:
        return settings, False
    path = root / KCI_TOML
    try:
        with path.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        return path, False
    except OSError as error:
        raise FindingsError(f"cannot write {path}: {error.strerror}", hint="the kernel itself is written") from error
    return path, True


def _shown_at(item: Diagnostic, staging: Path, target: Path) -> Diagnostic:
    """A finding with the path that its file has now."""
    inside = os.path.relpath(item.path, staging)
    return replace(item, path=os.path.join(target, inside)) if not inside.startswith("..") else item  # noqa: PTH118
