"""Which component reads which file: listed sources, what they include, and what no build reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import kernel
from growth import assert_in_proportion
from kci.config.model import Build
from kci.plan.inputs import Effect, effect, kernel_files, listed, scan


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


def labels(root: Path, path: str, made: Build) -> set[str] | None:
    found = effect(path, made, scan(root, made)).labels
    return None if found is None else set(found)


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
        '#define HEADER "b.h"\n#include HEADER',
        "\N{BYTE ORDER MARK}#include <b.h>\n#include <b.h>",
        b'\xff\xfe\n#include "b.h"',
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


@pytest.mark.parametrize("flag", ["-include", "--options-file=csrc/b.h", "@csrc/b.h", "-imacros=csrc/b.h"])
def test_a_file_that_a_flag_names_is_read(tmp_path: Path, flag: str) -> None:
    write(tmp_path, {"csrc/a.cu": "", "csrc/b.h": "", "csrc/b.cpp": ""})
    made = build(f'[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = []\ncuda-flags = ["{flag}", "csrc/b.h"]')
    assert labels(tmp_path, "csrc/b.h", made) == {"b", "c"}


def test_include_directories_of_the_component_are_searched(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "x/b.h"', "deep/x/b.h": "", "csrc/b.cpp": ""})
    own = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["deep/x/b.h"]')
    assert labels(tmp_path, "deep/x/b.h", own) == {"c"}
    shared = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["deep/x/b.h"]', 'include = ["./deep/"]')
    assert labels(tmp_path, "deep/x/b.h", shared) == {"a", "c"}


def test_the_bindings_headers_decide_every_variant(tmp_path: Path) -> None:
    write(tmp_path, {"torch-ext/binding.cpp": '#include "b.h"', "csrc/b.h": "", "csrc/b.cpp": "", "csrc/a.cu": ""})
    assert labels(tmp_path, "csrc/b.h", build()) is None
    assert labels(tmp_path, "torch-ext/binding.cpp", build()) is None


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
    assert not [path for path in kernel_files(root, made, scan(root, made)) if path.startswith(("/", ".."))]


@pytest.mark.parametrize("path", ["README.md", "CARD.md", "LICENSE", "tests/x.py", "docs/a.md", "benchmarks/b.py"])
def test_some_files_are_part_of_no_variant(path: str) -> None:
    found = effect(path, build(), listed(build()))
    assert found.labels == frozenset()
    assert found.reason


def test_even_such_a_file_counts_if_a_component_lists_it() -> None:
    made = build('[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["tests/../docs/table.md"]')
    assert effect("docs/table.md", made, listed(made)) == Effect(frozenset({"c"}), "read by kernel.c")


@pytest.mark.parametrize("path", ["flake.nix", "csrc/stray.h", "setup.py", "cmake/x.cmake", "torch-ext/registration.h"])
def test_a_file_that_nothing_is_known_of_decides_every_variant(path: str) -> None:
    assert effect(path, build(), listed(build())).labels is None


def test_files_of_the_package_decide_every_variant_hidden_ones_too(tmp_path: Path) -> None:
    write(tmp_path, {"torch-ext/some_kernel/.hidden": "", "torch-ext/some_kernel/README.md": "", ".git/HEAD": ""})
    write(tmp_path, {"build/old/__init__.py": "", "torch-ext/some_kernel/__pycache__/a.pyc": "", "csrc/build/x.h": ""})
    files = kernel_files(tmp_path, build(), scan(tmp_path, build()))
    assert {"torch-ext/some_kernel/.hidden", "torch-ext/some_kernel/README.md", "csrc/build/x.h"} <= set(files)
    assert not [path for path in files if ".git/" in path or path.startswith("build/") or path.endswith(".pyc")]
    assert effect("torch-ext/some_kernel/README.md", build(), {}).labels is None


@pytest.mark.parametrize(
    "unit", ["/*", "\n#include <", "\n__has_include(<", "#include <", "# ", '#include "/*', "\\\n"]
)
def test_a_source_that_is_built_to_be_slow_to_search(tmp_path: Path, unit: str) -> None:
    def work(size: int) -> None:
        write(tmp_path, {"csrc/a.cu": unit * size})
        scan(tmp_path, build())

    assert_in_proportion(work, 200_000)


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/a.cu": '#include "a.cu"\n#include "b.h"', "csrc/b.h": '#include "a.cu"', "csrc/b.cpp": ""})
    assert labels(tmp_path, "csrc/b.h", build()) == {"a", "b"}
