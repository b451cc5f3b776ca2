"""Names that mean the same on every system: how long they may be, to the byte."""

from __future__ import annotations

import pytest

from kci.utils.walk import MAX_COMPONENT, MAX_PATH, unsafe_name


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_a_name_may_be_as_long_as_its_bound(letter: str) -> None:
    size = len(letter.encode())
    part = letter * (100 // size) + "/"
    longest = part * (MAX_PATH // 101)
    longest += "b" * (MAX_PATH - len(longest.encode()))
    assert len(longest.encode()) == MAX_PATH
    assert unsafe_name(longest) is None
    assert unsafe_name(longest + "b") == f"it is longer than {MAX_PATH} bytes"


def test_a_part_may_be_as_long_as_its_bound() -> None:
    assert unsafe_name("a" * MAX_COMPONENT) is None
    assert (
        unsafe_name("x/" + "a" * (MAX_COMPONENT + 1))
        == f"a part is longer than {MAX_COMPONENT} bytes"
    )
