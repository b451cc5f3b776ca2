"""How two builds of one variant differ."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci
from kci.tree.differences import _SHOWN, FileDifference, compare, listed
from kci.tree.elf import symbol_names
from variants import make_artifact, make_variant


def directory(root: Path, **files: str | bytes) -> Path:
    root.mkdir()
    for name, content in files.items():
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_equal_directories_do_not_differ(tmp_path: Path) -> None:
    assert compare(directory(tmp_path / "a", x="1"), directory(tmp_path / "b", x="1")) == []


def test_each_difference_has_its_size_digest_and_place(tmp_path: Path) -> None:
    long = b"x" * 3_000_000
    one = directory(tmp_path / "a", same="1", gone="", text="abc", long=long + b"1", short="ab")
    other = directory(tmp_path / "b", same="1", new="", text="abd", long=long + b"2", short="abc")
    found = {item.name: item for item in compare(one, other)}
    assert list(found) == ["gone", "long", "new", "short", "text"]
    assert (found["text"].first, found["long"].first, found["short"].first) == (2, 3_000_000, 2)
    assert found["short"].sizes == (2, 3)
    shown = listed(list(found.values()))
    assert "gone is in the first only" in shown
    assert "new is in the second only" in shown
    assert "short (2 and 3 bytes, sha256 " in shown


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    files = {f"f{number}": "" for number in range(9)}
    assert listed(compare(directory(tmp_path / "a", **files), directory(tmp_path / "b"))).endswith("and 4 more files")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_libraries_are_told_apart_by_their_symbols(tmp_path: Path) -> None:
    artifacts = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
        library = tmp_path / f"{name}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / f"{name}.c")], check=True)
        files: dict[str, str | bytes] = {"__init__.py": "", "lib.so": library.read_bytes()}
        artifacts.append(make_artifact(tmp_path / name, make_variant(tmp_path / name / "src", files=files)))
    assert "one" in symbol_names(tmp_path / "one.so")
    assert symbol_names(tmp_path / "one.c") == frozenset()
    done = kci("merge", *artifacts, "--into", tmp_path / "build")
    assert done.code == 1
    assert "only the first has one" in done.stderr
    assert "only the second has two" in done.stderr


def test_of_many_symbols_the_first_are_named_and_the_rest_counted() -> None:
    def shown(names: int) -> str:
        symbols = (tuple(f"s{number}" for number in range(names)), ())
        return str(FileDifference("lib.so", (1, 1), ("a" * 64, "b" * 64), 0, symbols))

    assert "only the first has s0, s1, s2" in shown(_SHOWN)
    assert "more" not in shown(_SHOWN)
    assert shown(_SHOWN + 1).endswith(f"s{_SHOWN - 1} and 1 more)")
