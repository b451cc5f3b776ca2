"""A published tree, fetched from a repository on the Hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kci.errors import UnsafeError
from kci.files.portable_names import unsafe_name
from kci.hub.client import ask_hub, hub_client
from kci.hub.held import FOLDER, HubFile, listed_files

_Answer = TypeVar("_Answer")
_MOST_BYTES = 16 * 1024**3
_MOST_FILES = 10_000
_MOST_VARIANTS = 20
"""So many variants of the largest size a tree may have."""


class PublishedVariants:
    """The variants of one revision of a repository of kernels."""

    def __init__(self, repo_id: str, revision: str, client: Any = None) -> None:
        """Look what is there; a revision without a tree has no variants. FindingsError if it cannot be read."""
        self.client = client or hub_client()
        self.repo_id = repo_id
        self.revision = revision
        self._tree = self._ask(self._listed)

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.revision}"

    def fetch_tree(self, into: Path) -> None:
        """Everything below `build/`, as it is there.

        Raises:
            FindingsError: the repository cannot be read.
            UnsafeError: a file has a name that must not be written, or there is too much.
        """
        size = sum(file.size for file in self._tree)
        if len(self._tree) > _MOST_VARIANTS * _MOST_FILES or size > _MOST_VARIANTS * _MOST_BYTES:
            raise UnsafeError(f"{self} is larger than a tree can be")
        self._copy(self._tree, FOLDER, into)

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

    def _download(self, path: str) -> str:
        local: str = self._ask(
            lambda: self.client.hf_hub_download(self.repo_id, path, revision=self.revision, repo_type="kernel")
        )
        return local

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        hint = "does the repository have this revision, is the network there, does HF_TOKEN give access?"
        return ask_hub(question, f"{self.repo_id}@{self.revision} cannot be read", hint)
