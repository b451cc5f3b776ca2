"""Which sources are given the kernel's id; the rest is not compiled again when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, request, write_tree
from conftest import torch_toml
from kci.builders.native.units import sources_with_name
from kci.config.reader import read_kernel
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree

LISTED = 'csrc/a.cpp", "csrc/b.cpp", "csrc/b.h'
BUILD = torch_toml({"cpu": LISTED}, "some", "bind.cpp") + 'include = ["."]\n'
SOURCES = ("bind.cpp", "csrc/a.cpp", "csrc/b.cpp")
FILES = {
    "build.toml": BUILD,
    "bind.cpp": "REGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n",
    "csrc/a.cpp": "",
    "csrc/b.cpp": '#include "b.h"\n',
    "csrc/b.h": "",
}


def named(root: Path, files: dict[str, str], link: tuple[str, str] | None = None) -> set[str]:
    """The sources of a kernel in a repository; what is below `common/` beside it may be
    included.
    """
    kernel = write_tree(root / "kernel", {**FILES, **files})
    common = write_tree(root, {"common/shared.h": files.pop("common/shared.h", "")})
    if link is not None:
        (kernel / link[0]).unlink(missing_ok=True)
        (kernel / link[0]).symlink_to(link[1])
    inputs = KernelInputs(read_kernel(kernel).build, kernel, SourceTree(common), ["common"])
    return sources_with_name(inputs, request(kernel, CPU, root).variant, SOURCES)


def test_only_what_mentions_it(tmp_path: Path) -> None:
    assert named(tmp_path, {}) == {"bind.cpp"}


def test_a_mention_in_a_file_that_nothing_includes_does_not_count(tmp_path: Path) -> None:
    more = {
        "vendored/module.cpp": "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)",
        "docs.md": "TORCH_EXTENSION_NAME",
    }
    assert named(tmp_path, more) == {"bind.cpp"}


@pytest.mark.parametrize(
    "files",
    [{"csrc/b.h": "// TORCH_EXTENSION_NAME"}, {"common/shared.h": "// TVM_FFI_EXTENSION_NAME"}],
)
def test_a_mention_in_a_file_that_is_not_compiled_counts_for_all(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert named(tmp_path, files) == set(SOURCES)


def test_a_source_that_another_includes_counts_for_all(tmp_path: Path) -> None:
    assert named(tmp_path, {"csrc/a.cpp": "#  include <../bind.cpp>\n"}) == set(SOURCES)


def test_a_source_can_be_a_link(tmp_path: Path) -> None:
    files = {"real.cpp": FILES["bind.cpp"]}
    assert named(tmp_path, files, link=("bind.cpp", "real.cpp")) == {"bind.cpp"}
