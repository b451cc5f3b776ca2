"""The variants of a tree or a Hub repository, and their problems; the Hub lists digests, so
libraries stay there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kci.diagnostics import printable
from kci.errors import (
    FindingsError,
    KciError,
    MissingToolError,
    UsageError,
    first_line_of,
    without_secrets,
)
from kci.matrix.variants import is_variant_name
from kci.tree.identity import SIGNATURE, Digest, make_digest, validate
from kci.tree.manifest import read_manifest, read_sealed
from kci.tree.metadata import FILE_NAME, MAX_BYTES, decode
from kci.tree.sigstore import signature_problem
from kci.utils.bounded_json import read_bounded
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of
from kci.utils.walk import is_bytecode

OLDEST_CLIENT = (2, 3)
"""The first huggingface_hub that writes to kernel repositories; 1.22 to 2.2 do not."""

_Answer = TypeVar("_Answer")

TokenSource = Callable[[], str | bool]
"""Returns a valid token; False for none."""

_ID_TOKEN = "HF_OIDC_ID_TOKEN"  # noqa: S105
_REQUEST = ("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")
_EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
}


def hub_client(token: str | bool) -> Any:
    """The client of the Hub; False is anonymous.

    MissingToolError if it is too old, UsageError for invalid settings.
    """
    try:
        from huggingface_hub import HfApi, __version__
    except ImportError:
        hint = "install it: pip install 'kci[hf]'"
        raise MissingToolError(
            "huggingface_hub, which kci needs for the Hub, is not installed", hint
        ) from None
    except ValueError as error:
        raise UsageError(
            f"huggingface_hub does not accept HF_ENDPOINT: {first_line_of(error)}"
        ) from None
    if tuple(map(int, re.findall(r"\d+", __version__)[:2])) < OLDEST_CLIENT:
        needed = f"kci needs {'.'.join(map(str, OLDEST_CLIENT))} or newer"
        raise MissingToolError(
            f"huggingface_hub is {__version__} here; {needed}", "pip install --upgrade 'kci[hf]'"
        )
    for handler in logging.getLogger(
        "huggingface_hub"
    ).handlers:  # it logs the address that it asks again
        handler.addFilter(_without_secrets)
    return HfApi(token=_sendable(token) if isinstance(token, str) else token)


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


def _sendable(token: str) -> str:
    # clients print a header that they cannot send
    if re.search(r"[^!-~]", token):
        hint = (
            "set it again, as one line: a token has no line breaks, spaces and letters beyond ASCII"
        )
        raise UsageError("the token for the Hub cannot be sent", hint)
    return token


def publisher_access(repo_id: str) -> TokenSource:
    """The publisher's token: HF_TOKEN, OIDC of the CI job, or the stored login; MissingToolError
    without one.
    """
    hub_client(token=False)  # raises if huggingface_hub is absent
    if stored := os.environ.get("HF_TOKEN", "").strip():
        return lambda: stored
    if os.environ.get(_ID_TOKEN) or all(map(os.environ.get, _REQUEST)):
        return lambda: _exchange_identity(repo_id)
    if token := _stored_token():
        return lambda: token
    if os.environ.get("GITHUB_ACTIONS") == "true":
        hint = (
            "give the job `permissions: id-token: write` and the repository on the Hub a trusted "
            "publisher"
        )
    else:
        hint = "run `hf auth login`, or set HF_TOKEN"
    raise MissingToolError("there is no token for the Hub", hint)


def reader_access() -> TokenSource:
    """The token for reading; False for public access."""
    hub_client(token=False)
    token = os.environ.get("HF_TOKEN", "").strip() or _stored_token() or False
    return lambda: token


def _stored_token() -> str | None:
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception as error:  # HF_OIDC_RESOURCE asks for an identity outside of CI
        raise MissingToolError(
            f"there is no token for the Hub: {first_line_of(error)}", "set HF_TOKEN"
        ) from error


def _exchange_identity(repo_id: str) -> str:
    from huggingface_hub import constants

    endpoint = str(constants.ENDPOINT)
    subject = os.environ.get(_ID_TOKEN) or _identity(endpoint)
    question = {**_EXCHANGE, "subject_token": subject, "resource": f"kernels/{repo_id}"}
    try:
        return str(_ask("POST", f"{endpoint}/oauth/token", json=question)["access_token"])
    except Exception as error:
        hint = (
            f"{endpoint}/kernels/{repo_id}/settings must name this repository and workflow as a "
            "trusted publisher"
        )
        message = f"the Hub gives this job no token for {repo_id}: {first_line_of(error)}"
        raise FindingsError(message, hint) from error


def _identity(audience: str) -> str:
    # The URL has a query already, which the client of the Hub would replace.
    url, bearer = (os.environ[name] for name in _REQUEST)
    url += ("&" if "?" in url else "?") + urllib.parse.urlencode({"audience": audience})
    try:
        return str(
            _ask("GET", url, headers={"Authorization": f"Bearer {_sendable(bearer)}"})["value"]
        )
    except Exception as error:
        raise FindingsError(f"GitHub gives this job no identity: {first_line_of(error)}") from error


def _ask(method: str, url: str, **arguments: Any) -> Any:
    from huggingface_hub import get_session

    response = get_session().request(method, url, **arguments)
    response.raise_for_status()
    return response.json()


FOLDER = "build/"
"""The folder of the tree on a branch; loaders look there."""


class ListedVariant(Frozen):
    """A published variant; None for an unknown field."""

    variant: str
    kernel: str | None = None
    version: int | None = None
    problem: str = ""
    """The reason not to load it; empty if there is none."""
    fingerprint: str | None = None


class TreeListing(Frozen):
    """The variants of a tree or a branch."""

    source: str
    variants: tuple[ListedVariant, ...]
    tree: Path | None = None


def list_tree(tree: Path) -> TreeListing:
    """List the variants of a merged tree; UsageError without one."""
    if not tree.is_dir():
        raise UsageError(f"{tree}: there is no such tree", "`kci run` or `kci merge` makes one")
    try:
        manifest = read_manifest(tree)
    except FindingsError:
        manifest = None
    prints = {entry.variant: entry.fingerprint for entry in manifest.present} if manifest else {}
    directories = (entry for entry in sorted(tree.iterdir()) if is_variant_name(entry.name))
    variants = (_variant(directory, prints.get(directory.name)) for directory in directories)
    return TreeListing(str(tree), tuple(variants), tree)


def variant_in_path(path: str) -> str | None:
    """The variant that a path on the Hub belongs to."""
    name, slash, _ = path.removeprefix(FOLDER).partition("/")
    return name if path.startswith(FOLDER) and slash and is_variant_name(name) else None


def _variant(directory: Path, fingerprint: str | None) -> ListedVariant:
    name = directory.name
    if directory.is_symlink() or not directory.is_dir():
        return ListedVariant(name, problem="it is a link or a file, not a directory")
    try:
        metadata = read_sealed(directory).metadata
    except KciError as error:
        problem = error.message.replace(f"{directory}/", "").replace(f"{directory} ", "")
        return ListedVariant(name, problem=problem)
    problem, signature = "", directory / SIGNATURE
    if signature.exists():
        try:
            bundle, signed = (
                read_bounded(file, MAX_BYTES) for file in (signature, directory / FILE_NAME)
            )
            problem = signature_problem(bundle, signed)
        except (OSError, ValueError) as error:
            problem = f"its signature cannot be read: {error}"
    return ListedVariant(name, metadata.name, metadata.version, problem, fingerprint)


class HubFile(Frozen):
    """A file of a repository on the Hub."""

    path: str
    size: int
    sha256: str | None = None
    """In hexadecimal; None for a small file, which is in git and not in LFS."""
    git_oid: str = ""
    """The git blob id; of a large file, that of its LFS pointer."""


def listed_files(
    client: Any, repo_id: str, revision: str, folder: str | None = None
) -> list[HubFile]:
    """The files of a kernel repository or of a folder in it; errors of the client pass through."""
    return [
        HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
        for entry in client.list_repo_tree(
            repo_id, folder, recursive=True, revision=revision, repo_type="kernel"
        )
        if hasattr(entry, "size")
    ]


def list_hub_tree(repo_id: str, revision: str, client: Any = None) -> TreeListing:
    """List the variants of a kernel repository and compare each with its digest."""
    client = client or hub_client(reader_access()())
    source = f"{repo_id}@{revision}"

    def ask(question: Callable[[], _Answer]) -> _Answer:
        try:
            return question()
        except Exception as error:  # the client raises its own errors and those of its HTTP library
            reason = printable(first_line_of(error), " ")
            hint = (
                "check that the repository has this branch, that the network works, and that "
                "HF_TOKEN gives access"
            )
            raise FindingsError(f"{source} cannot be read: {reason}", hint) from error

    def read(file: HubFile) -> bytes | None:
        if file.size > MAX_BYTES:
            return None
        local: str = ask(
            lambda: client.hf_hub_download(
                repo_id, file.path, revision=revision, repo_type="kernel"
            )
        )
        return read_bounded(Path(local), MAX_BYTES)

    variants: dict[str, dict[str, HubFile]] = {}
    for file in ask(lambda: listed_files(client, repo_id, revision, FOLDER.rstrip("/"))):
        if variant := variant_in_path(file.path):
            variants.setdefault(variant, {})[file.path.removeprefix(f"{FOLDER}{variant}/")] = file
    return TreeListing(
        source,
        tuple(_hub_variant(variant, files, read) for variant, files in sorted(variants.items())),
    )


_Read = Callable[[HubFile], bytes | None]


def _hub_variant(variant: str, files: dict[str, HubFile], read: _Read) -> ListedVariant:
    if FILE_NAME not in files:
        return ListedVariant(variant, problem=f"it has no {FILE_NAME}")
    if (raw := read(files[FILE_NAME])) is None:
        return ListedVariant(variant, problem=f"{FILE_NAME} is larger than a metadata file may be")
    try:
        metadata = decode(raw)
    except ValueError as error:
        return ListedVariant(variant, problem=f"{FILE_NAME} is not a metadata file: {error}")
    problem = ""
    if SIGNATURE in files and (bundle := read(files[SIGNATURE])) is not None:
        problem = signature_problem(bundle, raw)
    problem = problem or _digest_problem(metadata.digest, files, read)
    return ListedVariant(variant, metadata.name, metadata.version, problem)


def _digest_problem(digest: Digest | None, files: dict[str, HubFile], read: _Read) -> str:
    if not digest:
        return "it has no digest in its metadata"
    if digest.algorithm != "sha256":
        return ""
    actual = make_digest(
        {
            path: _sha256(file, read)
            for path, file in files.items()
            if path not in (FILE_NAME, SIGNATURE) and not is_bytecode(path)
        }
    )
    return first_of([message for _, message in validate(digest, actual)], 3)


def _sha256(file: HubFile, read: _Read) -> str:
    if file.sha256 is not None:
        return file.sha256 if re.fullmatch("[0-9a-f]{64}", file.sha256) else ""
    raw = read(file)
    return hashlib.sha256(raw).hexdigest() if raw is not None else ""
