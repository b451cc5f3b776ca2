"""Fingerprints held against compilers: a fingerprint moves if and only if what is in the variant does.

Each layout is a repository of one kernel, with everything that has led a reading of sources astray. Every file of it is
changed, and then removed, in turn; the compiler says whether the variant's objects or package changed. A fingerprint
that stayed though they did is stale, and there must be none. One that moved though they did not is a needless build: it
is counted, and must have a reason.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest

from buildkit import CPU, variant
from kci.builders.read_files import Watch
from kci.config.reader import read_kernel
from kci.config.settings import Settings
from kci.errors import BuildFailedError
from kci.inputs.kernel_inputs import KernelInputs
from kci.inputs.source_tree import SourceTree
from planning import parse_settings
from witness import Compiler, changed, confirm, files_of, judge, planned, request_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None or shutil.which("ninja") is None, reason="needs g++ and ninja"),
]

BUILD = """[general]
name = "kk"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "rocm"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.one]
backend = "cpu"
depends = []
src = ["csrc/a.cpp"{src}]
{more}

[kernel.other]
backend = "rocm"
depends = []
src = ["csrc/x.h", "csrc/rocm.hip"]
"""

USUAL = {
    "k/torch-ext/binding.cpp": '#include "bound.h"\nint bound() { return BOUND; }\n',
    "k/torch-ext/bound.h": "#define BOUND 1\n",
    "k/torch-ext/kk/__init__.py": "VALUE = 1\n",
    "k/torch-ext/kk/__init__.pyi": "VALUE: int\n",
    "k/torch-ext/kk/data.json": "{}\n",
    "k/csrc/x.h": "#pragma once\nconst int x = 1;\n",
    "k/csrc/rocm.hip": "int r;\n",
    "k/csrc/stray.h": "int stray;\n",
    "common/scale.h": "#pragma once\nconst int scale = 2;\n",
}
NOISE = {
    "k/csrc/a.cpp~": "backup\n",
    "k/.clang-format": "x\n",
    "k/flake.nix": "{}\n",
    "k/flake.lock": "{}\n",
    "k/pyproject.toml": "\n",
    "k/Makefile": "all:\n",
    "k/nohup.out": "\n",
    "k/README.md": "# k\n",
    "k/tests/test_k.py": "\n",
    "k/venv/include/x.h": "int venv;\n",
    "k/build/torch-cpu/x.h": "int built;\n",
    "README.md": "# all\n",
}
"""What lies about in kernels and decides nothing."""

Layout = dict[str, str]

LAYOUTS: dict[str, Layout] = tomllib.loads((Path(__file__).parent / "layouts.toml").read_text(encoding="utf-8"))


def make(root: Path, layout: Layout) -> tuple[Path, Settings]:
    """Write a layout; `a` is csrc/a.cpp, `src` and `more` are about build.toml, and `-> x` is a link."""
    noise = NOISE if layout in (LAYOUTS["plain"], LAYOUTS["unrelated"], LAYOUTS["macro of a flag"]) else {}
    files: Layout = {**USUAL, **noise, **layout}
    source, more, listed = files.pop("a"), files.pop("more", ""), files.pop("src", "")
    text = BUILD.format(src=listed, more=more)
    if pyext := files.pop("pyext", ""):
        text = text.replace('src = ["torch-ext/binding.cpp"]', f'src = ["torch-ext/binding.cpp"]\n{pyext}')
    for name, content in {**files, "k/csrc/a.cpp": source, "k/build.toml": text}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_bytes(content.encode())
    return root / "k", parse_settings(files.get("kci.toml", "").encode())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_fingerprint_moves_if_and_only_if_the_variant_does(name: str, tmp_path: Path) -> None:
    root = tmp_path / "r"
    kernel, settings = make(root, LAYOUTS[name])
    made = variant(CPU)
    first, uncertain = planned(root, kernel, made, settings)
    assert "refused" not in first
    judged = judge(
        (path for path in files_of(root) if path.name not in ("build.toml", "kci.toml")),
        lambda: planned(root, kernel, made, settings)[0],
        Compiler(request_for(root, kernel, made, tmp_path / "cache"), objects=name in COMPILED).content,
        print,
    )
    assert judged.stale == []
    assert bool(judged.needless) == bool(name in NEEDLESS or uncertain), judged.needless
    assert judged.changes > 14


COMPILED = {"plain", "not compiled in", "flag in a file", "assembler"}
"""Layouts whose objects are compared; in the last two the text that the preprocessor makes does not decide alone."""

NEEDLESS = {
    "only in a comment", "raw string", "not compiled in", "shadowed", "asked for", "next",
    "listed by another component",
}  # fmt: skip
"""Layouts in which reading the sources finds too much; once there is a record, what the compiler read decides."""


@pytest.mark.rule("KCI510", triggers=False)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_compiler_confirms_it_and_its_record_is_exact(name: str, tmp_path: Path) -> None:
    root = tmp_path / "r"
    kernel, settings = make(root, LAYOUTS[name])
    request = request_for(root, kernel, variant(CPU), tmp_path / "cache")
    inputs = KernelInputs(request.build, kernel, SourceTree(root), settings.inputs_of("kk"))
    read = confirm(request, Watch(msgspec.structs.replace(request, inputs=inputs)))
    assert "torch-ext/binding.cpp" in read
    assert "torch-ext/kk/__init__.py" in read
    assert not [path for path in read if "stray" in path], "read by nobody"
    if "x.h" in str(LAYOUTS[name]) and name != "only in a comment":
        assert "csrc/x.h" in read
    if "declared" in name:
        assert "../common/scale.h" in read
    for layout, unlisted in (("assembler", "data.bin"), ("flag in a file", "flags.txt")):
        assert name != layout or unlisted in read, "no dependency file lists it, and it decides what is compiled"


@pytest.mark.rule("KCI510", triggers=True)
def test_a_build_that_read_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "r"
    kernel, _ = make(root, {"a": '#include "scale.h"\nint a() { return scale; }\n'})
    monkeypatch.setenv("CPATH", str(root / "common"))
    request = request_for(root, kernel, variant(CPU), tmp_path / "cache")
    inputs = KernelInputs(request.build, kernel, SourceTree(root))
    with pytest.raises(BuildFailedError, match=r"read \.\./common/scale\.h, which") as caught:
        confirm(request, Watch(msgspec.structs.replace(request, inputs=inputs)))
    assert [item.rule for item in caught.value.diagnostics] == ["KCI510"]


@pytest.mark.rule("KCI511", triggers=True)
def test_a_source_that_changes_while_it_is_compiled_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "r"
    kernel, _ = make(root, LAYOUTS["plain"])
    request = request_for(root, kernel, variant(CPU), tmp_path / "cache")
    watch = Watch(msgspec.structs.replace(request, inputs=KernelInputs(request.build, kernel, SourceTree(root))))
    changed(kernel / "csrc/x.h")
    with pytest.raises(BuildFailedError, match=r"x.h changed while") as caught:
        confirm(request, watch)
    assert [item.rule for item in caught.value.diagnostics] == ["KCI511"]


@pytest.mark.rule("KCI511", triggers=False)
def test_what_is_not_read_may_change_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "r"
    kernel, _ = make(root, LAYOUTS["not compiled in"])
    request = request_for(root, kernel, variant(CPU), tmp_path / "cache")
    watch = Watch(msgspec.structs.replace(request, inputs=KernelInputs(request.build, kernel, SourceTree(root))))
    changed(kernel / "csrc/stray.h")
    assert "csrc/x.h" in confirm(request, watch)
    assert read_kernel(kernel).build.name == "kk"
