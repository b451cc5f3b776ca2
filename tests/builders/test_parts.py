"""The shares of a variant's objects."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec
import pytest

from kci.builders.parts import Seconds, read_seconds, share_of
from kci.builders.request import PartOf, read_part
from kci.builders.units import Language, Unit
from kci.errors import UsageError
from kci.matrix.names import Kind
from kci.plan.object_work import ObjectWork, Work


def unit(number: int, language: Language = Language.CXX, archs: int = 0) -> Unit:
    source = f"csrc/{number:03}.cpp"
    return Unit(PurePosixPath(source), source, f"obj/{number:03}/{number}.o", language, (), (), archs=("8.0",) * archs)


def test_the_shares_follow_from_the_sources_and_what_all_are_told() -> None:
    units = tuple(unit(number, Language.CUDA if number % 3 else Language.CXX, number % 4) for number in range(40))
    work = Work(Kind.FULL, tuple(ObjectWork(item.shown, 9, torch=at < 10) for at, item in enumerate(units)))
    made = [share_of(units, PartOf(number, 4), work, {}) for number in range(1, 5)]
    assert [share_of(units[::-1], PartOf(number, 4), work, {}) for number in range(1, 5)] == made
    assert set().union(*made) == {item.object for item in units}
    told = {units[7].shown: 10_000.0}
    assert {units[7].object} in [share_of(units, PartOf(number, 4), work, told) for number in range(1, 5)]
    own = [share_of(units, PartOf(number, 4), work, {}, torch_only=True) for number in range(1, 5)]
    assert set().union(*own) == {item.object for item in units[:10]}


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "01/2", "1/2/3", "-1/2", "1/99999", "a/b"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(UsageError, match="is not a part"):
        read_part(text)


def test_the_seconds_that_are_told(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    path.write_bytes(msgspec.json.encode(Seconds({"csrc/a.cpp": 12.5})))
    assert read_seconds(path) == {"csrc/a.cpp": 12.5}
    for text in ('{"seconds": {"a": -1}}', "[]", '{"seconds": {}, "schema": 9}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="does not say"):
            read_seconds(path)
