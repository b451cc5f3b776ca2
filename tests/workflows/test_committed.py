"""Reading and writing the files of a repository, which may have links and other things in
the way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from conftest import failure
from kci.errors import FindingsError, UnsafeError
from kci.workflows.rendered_files import read_committed, write_files

PATH = ".github/workflows/kci.yml"


def test_round_trip(tmp_path: Path) -> None:
    assert read_committed(tmp_path, [PATH]) == {}
    write_files(tmp_path, {PATH: "a: ü\n"})
    assert read_committed(tmp_path, [PATH]) == {PATH: "a: ü\n"}
    assert (tmp_path / PATH).stat().st_mode & 0o777 == 0o644
    assert [file.name for file in (tmp_path / PATH).parent.iterdir()] == ["kci.yml"]


@pytest.mark.parametrize("link", [".github", ".github/workflows", PATH])
def test_links_are_not_followed(tmp_path: Path, link: str) -> None:
    outside, root = write_tree(tmp_path / "outside", {"kci.yml": "precious"}), tmp_path / "root"
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside / "kci.yml" if link == PATH else outside)
    failure(UnsafeError, "not a plain", read_committed, root, [PATH])
    failure(UnsafeError, "not a plain", write_files, root, {PATH: "new"})
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"kci.yml": "precious"}


@pytest.mark.parametrize(("content", "says"), [(b"\xff", "UTF-8"), (b"x" * 3_000_000, "larger")])
def test_unreadable_content(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.yml").write_bytes(content)
    failure(FindingsError, says, read_committed, tmp_path, ["a.yml"])
