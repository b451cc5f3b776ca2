"""The `torchVersions` of a flake.nix: it narrows what the reference builds, and kci runs no Nix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kci.config.discovery import companion
from kci.config.document import parse_document
from kci.config.facts import BACKENDS
from kci.config.reader import Kernel
from kci.config.settings import KCI_TOML
from kci.config.values import SYSTEMS
from kci.diagnostics import Diagnostic, Span, finding
from kci.matrix.catalog.loading import for_kernel, read_overlay
from kci.matrix.catalog.rows import Catalog
from kci.matrix.lints import overlay_text
from kci.matrix.selection import select
from kci.utils.bounded_json import read_bounded

FLAKE = "flake.nix"
_MOST_BYTES = 64 * 1024
_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\])*+"?|#[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_NAMED = re.compile(r"(?<![\w.'-])torchVersions(?![\w'-])")
# `!(version ? "cpu") || system == "x86_64-linux"`, and the last part alone
_FILTER = re.compile(
    r'(?:!\s*(?:\(\s*)?\w+\s*\?\s*"?([a-z]+)(?:Version)?"?\s*(?:\)\s*)?\|\|\s*)?'
    rf'\b\w+\s*([!=]=)\s*"({"|".join(SYSTEMS)})"'
)


def torch_versions(raw: bytes) -> tuple[int, str] | None:
    """The line of `torchVersions` in a flake.nix, and keys of an `[[overlay]]` that filters systems
    as it does.

    None without one; no keys for another function.
    """
    flake = raw[:_MOST_BYTES].decode(errors="replace")
    text = _COMMENT_OR_STRING.sub(
        lambda part: part[0] if part[0][0] == '"' else "\n" * part[0].count("\n"), flake
    )
    named = _NAMED.search(text)
    if named is None:
        return None
    tests: dict[str, list[str]] = {}
    for backend, operator, system in _FILTER.findall(text):
        start = f"backend != {backend} or " if backend in BACKENDS else ""
        tests.setdefault(start, []).append(f"system {operator} {system}")
    keep = [
        f'"{start}{(" and " if "!=" in made[0] else " or ").join(made)}"'
        for start, made in sorted(tests.items())
    ]
    return text.count("\n", 0, named.start()) + 1, f"keep = [{', '.join(keep)}]" if keep else ""


def flake_narrows(kernel: Kernel, catalog: Catalog, directory: Path) -> Iterator[Diagnostic]:
    """KCI170: the flake.nix of a kernel lets the reference build other variants than kci plans."""
    try:
        flake = torch_versions(read_bounded(file := companion(directory, FLAKE)))
    except (OSError, ValueError):
        return
    if flake is None:
        return
    line, keys = flake
    rows = for_kernel(catalog, [(None, read_overlay(parse_document(keys.encode(), KCI_TOML)))], "")
    planned, theirs = (
        {one.name for one in select(kernel, table).variants} for table in (catalog, rows)
    )
    message, hint = "`torchVersions` changes what the reference builds", "the same in kci.toml:"
    if keys and theirs != planned:
        message += f": {len(theirs)} variants, and kci plans {len(planned)}"
    elif keys or any(overlay.filters or overlay.replace for overlay in catalog.overlays):
        return
    else:
        hint = "kci runs no Nix; say in kci.toml what it leaves out, for example:"
        keys = 'drop = ["backend == cpu and system == aarch64-linux"]'
    hint += f"\n{overlay_text(kernel.build.name, keys)}"
    yield finding("KCI170", message, hint=hint, path=file.as_posix(), span=Span(line, 1, line, 1))
