from __future__ import annotations

import os
from pathlib import Path

import pytest

from kci.errors import FindingsError, UnsafeError
from kci.workflows.rendered_files import read_committed, write_files

PATH = ".github/workflows/kci.yml"


def test_round_trip(tmp_path: Path) -> None:
    assert read_committed(tmp_path, [PATH]) == {}
    write_files(tmp_path, {PATH: "a: ü\n"})
    assert read_committed(tmp_path, [PATH]) == {PATH: "a: ü\n"}
    assert (tmp_path / PATH).stat().st_mode & 0o777 == 0o644
    assert [file.name for file in (tmp_path / PATH).parent.iterdir()] == ["kci.yml"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    precious = outside / "kci.yml"
    precious.write_text("precious")
    for link, target in ((".github", outside), (".github/workflows", outside), (PATH, precious)):
        root = tmp_path / link.replace("/", "_")
        (root / link).parent.mkdir(parents=True)
        (root / link).symlink_to(target)
        with pytest.raises(UnsafeError):
            read_committed(root, [PATH])
        with pytest.raises(UnsafeError):
            write_files(root, {PATH: "new"})
    assert (outside / "kci.yml").read_text() == "precious"
    assert len(list(outside.iterdir())) == 1


def test_a_directory_or_fifo_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a" / PATH).mkdir(parents=True)
    with pytest.raises(UnsafeError):
        write_files(tmp_path / "a", {PATH: "x"})
    (tmp_path / "b" / ".github" / "workflows").mkdir(parents=True)
    os.mkfifo(tmp_path / "b" / PATH)
    with pytest.raises(UnsafeError):
        read_committed(tmp_path / "b", [PATH])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".github").write_text("a file")
    with pytest.raises(UnsafeError):
        write_files(tmp_path / "c", {PATH: "x"})


def test_nothing_is_written_when_one_file_cannot_be(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.yml": "old"})
    (tmp_path / "z.yml").mkdir()
    with pytest.raises(UnsafeError):
        write_files(tmp_path, {"a.yml": "new", "z.yml": "new"})
    assert (tmp_path / "a.yml").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yml", "z.yml"]


def test_unreadable_content(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(FindingsError, match="UTF-8"):
        read_committed(tmp_path, ["a.yml"])
    (tmp_path / "a.yml").write_bytes(b"x" * 3_000_000)
    with pytest.raises(FindingsError, match="larger"):
        read_committed(tmp_path, ["a.yml"])
