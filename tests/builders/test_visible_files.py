"""A build sees the listed files and no others; the compilers find them by the paths that they were
given.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import CPU, files_in, request, with_changes, write_tree
from conftest import failure, torch_toml
from kci.builders.kernel_files import VisibleFiles, write_package
from kci.builders.request import Request
from kci.config.reader import read_kernel
from kci.errors import BuildFailedError
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree
from outside_tools import program

SOURCES = {"cpu": "csrc/a.cpp", "cuda": 'csrc/b.cu", "csrc/b.h'}
BUILD = torch_toml(SOURCES, "some", "torch-ext/bind.cpp")
FILES = {
    "common/scale.h": "#define SCALE 2\n",
    "k/build.toml": BUILD,
    "k/torch-ext/bind.cpp": "",
    "k/torch-ext/some/__init__.py": "",
    "k/csrc/a.cpp": '#include "b.h"\nint f() { return B; }\nconst char* at = __FILE__;\n',
    "k/csrc/b.h": '#include "../../common/scale.h"\n#define B SCALE\n',
    "k/csrc/b.cu": "",
    "k/csrc/stray.h": "",
}


def asked(root: Path, extra: tuple[str, ...] = ("common",), **files: str) -> Request:
    """A request for the kernel `k` in a repository."""
    write_tree(root, FILES | files)
    inputs = KernelInputs(read_kernel(root / "k").build, root / "k", SourceTree(root), extra)
    return with_changes(request(root / "k", CPU, root), inputs=inputs)


def laid_out(what: Request, work: Path) -> set[str]:
    work.mkdir(exist_ok=True)
    VisibleFiles(what).lay_out(work)
    return set(files_in(work / "tree"))


def test_it_sees_its_own_sources_all_headers_the_package_and_what_is_declared(
    tmp_path: Path,
) -> None:
    seen = set(FILES) - {"k/build.toml", "k/csrc/b.cu", "k/csrc/stray.h"}
    assert laid_out(asked(tmp_path), tmp_path / "work") == seen


def test_what_is_no_longer_listed_is_gone(tmp_path: Path) -> None:
    assert "k/csrc/b.h" in laid_out(asked(tmp_path), tmp_path / "work")
    what = asked(tmp_path, **{"k/build.toml": BUILD.replace(', "csrc/b.h"', "")})
    assert "k/csrc/b.h" not in laid_out(what, tmp_path / "work")


def compiled(work: Path) -> subprocess.CompletedProcess[str]:
    command = [program("g++"), "-MD", "-c", "kernel/csrc/a.cpp", "-o", "a.o"]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)


def test_a_compiler_finds_the_listed_files_and_names_them_as_ever(tmp_path: Path) -> None:
    laid_out(asked(tmp_path), tmp_path / "work")
    done = compiled(tmp_path / "work")
    assert done.returncode == 0, done.stderr
    read = (tmp_path / "work/a.d").read_text().replace("\\\n", " ").split()[1:]
    own = [path.removeprefix("kernel/csrc/") for path in read if not path.startswith("/")]
    assert own == ["a.cpp", "b.h", "../../common/scale.h"]
    assert b"kernel/csrc/a.cpp\0" in (tmp_path / "work/a.o").read_bytes()


@pytest.mark.parametrize(
    ("extra", "text", "missed"),
    [
        ((), '#include "b.h"\n', "../../common/scale.h"),
        (("common",), '#include "stray.h"\n', "stray.h"),
    ],
)
def test_it_does_not_find_the_others(
    tmp_path: Path, extra: tuple[str, ...], text: str, missed: str
) -> None:
    laid_out(asked(tmp_path, extra, **{"k/csrc/a.cpp": text}), tmp_path / "work")
    done = compiled(tmp_path / "work")
    assert f"fatal error: {missed}: No such file" in done.stderr


@pytest.mark.rule("KCI511", triggers=True)
@pytest.mark.parametrize(
    "change", [lambda path: path.write_text("int x;\n"), Path.unlink], ids=["other", "gone"]
)
@pytest.mark.parametrize("way", ["laid out", "in place"])
def test_a_file_that_changes_meanwhile_is_noticed(
    tmp_path: Path, change: Callable[[Path], object], way: str
) -> None:
    visible, work = VisibleFiles(asked(tmp_path)), tmp_path / "work"
    visible.lay_out(work)
    visible.require_unchanged()
    change(tmp_path / "k/csrc/a.cpp")
    as_it_was = FILES["k/csrc/a.cpp"]
    assert (work / "kernel/csrc/a.cpp").read_text() == as_it_was, "what is compiled stays"
    with pytest.raises(BuildFailedError, match=r"csrc/a.cpp changed while"):
        visible.lay_out(work) if way == "laid out" else visible.require_unchanged()


def test_a_package_file_that_is_new_or_edited_is_not_carried(tmp_path: Path) -> None:
    visible = VisibleFiles(asked(tmp_path))
    for name, text in (("new.py", ""), ("__init__.py", "edited = 1\n")):
        path = write_tree(tmp_path / "k/torch-ext/some", {name: text}) / name
        says, given = f"{name} changed while", (tmp_path / "out", {name: path}, "", visible)
        failure(BuildFailedError, says, write_package, *given)
