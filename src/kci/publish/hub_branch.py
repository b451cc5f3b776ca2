"""A kernel repository on the Hub, and the retry policy for its errors."""

from __future__ import annotations

import datetime
import email.utils
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from kci.errors import FindingsError, KciError, first_line_of, without_secrets
from kci.publish.branch_plan import LocalFile
from kci.publish.hub import HubFile, TokenSource, hub_client
from kci.utils.bounded_json import read_bounded
from kci.utils.frozen import Frozen

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
