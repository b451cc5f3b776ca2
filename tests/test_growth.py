"""The helper that compares costs tells work in proportion from a square."""

from __future__ import annotations

import pytest

from growth import assert_in_proportion


def test_a_square_is_found() -> None:
    assert_in_proportion(lambda size: sum(range(size * 100)), 4000)
    with pytest.raises(AssertionError, match="times as long"):
        assert_in_proportion(lambda size: [sum(range(size)) for _ in range(size)], 1000)
