"""`kci check --fix`: the corrections that change how a build.toml is written, and nothing that it means."""

from __future__ import annotations

import msgspec

from kci.config.document import parse_document
from kci.config.file_lints import duplicate_backend, version_spelling, versions
from kci.config.reader import Kernel, parse_kernel
from kci.config.suppression import apply_comments
from kci.config.update import Edits, Update, plan_update
from kci.diagnostics import Diagnostic


def plan_fixes(raw: bytes, directory: str, shown_as: str) -> Update:
    """Work out the corrected form of a build.toml; nothing is written. What is suppressed in the file stays.

    Args:
        raw: the file's bytes.
        directory: the kernel's directory, for messages.
        shown_as: how diagnostics name the file.

    Raises:
        FindingsError: the file is invalid.
    """
    updated = plan_update(raw, directory, shown_as)
    kernel = parse_kernel(updated.after, directory, shown_as)
    edits = Edits(parse_document(updated.after, shown_as))
    _respell_versions(kernel, edits)
    _once_each(kernel, edits)
    after = edits.apply(updated.after.startswith(b"\xef\xbb\xbf"))
    if edits.changes:
        parse_kernel(after, directory, shown_as)  # it is still a build.toml
    return msgspec.structs.replace(updated, after=after, changes=(*updated.changes, *edits.changes))


def _reported(kernel: Kernel, found: list[Diagnostic]) -> list[Diagnostic]:
    """The findings that no comment suppresses."""
    return [item for item in apply_comments(found, kernel.document) if item in found]


def _respell_versions(kernel: Kernel, edits: Edits) -> None:
    said = {(item.line, item.column) for item in _reported(kernel, list(version_spelling(kernel)))}
    for path, version in versions(kernel):
        span = edits.spans(path)[1]
        if len(version) <= 2 and (span.line, span.column) in said:
            quote = edits.text_of(span)[0]
            shown = ".".join(map(str, path))
            edits.replace(span, f"{quote}{version.minor_text}{quote}", f"`{shown}` with two parts")


def _once_each(kernel: Kernel, edits: Edits) -> None:
    if not _reported(kernel, list(duplicate_backend(kernel))):
        return
    _, span = edits.spans(("general", "backends"))
    if span.line == span.end_line and "#" not in edits.text_of(span):  # a list over several lines may have comments
        names = ", ".join(f'"{backend}"' for backend in dict.fromkeys(kernel.build.general.backends))
        edits.replace(span, f"[{names}]", "each backend once")
