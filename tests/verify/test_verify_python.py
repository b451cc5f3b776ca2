"""The rules about Python files, in variants and in sources."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from kci.diagnostics import Diagnostic
from kci.verify import verify
from variants import make_variant


def variant(root: Path, text: str, name: str = "torch-cpu", file: str = "__init__.py") -> list[Diagnostic]:
    files: dict[str, str | bytes] = {"__init__.py": "", file: dedent(text)}
    return verify(make_variant(root, name, files=files), select=["KCI77"])


GOOD = '''\
    """Docs with an odd \\\\d escape."""
    from __future__ import annotations
    import math, os.path
    from typing import TYPE_CHECKING
    import torch.nn as nn
    from . import layers
    from ._ops import add_op_namespace_prefix, ops
    from .sub.thing import *
    if TYPE_CHECKING:
        import numpy
    try:
        import triton
    except ImportError:
        triton = None

    @torch.library.register_fake(add_op_namespace_prefix("fwd"))
    def _(x): ...

    @torch.library.custom_op(_ops.add_op_namespace_prefix("fwd"), mutates_args=())
    def other(x): ...

    @property
    def no_registration(self): ...

    @torch.library.register_fake
    def no_call(x): ...

    def f(x):
        match x:
            case 1: ...
'''


@pytest.mark.rule("KCI770", "KCI771", "KCI772", "KCI773", triggers=False)
def test_what_kernels_do_is_fine(tmp_path: Path) -> None:
    assert variant(tmp_path, GOOD) == []


@pytest.mark.rule("KCI770", triggers=True)
def test_a_file_that_does_not_parse_is_a_finding_with_its_line(tmp_path: Path) -> None:
    (found,) = variant(tmp_path, "x = 1\ndef f(:\n", file="sub/a.py")
    assert (found.rule, found.line) == ("KCI770", 2)
    assert found.path.endswith("torch-cpu/sub/a.py")


@pytest.mark.rule("KCI770", triggers=True)
@pytest.mark.parametrize("text", ["x = 1\0", "(" * 500, "try: ...\nexcept* ValueError: ..."])
def test_other_text_that_is_no_python_of_3_10(tmp_path: Path, text: str) -> None:
    (found,) = variant(tmp_path, text)
    assert found.rule == "KCI770"


@pytest.mark.rule("KCI771", triggers=True)
@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("import numpy", "numpy"),
        ("import os, einops.layers", "einops.layers"),
        ("from cutlass import cute", "cutlass"),
        ("class A:\n    import numpy", "numpy"),
        ("if True:\n    from numpy import array", "numpy"),
    ],
)
def test_a_foreign_import(tmp_path: Path, text: str, module: str) -> None:
    (found,) = variant(tmp_path, text)
    assert found.rule == "KCI771"
    assert f"imports {module}," in found.message
    assert found.line > 0


@pytest.mark.rule("KCI771", triggers=True)
@pytest.mark.parametrize("text", ["import gated_norm", "from gated_norm.layers import X", "import gated_norm._ops"])
def test_a_kernel_cannot_import_itself_by_name(tmp_path: Path, text: str) -> None:
    (found,) = variant(tmp_path, text)
    assert found.rule == "KCI771"
    assert "import relatively" in found.hint


@pytest.mark.rule("KCI773", triggers=True)
@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import numpy",
        "try:\n    import numpy\nexcept ImportError:\n    pass",
        "async def f():\n    import numpy",
    ],
)
def test_a_foreign_import_that_does_not_run_at_loading_is_a_warning(tmp_path: Path, text: str) -> None:
    (found,) = variant(tmp_path, text)
    assert (found.rule, found.severity) == ("KCI773", "warning")


DECORATORS = ["custom_op", "triton_op", "register_kernel", "register_fake", "register_vmap", "register_torch_dispatch"]


@pytest.mark.rule("KCI772", triggers=True)
@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize("head", ["def f(x):", "async def f(x):", "class F:"])
def test_ops_need_the_prefix(tmp_path: Path, name: str, head: str) -> None:
    (found,) = variant(tmp_path, f'import torch\n@torch.library.{name}("gated_norm::fwd")\n{head} ...\n')
    assert (found.rule, found.line, found.column) == ("KCI772", 2, 2)
    assert "add_op_namespace_prefix" in found.hint


@pytest.mark.rule("KCI772", triggers=True)
@pytest.mark.parametrize(
    "argument", ['f"{add_op_namespace_prefix}::x"', 'wrap("x")', "add_op_namespace_prefix", "name"]
)
def test_only_a_call_of_the_prefix_function_counts(tmp_path: Path, argument: str) -> None:
    assert [item.rule for item in variant(tmp_path, f"@register_fake({argument})\ndef f(x): ...\n")] == ["KCI772"]


@pytest.mark.rule("KCI772", triggers=False)
def test_like_the_reference_only_top_level_decorators_with_arguments_are_seen(tmp_path: Path) -> None:
    text = 'if True:\n    @register_fake("a::b")\n    def f(x): ...\nregister_fake("a::b")(f)\n'
    assert variant(tmp_path, text + "@register_fake(name='a::b')\ndef g(x): ...\n") == []


def kernel(root: Path, text: str = "", *, general: str = "", framework: str = "torch-noarch") -> Path:
    """A kernel directory with one Python file."""
    (root / "build.toml").write_text(
        '[general]\nname = "gated-norm"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu", "cuda"]\n'
        f"{general}\n[{framework}]\n" + ("src = []\n" if framework == "tvm-ffi" else "")
    )
    package = root / ("tvm-ffi-ext" if framework == "tvm-ffi" else "torch-ext") / "gated_norm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(dedent(text))
    return root


@pytest.mark.rule("KCI771", "KCI772", triggers=True)
def test_sources_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert verify(kernel(tmp_path / "a", GOOD)) == []
    (tmp_path / "b").mkdir()
    found = verify(kernel(tmp_path / "b", 'import numpy\n@register_fake("a::b")\ndef f(): ...\n'))
    assert [item.rule for item in found] == ["KCI771", "KCI772"]
    assert found[0].path == f"{tmp_path}/b/torch-ext/gated_norm/__init__.py"


@pytest.mark.rule("KCI703", "KCI771", "KCI774", triggers=False)
def test_declared_dependencies_of_any_backend_may_be_imported(tmp_path: Path) -> None:
    general = 'python-depends = ["einops"]\n[general.cuda]\npython-depends = ["nvidia-cutlass-dsl"]'
    assert verify(kernel(tmp_path, "import einops\nimport cutlass\n", general=general)) == []


def test_tvm_ffi_kernels_may_import_it(tmp_path: Path) -> None:
    for framework, rule in (("tvm-ffi", []), ("torch-noarch", ["KCI771"])):
        (tmp_path / framework).mkdir()
        found = verify(kernel(tmp_path / framework, "import tvm_ffi\n", framework=framework))
        assert [item.rule for item in found] == rule


@pytest.mark.rule("KCI703", "KCI774", triggers=True)
def test_a_package_that_is_missing_or_holds_its_own_name(tmp_path: Path) -> None:
    package = kernel(tmp_path) / "torch-ext" / "gated_norm"
    (package / "gated_norm.py").write_text("")
    assert [item.rule for item in verify(tmp_path)] == ["KCI703"]
    (package / "__init__.py").unlink()
    (found,) = verify(tmp_path)
    assert (found.rule, found.path) == ("KCI774", f"{tmp_path}/torch-ext/gated_norm")


def test_a_broken_build_toml_is_reported_as_check_would(tmp_path: Path) -> None:
    kernel(tmp_path)
    (tmp_path / "build.toml").write_text("[general\n")
    (found,) = verify(tmp_path)
    assert found.rule == "KCI004"
