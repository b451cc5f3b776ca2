"""What kci says of a file that is not TOML: where, what was expected, where the other end is, and how to write it."""

from __future__ import annotations

import pytest

from config.mistakes import HEAD, MISTAKES
from kci.config.document import parse_document
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError


def said(text: str) -> Diagnostic:
    with pytest.raises(FindingsError) as caught:
        parse_document(text.encode(), "build.toml")
    (found,) = caught.value.diagnostics
    return found


@pytest.mark.rule("KCI004", triggers=True)
@pytest.mark.parametrize("name", MISTAKES)
def test_every_message_has_a_place_and_a_hint(name: str) -> None:
    found = said(MISTAKES[name])
    assert found.rule == "KCI004"
    assert found.line
    assert found.column
    assert found.hint


@pytest.mark.parametrize(
    ("name", "first"), [("a key twice", (2, 1, 2, 5)), ("a table twice", (4, 2, 4, 13)), ("no comma", (4, 12, 4, 13))]
)
def test_two_places_are_told_where_two_are_needed(name: str, first: tuple[int, int, int, int]) -> None:
    (other,) = said(MISTAKES[name]).related
    assert (other.line, other.column, other.end_line, other.end_column) == first


def test_a_key_of_another_table_is_not_the_first_one() -> None:
    found = said(HEAD + "[torch]\nsrc = []\n[kernel.norm]\nsrc = []\nsrc = [1]\n")
    assert [item.line for item in found.related] == [7]


def test_brackets_in_strings_and_comments_open_nothing() -> None:
    found = said(HEAD + 'backends = ["a[", # and [\n  "b"\n')
    assert (found.line, found.column) == (4, 12)
