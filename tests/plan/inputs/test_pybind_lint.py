"""Headers of pybind11, which do not compile with Python's limited API."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from conftest import torch_kernel
from kci.plan.inputs.source_lints import pybind_included, unconditional_includes
from kci.plan.inputs.source_tree import SourceTree


def said(folder: Path, files: dict[str, str], more: str = "") -> list[str]:
    write_tree(folder, files)
    part = '[kernel.a]\nbackend = "cpu"\ndepends = ["torch"]\nsrc = ["csrc/a.cpp", "csrc/a.h"]\n'
    parts = f"{part}{more}\n"
    found = list(pybind_included(torch_kernel(["cpu"], components=parts), SourceTree(folder)))
    assert {item.rule for item in found} <= {"KCI167"}
    assert all("torch/all.h" in item.hint for item in found)
    return [item.message for item in found]


@pytest.mark.rule("KCI167", triggers=True)
@pytest.mark.parametrize(
    "include",
    [
        "<torch/extension.h>", '"torch/extension.h"', "<torch/python.h>",
        "<torch/csrc/utils/pybind.h>", "<pybind11/pybind11.h>", "<pybind11/stl.h>",
    ],
)  # fmt: skip
def test_each_header_with_pybind_is_told(tmp_path: Path, include: str) -> None:
    (message,) = said(tmp_path, {"csrc/a.cpp": f"#include <vector>\n#include {include}\n"})
    assert message.startswith(f"'csrc/a.cpp' includes <{include[1:-1]}>: ")
    assert "Python's limited API (Py_LIMITED_API)" in message


@pytest.mark.rule("KCI167", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "#include <torch/all.h>\n",
        "// #include <torch/extension.h>\n/*\n#include <torch/extension.h>\n*/\n",
        "#if !defined(__CUDACC__)\n#include <pybind11/functional.h>\n#endif\n",
        "#ifdef WITH_PYBIND\n#define OTHER\n#include <torch/extension.h>\n#endif\n",
        "#ifndef A\n#define B\n#include <torch/extension.h>\n#endif\n",
        "#undef Py_LIMITED_API\n#include <torch/extension.h>\n",
        '#include "torch/extension.h"\n',
        '#include "a.h"\n',
    ],
)
def test_what_may_compile_is_not_told(tmp_path: Path, text: str) -> None:
    """A header through one of the kernel, one behind a condition, and one of the kernel's own with
    that name.
    """
    files = {"csrc/a.cpp": text, "csrc/a.h": "#include <torch/extension.h>\n"}
    own = {"csrc/torch/extension.h": "#include <torch/all.h>\n"} if '"torch' in text else {}
    assert said(tmp_path, files | own) == []
    including = {"csrc/a.cpp": "#include <torch/python.h>\n"}
    assert said(tmp_path, including, 'cxx-flags = ["-UPy_LIMITED_API"]') == []


def test_conditions_within_conditions() -> None:
    text = b"#ifndef G\n#define G\n#if A\n#if B\n#include <b>\n#endif\n#include <a>\n#endif\n"
    text += b"#include <c>\n#endif\n#include <d>\n"
    assert unconditional_includes(text) == ["c", "d"]
    assert unconditional_includes(b'#endif\n#include <a>\n#define X\n# include "b"') == ["a", "b"]
