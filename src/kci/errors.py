"""The failures of kci, each with its exit code; any other exception is a bug."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, unquote

from kci.diagnostics import Diagnostic, finding, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class KciError(Exception):
    """An error with a message, a hint on what to do, and the findings behind it."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, hint: str = "", diagnostics: Sequence[Diagnostic] = ()
    ) -> None:
        self.message, self.hint = without_secrets(message), without_secrets(hint)
        super().__init__(self.message)
        self.diagnostics = tuple(diagnostics)


class FindingsError(KciError):
    """Wrong input: an invalid build.toml, drift, an incomplete merge."""

    exit_code = 1


class ClientError(FindingsError):
    """A failure of this machine: a full disk, a file or command that refuses."""


def rule_error(rule: str, message: str, path: str | Path = "", *, hint: str = "") -> FindingsError:
    """A FindingsError with one finding of the same message and hint."""
    return FindingsError(message, hint, [finding(rule, message, path, hint=hint)])


class UsageError(KciError):
    """Invalid arguments."""

    exit_code = 2


class MissingToolError(KciError):
    """A missing program or package on this machine: a compiler, torch, nvcc, docker."""

    exit_code = 3


class BuildFailedError(KciError):
    """A failed compiler or build step, with its output."""

    exit_code = 4


class UnfinishedBuildError(BuildFailedError):
    """A build that stopped at its time limit or a signal, with its objects kept."""

    def __init__(self, what: str, done: int, total: int, hint: str = "") -> None:
        hint = hint or "the same command goes on where this one ended"
        super().__init__(f"{what} is not finished: {done} of {total} objects are done", hint=hint)
        self.what = what
        self.done = done
        self.total = total


# `UnfinishedBuildError` in the output of another kci.
UNFINISHED = re.compile(
    r"^error: (?P<what>\S+(?: \(part \S+\))?) is not finished: (?P<done>\d+) of (?P<total>\d+) "
    r"objects are done$",
    re.MULTILINE,
)


class UnsafeError(KciError):
    """An archive, path or name that leads outside of its place."""

    exit_code = 5


_SECRET_NAMES = re.compile(
    r"(?:^|_)(?:JWT|KEY|PASS(?:WD|WORD)?|PAT|SECRET|TOKEN)(?=$|_)(?!.*_(?:DIR|FILE|PATH|URL)$)"
)
_LOGIN = re.compile(r"(?<=://)[^\s/'\"<>]*@")
_BEHIND = re.compile(
    r"(bearer |authorization: basic "
    r"|[?&][\w.-]*(?:credential|key|password|sig|signature|token)=)[^\s&'\"<>]+",
    re.I,
)
_TOKEN = re.compile(r"\b(?:gh[a-z]|github_pat|glpat|hf|pypi)[_-][\w-]{16,}")
_SHORTEST = 6
"""Characters of a secret; a shorter one is found in other words."""


def without_secrets(text: str) -> str:
    """An address, or what a client says, with `***` for logins, tokens and the secrets of the
    environment.
    """
    forms = {
        form for secret in _secrets() for form in (secret, quote(secret, safe=""), unquote(secret))
    }
    long = sorted(
        (re.escape(form) for form in forms if len(form) >= _SHORTEST), key=len, reverse=True
    )
    text = re.sub("|".join(long), "***", text, flags=re.I) if long else text
    return _TOKEN.sub("***", _BEHIND.sub(r"\1***", _LOGIN.sub("***@", text)))


def _secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_NAMES.search(name):
            yield from map(str.strip, value.splitlines())
        for login in _LOGIN.findall(value):
            yield login[:-1].partition(":")[2] or login[:-1]


def first_line_of(error: Exception) -> str:
    """The first line of what another library's error says, without secrets, or its type."""
    text = without_secrets(str(error)).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


_LINE = 400
_ERROR = re.compile(r"\b(?:fatal )?error\b\s*[:\[]", re.IGNORECASE)


def first_error(error: KciError) -> str:
    """The most specific line of an error: a compiler's if there is one."""
    if isinstance(error, BuildFailedError) and error.diagnostics:
        first = error.diagnostics[0]
        return one_line(": ".join(part for part in (first.place, "error", first.message) if part))
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    summary = next((line for line in lines if _ERROR.search(line)), None)
    if summary is None and error.diagnostics:
        first = error.diagnostics[0]
        summary = f"{first.place}: {first.message}" if first.path else first.message
    return one_line(summary or (lines[0] if lines else type(error).__name__))


def one_line(text: str) -> str:
    """A text as one printable line of at most 400 characters."""
    safe = printable(text, " ")
    return safe if len(safe) <= _LINE else safe[: _LINE - 1] + "…"
