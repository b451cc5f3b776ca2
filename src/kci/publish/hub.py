"""The Hub: its client and tokens, a kernel repository on it, and what its errors mean for the next
try.
"""

from __future__ import annotations

import datetime
import email.utils
import hashlib
import importlib
import logging
import os
import re
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from kci.errors import (
    FindingsError,
    KciError,
    MissingToolError,
    UsageError,
    first_line_of,
    without_secrets,
)
from kci.matrix.variants import is_variant_name
from kci.utils.bounded_json import read_bounded
from kci.utils.frozen import Frozen

OLDEST_CLIENT = (2, 3)
"""The first huggingface_hub that writes to kernel repositories; 1.22 to 2.2 do not."""

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


def variant_in_path(path: str) -> str | None:
    """The variant that a path on the Hub belongs to."""
    name, slash, _ = path.removeprefix(FOLDER).partition("/")
    return name if path.startswith(FOLDER) and slash and is_variant_name(name) else None


class HubFile(Frozen):
    """A file of a repository on the Hub."""

    path: str
    size: int
    sha256: str | None = None
    """In hexadecimal; None for a small file, which is in git and not in LFS."""
    git_oid: str = ""
    """The git blob id; of a large file, that of its LFS pointer."""


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
            raise changed_error(self.path)
        return data


def changed_error(path: Path) -> FindingsError:
    """A file is not what was checked."""
    return FindingsError(
        f"{path} changed while it was published", "let no other program write there meanwhile"
    )


MAIN = "main"

_SMALL = 1024 * 1024
"""Bytes up to which a file is uploaded from memory."""
_PROPOSALS = 10
"""Pull requests that are compared; each costs a listing."""
_PROPOSAL = re.compile(r"refs/pr/\d{1,9}").fullmatch

_Answer = TypeVar("_Answer")


class HubAnswerError(Exception):
    """A request that the Hub did not carry out, or may have carried out."""

    def __init__(self, message: str, *, refused: bool = False, wait: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.refused = refused
        """False if the same may be accepted later: the Hub is busy, the branch has moved, or the
        commit may be there."""
        self.wait = wait
        """Seconds to wait before the next request."""


class HubKernel(Frozen):
    """A repository of type `kernel`, through `huggingface_hub`; each method raises
    HubAnswerError.
    """

    repo_id: str
    access: TokenSource

    def heads(self) -> dict[str, str]:
        """The head commit of each branch."""
        return {
            branch.name: branch.target_commit for branch in self._call("list_repo_refs").branches
        }

    def files(self, commit: str) -> dict[str, HubFile]:
        """The files of a commit, by path."""
        return self._ask(
            lambda api: {
                item.path: HubFile(
                    item.path, item.size, item.lfs.sha256 if item.lfs else None, item.blob_id
                )
                for item in api.list_repo_tree(
                    self.repo_id, recursive=True, revision=commit, repo_type="kernel"
                )
                if hasattr(item, "size")
            }
        )

    def read(self, commit: str, path: str) -> bytes:
        """The content of a small file."""
        with tempfile.TemporaryDirectory(prefix="kci-hub-") as folder:
            return read_bounded(
                Path(self._call("hf_hub_download", path, revision=commit, cache_dir=folder))
            )

    def proposals(self) -> dict[str, str]:
        """The newest pull requests and their commits, newest first."""
        listed = self._call("list_repo_refs", include_pull_requests=True).pull_requests or ()
        commits = {item.ref: item.target_commit for item in listed if _PROPOSAL(item.ref)}
        return dict(
            sorted(commits.items(), key=lambda item: -int(item[0].rpartition("/")[2]))[:_PROPOSALS]
        )

    def create_branch(self, branch: str) -> None:
        """Create a branch from the main one unless it exists."""
        self._call("create_branch", branch=branch, exist_ok=True)

    def create_repository(self) -> None:
        self._call("create_repo", exist_ok=True)

    def check_page(self, text: str) -> None:
        """Have the Hub validate the front page, as the client does right before its commit."""

        def ask(api: Any) -> str:
            from huggingface_hub import get_session

            question = {"content": text, "repoType": "kernel"}
            answer = get_session().post(f"{api.endpoint}/api/validate-yaml", json=question)
            errors = answer.json().get("errors", ()) if answer.status_code == 400 else ()
            return "; ".join(str(error.get("message")) for error in errors)

        if problem := self._ask(ask):
            raise HubAnswerError(problem[:300], refused=True)

    def commit(
        self,
        branch: str,
        parent: str,
        add: Mapping[str, LocalFile],
        delete: Iterable[str],
        message: str,
        *,
        propose: bool,
    ) -> str:
        """Upload files and commit them to a branch that is still at `parent`, or propose that;
        returns the commit.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        if not sys.stderr.isatty():
            importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        operations: list[Any] = []
        for path, file in sorted(add.items()):
            operation = CommitOperationAdd(
                path, file.content() if file.size <= _SMALL else file.path
            )
            if operation.upload_info.sha256.hex() != file.sha256:
                raise FindingsError(f"{file.path} changed while it was published")
            operations.append(operation)
        operations += [CommitOperationDelete(path, is_folder=False) for path in sorted(delete)]
        place = {"revision": branch, "parent_commit": parent, "create_pr": propose}
        return str(self._call("create_commit", operations, commit_message=message, **place).oid)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._ask(
            lambda api: getattr(api, method)(
                self.repo_id, *arguments, repo_type="kernel", **options
            )
        )

    def _ask(self, question: Callable[[Any], _Answer]) -> _Answer:
        # A CI token is valid for an hour and an upload may take longer, so each request gets a new
        # one.
        client = hub_client(self.access())
        try:
            return question(client)
        except KciError:
            raise
        except Exception as error:
            raise _answer(error, self.repo_id) from error


_LOST = {
    "ConnectionError",
    "NetworkError",
    "RemoteProtocolError",
    "RuntimeError",
    "TimeoutError",
    "TimeoutException",
    "XetDownloadError",
}
"""Errors of a connection, by name: the client changes its HTTP library. Uploads in Rust raise
RuntimeError."""
_SETTINGS = re.compile(r"HF_ENDPOINT|HF_HUB_OFFLINE|(?:all|https?|no)_proxy", re.IGNORECASE)


def _is_lost(error: Exception) -> bool:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return (
        bool(kinds & _LOST)
        and "OfflineModeIsEnabled" not in kinds
        and "CERTIFICATE_VERIFY" not in str(error)
    )


def _answer(error: Exception, repo_id: str) -> Exception:
    chain = [error]
    while isinstance(chain[-1].__cause__, Exception):
        chain.append(chain[-1].__cause__)
    cause = next((item for item in chain if getattr(item, "response", None) is not None), chain[-1])
    response = getattr(cause, "response", None)
    said = getattr(cause, "server_message", None)
    reason = (
        without_secrets(said)
        if said
        else ": ".join(dict.fromkeys(first_line_of(item) for item in (error, cause)))
    )
    if response is None:
        if any(map(_is_lost, chain)):
            return HubAnswerError(f"no answer: {reason[:300]}")
        own = ", ".join(sorted(filter(_SETTINGS.fullmatch, os.environ)))
        hint = (
            f"set here, and asked by the client: {own}"
            if own
            else "check the network of this machine"
        )
        return FindingsError(f"{repo_id} cannot be asked: {reason[:300]}", hint)
    status = int(response.status_code)
    message = f"{status}: {reason[:300]}{_WHY.get(status, '').format(repo_id)}"
    refused = status < 500 and status not in _PASSING
    return HubAnswerError(message, refused=refused, wait=_wait(response.headers))


_PASSING = (408, 409, 412, 429)
"""No answer in time, another commit is being written or has moved the branch, the rate limit."""


_WHY = {
    401: " (the token is not valid)",
    403: " (the token may not write to {}; kernels can be published by accounts that the Hub has "
    "approved)",
    404: " (is there a kernel repository {}, and may this token see it?)",
}


def _wait(headers: Mapping[str, str]) -> float | None:
    # `Retry-After: 7` or a date, or `RateLimit: "api";r=0;t=7`
    after = headers.get("retry-after", "").strip()
    for value in (after, *re.findall(r"r=0;\s*t=(\d{1,6})", headers.get("ratelimit", ""))):
        if re.fullmatch(r"\d{1,9}", value, re.ASCII):
            return float(value)
    with suppress(ValueError):
        date = email.utils.parsedate_to_datetime(after)
        return max((date - datetime.datetime.now(date.tzinfo)).total_seconds(), 0.0)
    return None
