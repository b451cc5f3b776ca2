"""Inputs (JSON in one variable, checked, never script text), outputs and summaries of the
actions.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from kci.cli._output import AnswerTable, print_error
from kci.diagnostics import Diagnostic, Severity, errors_in, escape_data, escape_property, printable
from kci.errors import FindingsError, KciError, without_secrets
from kci.run.carried_trees import is_judged
from kci.run.gate import KEPT_DAYS
from kci.utils.bounded_json import decode_json

INPUTS = "KCI_INPUTS"

SUMMARY_LIMIT = 1024 * 1024
"""Bytes of a step's summary; GitHub drops a longer one."""


def fail(message: str, code: int = 2, hint: str = "", at: Diagnostic | None = None) -> NoReturn:
    """End the action with an annotation, at the place of a finding."""
    place = {"file": at.path, "line": at.line, "col": at.column} if at else {}
    annotate("error", message, **place)
    if hint:
        show(f"hint: {printable(hint)}")
    sys.exit(code)


def warn(message: str) -> None:
    """Annotate the run with a warning."""
    annotate("warning", printable(message))


def annotate(kind: str, message: str, **place: object) -> None:
    """Annotate the run."""
    at = ",".join(f"{key}={escape_property(str(value))}" for key, value in place.items() if value)
    show(f"::{kind}{' ' * bool(at)}{at}::{escape_data(message)}")


def show(line: str) -> None:
    """Print a progress line."""
    print(without_secrets(line), flush=True)


def text_input(name: str, default: str = "") -> str:
    """A stripped one-line input, or the default if it is empty."""
    value = _inputs().get(name, "").strip() or default
    if not value.isprintable():
        fail(f"the input `{name}` holds unprintable characters or several lines")
    return value


def required_input(name: str) -> str:
    """A one-line input that must not be empty."""
    return text_input(name) or fail(f"the input `{name}` is missing")


def flag_input(name: str, default: str = "false") -> bool:
    """An input that is exactly "true" or "false"."""
    value = _inputs().get(name, default)
    if value not in ("true", "false"):
        fail(f"the input `{name}` must be true or false, not {value!r}")
    return value == "true"


def json_input(name: str) -> str:
    """An input with JSON of any number of lines, or one line of text."""
    value = _inputs().get(name, "").strip()
    return value if value.startswith("{") else text_input(name)


def count_input(name: str, least: int = 1, most: int = 9999) -> int | None:
    """A number in these bounds; None if it is empty."""
    value = text_input(name)
    if value and not (re.fullmatch(r"0|[1-9][0-9]{0,3}", value) and least <= int(value) <= most):
        fail(f"the input `{name}` must be a number from {least} to {most}, not {value[:40]!r}")
    return int(value) if value else None


def lines_input(name: str) -> list[str]:
    """An input with one value a line; empty lines do not count."""
    values = [line.strip() for line in _inputs().get(name, "").splitlines()]
    if not "".join(values).isprintable():
        fail(f"the input `{name}` holds unprintable characters")
    return [value for value in values if value]


def words_input(name: str) -> list[str]:
    """An input with values separated by commas or blanks."""
    return " ".join(lines_input(name)).replace(",", " ").split()


def _inputs() -> dict[str, str]:
    try:
        return decode_json(os.environ.get(INPUTS, "{}").encode(), dict[str, str])
    except msgspec.MsgspecError as error:
        fail(f"{INPUTS} is not the JSON of the action's inputs: {error}")


def runner_temp() -> Path:
    """The runner's temporary folder of the job."""
    return Path(os.environ["RUNNER_TEMP"])


def set_outputs(**outputs: object) -> None:
    """Set outputs, whose names have a dash for each `_`: a list is one value a line, a flag is
    "true" or "false".
    """
    for name, value in outputs.items():
        delimiter = f"kci-{secrets.token_hex(16)}"  # random: no value can contain it
        text = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(f"{name.replace('_', '-')}<<{delimiter}\n{text}\n{delimiter}\n")


def add_summary(head: Sequence[str], rows: Sequence[str] = ()) -> None:
    """Append lines to the step's summary; rows that exceed its limit are dropped, `head` is not."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not place:
        return
    path, lines = Path(place), list(head)
    written = path.stat().st_size if path.exists() else 0
    size = written + sum(len(line.encode()) + 1 for line in lines)
    for index, row in enumerate(rows):
        size += len(row.encode()) + 1
        if size > SUMMARY_LIMIT - 200:
            lines += ["", f"{len(rows) - index} more rows are left out: GitHub takes 1 MiB."]
            break
        lines.append(row)
    with path.open("a", encoding="utf-8", newline="\n") as stream:
        stream.write("\n".join(lines) + "\n\n")


def add_table(title: str, headers: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    """Append a table to the step's summary; cells are escaped."""
    add_tables(AnswerTable(title, headers, rows))


def add_tables(*tables: AnswerTable) -> None:
    """Append tables to the step's summary."""
    for table in tables:
        add_summary(table.markdown_head(), table.markdown_rows())


def fetched_tree(place: Path, purpose: str, digest: str = "") -> Path:
    """The tree of a download, see `unpacked`; FindingsError if its artifact is gone."""
    if not place.is_dir() or not any(place.iterdir()):
        kept = f"its artifact was deleted, or kept for less than {KEPT_DAYS} days"
        raise FindingsError(f"the tree {purpose} is gone: {kept}; {place} is empty", _AGAIN)
    return unpacked(place, digest)


_AGAIN = (
    "run all jobs again, or start a new run: its plan sees what is there, and builds what is not"
)


def unpacked(place: Path, digest: str = "") -> Path:
    """The tree of this `Manifest.digest` in a folder of artifacts, or the newest; or the folder.

    Raises FindingsError.

    Any job can upload a `kci-tree.tar`: with a digest the other ones are removed, so that no later
    step takes them.
    """
    # a longer name has the later attempt
    tars = sorted(place.glob("*/kci-tree.tar"), key=lambda path: (len(str(path)), str(path)))
    tars += place.glob("kci-tree.tar")
    for tar in reversed(tars):
        tree = Path(tempfile.mkdtemp(prefix="kci-published-", dir=runner_temp()))
        try:
            with tarfile.open(tar) as archive:
                archive.extractall(tree, filter="data")
            if is_judged(tree, digest):
                for other in {*tars} - {tar} if digest else ():
                    other.unlink()
                return tree
        except (OSError, tarfile.TarError, KciError) as error:
            if not digest:
                fail(f"cannot unpack the tree {tar}: {error}", 5)
            show(f"cannot read {tar}: {error}")
        show(f"{tar} is not the tree that was judged: kci does not use it")
        shutil.rmtree(tree, ignore_errors=True)
    if not tars and is_judged(place, digest):
        return place
    raise FindingsError(f"{place} has no tree with the digest that was judged, {digest}", _AGAIN)


def compact_json(value: object) -> str:
    """JSON without blanks: job outputs are limited."""
    return msgspec.json.encode(value).decode()


def run_action(main: Callable[[], None]) -> NoReturn:
    """Run an action; a KciError ends it with an annotation and kci's exit code."""
    try:
        main()
    except KciError as error:
        has_errors = bool(errors_in(error.diagnostics))
        print_error(error, annotate=has_errors)
        found = error.diagnostics or [Diagnostic("", Severity.ERROR, error.message)]
        rows = [(item.rule, item.place, item.message, item.hint or error.hint) for item in found]
        # GitHub shows ten annotations
        add_table("Failed", ("rule", "place", "what is wrong", "what to do"), rows)
        if has_errors:
            sys.exit(error.exit_code)
        fail(error.message.splitlines()[0], error.exit_code)
    except OSError as error:
        fail(f"{error.strerror}: {printable(str(error.filename or ''))[:200]}", 1)
    sys.exit(0)


@contextmanager
def group(title: str) -> Iterator[None]:
    """Fold the output inside."""
    show(f"::group::{printable(title)}")
    try:
        yield
    finally:
        show("::endgroup::")
