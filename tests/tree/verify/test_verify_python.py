"""The rules about Python files, in variants and in sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from conftest import ids, only, write_noarch
from kci.diagnostics import Diagnostic
from kci.tree.verify import verify
from variants import CPU, make_variant


def variant(
    root: Path, text: str, name: str = "torch-cpu", file: str = "__init__.py", **others: str
) -> list[Diagnostic]:
    """The findings about a variant whose `file` has this text; `a__b="..."` adds the file
    `a/b.py`.
    """
    files: dict[str, str | bytes] = {"__init__.py": "", "_ops.py": OPS}
    files |= {
        f"{key if '/' in key else key.replace('__', '/')}.py": dedent(other)
        for key, other in others.items()
    }
    made = make_variant(root, name, files=files | {file: dedent(text)})
    return verify(made, select=["KCI77", "KCI78", "KCI724"])


CHECKING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
OPS = "ops = None\ndef add_op_namespace_prefix(name): return name\n"


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

'''
OTHERS = {"layers": "", "sub__thing": ""}


@pytest.mark.rule(
    "KCI724", "KCI770", "KCI771", "KCI772", "KCI773", "KCI776", "KCI780",
    "KCI783", "KCI781", triggers=False,
)  # fmt: skip
def test_what_kernels_do_is_fine(tmp_path: Path) -> None:
    assert variant(tmp_path, GOOD, **OTHERS) == []


@pytest.mark.rule("KCI770", triggers=True)
def test_a_file_that_does_not_parse_is_a_finding_where_python_says(tmp_path: Path) -> None:
    found = only(variant(tmp_path, "x = 1\né = 1; def f(:\n", file="sub/a.py"), "KCI770")
    assert (found.line, found.column) == (2, 8)
    assert found.path.endswith("torch-cpu/sub/a.py")


@pytest.mark.rule("KCI770", triggers=True)
@pytest.mark.parametrize("text", [
    "x = 1\0", "(" * 500, "-" * 100_000 + "1", "try: ...\nexcept* ValueError: ...", "a[*b]",
    "a[b, *c,]", "a[(b), *c]", "def f(*a: *B): ...",
])  # fmt: skip
def test_other_text_that_is_no_python_of_3_10(tmp_path: Path, text: str) -> None:
    only(variant(tmp_path, text), "KCI770")


@pytest.mark.rule("KCI771", triggers=True)
@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("import numpy", "numpy"),
        ("import os, einops.layers", "einops.layers"),
        ("from cutlass import cute", "cutlass"),
        ("class A:\n    import numpy", "numpy"),
        ("if True:\n    from numpy import array", "numpy"),
        (f"{CHECKING}    pass\nelse:\n    import numpy", "numpy"),
    ],
)
def test_a_foreign_import(tmp_path: Path, text: str, module: str) -> None:
    found = only(variant(tmp_path, text), "KCI771", f"imports {module},")
    assert (found.severity, found.line > 0) == ("error", True)
    assert "`python-depends` can name" in found.hint


@pytest.mark.rule("KCI771", triggers=True)
@pytest.mark.parametrize(
    "text", ["import gated_norm", "from gated_norm.layers import X", "import gated_norm._ops"]
)
def test_a_kernel_cannot_import_itself_by_name(tmp_path: Path, text: str) -> None:
    assert "import relatively" in only(variant(tmp_path, text), "KCI771").hint


@pytest.mark.rule("KCI771", triggers=False)
@pytest.mark.parametrize(
    "registered",
    [
        'sys.modules["gated_norm"] = sys.modules[__name__]',
        'sys.modules.setdefault("gated_norm", sys.modules[__name__])',
    ],
)
def test_a_kernel_can_import_a_name_that_it_registers(tmp_path: Path, registered: str) -> None:
    assert variant(tmp_path, f"import sys\n{registered}\nimport gated_norm\n") == []


@pytest.mark.rule("KCI771", triggers=True)
def test_a_name_that_is_registered_in_a_function_is_not_there_at_loading(tmp_path: Path) -> None:
    late = "def f():\n    sys.modules['gated_norm'] = sys.modules[__name__]\n"
    only(variant(tmp_path, f"import sys\n{late}import gated_norm\n"), "KCI771")


@pytest.mark.rule("KCI773", triggers=True)
@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import numpy",
        "try:\n    import numpy\nexcept ImportError:\n    pass",
        "async def f():\n    import numpy",
    ],
)
def test_a_foreign_import_that_loading_does_not_run_is_a_warning(tmp_path: Path, text: str) -> None:
    found = only(variant(tmp_path, text), "KCI773")
    assert found.severity == "warning"
    told = "say why it may be absent in [[lint.ignore]] of kci.toml, or do without"
    assert found.hint.startswith(told)


DECORATORS = ["custom_op", "triton_op"]
DECORATORS += [f"register_{what}" for what in ("kernel", "fake", "vmap", "torch_dispatch")]


@pytest.mark.rule("KCI772", triggers=True)
@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize("head", ["def f(x):", "async def f(x):", "class F:"])
def test_ops_need_the_prefix(tmp_path: Path, name: str, head: str) -> None:
    text = f'import torch\n@torch.library.{name}("gated_norm::fwd")\n{head} ...\n'
    found = only(variant(tmp_path, text), "KCI772")
    assert (found.line, found.column) == (2, 2)
    assert "add_op_namespace_prefix" in found.hint


NO_CALL = ['"fwd"', 'f"{add_op_namespace_prefix}::x"', "add_op_namespace_prefix", "name"]
FIXED = [
    "if True:\n    @register_fake('a::b')\n    def f(x): ...\n",
    "import torch as t\nt.library.custom_op('relu::x', f, mutates_args=())\n",
    "from torch.library import Library\nl = Library('relu', 'DEF')\n",
    "def late():\n    torch.library.define('relu::x', '() -> ()')\n",
]
FIXED += [f"@register_fake({argument})\ndef f(x): ...\n" for argument in NO_CALL]


@pytest.mark.rule("KCI772", triggers=True)
@pytest.mark.parametrize("text", FIXED)
def test_a_fixed_name_is_seen_anywhere_a_call_gives_a_prefix(tmp_path: Path, text: str) -> None:
    only(variant(tmp_path, text), "KCI772")


PREFIXED = """
    from ._ops import add_op_namespace_prefix, ops
    @triton_op({}("x"), mutates_args=())
    def f(x): ...
"""
HELPER = """
    try:
        from ._ops import add_op_namespace_prefix
    except ImportError:
        def add_op_namespace_prefix(name):
            return {}
"""


@pytest.mark.rule("KCI779", triggers=True)
@pytest.mark.parametrize(
    ("text", "line"), [
        (PREFIXED.format("own"), 3), (PREFIXED.format("names.own"), 3), (PREFIXED.format("str"), 3),
        (HELPER.format("'gated_norm::' + name"), 5), (HELPER.format("f'gated_norm::{name}'"), 5),
        (HELPER.format("'::'.join(('gated_norm', name))"), 5),
    ],
)  # fmt: skip
def test_a_prefix_function_that_may_be_another_s(tmp_path: Path, text: str, line: int) -> None:
    found = only(variant(tmp_path, text), "KCI779")
    assert (found.severity, found.line) == ("warning", line)


@pytest.mark.rule("KCI779", triggers=False)
@pytest.mark.parametrize("text", [
    PREFIXED.format("add_op_namespace_prefix"),
    PREFIXED.format("_ops.torch_add_op_namespace_prefix"),
    HELPER.format("own('sub__' + name)"),
])  # fmt: skip
def test_a_prefix_function_may_come_through_another_file(tmp_path: Path, text: str) -> None:
    assert variant(tmp_path, text) == []


FINE = [
    'import torch\nlib = torch.library.Library("aten", "IMPL")\nlib.impl("relu", f)\n',
    "import torch\ndef f(op):\n    torch.library.register_fake(op)(g)\n",
    "import torch\ntorch.library.impl('aten::relu', 'CPU', g)\n",
    'def custom_op(name): ...\ncustom_op("relu")\nprint("relu::x")\n',
    "import torch\ntorch.ops.aten.relu(x)\ntorch.ops.other.relu(x)\n",
]


@pytest.mark.rule("KCI772", "KCI780", triggers=False)
@pytest.mark.parametrize("text", FINE)
def test_what_only_looks_like_a_fixed_name(tmp_path: Path, text: str) -> None:
    assert variant(tmp_path, text) == []


@pytest.mark.rule("KCI780", triggers=True)
def test_ops_looked_up_under_a_fixed_namespace(tmp_path: Path) -> None:
    only(variant(tmp_path, "import torch\ny = torch.ops.gated_norm.fwd(x)\n"), "KCI780")


SUPPRESS = "from contextlib import suppress\nwith suppress(%s):\n    from .gone import x"


@pytest.mark.rule("KCI776", triggers=True)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from .nothing_here import y", "there is no module nothing_here"),
        ("from . import nothing_here", "the package has no nothing_here"),
        ("from .. import x", ".. is beyond the package"),
        ("from .sub import y, x", "sub has no y"),
        ("from .sub.deep import x", "there is no module sub.deep"),
        ("if True:\n    from .gone import x", "there is no module gone"),
        ("class A:\n    from .gone import x", "there is no module gone"),
        ("from . import inner", "there is no module gone"),
        (SUPPRESS % "ValueError", "no module gone"),
        ("from .lib import __z", "lib has no __z"),
    ],
)
def test_a_relative_import_that_leads_nowhere(tmp_path: Path, text: str, reason: str) -> None:
    files = {"sub": "x = 1\n", "inner": "from .gone import x\n", "lib/__init__": "x = 2\n"}
    found = [item for item in variant(tmp_path, text, **files) if item.rule == "KCI776"]
    assert only(found, "KCI776", reason).severity == "error"


@pytest.mark.rule("KCI770", triggers=False)
def test_a_tuple_in_parentheses_could_always_unpack(tmp_path: Path) -> None:
    assert variant(tmp_path, "a = b = {}\na[(*b,)], a[ (1, *b) ], a[1, (*b,)], a[max(*b)]\n") == []


@pytest.mark.rule("KCI776", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from .gone import x\nexcept ImportError:\n    x = None",
        SUPPRESS % "ImportError",
        "def f():\n    from .gone import x",
        "from .dynamic import anything",
        "from .star import anything",
        "from . import native_id",
        "from . import sub as other\nfrom . import again",
        f"{CHECKING}    from .gone import x",
        "from .sub import __doc__, x",
        "name = 1\nfrom .__init__ import name",
        "import sys\nif sys.version_info >= (3, 9):\n    from .gone import x",
    ],
)
def test_a_relative_import_that_works_or_need_not(tmp_path: Path, text: str) -> None:
    files = {
        "__init__.py": text, "sub.py": "x = 1\n", "dynamic.py": "def __getattr__(name): ...\n",
        "star.py": "from torch import *\n", "native_id.abi3.so": "",
        "again.py": "from . import other\n",
    }  # fmt: skip
    assert "KCI776" not in ids(verify(make_variant(tmp_path, CPU, files=files)))


@pytest.mark.rule("KCI771", "KCI773", triggers=False)
def test_what_the_loader_torch_and_dependencies_bring_may_be_imported(tmp_path: Path) -> None:
    text = """
        import packaging.version, huggingface_hub, sympy, yaml, triton.language
        from cuda.bindings import driver
        from cuda import bindings
        from distutils import core
    """
    assert variant(tmp_path, text, "torch-cuda") == []


@pytest.mark.rule("KCI771", triggers=True)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("torch-cpu", "triton"), ("torch-metal", "triton.language"), ("torch-neuron", "triton"),
        ("torch-rocm", "cuda.bindings"), ("torch-cpu", "cuda.pathfinder"),
    ],
)  # fmt: skip
def test_what_torch_brings_for_some_backends_alone(tmp_path: Path, name: str, module: str) -> None:
    found = variant(tmp_path, "from . import a\n", name, a=f"import {module}\nimport {module}\n")
    said = f"imports {module}, which torch for {name.removeprefix('torch-')} does not bring"
    assert only(found, "KCI771", said).line == 1, "the first one, and that once"


@pytest.mark.rule("KCI771", "KCI773", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        "def late():\n    import triton\n",
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n",
        "import torch\nif torch.cuda.is_available():\n    import triton\n",
    ],
)
def test_a_package_may_ask_first(tmp_path: Path, text: str) -> None:
    assert variant(tmp_path / "variant", text) == []
    assert verify(kernel(tmp_path / "kernel", text)) == []
    for backend in ("cuda", "rocm", "xpu"):
        assert variant(tmp_path / backend, "import triton\n", f"torch-{backend}") == []


@pytest.mark.rule("KCI724", triggers=True)
def test_a_generated_module_about_another_build(tmp_path: Path) -> None:
    right = "import torch\nops = torch.ops._gated_norm_cpu_1a2b3c4\n"
    assert variant(tmp_path / "a", right, file="_ops.py") == []
    found = variant(tmp_path / "b", right.replace("1a2b3c4", "9999999"), file="_ops.py")
    only(found, "KCI724", "_gated_norm_cpu_9999999")


CPP = {
    "TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {}": False,
    "TORCH_LIBRARY_IMPL(aten, CPU, m) {}": False,
    "TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) {}": False,
    "TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) {}": False,
    "#define TORCH_LIBRARY_EXPAND(NAME, M) \\\n  TORCH_LIBRARY(NAME, M)": False,
    "// TORCH_LIBRARY(relu, m)": False,
    'const char* s = "TORCH_LIBRARY(relu, m)";': False,
    "TORCH_LIBRARY(relu, m) {}": True,
    "/* x */ TORCH_LIBRARY_FRAGMENT( relu, m) {}": True,
    "STABLE_TORCH_LIBRARY_IMPL(relu, CPU, m) {}": True,
    "TORCH_LIBRARY_IMPL_EXPAND(relu, CPU, m) {}": True,
}


@pytest.mark.rule("KCI781", triggers=True)
def test_a_literal_namespace_in_c_plus_plus(tmp_path: Path) -> None:
    for number, (text, wrong) in enumerate(CPP.items()):
        root = kernel(tmp_path / str(number), framework="torch", more='src = ["torch-ext/b.cpp"]')
        (root / "torch-ext" / "b.cpp").write_text(f"#include <x>\n{text}\n")
        found = [item for item in verify(root) if item.rule.startswith("KCI7")]
        place = [("KCI781", f"{root}/torch-ext/b.cpp", 2)] if wrong else []
        assert [(item.rule, item.path, item.line) for item in found] == place, text


LOADS = {
    'from kernels import get_kernel\nget_kernel("acme/gated-norm", version=2)': 2,
    'import kernels\nkernels.get_kernel(version=2, repo_id="acme/gated-norm")': 2,
    'from kernels import LayerRepository as L\nL("acme/gated-norm", layer_name="X", version=3)': 2,
    'from kernels import get_kernel\nget_kernel("acme/gated-norm", version=1)': 0,
    'from kernels import get_kernel\nget_kernel("acme/other", version=2)': 0,
    "from kernels import get_kernel\nget_kernel(*names, version=version, **more)": 0,
    "kernels version def f(:": 0,
}


@pytest.mark.rule("KCI783", triggers=True)
@pytest.mark.parametrize(("text", "line"), LOADS.items())
def test_a_test_that_loads_another_version(tmp_path: Path, text: str, line: int) -> None:
    root = kernel(tmp_path)
    (root / "tests" / "more").mkdir(parents=True)
    other = 'from kernels import get_kernel\nget_kernel("a/gated-norm", version=9)\n'
    (root / "tests" / "test_a.py").write_text(other)
    (root / "tests" / "more" / "test_b.py").write_text(text)
    found = [item for item in verify(root) if item.rule.startswith("KCI7")]
    assert [(item.rule, item.path, item.line) for item in found if "test_b" in item.path] == (
        [("KCI783", f"{root}/tests/more/test_b.py", line)] if line else []
    )
    assert len(found) == 1 + bool(line)


def kernel(
    root: Path, text: str = "", *, general: str = "", framework: str = "torch-noarch",
    more: str = "", backends: Sequence[str] = ("cpu", "cuda"),
) -> Path:  # fmt: skip
    """A kernel directory with one Python file."""
    write_noarch(root, "gated-norm", backends, f"{general}\n", dedent(text))
    build = (root / "build.toml").read_text().replace("torch-noarch", framework)
    (root / "build.toml").write_text(build + more)
    return root


@pytest.mark.rule("KCI771", "KCI772", triggers=True)
def test_sources_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    package = kernel(tmp_path / "a", GOOD) / "torch-ext" / "gated_norm"
    (package / "sub").mkdir()
    for name in ("layers.py", "sub/thing.py"):
        (package / name).write_text("")
    assert verify(tmp_path / "a") == []
    found = verify(kernel(tmp_path / "b", 'import numpy\n@register_fake("a::b")\ndef f(): ...\n'))
    assert ids(found) == ["KCI771", "KCI772"]
    assert found[0].path == f"{tmp_path}/b/torch-ext/gated_norm/__init__.py"


@pytest.mark.rule("KCI703", "KCI771", "KCI774", triggers=False)
def test_declared_dependencies_of_any_backend_may_be_imported(tmp_path: Path) -> None:
    general = 'python-depends = ["einops"]\n[general.cuda]\npython-depends = ["nvidia-cutlass-dsl"]'
    text = "import einops\ndef late():\n    import cutlass\n"
    assert verify(kernel(tmp_path, text, general=general)) == []


@pytest.mark.rule("KCI771", triggers=True)
def test_a_package_is_loaded_on_each_of_its_backends(tmp_path: Path) -> None:
    text = "import triton\nimport triton.language as tl\nimport cutlass\nimport jax\n"
    general = '[general.cuda]\npython-depends = ["nvidia-cutlass-dsl"]'
    backends = ["cpu", "cuda", "metal", "tpu"]
    found = verify(kernel(tmp_path, text, general=general, backends=backends))
    assert ids(found) == ["KCI771"] * 3
    lacking = [item.message.partition(" for ")[2].partition(" does")[0] for item in found]
    assert lacking == ["cpu, metal, tpu", "cpu, metal, tpu", "cpu, cuda, metal"]
    assert [item.line for item in found] == [1, 3, 4]


@pytest.mark.rule("KCI703", "KCI774", triggers=True)
def test_a_package_that_is_missing_or_holds_its_own_name(tmp_path: Path) -> None:
    package = kernel(tmp_path) / "torch-ext" / "gated_norm"
    (package / "gated_norm.py").write_text("")
    assert verify(tmp_path) == []
    (package / "gated_norm").mkdir()
    only(verify(tmp_path), "KCI703")
    (package / "__init__.py").unlink()
    found = only(verify(tmp_path), "KCI774", "torch-ext/gated_norm/__init__.py")
    assert found.path == f"{tmp_path}/build.toml"


@pytest.mark.rule("KCI766", triggers=True)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("_ops.abi3.so", "_ops.py"),
        ("_ops.so", "_ops.py"),
        ("_ops.cpython-312-x86_64-linux-gnu.so", "_ops.py"),
        ("_ops.cpython-312-x86_64-linux-gnu.so", "_ops.abi3.so"),
        ("_ops.abi3.so", "_ops.so"),
        ("_ops.cp312-win_amd64.pyd", "_ops.pyd"),
        ("_ops/__init__.py", "_ops.py"),
        ("_ops/__init__.py", "_ops.abi3.so"),
        ("layers/norm.so", "layers/norm.py"),
        ("__init__.abi3.so", "__init__.py"),
    ],
)
def test_a_file_imported_in_place_of_another(tmp_path: Path, first: str, second: str) -> None:
    files = dict.fromkeys(["__init__.py", first, second], "")
    found = only(verify(make_variant(tmp_path, CPU, files=files), select=["KCI766"]), "KCI766")
    assert found.path.endswith(f"/{second}")
    assert found.message.startswith(f"{first} is imported in its place")


@pytest.mark.rule("KCI766", triggers=False)
def test_files_of_other_names_shadow_nothing(tmp_path: Path) -> None:
    native = [f"a.cpython-{version}-x86_64-linux-gnu.so" for version in (311, 312)]
    names = ["b.py", "b.pyi", "b.txt", "c/d.py", "c.py", "libe.so.1", "libe.py", "__init__.py"]
    files = dict.fromkeys(native + names, "")
    assert verify(make_variant(tmp_path, CPU, files=files), select=["KCI766"]) == []
