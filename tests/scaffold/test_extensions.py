"""Extensions of the package index as `kci init --from` takes them over: the table that bin/extensions.py compares."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BIN = Path(__file__).resolve().parent.parent.parent / "bin" / "extensions.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extensions", BIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extensions"] = module
    spec.loader.exec_module(module)
    return module


EXTENSIONS = script()
TABLE = EXTENSIONS.entries()


def test_the_table_has_extensions_for_each_backend() -> None:
    assert len(TABLE) >= 20
    assert {backend for entry in TABLE.values() for backend in entry.backends} == {"cpu", "cuda"}
    assert any(taken.archs for entry in TABLE.values() for taken in entry.backends.values())
    assert all(entry.url.startswith("https://files.pythonhosted.org/packages/") for entry in TABLE.values())


@pytest.mark.network
@pytest.mark.torch
@pytest.mark.parametrize("name", TABLE)
def test_it_is_taken_over_as_the_table_says(name: str) -> None:
    assert EXTENSIONS.result(name, TABLE[name]) == TABLE[name].backends
