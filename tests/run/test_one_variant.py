"""What stands where a variant is to be made: replaced if it is this kernel's, refused if it is anybody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.errors import UnsafeError
from kci.run.build_leg import check_replaceable


def test_a_variant_of_the_kernel_and_an_empty_place_may_be_replaced(tmp_path: Path) -> None:
    variant = write_tree(tmp_path / "v", {"metadata.json": METADATA})
    check_replaceable(variant, "relu")
    check_replaceable(tmp_path / "missing", "relu")
    (tmp_path / "empty").mkdir()
    check_replaceable(tmp_path / "empty", "relu")


METADATA = (
    '{"name": "relu", "id": "_relu_cpu_abc", "version": 1, "license": "MIT", "python-depends": [], '
    '"kernel-depends": [], "backend": {"type": "cpu"}}'
)


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    home = write_tree(tmp_path / "home", {"__init__.py": "", "thesis.txt": "years of work"})
    link = tmp_path / "link"
    link.symlink_to(home)
    other = write_tree(tmp_path / "other", {"metadata.json": METADATA.replace("relu", "gelu")})
    for place in (home, home / "thesis.txt", link, other):
        with pytest.raises(UnsafeError, match="in the way"):
            check_replaceable(place, "relu")
    assert (home / "thesis.txt").read_text() == "years of work"
