"""What decides a variant: files listed, included and declared, links followed, and no other."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildkit import CPU, CUDA, variant, write_tree
from conftest import kernel, many, noarch_kernel, torch_toml
from growth import assert_in_proportion
from kci.config.model import Build
from kci.config.sources.op_rules import check_cpp
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_lints import quoted_includes
from kci.plan.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.utils import cache as caching
from kci.utils.cache import StatCache
from planning import refused

SOURCES = {"cuda": "csrc/a.cu", "cpu": 'csrc/b.cpp", "csrc/b.h'}


def build(components: str = "", torch: str = "") -> Build:
    return kernel(
        torch_toml(SOURCES, binding="torch-ext/binding.cpp", more=torch) + components
    ).build


def decided(
    root: Path, path: str, made: Build | None = None, names: tuple[str, ...] = (CUDA, CPU)
) -> set[str]:
    """The variants that a file decides."""
    inputs = KernelInputs(made or build(), root)
    return {name for name in names if path in inputs.paths_of(variant(name))}


FILES = {"csrc/a.cu": "", "csrc/b.cpp": "", "csrc/b.h": "", "torch-ext/binding.cpp": ""}


def test_tests_beside_src_are_those_of_the_kernel_in_it(tmp_path: Path) -> None:
    write_tree(tmp_path / "k", {"tests/test_a.py": ""})
    write_tree(tmp_path / "k" / "src", FILES)
    inputs = KernelInputs(build(), tmp_path / "k" / "src", SourceTree(tmp_path))
    assert inputs.is_test("k/tests/test_a.py")
    assert not inputs.is_test("tests/test_a.py")


def test_a_path_out_of_the_tree_is_no_input(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "k", FILES)
    write_tree(tmp_path, {"secret.h": ""})
    (root / "csrc/link.h").symlink_to(tmp_path / "secret.h")
    listed = 'src = ["../secret.h", "/etc/passwd", "csrc/link.h"]'
    made = build(f'[kernel.c]\nbackend = "cpu"\ndepends = []\n{listed}')
    found = KernelInputs(made, root).of(variant(CPU))
    assert ("csrc/link.h", "") in found
    assert not [path for path, _ in found if path.startswith(("/", ".."))]


def test_files_of_the_package_decide_what_carries_them(tmp_path: Path) -> None:
    package = "torch-ext/some_kernel"
    files = [".hidden", "a.py", "a.json", "metadata.json"]
    write_tree(tmp_path / package, dict.fromkeys(files, ""))
    noarch = noarch_kernel(["cpu"], name="some-kernel").build

    def carried(*of: Any) -> list[str]:
        return [name for name in files if decided(tmp_path, f"{package}/{name}", *of)]

    assert carried() == ["a.py"]
    more = build(torch='pyext = ["py", "json"]\n')
    assert decided(tmp_path, f"{package}/a.json", more) == {CPU, CUDA}
    assert carried(noarch, ("torch-cpu",)) == files[:3]


@pytest.mark.parametrize("declared", ["common", "./common/", "common/../common"])
@pytest.mark.rule("KCI333", triggers=False)
def test_what_is_declared_counts(tmp_path: Path, declared: str) -> None:
    write_tree(tmp_path, {"common/deep/a.h": ""})
    write_tree(tmp_path / "k", FILES)
    inputs = KernelInputs(build(), tmp_path / "k", SourceTree(tmp_path), [declared])
    assert "common/deep/a.h" in inputs.paths_of(variant(CUDA))
    assert inputs.shown("common/deep/a.h") == "../common/deep/a.h"
    assert ("common/deep/a.h",) * 2 in inputs.of(variant(CPU))


@pytest.mark.rule("KCI333", triggers=True)
@pytest.mark.parametrize("declared", ["nowhere", "../elsewhere", "/etc", ""])
def test_a_declared_input_has_to_be_there(tmp_path: Path, declared: str) -> None:
    root = write_tree(tmp_path / "k", FILES)
    refused("KCI333", KernelInputs, build(), root, SourceTree(tmp_path), [declared])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('#include "a.h"\n// #include "b.h"\n  # include "c.h"', ["a.h", "c.h"]),
        ('if (c == \'"\') {} /*\n#include "no.h"\n*/\n#include "a.h"', ["a.h"]),
        ('x = "\\"/*";\n#include "a.h"\n', ["a.h"]),
        ('int x;\r#include "../x.h"\rint y;', ["../x.h"]),
        ('#error "not closed\n#include "a.h"\n', ["a.h"]),
    ],
)
def test_includes_in_quotes(text: str, found: list[str]) -> None:
    assert quoted_includes(text.encode()) == found


def test_a_string_without_an_end_costs_its_length() -> None:
    assert_in_proportion(lambda size: quoted_includes(b'include "' + b'"\\' * size), 8000)


def test_neither_do_registrations(tmp_path: Path) -> None:
    def check(start: str, many: str, size: int) -> None:
        (tmp_path / "k.cpp").write_text(start + many * size)
        list(check_cpp([(tmp_path / "k.cpp", "k.cpp")]))

    assert_in_proportion(lambda size: check("TORCH_LIBRARY ", '"\\', size), 8000)
    assert_in_proportion(lambda size: check("", "\nTORCH_LIBRARY(fixed", size), 8000)


def write(root: Path, **files: str) -> Path:
    named = {name.replace("__", "/").replace("_h", ".h"): text for name, text in files.items()}
    return write_tree(root, named)


PARTS = st.sampled_from(["a", "b", "link", "out", "loop", "gone", "..", ".", "", "x.h"])


@given(st.lists(PARTS, max_size=7))
@settings(max_examples=many(400))
def test_links_are_followed_as_the_system_does(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "links"
    if not root.exists():
        write(root, a__b__x_h="1", b__x_h="2", x_h="3")
        (root / "link").symlink_to("a/b")
        (root / "a/link").symlink_to("../b")
        (root / "b/link").symlink_to(root / "a")
        (root / "out").symlink_to("/etc")
        (root / "loop").symlink_to("loop")
        (root / "gone").symlink_to("nowhere")
    path = "/".join(parts)
    if path.startswith("/"):
        return
    real = os.path.realpath(f"{root}/{path}")
    there = os.path.exists(f"{root}/{path}") and (real == str(root) or real.startswith(f"{root}/"))  # noqa: PTH110
    # A path that leaves the root on its way and comes back is left out, though the system would
    # find it.
    found = SourceTree(root).real(path)
    if found is not None:
        assert there
        assert f"{root}/{found}".rstrip("/") == real
    elif there:
        assert ".." in parts or "out" in parts


# --- remembered ---


def looked_at(root: Path, place: Path) -> str:
    cache = StatCache(root, place)
    digest = SourceTree(root, cache).digest("a.h")
    cache.save()
    return digest


def test_the_unchanged_is_not_read_again_and_rubbish_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was just written is not remembered: it may be written once more within the same
    tick of the clock, with the same size and time.
    """
    root, place = write(tmp_path / "r", a_h="one"), tmp_path / "c"
    first, status = looked_at(root, place), (root / "a.h").stat()
    assert StatCache(root, place).get("a.h", status) is None
    monkeypatch.setattr(caching, "_TICK_NS", -(10**18))
    assert looked_at(root, place) == StatCache(root, place).get("a.h", status) == first
    (file,) = [path for path in place.iterdir() if path.suffix == ".msgpack"]
    other = write(tmp_path / "other", a_h="two")
    file.rename(StatCache(other, place)._path)
    assert StatCache(other, place).get("a.h", status) is None, "it is of another root"
    for content in (b"", b"\xc1", b"\x91" * 100_000, b"\x93\x01\xa0\x80"):
        file.write_bytes(content)
        assert looked_at(root, place) == first


# --- as it was ---


def test_another_time_is_seen_where_it_differs(tmp_path: Path) -> None:
    now = SourceTree(write(tmp_path / "r", a_h="now", same_h="same", new__x_h="new", file_h="f"))
    was: dict[str, tuple[EntryKind, bytes] | None] = {
        "a.h": (EntryKind.FILE, b"then"), "old/y.h": (EntryKind.FILE, b"gone"),
        "link": (EntryKind.LINK, b"old/y.h"), "new/x.h": None, "file.h": None,
        "file.h/inside": (EntryKind.FILE, b"it was a folder"),
    }  # fmt: skip
    then = PatchedTree(now, was)
    assert then.content("a.h") == b"then"
    assert then.digest("a.h") != now.digest("a.h")
    assert then.digest("same.h") == now.digest("same.h")
    assert then.file("new/x.h") is None
    assert then.file("link") == "old/y.h"
    assert then.file("file.h/inside") == "file.h/inside"
    assert now.file("file.h") == "file.h"
    assert [*then.below("old")] == ["old/y.h"]


def test_whatever_the_file_system_says_anew_is_read_again(tmp_path: Path) -> None:
    said = {"st_size": 1, "st_mtime_ns": 2, "st_ctime_ns": 3, "st_ino": 4, "st_dev": 5}
    cache = StatCache(tmp_path, tmp_path / "place")
    known: Any = SimpleNamespace(**said)
    cache.put("x.h", known, known, "0" * 64)
    assert cache.get("x.h", known) == "0" * 64
    for part in said:
        other: Any = SimpleNamespace(**said | {part: 9})
        assert cache.get("x.h", other) is None, part
        cache.put("y.h", known, other, "0" * 64)  # it changed while it was read
        assert (cache.get("y.h", known), cache.get("y.h", other)) == (None, None), part


def test_a_place_outside_or_one_that_no_system_has_is_nowhere(tmp_path: Path) -> None:
    tree = SourceTree(write(tmp_path, etc__x_h="1"))
    assert tree.real(f"{tmp_path}/etc/x.h") is not None
    assert tree.real("/etc/x.h") is None, "not the one below the root"
    assert tree.real("etc\0/x.h") is None
