"""What has to change on a branch so that it has the tree: a pure function of the tree and of what the Hub lists."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from kci.hub.held import is_variant_name
from kci.hub.hub_listing import HubFile
from kci.publish.release import BENCHMARKS, FOLDER, LocalFile, Release
from kci.tree.digest import SIGNATURE
from kci.tree.metadata import FILE_NAME
from kci.tree.tree_top import KEPT_AT_TOP

MAIN_VERSION = 1
"""The version whose builds `main` has, if it has any: of the time before there were versions, or a mirror."""


class BranchChanges(msgspec.Struct, frozen=True):
    """The difference between a branch and what it is to have, sorted."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: int = 0
    """How many files are there already."""
    removed_variants: tuple[str, ...] = ()
    """Variants of which every file is deleted."""
    kept_variants: tuple[str, ...] = ()
    """Variants on the branch that the tree does not have, and that stay."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.changed or self.deleted)


class WantedBranch(msgspec.Struct, frozen=True):
    """What one branch is to have."""

    branch: str
    files: Mapping[str, LocalFile]
    variants: frozenset[str] = frozenset()
    """Whose directories are replaced as a whole."""
    expected: frozenset[str] | None = None
    """The variants that the kernel should have today: others that are neither these nor in the tree are removed.
    None to remove none."""
    version: int = MAIN_VERSION
    """The kernel's."""
    removed: frozenset[str] = frozenset()
    """Other variants to remove."""

    def changes(self, there: Mapping[str, HubFile], *, inherited: bool = False) -> BranchChanges:
        """Compare a branch with this.

        Args:
            there: every file of the branch.
            inherited: the branch has no commit of its own yet: what it has below `build/` it got from the main one, and
                that is of version 1. On the branch of that version it stays.
        """
        inherited = inherited and self.version != MAIN_VERSION
        others = variants_on(there) - self.variants
        removed = others if inherited else others - self.expected if self.expected is not None else set()
        removed |= others & self.removed
        wanted = self.files.keys()
        same = {path for path in wanted & there.keys() if is_same(there[path], self.files[path])}
        owned = {path for path in there if self._owns(path) or (inherited and path.startswith(FOLDER))}
        owned |= {path for path in there if _variant(path) in removed}
        # A signature counts as long as what it signs is the same, whoever has added it.
        signatures = {f"{path}{SIGNATURE.removeprefix(FILE_NAME)}" for path in same if path.endswith(FILE_NAME)}
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
        """Whether a file of the branch is one that publishing writes, or would have to remove."""
        if path in self.files:
            return True
        name = path.removeprefix(FOLDER)
        if self.variants and path.startswith(FOLDER):
            return name in _RECORDS or name.partition("/")[0] in self.variants
        script = path.startswith(f"{BENCHMARKS}benchmark") and path.endswith(".py") and path.count("/") == 1
        return script and any(wanted.startswith(BENCHMARKS) for wanted in self.files)


_RECORDS = frozenset(KEPT_AT_TOP) - {"benchmarks"}
"""What kci writes at the top of a tree; an older tree may have more of it, which says nothing about a newer one."""


def branch_of(release: Release, branch: str, expected: Collection[str] | None) -> WantedBranch:
    """What the version branch is to have."""
    kept = frozenset(expected) if expected is not None else None
    return WantedBranch(branch, release.files, release.variants, kept, release.manifest.version)


def variants_on(there: Iterable[str]) -> set[str]:
    """The variants that a branch has files of."""
    return {name for path in there if (name := _variant(path))}


def is_same(there: HubFile, here: LocalFile) -> bool:
    """Whether the Hub has a file as it is here: by its sha256, or for a small one by its name in git."""
    if there.sha256 is not None:
        return there.sha256 == here.sha256
    if there.size != here.size:
        return False
    data = here.content()
    return there.git_oid == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _variant(path: str) -> str | None:
    """The variant that a file of a branch belongs to."""
    name, slash, _ = path.removeprefix(FOLDER).partition("/")
    return name if path.startswith(FOLDER) and slash and is_variant_name(name) else None
