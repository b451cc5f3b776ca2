"""What to publish, and whether it may be published: a complete tree that meets the requirements, read once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, Severity
from kci.errors import FindingsError, UnsafeError, rule_error
from kci.files.walk import is_bytecode, walk
from kci.hub.held import FOLDER
from kci.plurals import first_of
from kci.tree.artifacts import is_variant_dir
from kci.tree.digest import directory_digest, file_hash
from kci.tree.manifest import FILE_NAME, Manifest, read_manifest
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.tree_top import CARD, KEPT_AT_TOP
from kci.verify.requirements import verify

BENCHMARKS = "benchmarks/"


class LocalFile(msgspec.Struct, frozen=True):
    """A file for the Hub, and what it held when it was checked."""

    path: Path
    sha256: str
    """In hexadecimal."""
    size: int

    def content(self) -> bytes:
        """What the file holds; for small files. Raises FindingsError: it is not what was checked."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise FindingsError(f"cannot read {self.path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise _changed(self.path)
        return data


class Release(msgspec.Struct, frozen=True):
    """A tree that may be published."""

    manifest: Manifest
    files: dict[str, LocalFile]
    """What the version branch gets, by path there."""
    card: LocalFile | None
    """What the front page of the repository gets; None where the tree has no card."""

    @property
    def variants(self) -> frozenset[str]:
        return frozenset(entry.variant for entry in self.manifest.present)

    @property
    def metadata_files(self) -> list[LocalFile]:
        return [self.files[f"{FOLDER}{name}/{METADATA_NAME}"] for name in sorted(self.variants)]


def read_release(
    tree: Path, sources: Path | None = None, report: Callable[[Diagnostic], None] = lambda _finding: None
) -> Release:
    """Check a tree and read what to publish of it.

    Benchmarks come from `sources`, the kernel's directory: the loader's tools look for them on the branch. Findings
    that do not stop a release go to `report`.

    Raises:
        FindingsError: it is not a merged tree, is not complete (KCI811), or does not meet a requirement.
        UnsafeError: it holds a link.
    """
    manifest = _complete(tree)
    found = verify(tree)
    errors = [item for item in found if item.severity is Severity.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more findings)" if len(errors) > 1 else ""
        message = f"not published, {tree} does not meet the requirements: {errors[0].message}{more}"
        raise FindingsError(message, hint=f"kci verify {tree}", diagnostics=errors)
    for item in found:
        report(item)
    inside = {}
    for file in walk(tree):
        if is_bytecode(file.name):
            continue
        if file.link or not file.regular:
            raise UnsafeError(f"not published, {file.path} is not a plain file", hint="merge the tree again")
        inside[file.name] = local_file(file.path)
    for entry in manifest.present:
        prefix = f"{entry.variant}/"
        hashes = {name.removeprefix(prefix): inside[name].sha256 for name in inside if name.startswith(prefix)}
        if directory_digest(hashes) != entry.digest:
            raise _changed(tree / entry.variant)
    files = {f"{FOLDER}{name}": local for name, local in inside.items()}
    # As the reference's builder publishes them.
    for path in (sources / BENCHMARKS).glob("benchmark*.py") if sources is not None else ():
        if path.is_file() and not path.is_symlink():
            files[f"{BENCHMARKS}{path.name}"] = local_file(path)
    return Release(manifest, dict(sorted(files.items())), inside.get(CARD))


def _complete(tree: Path) -> Manifest:
    if not tree.is_dir():
        raise FindingsError(f"{tree} does not exist", hint="`kci merge` makes one, and `kci run` all of it")
    manifest = read_manifest(tree)
    if manifest is None:
        message = f"not published, {tree} has no {FILE_NAME}: it is unknown whether it is complete"
        raise rule_error("KCI811", message, hint="merge its variants with `kci merge --plan`", path=str(tree))
    for entry in sorted(tree.iterdir()):
        if entry.name not in KEPT_AT_TOP and not is_variant_dir(entry) and not is_bytecode(entry.name):
            raise FindingsError(f"not published, {tree} is not a merged tree: it holds {entry.name!r}")
    if manifest.planned is None:
        message = f"not published, {tree} was merged without a plan: it is unknown whether it is complete"
        raise rule_error("KCI811", message, hint="merge with --plan, from `kci plan --format json`", path=str(tree))
    if manifest.missing or not manifest.complete:
        names = first_of(manifest.missing, 3) or "something that was planned"
        message = f"not published, {tree} lacks {names}"
        raise rule_error("KCI811", message, hint="build what is missing and merge it in", path=str(tree))
    return manifest


def local_file(path: Path) -> LocalFile:
    """A file as it is now."""
    return LocalFile(path, file_hash(path), path.stat().st_size)


def _changed(path: Path) -> FindingsError:
    return FindingsError(f"{path} changed while it was published", hint="let nothing write there meanwhile")
