"""The output appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.builders.publish import publish
from kci.errors import UnsafeError


def test_an_older_variant_is_replaced_as_a_whole(tmp_path: Path) -> None:
    output = write_tree(tmp_path / "v", {"__init__.py": "old", "stale.py": ""})
    with publish(output) as staging:
        write_tree(staging, {"__init__.py": "new"})
        assert (output / "stale.py").exists()
    assert [path.name for path in output.iterdir()] == ["__init__.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_a_failure_leaves_the_older_variant_and_nothing_else(tmp_path: Path) -> None:
    output = write_tree(tmp_path / "v", {"__init__.py": "old"})
    with pytest.raises(IsADirectoryError), publish(output) as staging:
        write_tree(staging, {"__init__.py": "half"}).write_text("a directory cannot be written to")
    assert (output / "__init__.py").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_an_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    with publish(tmp_path / "v") as staging:
        write_tree(staging, {"__init__.py": ""})
    assert (tmp_path / "v/__init__.py").exists()


def test_nothing_but_a_variant_is_replaced(tmp_path: Path) -> None:
    home = write_tree(tmp_path / "home", {"thesis.txt": "years of work"})
    link = tmp_path / "link"
    link.symlink_to(home)
    for place in (home, home / "thesis.txt", link):
        with pytest.raises(UnsafeError, match="in the way"), publish(place):
            pytest.fail("the place must be refused before anything is built")
    assert (home / "thesis.txt").read_text() == "years of work"
