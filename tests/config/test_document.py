"""Reading TOML: what is refused, and where things stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.mistakes import HEAD, MISTAKES
from conftest import refusal
from kci.config import document as document_module
from kci.config.document import Document, KeyPath, parse_document, read_document
from kci.diagnostics import Diagnostic, Span


def refused(raw: bytes) -> Diagnostic:
    (found,) = refusal(parse_document, raw, "build.toml")
    return found


def parse(text: str) -> Document:
    return parse_document(text.encode(), "build.toml")


def text_at(document: Document, span: Span | None) -> str:
    """What stands at a place, if it is on one line."""
    assert span
    assert span.line == span.end_line
    return document.text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


@pytest.mark.parametrize(
    ("raw", "rule", "place"),
    [
        (b"a = 1\nb = \xff", "KCI003", (2, 5)),
        (b"a = 1\nb = ", "KCI004", (2, 4)),
        (b"a = 1\r\nb == 2", "KCI004", (2, 4)),
        ("a = 'é' x".encode(), "KCI004", (1, 9)),
        (b"\xef\xbb\xbfa", "KCI004", (1, 2)),
        (b"\xef\xbb\xbf\xef\xbb\xbfa = 1", "KCI004", (1, 1)),
        (b"a = 1\na = 2", "KCI004", (2, 1)),
        (b"a = 1\x00", "KCI004", (1, 6)),
        (b"a = 1\rb = 2", "KCI004", (1, 6)),
        (b"x = 0\n" + b"a." * 32 + b"a = 1", "KCI004", (2, 1)),
        (b"x = {" + b"a." * 32 + b"a = 1}", "KCI004", (1, 6)),
        (b"a = " + b"[" * 5000, "KCI004", (0, 0)),
        (b"a = " + b"1" * 5000, "KCI004", (0, 0)),
        (b"#" * (document_module.MAX_BYTES + 1), "KCI002", (0, 0)),
    ],
    ids=range(14),
)
def test_no_toml_is_refused_at_its_place(raw: bytes, rule: str, place: tuple[int, int]) -> None:
    found = refused(raw)
    assert (found.rule, (found.line, found.column)) == (rule, place), found


def test_many_dotted_keys_are_refused() -> None:
    found = refused(b"".join(b"a%d.b = 1\n" % number for number in range(20_001)))
    assert (found.message, found.line) == ("more than 20000 dotted keys", 20_001)


# --- what is not TOML: what was expected, where the other end is, and how to write it -------------


@pytest.mark.rule("KCI004", triggers=True)
@pytest.mark.parametrize("name", MISTAKES)
def test_every_message_has_a_place_and_a_hint(name: str) -> None:
    found = refused(MISTAKES[name].encode())
    assert found.rule == "KCI004"
    assert all((found.line, found.column, found.hint)), found


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (MISTAKES["a key twice"], (2, 1, 2, 5)),
        (MISTAKES["a table twice"], (4, 2, 4, 13)),
        (MISTAKES["no comma"], (4, 12, 4, 13)),
        # a key of another table is not the first one
        (HEAD + "[torch]\nsrc = []\n[kernel.norm]\nsrc = []\nsrc = [1]\n", (7, 1, 7, 4)),
    ],
)
def test_two_places_are_told_where_needed(text: str, first: tuple[int, int, int, int]) -> None:
    (other,) = refused(text.encode()).related
    assert (other.line, other.column, other.end_line, other.end_column) == first


def test_brackets_in_strings_and_comments_open_nothing() -> None:
    found = refused((HEAD + 'backends = ["a[", # and [\n  "b"\n').encode())
    assert (found.line, found.column) == (4, 12)


TEXT = """\
general.name = "ab"  # dotted
[torch]  # c
"stable-abi" = { cuda = "2.11", 'xpu' = "é", rocm = "2.9" }
src = [
  "a",  # first
  ["b"],
]
[kernel."a.b"]
backend = 1
[[list]]
x = 1
[[list]]
x = 2
[list.below]
y = 3
"""


@pytest.mark.parametrize(
    ("path", "line", "key", "value"),
    [
        (("general",), 1, "general", '"ab"'),
        (("general", "name"), 1, "name", '"ab"'),
        (("torch",), 2, "torch", "torch"),
        (("torch", "stable-abi", "cuda"), 3, "cuda", '"2.11"'),
        (("torch", "stable-abi", "xpu"), 3, "'xpu'", '"é"'),
        (("torch", "stable-abi", "rocm"), 3, "rocm", '"2.9"'),
        (("torch", "src", 0), 5, '"a"', '"a"'),
        (("torch", "src", 1, 0), 6, '"b"', '"b"'),
        (("kernel", "a.b", "backend"), 9, "backend", "1"),
        (("list", 1, "x"), 13, "x", "2"),
        (("list", 1, "below", "y"), 15, "y", "3"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_places(path: KeyPath, line: int, key: str, value: str, newline: str, start: str) -> None:
    document = parse(start + TEXT.replace("\n", newline))
    spans = document.key_span(path), document.value_span(path)
    assert [text_at(document, span) for span in spans] == [key, value]
    assert next(span.line for span in spans if span) == line


def test_what_stands_nowhere_is_placed_at_its_nearest_parent() -> None:
    document = parse(TEXT)
    assert document.key_span(("torch", "missing")) == document.key_span(("torch",))
    assert document.value_span(("torch", "src", 9, "x")) == document.key_span(("torch", "src"))
    assert document.value_span(("nowhere", "x")) is None
    assert document.places(("nowhere",)) is None


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_PLACES", 10)
    made = Document("build.toml", "x = [" + "1, " * 1000 + "]\n[a]\ny = 1\n", {})
    assert made.places(("a", "y"))
    placed = [index for index in range(1000) if made.places(("x", index))]
    assert placed == list(range(7)), "three of the ten places are those of the keys"
    assert made.value_span(("x", 999)) == made.key_span(("x",)), (
        "what comes after is placed at its array"
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    (tmp_path / "directory").mkdir()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("missing", "pipe", "directory", "loop", "endless", "\0"):
        (found,) = refusal(read_document, tmp_path / name, "build.toml")
        assert found.rule == ("KCI001" if name == "missing" else "KCI002")
