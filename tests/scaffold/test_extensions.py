"""Extensions of the package index as `kci init --from` takes them over: the table that
bin/extensions.py compares.
"""

from __future__ import annotations

import pytest

from conftest import load_script

EXTENSIONS = load_script("extensions")
TABLE = EXTENSIONS.entries()


def test_the_table_has_extensions_for_each_backend() -> None:
    assert len(TABLE) >= 20
    assert {backend for entry in TABLE.values() for backend in entry.backends} == {"cpu", "cuda"}
    assert any(taken.archs for entry in TABLE.values() for taken in entry.backends.values())
    index = "https://files.pythonhosted.org/packages/"
    assert all(entry.url.startswith(index) for entry in TABLE.values())


@pytest.mark.network
@pytest.mark.torch
@pytest.mark.parametrize("name", TABLE)
def test_it_is_taken_over_as_the_table_says(name: str) -> None:
    assert EXTENSIONS.result(name, TABLE[name]) == TABLE[name].backends
