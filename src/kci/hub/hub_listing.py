"""What a kernel's repository on the Hub has, without downloading libraries: the Hub lists the digests of large files.

`huggingface_hub` is imported only here and only when a repository is asked for.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError
from kci.files.bounded_json import read_bounded
from kci.hub.held import Held, Holding, is_variant_name
from kci.tree.digest import SIGNATURE, Digest, validate
from kci.tree.metadata import FILE_NAME, MAX_BYTES, decode
from kci.tree.signer import signature_problem, signer_of

FOLDER = "build/"


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository."""

    path: str
    size: int
    sha256: str | None = None
    """In hexadecimal; None for a small file, whose content the Hub keeps in git."""
    git_oid: str | None = None
    """What git calls the file's content; None where nobody asked."""


class HubReader(Protocol):
    """A repository at one revision."""

    source: str

    def files(self) -> Iterable[HubFile]:
        """Every file below `build/`."""

    def read(self, path: str) -> bytes:
        """The content of a small file."""


def held_on_hub(repository: HubReader) -> Holding:
    """The variants of a repository, each compared with the digest in its metadata.

    Raises:
        KciError: the repository cannot be read.
    """
    variants: dict[str, dict[str, HubFile]] = defaultdict(dict)
    for file in repository.files():
        variant, _, path = file.path.removeprefix(FOLDER).partition("/")
        if file.path.startswith(FOLDER) and path and is_variant_name(variant):
            variants[variant][path] = file
    found = (_held(repository, variant, files) for variant, files in sorted(variants.items()))
    return Holding(repository.source, tuple(found))


def _held(repository: HubReader, variant: str, files: dict[str, HubFile]) -> Held:
    if FILE_NAME not in files:
        return Held(variant, problem=f"it has no {FILE_NAME}")
    raw = _content(repository, files[FILE_NAME])
    if raw is None:
        return Held(variant, problem=f"{FILE_NAME} is larger than a metadata file may be")
    try:
        metadata = decode(raw)
    except ValueError as error:
        return Held(variant, problem=f"{FILE_NAME} is not a metadata file: {error}")
    problem, signer = "", None
    if SIGNATURE in files and (bundle := _content(repository, files[SIGNATURE])) is not None:
        problem, signer = signature_problem(bundle, raw), signer_of(bundle)
    return Held(
        variant,
        metadata.name,
        metadata.version,
        problem or _digest_problem(repository, metadata.digest, files),
        signer,
    )


def _digest_problem(repository: HubReader, digest: Digest | None, files: dict[str, HubFile]) -> str:
    if digest is None:
        return "it has no digest in its metadata"
    if digest.algorithm != "sha256":
        return ""  # the Hub lists no other digests
    covered = {path: file for path, file in files.items() if path not in (FILE_NAME, SIGNATURE) and not _bytecode(path)}
    actual = {path: _sha256(repository, file) for path, file in covered.items()}
    violations = validate(digest, Digest("sha256", actual))
    more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
    return "; ".join(map(str, violations[:3])) + more


def _bytecode(path: str) -> bool:
    return path.endswith(".pyc") or "__pycache__" in path.split("/")


def _sha256(repository: HubReader, file: HubFile) -> str:
    """As metadata.json writes it."""
    if file.sha256 is not None:
        try:
            return base64.b64encode(bytes.fromhex(file.sha256)).decode()
        except ValueError:
            return ""
    raw = _content(repository, file)
    return base64.b64encode(hashlib.sha256(raw).digest()).decode() if raw is not None else ""


def _content(repository: HubReader, file: HubFile) -> bytes | None:
    return repository.read(file.path) if file.size <= MAX_BYTES else None


class HubRepository:
    """A repository of kernels on the Hub, read through `huggingface_hub`."""

    def __init__(self, repo_id: str, revision: str, client: Any = None) -> None:
        self.repo_id = repo_id
        self.revision = revision
        self.source = f"{repo_id}@{revision}"
        self.client = client or hub_client()

    def files(self) -> Iterable[HubFile]:
        """See `HubReader`."""
        listed = self._ask(
            lambda: list(
                self.client.list_repo_tree(
                    self.repo_id, "build", recursive=True, revision=self.revision, repo_type="kernel"
                )
            )
        )
        for entry in listed:
            if hasattr(entry, "size"):  # folders have none
                yield HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs is not None else None)

    def read(self, path: str) -> bytes:
        """See `HubReader`."""
        local = self._ask(
            lambda: self.client.hf_hub_download(self.repo_id, path, revision=self.revision, repo_type="kernel")
        )
        return read_bounded(Path(local), MAX_BYTES)

    def _ask(self, question: Callable[[], Any]) -> Any:
        hint = "does the repository have this branch, is the network there, does HF_TOKEN give access?"
        return ask_hub(question, f"{self.source} cannot be read", hint)


def ask_hub(question: Callable[[], Any], failed: str, hint: str) -> Any:
    """What the Hub's client answers.

    Args:
        question: asks it.
        failed: what to say if it does not answer; its reason follows.
        hint: what to do then.

    Raises:
        FindingsError: it does not.
    """
    try:
        return question()
    except Exception as error:  # the client raises errors of its own and of its HTTP library, which changed once
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise FindingsError(f"{failed}: {printable(lines[0], ' ')[:300]}", hint=hint) from error


OLDEST_CLIENT = (2, 3)
"""The first huggingface_hub that writes to repositories of kernels (tried: 1.22 to 2.2 do not)."""


def hub_client(token: str | bool | None = None) -> Any:
    """The Hub's own client.

    Args:
        token: what to authenticate with; False for nothing, None for what the user has logged in with.

    Raises:
        MissingToolError: it is not installed, or too old.
    """
    try:
        from huggingface_hub import HfApi, __version__
    except ImportError:
        hint = "install it: pip install 'kci[hf]'"
        raise MissingToolError("the Hub is reached with huggingface_hub, which is not there", hint=hint) from None
    if tuple(int(number) for number in re.findall(r"\d+", __version__)[:2]) < OLDEST_CLIENT:
        wanted = ".".join(map(str, OLDEST_CLIENT))
        hint = "pip install --upgrade 'kci[hf]'"
        raise MissingToolError(f"huggingface_hub is {__version__} here; kci needs {wanted} or newer", hint=hint)
    return HfApi(token=token)
