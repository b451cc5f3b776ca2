"""The ways in which kci fails, each with its own exit code.

A command raises one of these for everything that a user, a file or a machine can get wrong; `kci.cli` prints it and
exits with `exit_code`. Anything else that escapes is a bug in kci.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from kci.diagnostics import Diagnostic, finding

if TYPE_CHECKING:
    from collections.abc import Sequence


class KciError(Exception):
    """What went wrong (`message`), what to do about it (`hint`), and the findings behind it (`diagnostics`)."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", diagnostics: Sequence[Diagnostic] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.diagnostics = tuple(diagnostics)


class FindingsError(KciError):
    """What was read or checked is wrong: an invalid build.toml, drift, an incomplete merge."""

    exit_code = 1


class ClientError(FindingsError):
    """This machine fails, not what was judged: its disk is full, or a file or command refuses."""


def rule_error(rule: str, message: str, *, hint: str = "", path: str = "") -> FindingsError:
    """A FindingsError with one finding, which has the same message and hint."""
    return FindingsError(message, hint=hint, diagnostics=[finding(rule, message, hint=hint, path=path)])


class UsageError(KciError):
    """The command line asks for something that does not exist or makes no sense."""

    exit_code = 2


class MissingToolError(KciError):
    """This machine lacks something: a compiler, torch, nvcc, docker. The message names it."""

    exit_code = 3


class BuildFailedError(KciError):
    """A compiler or a build step ran and failed; the message carries its own output."""

    exit_code = 4


class UnfinishedBuildError(BuildFailedError):
    """A build ended itself because its time was over, or was asked to end; nothing failed, and what is done is kept."""

    def __init__(self, what: str, done: int, total: int, hint: str = "") -> None:
        # what: the variant, or a part of it
        hint = hint or "the same command goes on where this one ended"
        super().__init__(f"{what} is not finished: {done} of {total} objects are done", hint=hint)
        self.what = what
        self.done = done
        self.total = total


# What `UnfinishedBuildError` says, in the output of another kci.
UNFINISHED = re.compile(
    r"^error: (?P<what>\S+(?: \(part \S+\))?) is not finished: (?P<done>\d+) of (?P<total>\d+) objects are done$",
    re.MULTILINE,
)


class UnsafeError(KciError):
    """An archive, path or name reaches outside of where it may."""

    exit_code = 5


_LINE = 400
_ERROR = re.compile(r"\b(?:fatal )?error\b\s*[:\[]", re.IGNORECASE)  # as compilers and linkers say it


def first_error(error: KciError) -> str:
    """The line of an error that says most: a compiler's words if it has them."""
    if isinstance(error, BuildFailedError) and error.diagnostics:
        first = error.diagnostics[0]
        return one_line(": ".join(part for part in (first.place, "error", first.message) if part))
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    told = next((line for line in lines if _ERROR.search(line)), None)
    if told is None and error.diagnostics:
        first = error.diagnostics[0]
        told = f"{first.place}: {first.message}" if first.path else first.message
    return one_line(told or (lines[0] if lines else type(error).__name__))


def one_line(text: str) -> str:
    """A text as one printable line of bounded length."""
    safe = "".join(char if char.isprintable() else " " for char in text)
    return safe if len(safe) <= _LINE else safe[: _LINE - 1] + "…"
