"""The client of the Hub and its tokens, and the files of a repository."""

from __future__ import annotations

import logging
import os
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from kci.errors import FindingsError, MissingToolError, UsageError, first_line_of, without_secrets
from kci.matrix.variants import is_variant_name
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
