"""Rewrites a build.toml to edition 5 in place: comments, order, quoting and line ends stay."""

from __future__ import annotations

import difflib
import io
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from kci.config.document import BOM, Document, KeyPath, Place, parse_document, refuse
from kci.config.model import Build
from kci.config.reader import BUILD_TOML, EDITION, NOARCH_KEYS, Kernel, interpret, parse_kernel
from kci.diagnostics import finding
from kci.errors import FindingsError
from kci.utils.frozen import Frozen


class Update(Frozen):
    """The rewrite of one file by `kci update`."""

    path: str
    before: bytes
    after: bytes
    changes: tuple[str, ...]
    """A phrase per change; empty if the file is up to date."""

    def diff(self) -> str:
        """The unified diff; empty if the file is up to date."""
        if not self.changes:
            return ""
        name = self.path.lstrip("/")
        # only a newline ends a line of a diff; `splitlines` knows more
        before, after = (
            io.StringIO(raw.decode("utf-8"), newline="\n").readlines()
            for raw in (self.before, self.after)
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        )


def plan_update(raw: bytes, directory: str = ".", shown_as: str = BUILD_TOML) -> Update:
    """Plan the rewrite of a build.toml.

    Raises FindingsError if it is invalid or older than edition 4.
    """
    kernel = interpret(parse_document(raw, shown_as), directory)
    text, edits = kernel.document.text, list(_edits(kernel))
    for start, end, new, _ in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    after = (BOM if raw.startswith(BOM) else b"") + text.encode("utf-8")
    if edits:
        _verify(after, kernel.build, shown_as, max(EDITION, kernel.edition))
    return Update(shown_as, raw, after, tuple(change for *_, change in edits))


_Edit = tuple[int, int, str, str]
"""Start and end in characters, the new text, and a phrase for the change."""


def _edits(kernel: Kernel) -> Iterator[_Edit]:
    document, build = kernel.document, kernel.build
    if kernel.edition == 4:
        yield _add_edition(document)
        if build.torch is not None and build.torch.stable_abi is not None:
            _, value = _places(document, ("torch", "stable-abi"))
            backends, version = dict.fromkeys(build.general.backends), document.written(value)
            entries = ", ".join(f"{backend} = {version}" for backend in backends)
            spread = f"{{ {entries} }}" if entries else "{}"
            yield value.start, value.end, spread, "`stable-abi` per backend"
    for name in NOARCH_KEYS:
        if name in document.data.get("torch-noarch", {}):
            name_place, _ = _places(document, ("torch-noarch", name))
            key, snake = document.written(name_place), name.replace("-", "_")
            respelled = key.replace(name, snake) if name in key else snake
            yield name_place.start, name_place.end, respelled, f"`{snake}` in snake_case"


def _places(document: Document, path: KeyPath) -> tuple[Place, Place]:
    places = document.places(path)
    if places is None:
        raise _not_updatable(document.path)
    return places


_END_OF_LINE = re.compile(r"([ \t]*(?:#[^\n]*?)?)(\r?\n|\Z)")


def _add_edition(document: Document) -> _Edit:
    # in the style of the version key: own line, dotted, or inline table
    key, value = _places(document, ("general", "version"))
    text, at, new = document.text, value.end, f", edition = {EDITION}"
    if rest := _END_OF_LINE.match(text, at):
        at, ending = rest.end(1), rest[2] or ("\r\n" if "\r\n" in text else "\n")
        before = text[: key.start].rpartition("\n")[2]
        written = document.written(key)
        own = written.replace("version", "edition") if "version" in written else "edition"
        new = f"{ending}{before}{own}{text[key.end : value.start]}{EDITION}"
    return at, at, new, f"`edition = {EDITION}`"


def _verify(after: bytes, build: Build, shown_as: str, target: int) -> None:
    # a result with another meaning is a bug of kci
    with suppress(FindingsError):
        kernel = parse_kernel(after, shown_as=shown_as)
        if kernel.edition == target and _meaning(kernel.build) == _meaning(build):
            return
    raise _not_updatable(shown_as)


def _not_updatable(shown_as: str) -> FindingsError:
    hint = "write the edition by hand, and report this file as a bug of kci"
    return refuse(
        finding(
            "KCI114", "the file is written in a way that kci cannot update", shown_as, hint=hint
        )
    )


def _meaning(build: Build) -> str:
    # whatever the form of the stable ABI
    torch = build.torch and replace(build.torch, stable_abi=None)
    return repr((replace(build, torch=torch), *map(build.stable_abi, build.general.backends)))


def write_update(path: Path, update: Update) -> None:
    """Replace a file atomically; a symbolic link stays.

    Raises FindingsError (KCI115), also if the file has changed.
    """
    from kci.utils.atomic import replacing

    target = path.resolve()
    try:
        with replacing(target) as replacement:
            replacement.staging.write_bytes(update.after)
            shutil.copymode(target, replacement.staging)
            if target.read_bytes() != update.before:
                raise FindingsError("the file changed while it was being updated")
            replacement.commit()
    except FindingsError as error:
        hint = "the file is unchanged; fix the cause and run `kci update` again"
        raise refuse(finding("KCI115", error.message, update.path, hint=hint)) from None
