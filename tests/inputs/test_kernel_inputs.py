"""Which component reads which file: listed sources, what they include, and what no build reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import CPU, variant
from conftest import kernel
from growth import assert_in_proportion
from kci.config.model import Build
from kci.errors import FindingsError
from kci.inputs import stat_cache
from kci.inputs.include_graph import IncludeGraph
from kci.inputs.kernel_inputs import BINDING, Effect, KernelInputs
from kci.inputs.source_tree import SourceTree
from kci.inputs.stat_cache import StatCache

CUDA = "torch213-cxx11-cu130-x86_64-linux"


def build(components: str = "", torch: str = "") -> Build:
    return kernel(f"""
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
[torch]
src = ["torch-ext/binding.cpp"]
{torch}
[kernel.a]
backend = "cuda"
depends = []
src = ["csrc/a.cu"]
[kernel.b]
backend = "cpu"
depends = []
src = ["csrc/b.cpp", "csrc/b.h"]
{components}
""").build


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def labels(root: Path, path: str, made: Build) -> set[str]:
    return set(KernelInputs(made, root).effect(path).labels)


@pytest.mark.parametrize(
    "text",
    [
        '#include "b.h"',
        "#include <b.h>",
        '  #  include   "b.h"',
        '#\\\ninclude "b.h"',
        '#include \\\r\n "b.h"',
        '#include /* why */ "b.h"',
        '/* one */ #include "b.h"',
        '#include "../csrc/b.h"',
        '#include "csrc/b.h"',
        '#include_next "b.h"',
        '#import "b.h"',
        '#if __has_include("b.h")',
        'auto glob = "csrc/*.h";\n#include "b.h"\nauto other = "*/";',
        '#include "between.h"',
        "#include HEADER",
        '#define HEADER "elsewhere.h"\n#include HEADER\n#include OTHER',
        '#define HEADER "b.h"\n#include HEADER',
        "\N{BYTE ORDER MARK}#include <b.h>\n#include <b.h>",
        b'\xff\xfe\n#include "b.h"',
        b'\xef\xbb\xbf#include "b.h"',
        '\f#\vinclude\f"b.h"',
        '%:include "b.h"',
        'int x;\r#include "b.h"\rint y;',
        'int x;\r#define HEADER "b.h"\r#include HEADER\rint y;',
        '??=include "b.h"',
        '#inc\\  \nlude "b.h"',
        '#/* a * b */include/* c * d */"b.h"',
        "#/*" + "long " * 30 + '*/include "b.h"',
        "#include /*" + "long\n" * 200 + '*/ "b.h"',
        'asm(".incbin \\"csrc/b.h\\"");',
        '#include "kernel/csrc/b.h"',
    ],
)
def test_a_file_belongs_to_whoever_includes_it(tmp_path: Path, text: str | bytes) -> None:
    write(tmp_path, {"csrc/a.cu": text, "csrc/b.h": "", "csrc/b.cpp": "", "csrc/between.h": '#include "b.h"'})
    assert labels(tmp_path, "csrc/b.h", build()) == {"a", "b"}


def test_a_file_that_nobody_else_includes_belongs_to_its_lister(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "c.h"\n// #include\n', "csrc/b.h": "", "csrc/b.cpp": '#include "b.h"'})
    assert labels(tmp_path, "csrc/b.h", build()) == {"b"}


def test_a_header_of_the_same_name_elsewhere_is_another_one(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "b.h"', "csrc/cpu/b.h": "", "csrc/b.cpp": ""})
    made = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["csrc/cpu/b.h"]')
    assert labels(tmp_path, "csrc/cpu/b.h", made) == {"c"}


@pytest.mark.parametrize(
    "flag",
    ["-include", "--options-file=csrc/b.h", "@csrc/b.h", "-imacros=csrc/b.h", "-includekernel/csrc/b.h",
     "-Xcompiler=-include,kernel/csrc/b.h", '-DFILE=\\"csrc/b.h\\"'],
)  # fmt: skip
def test_a_file_that_a_flag_names_is_read(tmp_path: Path, flag: str) -> None:
    write(tmp_path, {"csrc/a.cu": "", "csrc/b.h": "", "csrc/b.cpp": ""})
    made = build(f'[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = []\ncuda-flags = ["{flag}", "csrc/b.h"]')
    assert labels(tmp_path, "csrc/b.h", made) == {"b", "c"}


@pytest.mark.parametrize(
    "flags", ['"-include", "x.h"', '"-includex.h"', '"-imacros", "x.h"', '"-Xcompiler", "-include,x.h"']
)
@pytest.mark.parametrize("where", ['include = ["inc"]\n', ""])
def test_a_file_that_a_flag_has_included_is_looked_for_as_an_include(tmp_path: Path, flags: str, where: str) -> None:
    folder = "inc" if where.startswith("include") else "csrc"
    write(
        tmp_path, {"csrc/a.cu": "", f"{folder}/x.h": '#include "deep/y.h"', f"{folder}/deep/y.h": "", "csrc/b.cpp": ""}
    )
    made = build(f'[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = ["csrc/a.cu"]\n{where}cuda-flags = [{flags}]')
    assert labels(tmp_path, f"{folder}/x.h", made) == labels(tmp_path, f"{folder}/deep/y.h", made) == {"c"}


def test_include_directories_of_the_component_are_searched(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "x/b.h"', "deep/x/b.h": "", "csrc/b.cpp": ""})
    own = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["deep/x/b.h"]')
    assert labels(tmp_path, "deep/x/b.h", own) == {"c"}
    shared = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["deep/x/b.h"]', 'include = ["./deep/"]')
    assert labels(tmp_path, "deep/x/b.h", shared) == {"a", "c"}


def test_the_bindings_headers_decide_every_variant(tmp_path: Path) -> None:
    write(tmp_path, {"torch-ext/binding.cpp": '#include "b.h"', "csrc/b.h": "", "csrc/b.cpp": "", "csrc/a.cu": ""})
    assert labels(tmp_path, "csrc/b.h", build()) == {BINDING}
    assert labels(tmp_path, "torch-ext/binding.cpp", build()) == {BINDING}


def test_a_link_and_what_it_leads_to_are_both_read(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/real.cu": '#include "b.h"', "csrc/b.cpp": "", "csrc/b.h": ""})
    (tmp_path / "csrc/a.cu").symlink_to("real.cu")
    assert labels(tmp_path, "csrc/real.cu", build()) == {"a"}
    assert labels(tmp_path, "csrc/b.h", build()) == {"a", "b"}


def test_nothing_outside_of_the_kernel_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text('#include "b.h"')
    root = tmp_path / "k"
    write(root, {"csrc/a.cu": '#include "../../secret.h"\n#include "/etc/passwd"\n#include "link.h"', "csrc/b.h": ""})
    (root / "csrc/link.h").symlink_to(secret)
    made = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["../secret.h"]')
    assert labels(root, "csrc/b.h", made) == {"b"}
    inputs = KernelInputs(made, root)
    assert not [real for part in inputs._reached.values() for _, real in part.files if real.startswith(("/", ".."))]


@pytest.mark.parametrize(
    "path",
    ["README.md", "CARD.md", "LICENSE", "tests/x.py", "docs/a.md", "benchmarks/b.py", "flake.nix", "flake.lock",
     "Makefile", "pyproject.toml", "nohup.out", "venv/lib/x.h", "csrc/a.cu~", "csrc/.a.cu.swp", "csrc/stray.h",
     "setup.py", ".clang-format",
     "torch-ext/some_kernel/__init__.pyi", "torch-ext/some_kernel/notes.md", "torch-ext/some_kernel/__pycache__/a.pyc"],
)  # fmt: skip
def test_what_nothing_reads_decides_nothing(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"csrc/a.cu": "", "torch-ext/some_kernel/__init__.py": "", path: "x"})
    found = KernelInputs(build(), tmp_path).effect(path)
    assert (found.labels, found.noarch and "torch-ext" not in path) == (frozenset(), False)
    assert found.reason


def test_even_such_a_file_counts_if_a_component_lists_it(tmp_path: Path) -> None:
    made = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["tests/../docs/table.md"]')
    write(tmp_path, {"docs/table.md": "", "tests/x": ""})
    assert KernelInputs(made, tmp_path).effect("docs/table.md") == Effect(frozenset({"c"}), False, "source of kernel.c")


@pytest.mark.parametrize("folder", ["tests", "build", ".hidden", "docs"])
@pytest.mark.parametrize(
    "flag", ["-Ikernel/{}", "-iquotekernel/{}", "-isystemkernel/{}", "-isystem=kernel/{}", "-Xcompiler,-Ikernel/{}"]
)
def test_directories_that_flags_name_are_searched(tmp_path: Path, folder: str, flag: str) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "odd.h"', f"{folder}/odd.h": '#include "more.h"', f"{folder}/more.h": ""})
    made = build(
        f'[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = ["csrc/a.cu"]\ncuda-flags = ["{flag.format(folder)}"]'
    )
    assert labels(tmp_path, f"{folder}/more.h", made) == {"c"}


def test_a_component_s_own_include_directories_are_searched(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/c.cu": "#include <odd.h>", "inc/deep/odd.h": ""})
    made = build('[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = ["csrc/c.cu"]\ninclude = ["inc/deep"]')
    assert labels(tmp_path, "inc/deep/odd.h", made) == {"c"}


def test_a_macro_that_the_sources_define_is_followed_and_nothing_else_counts(tmp_path: Path) -> None:
    text = '#define IMPL "impl.cu"\n#include IMPL'
    write(tmp_path, {"csrc/a.cu": text, "csrc/impl.cu": '#include "deep.h"', "csrc/deep.h": "", "csrc/other.h": ""})
    assert labels(tmp_path, "csrc/deep.h", build()) == {"a"}
    assert labels(tmp_path, "csrc/other.h", build()) == set()


def test_a_macro_of_the_command_line_may_be_any_file(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": "#include IMPL", "tests/impl.cu": "", "README.md": "", "build/x.h": ""})
    found = KernelInputs(build(), tmp_path).effect("tests/impl.cu")
    assert (found.labels, "#include IMPL" in found.reason) == ({"a"}, True)
    assert labels(tmp_path, "build/x.h", build()) == set(), "what was built is found out by the compiler only"


def test_files_of_the_package_decide_what_carries_them(tmp_path: Path) -> None:
    package = "torch-ext/some_kernel"
    write(
        tmp_path,
        {f"{package}/.hidden": "", f"{package}/a.py": "", f"{package}/a.json": "", f"{package}/metadata.json": ""},
    )
    plain, data = build(), build(torch='pyext = ["py", "json"]')
    compiled = {
        path: labels(tmp_path, f"{package}/{path}", plain) for path in (".hidden", "a.py", "a.json", "metadata.json")
    }
    assert compiled == {".hidden": set(), "a.py": {BINDING}, "a.json": set(), "metadata.json": set()}
    assert labels(tmp_path, f"{package}/a.json", data) == {BINDING}
    general = '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    inputs = KernelInputs(kernel(f"{general}[torch-noarch]\n").build, tmp_path)
    carried = {path: inputs.effect(f"{package}/{path}").noarch for path in compiled}
    assert carried == {".hidden": True, "a.py": True, "a.json": True, "metadata.json": False}


# --- what leaves the kernel ---


def outside(root: Path, text: str) -> Path:
    write(root, {"common/scale.h": '#include "deep.h"', "common/deep.h": "", "k/csrc/a.cu": text, "k/csrc/b.cpp": ""})
    return root / "k"


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.rule("KCI145", triggers=True)
def test_an_include_that_leaves_the_kernel_is_refused(tmp_path: Path, link: bool) -> None:
    root = outside(tmp_path, '#include "common/scale.h"' if link else '#include "../../common/scale.h"')
    if link:
        (root / "csrc/common").symlink_to("../../common")
    for tree in (SourceTree(tmp_path), SourceTree(root)):
        inputs = KernelInputs(build(), root, tree)
        with pytest.raises(FindingsError, match=r"scale.h") as caught:
            inputs.refuse_escapes()
        shown = os.path.relpath(root / "build.toml", tree.root)
        assert [(item.rule, item.path) for item in caught.value.diagnostics] == [("KCI145", shown)]
        assert "[[inputs]]" in caught.value.hint


@pytest.mark.rule("KCI145", triggers=True)
def test_no_variant_that_has_such_an_include_has_inputs(tmp_path: Path) -> None:
    root = outside(tmp_path, '#include "../../common/scale.h"')
    inputs = KernelInputs(build(), root, SourceTree(tmp_path))
    with pytest.raises(FindingsError) as caught:
        inputs.of(variant(CUDA))
    assert [item.rule for item in caught.value.diagnostics] == ["KCI145"]
    assert inputs.of(variant(CPU)), "the component that has it is not compiled into this one"


@pytest.mark.parametrize("declared", ["common", "./common/", "common/../common"])
@pytest.mark.rule("KCI145", triggers=False)
@pytest.mark.rule("KCI333", triggers=False)
def test_what_is_declared_may_be_included_and_counts(tmp_path: Path, declared: str) -> None:
    root = outside(tmp_path, '#include "../../common/scale.h"')
    inputs = KernelInputs(build(), root, SourceTree(tmp_path), [declared])
    inputs.refuse_escapes()
    assert inputs.effect("common/deep.h").labels == {"a"}
    assert inputs.shown("common/deep.h") == "../common/deep.h"
    assert inputs.in_tree("../common/deep.h") == "common/deep.h"


@pytest.mark.rule("KCI145", triggers=False)
@pytest.mark.parametrize(
    "text", ['// #include "../../common/scale.h"', '/*\n#include "../../common/scale.h"\n*/', '#include "../b.h"']
)
def test_what_is_not_surely_included_is_not_refused(tmp_path: Path, text: str) -> None:
    root = outside(tmp_path, text)
    write(root, {"b.h": ""})
    KernelInputs(build(), root, SourceTree(tmp_path)).refuse_escapes()


@pytest.mark.rule("KCI333", triggers=True)
@pytest.mark.parametrize("declared", ["nowhere", "../elsewhere", "/etc", ""])
def test_a_declared_input_has_to_be_there(tmp_path: Path, declared: str) -> None:
    root = outside(tmp_path, "")
    with pytest.raises(FindingsError) as caught:
        KernelInputs(build(), root, SourceTree(tmp_path), [declared])
    assert [item.rule for item in caught.value.diagnostics] == ["KCI333"]


@pytest.mark.parametrize(
    "unit", ["/*", "\n#include <", "\n__has_include(<", "#include <", "# ", '#include "/*', "\\\n"]
)
def test_a_source_that_is_built_to_be_slow_to_search(tmp_path: Path, unit: str) -> None:
    def work(size: int) -> None:
        write(tmp_path, {"csrc/a.cu": unit * size})
        KernelInputs(build(), tmp_path).escapes()

    assert_in_proportion(work, 8_000)


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "a.cu"\n#include "b.h"', "csrc/b.h": '#include "a.cu"', "csrc/b.cpp": ""})
    assert labels(tmp_path, "csrc/b.h", build()) == {"a", "b"}


# --- what an earlier run found ---

REPOSITORY = {
    "k/torch-ext/binding.cpp": "",
    "k/csrc/a.cu": '#include "b.h"\n#include <d.h>\n#include "inc/c.h"\n#include HEADER',
    "k/csrc/b.cpp": '#include "linked/d.h"\n#include "../../shared/s.h"\n#include <out/o.h>',
    "k/csrc/b.h": "// 1",
    "k/csrc/inc/c.h": "",
    "k/one/d.h": '#include "deep.h"',
    "k/one/deep.h": "",
    "k/two/d.h": "",
    "k/torch-ext/deep.h": "",
    "shared/s.h": "",
}


def repository(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stat_cache, "_TICK_NS", -(10**18))
    write(root, dict(REPOSITORY))
    (root / "k/csrc/linked").symlink_to("../one")
    return root


def answer(
    root: Path, cache: StatCache | None, made: Build | None = None, extra: tuple[str, ...] = ("shared",)
) -> object:
    """Everything that is said about a kernel's files, and what its compiled variants are made of."""
    inputs = KernelInputs(made or build(), root / "k", SourceTree(root, cache), extra)
    files = [] if inputs.escapes() else [sorted(inputs.of(variant(name))) for name in (CPU, CUDA)]
    if cache is not None:
        cache.save()
    return {label: sorted(part.files) for label, part in inputs._reached.items()}, inputs.escapes(), files


def rewrite(path: Path, text: str) -> None:
    """The same size and times, in the same inode."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def relink(path: Path, to: str) -> None:
    path.unlink()
    path.symlink_to(to)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new header hides another": lambda root: write(root, {"k/csrc/inc/b.h": "", "k/one/b.h": ""}),
    "a new directory has the name": lambda root: write(root, {"k/torch-ext/inc/c.h": ""}),
    "a header of the repository comes": lambda root: write(root, {"k/inc/c.h": ""}),
    "a header goes": lambda root: (root / "k/csrc/b.h").unlink(),
    "a source goes": lambda root: (root / "k/csrc/b.cpp").unlink(),
    "a directory goes": lambda root: shutil.rmtree(root / "k/csrc/inc"),
    "a link leads elsewhere": lambda root: relink(root / "k/csrc/linked", "../two"),
    "a link becomes a directory": lambda root: [
        (root / "k/csrc/linked").unlink(),
        write(root, {"k/csrc/linked/d.h": ""}),
    ],
    "a file becomes a link": lambda root: relink(root / "k/csrc/b.h", "../one/d.h"),
    "the same size and times": lambda root: rewrite(root / "k/one/d.h", '#include "dxyz.h"'),
    "the same size and times, of a source": lambda root: rewrite(
        root / "k/csrc/a.cu", REPOSITORY["k/csrc/a.cu"].replace('"b.h"', '<b.h>').replace("inc/c.h", "inc/x.h")
    ),
    "a declared file goes": lambda root: (root / "shared/s.h").unlink(),
    "a header outside of the kernel is no longer declared, and a link": lambda root: relink(
        root / "k/csrc/linked", "../../shared"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_found_is_found_again_after_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    root = repository(tmp_path / "r", monkeypatch)
    first = answer(root, StatCache(root, tmp_path / "c"))
    assert first == answer(root, None)
    CHANGES[what](root)
    assert answer(root, StatCache(root, tmp_path / "c")) == answer(root, None)


def test_what_was_found_is_not_searched_again_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "r", monkeypatch)
    first = answer(root, StatCache(root, tmp_path / "c"))
    with monkeypatch.context() as patched:
        patched.setattr(IncludeGraph, "follow", lambda *_: pytest.fail("it was searched again"))
        assert answer(root, StatCache(root, tmp_path / "c")) == first
    for made, extra in ((build(torch='include = ["two"]'), ("shared",)), (build(), ("shared/s.h",)), (build(), ())):
        assert answer(root, StatCache(root, tmp_path / "c"), made, extra) == answer(root, None, made, extra)


def test_what_depends_on_files_outside_of_the_repository_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "r", monkeypatch)
    (tmp_path / "outside").mkdir()
    (root / "k/csrc/out").symlink_to(tmp_path / "outside")
    write(root, {"k/csrc/b.cpp": '#include "out/o.h"'})
    first = answer(root, StatCache(root, tmp_path / "c"))
    write(tmp_path, {"outside/o.h": ""})
    again = answer(root, StatCache(root, tmp_path / "c"))
    assert again != first
    assert again == answer(root, None)


def test_a_record_of_another_kind_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", monkeypatch)
    first = answer(root, StatCache(root, tmp_path / "c"))
    for data in (b"\xc0", b"\x93\xa0\x90\x80"):
        cache = StatCache(root, tmp_path / "c")
        cache.put_result("k", data)
        cache.save()
        assert answer(root, StatCache(root, tmp_path / "c")) == first


def test_a_file_that_a_macro_names_is_looked_for_beside_what_includes_it(tmp_path: Path) -> None:
    """The macro is defined in another folder; the compiler looks beside the file with `#include IMPL`."""
    write(
        tmp_path,
        {
            "csrc/a.cu": '#include "names/all.h"\n#include "deep/user.h"', "csrc/names/all.h": '#define IMPL "impl.h"',
            "csrc/deep/user.h": "#include IMPL", "csrc/deep/impl.h": "", "csrc/other/impl.h": "",
        },
    )  # fmt: skip
    assert labels(tmp_path, "csrc/deep/impl.h", build()) == {"a"}
    assert labels(tmp_path, "csrc/other/impl.h", build()) == set()
