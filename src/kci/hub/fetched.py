"""A published variant as a directory: fetched from a repository on the Hub, and refused unless it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kci.errors import FindingsError, UnsafeError
from kci.files.portable_names import unsafe_name
from kci.files.replace import replacing
from kci.hub.client import ask_hub, hub_client
from kci.hub.held import FOLDER, HubFile, listed_files, variant_of
from kci.tree.digest import directory_digest, file_hashes
from kci.tree.leg_record import read_sealed

_Answer = TypeVar("_Answer")
_MOST_BYTES = 16 * 1024**3
_MOST_FILES = 10_000
_MOST_COMMITS = 20
"""So far back a release is looked for."""


class NothingEarlierError(FindingsError):
    """A variant has no other build to compare with."""


class PublishedVariants:
    """The variants of one revision of a repository of kernels."""

    def __init__(self, repo_id: str, revision: str, client: Any = None) -> None:
        """Look what is there; a revision without a tree has no variants. FindingsError if it cannot be read."""
        self.client = client or hub_client()
        self.repo_id = repo_id
        self.revision = revision
        self._files: dict[str, list[HubFile]] = {}
        for file in self._ask(self._listed):
            if variant := variant_of(file.path):
                self._files.setdefault(variant, []).append(file)

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.revision}"

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._files)

    def fetch(self, variant: str, into: Path) -> Path:
        """The directory of a variant, made in a folder.

        Raises:
            FindingsError: the repository does not have it, or it is not whole.
            UnsafeError: a file has a name that must not be written, or there is too much.
        """
        files = self._files.get(variant)
        if files is None:
            raise FindingsError(f"{self} has no {variant}", hint=f"it has {', '.join(self.names[:5]) or 'no variant'}")
        if len(files) > _MOST_FILES or sum(file.size for file in files) > _MOST_BYTES:
            raise UnsafeError(f"{variant} of {self} is larger than a variant can be")
        into.mkdir(parents=True, exist_ok=True)
        with replacing(into / variant) as made:
            self._copy(files, f"{FOLDER}{variant}/", made.staging)
            read_sealed(made.staging, name=variant)
            made.commit()
        return into / variant

    def _listed(self) -> list[HubFile]:
        from huggingface_hub.errors import EntryNotFoundError

        try:
            return listed_files(self.client, self.repo_id, self.revision, FOLDER.rstrip("/"))
        except EntryNotFoundError:
            return []

    def _copy(self, files: Sequence[HubFile], prefix: str, into: Path) -> None:
        for file in files:
            name = file.path.removeprefix(prefix)
            if problem := unsafe_name(name):
                raise UnsafeError(f"{self} has a file that kci does not write: {problem}")
            place = into / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._download(file.path), place)

    def before(self, variant_dir: Path, into: Path) -> tuple[str, Path]:
        """The newest other build of a variant in the commits of the revision: where it is from, and its directory.

        Raises:
            NothingEarlierError: there is none.
            FindingsError: the repository cannot be read.
        """
        own = directory_digest(file_hashes(variant_dir))
        ask = self.client.list_repo_commits
        commits = self._ask(lambda: ask(self.repo_id, repo_type="kernel", revision=self.revision))
        for commit in commits[:_MOST_COMMITS]:
            earlier = PublishedVariants(self.repo_id, commit.commit_id, self.client)
            if variant_dir.name in earlier.names:
                found = earlier.fetch(variant_dir.name, into)
                if directory_digest(file_hashes(found)) != own:
                    return f"{self.repo_id}@{commit.commit_id[:12]}", found
        raise NothingEarlierError(
            f"{self} has no other build of {variant_dir.name} in its last {_MOST_COMMITS} commits",
            hint="--against names a tree or a revision: --against hub:OWNER/NAME@REVISION",
        )

    def _download(self, path: str) -> str:
        local: str = self._ask(
            lambda: self.client.hf_hub_download(self.repo_id, path, revision=self.revision, repo_type="kernel")
        )
        return local

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        hint = "does the repository have this revision, is the network there, does HF_TOKEN give access?"
        return ask_hub(question, f"{self.repo_id}@{self.revision} cannot be read", hint)
