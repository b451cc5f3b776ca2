"""The Hub's own client, and who asks: a token that the user has stored, or one that the Hub gives a CI job.

With trusted publishing no secret is stored anywhere. The CI service signs a statement of which repository and workflow
the job belongs to, and the Hub gives a token in return, for one repository and one hour.

`huggingface_hub` is imported only inside of functions: only who asks the Hub needs it.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError

OLDEST_CLIENT = (2, 3)
"""The first huggingface_hub that writes to repositories of kernels (tried: 1.22 to 2.2 do not)."""

_Answer = TypeVar("_Answer")

Access = Callable[[], str]
"""Gives a token that is valid now."""

_ID_TOKEN = "HF_OIDC_ID_TOKEN"  # noqa: S105
_REQUEST = ("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")
_EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
}


def hub_client(token: str | bool | None = None) -> Any:
    """The Hub's own client; `token` is False for nothing, and None for what the user has logged in with.

    Raises MissingToolError: it is not installed, or too old.
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


def ask_hub(question: Callable[[], _Answer], failed: str, hint: str) -> _Answer:
    """What the Hub's client answers.

    Raises FindingsError: it does not; the message begins with `failed`, and ends with the client's reason.
    """
    try:
        return question()
    except Exception as error:  # the client raises errors of its own and of its HTTP library, which changed once
        raise FindingsError(f"{failed}: {printable(first_line(error), ' ')}", hint=hint) from error


def first_line(error: Exception) -> str:
    """What an error says first, or its kind where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def find_access(repo_id: str, environ: Mapping[str, str] = os.environ) -> Access:
    """What authenticates a publisher: HF_TOKEN, else the identity of the CI job, else what `hf auth login` has stored.

    A token for a CI job can write to `repo_id` only.

    Raises MissingToolError: there is no token, or huggingface_hub is not installed.
    """
    hub_client(token=False)  # says what is missing if it is
    if stored := environ.get("HF_TOKEN", "").strip():
        return lambda: stored
    if environ.get(_ID_TOKEN) or all(environ.get(name) for name in _REQUEST):
        return lambda: _exchanged(repo_id, environ)
    if token := _logged_in():
        return lambda: token
    if environ.get("GITHUB_ACTIONS") == "true":
        hint = "give the job `permissions: id-token: write` and the repository on the Hub a trusted publisher"
    else:
        hint = "run `hf auth login`, or set HF_TOKEN"
    raise MissingToolError("there is no token for the Hub", hint=hint)


def known_access(environ: Mapping[str, str] = os.environ) -> Access | None:
    """What authenticates a reader: a token that is there anyway; None for reading what everybody can read."""
    hub_client(token=False)
    token = environ.get("HF_TOKEN", "").strip() or _logged_in()
    return (lambda: token) if token else None


def _logged_in() -> str | None:
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception as error:  # HF_OIDC_RESOURCE asks for an identity outside of CI
        raise MissingToolError(f"there is no token for the Hub: {first_line(error)}", hint="set HF_TOKEN") from error


def _exchanged(repo_id: str, environ: Mapping[str, str]) -> str:
    from huggingface_hub import constants

    endpoint = str(constants.ENDPOINT)
    subject = environ.get(_ID_TOKEN) or _identity(endpoint, environ)
    resource = f"kernels/{repo_id}"
    try:
        answer = _ask(
            "POST", f"{endpoint}/oauth/token", json={**_EXCHANGE, "subject_token": subject, "resource": resource}
        )
        token = answer["access_token"]
    except Exception as error:  # of the client's HTTP library, which changed once
        hint = f"{endpoint}/kernels/{repo_id}/settings must name this repository and workflow as a trusted publisher"
        message = f"the Hub gives this job no token for {repo_id}: {first_line(error)}"
        raise FindingsError(message, hint=hint) from error
    return str(token)


def _identity(audience: str, environ: Mapping[str, str]) -> str:
    """GitHub's signed statement about this job."""
    # The URL has a query already, which the client of the Hub would replace.
    url, bearer = (environ[name] for name in _REQUEST)
    url += ("&" if "?" in url else "?") + urllib.parse.urlencode({"audience": audience})
    try:
        return str(_ask("GET", url, headers={"Authorization": f"Bearer {bearer}"})["value"])
    except Exception as error:
        raise FindingsError(f"GitHub gives this job no identity: {first_line(error)}") from error


def _ask(method: str, url: str, **arguments: Any) -> Any:
    from huggingface_hub import get_session

    response = get_session().request(method, url, **arguments)
    response.raise_for_status()
    return response.json()
