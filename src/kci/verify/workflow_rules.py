"""The rules for workflow files, of any repository, as a part of verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, finding

_ENDINGS = (".yml", ".yaml")
_MAX_BYTES = 4 * 1024 * 1024


def is_workflows(path: Path) -> bool:
    """Whether a path is a workflow file, or a directory of them."""
    if path.is_file():
        return path.suffix in _ENDINGS
    return path.is_dir() and path.resolve().parts[-2:] == (".github", "workflows")


def check_workflows(path: Path, shown: str) -> Iterator[Diagnostic]:
    """What is wrong with workflow files.

    Args:
        path: a file or `.github/workflows`. Of a file, the others beside it are read too, for what it calls.
        shown: the path as the user wrote it.
    """
    from kci.render.any_workflow import check_any

    folder = path if path.is_dir() else path.parent
    base = shown.rstrip("/") if path.is_dir() else shown.rpartition("/")[0]
    texts = {}
    for file in sorted(folder.iterdir()):
        if file.suffix not in _ENDINGS or not file.is_file() or (path.is_file() and path.is_symlink()):
            continue
        name = f"{base}/{file.name}" if base else file.name
        try:
            texts[name] = file.read_bytes()[:_MAX_BYTES].decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield finding("KCI418", f"cannot be read: {error}", path=name)
    wanted = set(texts) if path.is_dir() else {shown}
    yield from (item for item in check_any(texts) if item.path in wanted)
