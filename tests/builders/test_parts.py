"""The shares of a variant's objects."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from kci.builders.native.recipe import part_objects
from kci.builders.native.units import Unit
from kci.builders.request import BuildPart, read_part
from kci.errors import UsageError


def unit(number: int, language: str = "CXX", archs: int = 0) -> Unit:
    source, made = f"csrc/{number:03}.cpp", f"obj/{number:03}/{number}.o"
    return Unit(PurePosixPath(source), source, made, language, (), (), archs=("8.0",) * archs)


def test_the_shares_follow_from_the_sources_alone() -> None:
    units = tuple(unit(number, "CUDA" if number % 3 else "CXX", number % 4) for number in range(41))
    made = [part_objects(units, BuildPart(number, 4)) for number in range(1, 5)]
    assert [part_objects(units[::-1], BuildPart(number, 4)) for number in range(1, 5)] == made
    assert sorted(name for share in made for name in share) == sorted(item.object for item in units)
    assert [len(share) for share in made] == [11, 10, 10, 10]


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "01/2", "1/2/3", "-1/2", "1/99999", "a/b"]
)
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(UsageError, match="is not a part"):
        read_part(text)
