"""GitHub's API through its command line, which knows the token and where to ask."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kci.diagnostics import printable
from kci.errors import FindingsError, MissingToolError
from kci.utils.bounded_json import decode_json

_SECONDS = 120

_Shape = TypeVar("_Shape")


class Account(msgspec.Struct, frozen=True):
    """Who has made something."""

    login: str = ""


class GitHubApi:
    """What one repository is asked and told."""

    def __init__(self, repository: str, hint: str, run: Callable[..., Any] = subprocess.run) -> None:
        """Name the repository (`owner/name`), and what to look at when GitHub refuses; `run` is as `subprocess.run`."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}", repository):
            raise FindingsError(f"{repository[:80]!r} is not the name of a repository")
        self.owner = repository.partition("/")[0]
        self._root = f"repos/{repository}"
        self._hint = hint
        self._process = run

    def ask(self, method: str, path: str, **fields: object) -> bytes:
        """Ask once, by a method of HTTP for a path below the repository; `fields` are sent as JSON.

        MissingToolError without `gh`; FindingsError if GitHub does not answer, or refuses.
        """
        command = ["gh", "api", "--method", method, f"{self._root}/{path}"]
        command += ["--input", "-"] if fields else []
        try:
            done = self._process(
                command, input=json.dumps(fields).encode(), capture_output=True, check=False, timeout=_SECONDS
            )
        except FileNotFoundError:
            raise MissingToolError("GitHub's command line is not installed", hint="install gh") from None
        except subprocess.TimeoutExpired:
            raise FindingsError("GitHub does not answer", hint="the next run does what this one could not") from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = printable((said or ["no reason"])[0], " ")[:300]
            raise FindingsError(f"{method} {self._root}/{path.partition('?')[0]}: {reason}", hint=self._hint)
        return bytes(done.stdout)

    def told(self, shape: type[_Shape], method: str, path: str, **fields: object) -> _Shape:
        """The answer as a type. Raises as `ask`, and FindingsError if it has another type."""
        try:
            return decode_json(self.ask(method, path, **fields), shape)
        except ValueError as error:
            raise FindingsError(f"cannot read GitHub's answer: {error}") from None
