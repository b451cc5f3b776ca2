"""What has to change on a branch so that it has the tree, and whether it may: from the tree and what the Hub lists.

A tree may take the place of what a branch has if it is of the same version, not older, and leaves nothing behind. The
branch says what it has: in its manifest, and in the metadata of the variants that the tree does not have. All of it is
settled before anything is written.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from kci.config.values import LeaveOut
from kci.errors import rule_error
from kci.files.bounded_json import MAX_BYTES, decode_json
from kci.files.replace import Log
from kci.hub.held import FOLDER, HubFile, variant_of
from kci.plurals import count, first_of
from kci.publish.release import BENCHMARKS, LocalFile, Release
from kci.tree import identity, manifest, metadata
from kci.tree.digest import SIGNATURE
from kci.tree.manifest import Manifest, Origin, Present
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.metadata import Metadata
from kci.tree.tree_top import KEPT_AT_TOP

MAIN_VERSION = 1
"""The version whose builds `main` has, if it has any: of the time before there were versions, or a mirror."""
_RECORDS = frozenset(KEPT_AT_TOP) - {"benchmarks"}
"""What kci writes at the top of a tree; an older tree may have more of it, which says nothing about a newer one."""
_SHOWN = 3
_Shape = TypeVar("_Shape")


class BranchChanges(msgspec.Struct, frozen=True):
    """The difference between a branch and what it should have, sorted."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    """How many files are there already."""
    removed_variants: tuple[str, ...] = ()
    """Variants that lose every file."""
    kept_variants: tuple[str, ...] = ()
    """Variants on the branch that the tree does not have, and that stay."""

    @property
    def empty(self) -> bool:
        return not (self.added or self.changed or self.deleted)


class WantedBranch(msgspec.Struct, frozen=True):
    """What one branch should have."""

    branch: str
    files: Mapping[str, LocalFile]
    variants: frozenset[str] = frozenset()
    """Whose directories are replaced as a whole."""
    expected: frozenset[str] | None = None
    """The variants that the kernel should have today: others that are neither these nor in the tree are removed.
    None to remove none."""
    version: int = MAIN_VERSION
    removed: frozenset[str] = frozenset()
    """Other variants to remove."""

    def changes(self, there: Mapping[str, HubFile], *, inherited: bool = False) -> BranchChanges:
        """Compare a branch with this.

        Where the branch has no commit of its own yet, what it has below `build/` is `inherited` from the main one, and
        that is of version 1. On the branch of that version it stays.
        """
        inherited = inherited and self.version != MAIN_VERSION
        others = variants_on(there) - self.variants
        removed = others if inherited else others - self.expected if self.expected is not None else set()
        removed |= others & self.removed
        wanted = self.files.keys()
        same = {path for path in wanted & there.keys() if is_same(there[path], self.files[path])}
        owned = {path for path in there if self._owns(path) or (inherited and path.startswith(FOLDER))}
        owned |= {path for path in there if variant_of(path) in removed}
        # A signature counts as long as what it signs is the same, whoever has added it.
        signatures = {f"{path}{SIGNATURE.removeprefix(METADATA_NAME)}" for path in same if path.endswith(METADATA_NAME)}
        return BranchChanges(
            added=tuple(sorted(wanted - there.keys())),
            changed=tuple(sorted((wanted & there.keys()) - same)),
            deleted=tuple(sorted(owned - wanted - signatures)),
            unchanged=len(same),
            removed_variants=tuple(sorted(removed)),
            kept_variants=tuple(sorted(others - removed)),
        )

    def part(self, there: Mapping[str, HubFile]) -> dict[str, HubFile]:
        """The part of a branch that publishing replaces: if a rival changes it too, one of the two is lost."""
        return {path: file for path, file in there.items() if self._owns(path)}

    def _owns(self, path: str) -> bool:
        if path in self.files:
            return True
        name = path.removeprefix(FOLDER)
        if self.variants and path.startswith(FOLDER):
            return name in _RECORDS or name.partition("/")[0] in self.variants
        script = path.startswith(f"{BENCHMARKS}benchmark") and path.endswith(".py") and path.count("/") == 1
        return script and any(wanted.startswith(BENCHMARKS) for wanted in self.files)


def branch_of(release: Release, branch: str, expected: frozenset[str] | None) -> WantedBranch:
    """What the version branch should have."""
    return WantedBranch(branch, release.files, release.variants, expected, release.manifest.version)


def version_of(branch: str) -> int | None:
    """The version that a branch is for by its name, `v2` for example; None where the name says nothing about that."""
    found = re.fullmatch(r"v([0-9]{1,19})", branch)
    return int(found[1]) if found else None


def variants_on(there: Iterable[str]) -> set[str]:
    """The variants that a branch has files of."""
    return {name for path in there if (name := variant_of(path))}


def is_same(there: HubFile, here: LocalFile) -> bool:
    """Whether the Hub has a file as it is here: by its sha256, or for a small one by its name in git."""
    if there.sha256 is not None:
        return there.sha256 == here.sha256
    if there.size != here.size:
        return False
    data = here.content()
    return there.git_oid == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# --- whether it may ---------------------------------------------------------------------------------------------------


class TakeoverTerms(msgspec.Struct, frozen=True):
    """What is decided about a branch before anybody looks at it."""

    expected: frozenset[str] | None = None
    """The variants that the kernel should have today; None where the kernel is not known."""
    prune: bool = False
    leave_out: LeaveOut = LeaveOut.ASK
    """What becomes of those of these that the tree does not have and that are of other sources."""
    older: bool = False
    """Whether the tree may be older than what it replaces."""
    sources: Path | None = None
    """The kernel's directory, whose repository may know which of two commits is the older one."""


class Takeover(msgspec.Struct, frozen=True):
    """A tree, and the branch for it."""

    release: Release
    terms: TakeoverTerms
    place: str
    """What to call the branch in messages."""
    there: Mapping[str, HubFile]
    read: Callable[[str], bytes]
    log: Log

    def settle(self, wanted: WantedBranch, changes: BranchChanges) -> WantedBranch:
        """What the branch should have, with what is decided about the variants that the tree leaves out.

        Raises:
            FindingsError: the branch has another version (KCI813), undecided variants of other
                sources (KCI814), or newer variants (KCI815).
            HubAnswerError: the Hub does not answer.
        """
        before = self._read(f"{FOLDER}{manifest.FILE_NAME}", lambda data: decode_json(data, Manifest))
        self._require_version(wanted, before)
        if before is not None and before.version == self.release.manifest.version:
            self._require_newer(before)
        return msgspec.structs.replace(wanted, removed=self._left_out(changes.kept_variants))

    def _require_version(self, wanted: WantedBranch, before: Manifest | None) -> None:
        """KCI813. What lies wrongly on the branch of the tree's own version makes way for what is right."""
        if version_of(wanted.branch) == wanted.version:
            return
        others = (known.version for name in sorted(variants_on(self.there)) if (known := self._metadata(name)))
        found = before.version if before is not None else next(others, wanted.version)
        if found != wanted.version:
            kernel = self.release.manifest.kernel
            message = f"{self.place} has version {found} of {kernel}, and the tree is version {wanted.version}"
            hint = 'give each version a branch: `branch = "v{version}"` in kci.toml, or no `branch` at all'
            raise rule_error("KCI813", message, hint=hint)

    def _require_newer(self, before: Manifest) -> None:
        # KCI815
        present = self.release.manifest.present
        theirs = {entry.variant: entry for entry in before.present}
        pairs = [(entry, theirs[entry.variant]) for entry in present if entry.variant in theirs]
        # Those that were made from something else.
        replaced = {
            old.variant: old
            for new, old in pairs
            if old.digest != new.digest and (new.fingerprint is None or old.fingerprint != new.fingerprint)
        }
        if not replaced:
            return
        new, old = _newest(present), _newest(replaced.values())
        what = f"{first_of(sorted(replaced), _SHOWN)}, built from {_source(old)},"
        if not self._is_older(new, old):
            if old.commit != new.commit:
                self.log(f"{self.place}: {what} make way for what is built from {_source(new)}")
            return
        message = f"{self.place} is newer than the tree: {what} would make way for what is built from {_source(new)}"
        if not self.terms.older:
            raise rule_error("KCI815", message, hint="publish a newer tree; to go back to this one, say --older")
        self.log(message)

    def _is_older(self, new: Origin, old: Origin) -> bool:
        """Whether the new one is older: by the history where it is here, else by the commits' times."""
        if self.terms.sources is not None and new.commit and old.commit and new.commit != old.commit:
            for first, second, answer in ((new.commit, old.commit, True), (old.commit, new.commit, False)):
                if identity.is_ancestor(self.terms.sources, first, second):
                    return answer
        return new.committed is not None and old.committed is not None and new.committed < old.committed

    def _left_out(self, kept: Collection[str]) -> frozenset[str]:
        # KCI814
        names = [name for name in kept if self.terms.expected is None or name in self.terms.expected]
        if not names:
            return frozenset()
        version = self.release.manifest.version
        own = {(version, metadata.decode(file.content()).unique) for file in self.release.metadata_files}
        known = {name: self._metadata(name) for name in names}
        stale = [name for name, found in known.items() if found is None or (found.version, found.unique) not in own]
        if not stale:
            return frozenset()
        message = f"{self.place} has {count(len(stale), 'variant')} of other sources that this tree leaves out: "
        message += first_of(sorted(stale), _SHOWN)
        match self.terms.leave_out:
            case LeaveOut.REMOVE:
                self.log(f"{message}; removed, as it was decided")
                return frozenset(stale)
            case LeaveOut.ALLOW:
                self.log(f"{message}; kept beside the new ones, as it was decided")
                return frozenset()
        hint = "decide with `leave-out` in [publish] of kci.toml, or with --leave-out: "
        hint += '"allow" lets them stay beside the new ones, "remove" removes them'
        if self.terms.expected is None:
            hint += "; with --kernel, only those count that the kernel should have today"
        raise rule_error("KCI814", message, hint=hint)

    def _metadata(self, variant: str) -> Metadata | None:
        return self._read(f"{FOLDER}{variant}/{metadata.FILE_NAME}", metadata.decode)

    def _read(self, path: str, decode: Callable[[bytes], _Shape]) -> _Shape | None:
        file = self.there.get(path)
        try:
            return decode(self.read(path)) if file is not None and file.size <= MAX_BYTES else None
        except ValueError:
            return None


def _newest(entries: Iterable[Present]) -> Origin:
    return max((entry.origin for entry in entries), key=lambda origin: (origin.committed or 0, origin.commit or ""))


def _source(origin: Origin) -> str:
    # `commit 0123456789ab of 2026-11-20 10:00`
    if origin.commit is None:
        return "an unknown commit"
    moment = origin.committed
    day = f" of {datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%d %H:%M}" if moment is not None else ""
    return f"commit {origin.commit[:12]}{day}"
