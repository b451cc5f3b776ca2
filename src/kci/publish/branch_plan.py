"""The changes that bring a branch to a tree, and the rules (KCI813 to KCI815) on whether it may be
replaced.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from kci.config.discovery import companion
from kci.config.sources.card import CARD
from kci.config.values import StaleVariants
from kci.diagnostics import Diagnostic, errors_in, rules
from kci.errors import FindingsError, UnsafeError, rule_error
from kci.publish.hub import FOLDER, HubFile, variant_in_path
from kci.tree import identity, metadata
from kci.tree.artifacts import is_variant_dir
from kci.tree.identity import SIGNATURE, directory_digest, file_hash
from kci.tree.manifest import FILE_NAME, Manifest, Origin, Present, read_manifest
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.metadata import Metadata
from kci.tree.top_level import TOP_ENTRIES
from kci.tree.verify.requirements import verify
from kci.utils.atomic import Log
from kci.utils.bounded_json import MAX_BYTES, decode_json
from kci.utils.frozen import Frozen
from kci.utils.shipped import template_environment
from kci.utils.suggest import command_line, count, first_of
from kci.utils.walk import is_bytecode, walk_packed

BENCHMARKS = "benchmarks/"


class LocalFile(Frozen):
    """A file for the Hub, as it was when it was checked."""

    path: Path
    sha256: str
    size: int
    data: bytes | None = None
    """The content, if it is in no file."""

    def content(self) -> bytes:
        """Read a small file; FindingsError if it has changed."""
        try:
            data = self.path.read_bytes() if self.data is None else self.data
        except OSError as error:
            raise FindingsError(f"cannot read {self.path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise _changed_error(self.path)
        return data


class Release(Frozen):
    """A verified tree, ready to publish."""

    manifest: Manifest
    files: dict[str, LocalFile]
    card: LocalFile | None

    def metadata(self) -> Iterator[Metadata]:
        """That of each variant."""
        for entry in self.manifest.present:
            file = self.files[f"{FOLDER}{entry.variant}/{METADATA_NAME}"]
            yield metadata.decode(file.content())


def read_release(
    tree: Path,
    sources: Path | None = None,
    report: Callable[[Diagnostic], None] = lambda _finding: None,
) -> Release:
    """Verify a tree and list its files; FindingsError for an incomplete one (KCI811), UnsafeError
    for a link.
    """
    manifest = _read_complete_manifest(tree)
    for entry in sorted(tree.iterdir()):
        known = entry.name in TOP_ENTRIES or is_bytecode(entry.name)
        if not known and not is_variant_dir(entry):
            raise FindingsError(
                f"not published, {tree} is not a merged tree: it holds {entry.name!r}"
            )
    for name, why in manifest.unloaded.items():
        message = f"not published, {name} in {tree} is not loaded: {why}"
        raise rule_error("KCI786", message, tree, hint=rules()["KCI786"].fix)
    findings = verify(tree, kernel=sources)
    if errors := errors_in(findings):
        more = f" (and {len(errors) - 1} more findings)" if len(errors) > 1 else ""
        message = f"not published, {tree} does not meet the requirements: {errors[0].message}{more}"
        raise FindingsError(message, command_line("verify", place=tree), diagnostics=errors)
    for item in findings:
        report(item)
    inside = {}
    for file in walk_packed(tree):
        if file.link or not file.regular:
            raise UnsafeError(
                f"not published, {file.path} is not a plain file", "merge the tree again"
            )
        inside[file.name] = local_file(file.path)
    for variant, digest in manifest.digests.items():
        prefix = f"{variant}/"
        hashes = {
            name.removeprefix(prefix): file.sha256
            for name, file in inside.items()
            if name.startswith(prefix)
        }
        if directory_digest(hashes) != digest:
            raise _changed_error(tree / variant)
    files = {f"{FOLDER}{name}": local for name, local in inside.items()}
    for path in companion(sources, BENCHMARKS).glob("benchmark*.py") if sources else ():
        if path.is_file() and not path.is_symlink():
            files[f"{BENCHMARKS}{path.name}"] = local_file(path)
    return Release(manifest, dict(sorted(files.items())), inside.get(CARD))


def _read_complete_manifest(tree: Path) -> Manifest:
    if not tree.is_dir():
        raise FindingsError(
            f"{tree} does not exist", "`kci merge` makes one, and `kci run` all of it"
        )
    manifest = read_manifest(tree)
    unknown = "it is unknown whether it is complete"
    if not manifest:
        lacks, hint = f"has no {FILE_NAME}: {unknown}", "merge its variants with `kci merge --plan`"
    elif manifest.planned is None:
        lacks = f"was merged without a plan: {unknown}"
        hint = "merge with --plan, from `kci plan --format json`"
    elif manifest.missing or not manifest.complete:
        lacks = f"lacks {first_of(manifest.missing, 3) or 'something that was planned'}"
        hint = "build what is missing and merge it in"
    else:
        return manifest
    raise rule_error("KCI811", f"not published, {tree} {lacks}", tree, hint=hint)


def local_file(path: Path) -> LocalFile:
    """The file with its present hash and size."""
    return LocalFile(path, file_hash(path), path.stat().st_size)


README = "README.md"
_PLAIN = "kci wrote this page, because the kernel has no CARD.md"


def plain_page(release: Release, repo_id: str, branch: str) -> LocalFile:
    """A front page for a kernel without a card."""
    made, template = release.manifest, template_environment().get_template("hub/page.md.j2")
    text = template.render(
        kernel=made.kernel,
        repo_id=repo_id,
        at=f"version={made.version}" if branch == f"v{made.version}" else f'revision="{branch}"',
        backends=sorted({entry.backend for entry in made.present}),
        license=next((item.license for item in release.metadata()), ""),
        variants=[entry.variant for entry in made.present],
        mark=_PLAIN,
    )
    return front_page(text)


def front_page(text: str, source: Path = Path(README)) -> LocalFile:
    """A front page that is in no file; `source` is what to correct in it."""
    data = text.encode()
    return LocalFile(source, hashlib.sha256(data).hexdigest(), len(data), data)


def gives_way(page: LocalFile, there: HubFile, read: Callable[[str], bytes]) -> bool:
    """True if a plain page would replace one that kci did not write."""
    mark = _PLAIN.encode()
    return mark in (page.data or b"") and (there.size > MAX_BYTES or mark not in read(README))


def _changed_error(path: Path) -> FindingsError:
    return FindingsError(
        f"{path} changed while it was published", "let no other program write there meanwhile"
    )


MAIN_VERSION = 1
"""The version of builds on `main`, if it has any: from before versions existed, or a mirror."""
_RECORDS = frozenset(TOP_ENTRIES) - {"benchmarks"}
_SHOWN = 3
_Shape = TypeVar("_Shape")


class BranchChanges(Frozen):
    """The difference between a branch and its goal, sorted."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    removed_variants: tuple[str, ...] = ()
    kept_variants: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.added or self.changed or self.deleted)


class ReplacementPolicy(Frozen):
    """The decisions about a branch that hold before it is read."""

    expected: frozenset[str] | None = None
    """Variants that the kernel should have; None if it is not known."""
    prune: bool = False
    """True if others outside of the tree are removed."""
    leave_out: StaleVariants = StaleVariants.ASK
    older: bool = False
    """True if the tree may be older than what it replaces."""
    sources: Path | None = None
    """The kernel's directory, whose repository orders commits."""


class BranchGoal(Frozen):
    """The goal of one branch."""

    branch: str
    files: Mapping[str, LocalFile]
    release: Release | None = None
    """The tree, whose variants' directories are replaced as a whole; None for a front page
    alone."""
    terms: ReplacementPolicy = ReplacementPolicy()
    removed: frozenset[str] = frozenset()

    @property
    def variants(self) -> frozenset[str]:
        return frozenset(self.release.manifest.digests if self.release else ())

    def changes(
        self, remote_files: Mapping[str, HubFile], *, inherited: bool = False
    ) -> BranchChanges:
        """Compare the files of a branch with this goal.

        A branch without a commit of its own has `inherited` its `build/` from the main branch, of
        another version.
        """
        others = variants_on(remote_files) - self.variants
        removed = others if inherited else others & self.removed
        if self.terms.prune and self.terms.expected is not None:
            removed |= others - self.terms.expected
        here, there = self.files.keys(), remote_files.keys()
        same = {path for path in here & there if same_content(remote_files[path], self.files[path])}
        owned = {
            path
            for path in there
            if self._owns(path)
            or (inherited and path.startswith(FOLDER))
            or variant_in_path(path) in removed
        }
        # A signature stays while what it signs is the same.
        signatures = {
            f"{path}{SIGNATURE.removeprefix(METADATA_NAME)}"
            for path in same
            if path.endswith(METADATA_NAME)
        }
        groups = here - there, here & there - same, owned - here - signatures
        added, changed, deleted, gone, kept = (
            tuple(sorted(names)) for names in (*groups, removed, others - removed)
        )
        return BranchChanges(added, changed, deleted, len(same), gone, kept)

    def part(self, remote_files: Mapping[str, HubFile]) -> dict[str, HubFile]:
        """The files that publishing replaces: a concurrent change of them is a conflict
        (KCI812).
        """
        return {path: file for path, file in remote_files.items() if self._owns(path)}

    def _owns(self, path: str) -> bool:
        if path in self.files:
            return True
        name = path.removeprefix(FOLDER)
        if self.variants and path.startswith(FOLDER):
            return name in _RECORDS or name.partition("/")[0] in self.variants
        script = (
            path.startswith(f"{BENCHMARKS}benchmark")
            and path.endswith(".py")
            and path.count("/") == 1
        )
        return script and any(goal_path.startswith(BENCHMARKS) for goal_path in self.files)


def branch_version(branch: str) -> int | None:
    """The version in a branch name such as `v2`; None for other names."""
    match = re.fullmatch(r"v([0-9]{1,19})", branch)
    return int(match[1]) if match else None


def variants_on(paths: Iterable[str]) -> set[str]:
    """The variants that have files among these paths."""
    return {name for path in paths if (name := variant_in_path(path))}


def same_content(remote: HubFile, local: LocalFile) -> bool:
    """True if the Hub's file is equal to the local one, by sha256, or by git blob id for a small
    file.
    """
    if remote.sha256 is not None:
        return remote.sha256 == local.sha256
    if remote.size != local.size:
        return False
    data = local.content()
    return (
        remote.git_oid
        == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    )


class BranchReplacement(Frozen):
    """A check of a tree against the branch that it replaces."""

    goal: BranchGoal
    release: Release
    place: str
    remote_files: Mapping[str, HubFile]
    read: Callable[[str], bytes]
    log: Log

    @property
    def version(self) -> int:
        return self.release.manifest.version

    def resolve_variants(self, kept_variants: Collection[str]) -> BranchGoal:
        """The goal with the variants to remove.

        FindingsError for another version (KCI813), undecided variants (KCI814) or newer ones
        (KCI815).
        """
        self._require_version()
        before = self._manifest()
        if before and before.version == self.version:
            self._require_newer(before)
        return replace(self.goal, removed=self._left_out(kept_variants))

    def version_there(self, default: int) -> int:
        """The version that is on the branch, or the default."""
        found = (self._metadata(name) for name in sorted(variants_on(self.remote_files)))
        return next((there.version for there in (self._manifest(), *found) if there), default)

    def _manifest(self) -> Manifest | None:
        return self._read(f"{FOLDER}{FILE_NAME}", lambda data: decode_json(data, Manifest))

    def _require_version(self) -> None:
        if branch_version(self.goal.branch) == self.version:
            return
        version = self.version_there(self.version)
        if version != self.version:
            kernel = self.release.manifest.kernel
            message = (
                f"{self.place} has version {version} of {kernel}, and the tree is version "
                f"{self.version}"
            )
            hint = (
                'give each version a branch: `branch = "v{version}"` in kci.toml, or no `branch` '
                "at all"
            )
            raise rule_error("KCI813", message, hint=hint)

    def _require_newer(self, before: Manifest) -> None:
        present = self.release.manifest.present
        replaced = {
            old.variant: old
            for old in before.present
            for own in present
            if own.variant == old.variant
            and old.digest != own.digest
            and (own.fingerprint is None or old.fingerprint != own.fingerprint)
        }
        if not replaced:
            return
        new, old = _newest(present), _newest(replaced.values())
        what = f"{first_of(sorted(replaced), _SHOWN)}, built from {_source(old)},"
        if not self._is_older(new, old):
            if old.commit != new.commit:
                self.log(f"{self.place}: {what} are replaced by builds from {_source(new)}")
            return
        message = (
            f"{self.place} is newer than the tree: {what} would be replaced by builds from "
            f"{_source(new)}"
        )
        if not self.goal.terms.older:
            raise rule_error(
                "KCI815", message, hint="publish a newer tree; to go back to this one, pass --older"
            )
        self.log(message)

    def _is_older(self, new: Origin, old: Origin) -> bool:
        sources = self.goal.terms.sources
        if sources and new.commit and old.commit:
            if identity.is_ancestor(sources, new.commit, old.commit):
                return True
            if identity.is_ancestor(sources, old.commit, new.commit):
                return False
        return (
            new.committed is not None
            and old.committed is not None
            and new.committed < old.committed
        )

    def _left_out(self, kept_variants: Collection[str]) -> frozenset[str]:
        expected = self.goal.terms.expected
        names = [name for name in kept_variants if expected is None or name in expected]
        own = {(self.version, item.unique) for item in self.release.metadata() if names}
        found = {name: self._metadata(name) for name in names}
        stale = frozenset(
            name
            for name, entry in found.items()
            if not entry or (entry.version, entry.unique) not in own
        )
        if not stale:
            return stale
        message = (
            f"{self.place} has {count(len(stale), 'variant')} of other sources that this tree "
            f"leaves out: {first_of(sorted(stale), _SHOWN)}"
        )
        match self.goal.terms.leave_out:
            case StaleVariants.REMOVE:
                self.log(f"{message}; removed, as it was decided")
                return stale
            case StaleVariants.ALLOW:
                self.log(f"{message}; kept beside the new ones, as it was decided")
                return frozenset()
        hint = (
            "decide with `leave-out` in [publish] of kci.toml, or with --leave-out: "
            '"allow" lets them stay beside the new ones, "remove" removes them'
        )
        if expected is None:
            hint += "; with --kernel, only those count that the kernel should have today"
        raise rule_error("KCI814", message, hint=hint)

    def _metadata(self, variant: str) -> Metadata | None:
        return self._read(f"{FOLDER}{variant}/{METADATA_NAME}", metadata.decode)

    def _read(self, path: str, decode: Callable[[bytes], _Shape]) -> _Shape | None:
        file = self.remote_files.get(path)
        try:
            return decode(self.read(path)) if file and file.size <= MAX_BYTES else None
        except ValueError:
            return None


def _newest(entries: Iterable[Present]) -> Origin:
    return max(
        (entry.origin for entry in entries),
        key=lambda origin: (origin.committed or 0, origin.commit or ""),
    )


def _source(origin: Origin) -> str:
    if origin.commit is None:
        return "an unknown commit"
    text, moment = f"commit {origin.commit[:12]}", origin.committed
    if moment is not None:
        text += f" of {datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%d %H:%M}"
    return text
