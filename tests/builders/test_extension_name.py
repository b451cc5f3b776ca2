"""Which sources are given the kernel's id; the rest is not compiled again when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.builders.extension_name import sources_with_name

SOURCES = ("bind.cpp", "csrc/a.cu", "csrc/b.cpp")
BINDING = {"bind.cpp": "REGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n", "csrc/a.cu": "", "csrc/b.cpp": '#include "b.h"\n'}


def named(root: Path, **files: str) -> set[str]:
    return sources_with_name(write_tree(root, {**BINDING, **files}), SOURCES)


def test_only_what_mentions_it(tmp_path: Path) -> None:
    assert named(tmp_path) == {"bind.cpp"}


def test_a_mention_in_a_file_that_nothing_includes_does_not_count(tmp_path: Path) -> None:
    more = {"vendored/module.cpp": "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)", "docs.md": "TORCH_EXTENSION_NAME"}
    assert named(tmp_path, **more) == {"bind.cpp"}


@pytest.mark.parametrize("name", ["csrc/b.h", "b.h", "elsewhere/deep/b.h"])
def test_a_mention_in_a_file_that_is_included_counts_for_all(tmp_path: Path, name: str) -> None:
    assert named(tmp_path, **{name: "// TORCH_EXTENSION_NAME"}) == set(SOURCES)


def test_a_source_that_another_includes_counts_for_all(tmp_path: Path) -> None:
    assert named(tmp_path, **{"csrc/a.cu": "#  include <../bind.cpp>\n"}) == set(SOURCES)
