# ruff: noqa: E501  - code, a case a line
"""The Python files of a package that becomes a kernel: imports, the names of ops, and what is left to a person."""

from __future__ import annotations

import pytest

from kci.starter.python_package import Moved, moved, python_files


def move(text: str, path: str = "mod.py", **others: str) -> Moved:
    modules = {"pkg_cuda": None, "pkg._C": None}
    files, _ = python_files(
        {path: text, **{f"{name}.py": other for name, other in others.items()}}, "pkg", modules, {"old"}, ["cpu"]
    )
    return moved(text, path, files)


@pytest.mark.parametrize(
    ("text", "path", "written"),
    [
        ("from pkg.utils import a as b, c", "__init__.py", "from .utils import a as b, c"),
        ("from pkg.utils import a", "deep/mod.py", "from ..utils import a"),
        ("from pkg import a", "deep/er/mod.py", "from ... import a"),
        ("import pkg.utils as u", "mod.py", "from . import utils as u"),
        ("import pkg.deep.utils as u", "mod.py", "from .deep import utils as u"),
        ("from .utils import a", "mod.py", "from .utils import a"),
        ("import pkg_cuda", "mod.py", "from ._ops import ops as pkg_cuda"),
        ("import pkg_cuda as k, os", "deep/mod.py", "from .._ops import ops as k; import os"),
        ("from pkg import _C, util", "mod.py", "from ._ops import ops as _C; from . import util"),
        ("from . import _C", "mod.py", "from ._ops import ops as _C"),
        ("from ._C import f", "mod.py", "from ._ops import ops as _kernel_ops; f = _kernel_ops.f"),
        ("import torch\nx = torch.ops.old.f(1)", "mod.py", "from ._ops import ops as _kernel_ops\nimport torch\nx = _kernel_ops.f(1)"),
        ("import torch\nx = torch.ops.aten.f(1)", "mod.py", "import torch\nx = torch.ops.aten.f(1)"),
        ("'é'; from pkg.a import b", "mod.py", "'é'; from .a import b"),
        ("import pkgother\npkgother.x()", "mod.py", "import pkgother\npkgother.x()"),
        ("import pkg.utils\nx = pkg.utils.y", "mod.py", "from . import utils as _pkg_utils\nx = _pkg_utils.y"),
        ("import pkg as p\np.f()", "mod.py", "import importlib; p = importlib.import_module('.', __package__)\np.f()"),
        ("import pkg", "deep/mod.py", "import importlib; pkg = importlib.import_module('..', __package__)"),
        ("def f(:", "mod.py", "def f(:"),
    ],
)  # fmt: skip
def test_imports_are_made_relative(text: str, path: str, written: str) -> None:
    assert move(text, path).text == written


def test_what_loads_a_library_goes() -> None:
    result = move("import torch\nfor x in 'ab':\n    torch.ops.load_library(x)\ny = 1\n", "__init__.py")
    assert result.text == "import torch\npass  # the build of the kernel loads its library\ny = 1\n"
    assert result.left == ()


def test_what_only_finds_the_library_goes_too() -> None:
    text = (
        "from pathlib import Path\nimport torch\ntry:\n    found = next(Path(__file__).parent.glob('_C*'), None)\n"
        "    if found is None:\n        raise StopIteration\nexcept StopIteration:\n    raise ImportError('no library')\n"
        "kept = 1\ntorch.ops.load_library(found)\nprint(kept)\n"
    )
    result = move(text, "__init__.py")
    gone = "pass  # the build of the kernel loads its library\n"
    assert result.text == f"from pathlib import Path\nimport torch\n{gone}kept = 1\n{gone}print(kept)\n"
    assert result.left == ()


@pytest.mark.parametrize("more", ["    y = x\nprint(y)\n", "    register(x)\n"])
def test_what_does_more_than_load_a_library_is_said(more: str) -> None:
    result = move(f"import torch\nfor x in 'ab':\n    torch.ops.load_library(x)\n{more}", "__init__.py")
    assert result.left == ((2, "it loaded a library, which the build does now: look at what else it did"),)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("import numpy as np\ndef f(x):\n    return np.sum(x)", "\ndef f(x):\n    import numpy as np\n    return np.sum(x)"),
        ("import scipy.sparse\ndef f():\n    'Says.'\n    return scipy.sparse.x", "\ndef f():\n    'Says.'\n    import scipy.sparse\n    return scipy.sparse.x"),
        ("from a import b\nclass C:\n    def f(self):\n        def g():\n            return b\n        return g", "\nclass C:\n    def f(self):\n        from a import b\n        def g():\n            return b\n        return g"),
        ("import numpy\ndef f(x): return numpy.sum(x)", "\ndef f(x): import numpy; return numpy.sum(x)"),
        ("import numpy\ndef f(x: 'T') -> numpy.ndarray: pass", "\ndef f(x: 'T') -> 'numpy.ndarray': pass"),
        ("import numpy\ny: numpy.ndarray = 1", "\ny: 'numpy.ndarray' = 1"),
        ("import os; import numpy\ndef f():\n    @numpy.x\n    def g(): pass", "import os; pass\ndef f():\n    import numpy\n    @numpy.x\n    def g(): pass"),
        ("import numpy\nz = 1", "\nz = 1"),
        ("import torch, os\ndef f(): return torch, os", "import torch, os\ndef f(): return torch, os"),
        ("try:\n    import numpy\nexcept ImportError:\n    pass", "try:\n    import numpy\nexcept ImportError:\n    pass"),
        ("import einops\nx = einops", "import einops\nx = einops"),
    ],
)  # fmt: skip
def test_what_may_be_absent_is_imported_where_it_is_used(text: str, written: str) -> None:
    result = move(text)
    assert result.text == written
    assert result.left == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import numpy as np\nx = np.zeros(1)", "line 2 uses it when the file is loaded"),
        ("import numba\n@numba.jit\ndef f(): pass", "line 2 uses it when the file is loaded"),
        ("import numpy as np\ndef f(x=np.pi): pass", "line 2 uses it when the file is loaded"),
        ("import numpy as np\ny = lambda: np.pi", "line 2 uses it when the file is loaded"),
        ("import numpy as np\n@torch.jit.script\ndef f(x): return np.pi", "line 3 uses it in code that a decorator compiles"),
        ("import numpy as np\n@torch.jit.script\nclass C:\n    def f(self): return np.pi", "line 4 uses it in code that a decorator compiles"),
        ("import numpy as np\n@numba.njit(parallel=True)\ndef f(x): return np.pi", "line 3 uses it in code that a decorator compiles"),
        ("import numpy as np\ndef f(np): return np", "line 2 has a parameter of its name"),
        ("import numpy as np\nnp = None", "line 2 gives its name to something else"),
        ("from numpy import *", "it imports everything of it"),
    ],
)  # fmt: skip
def test_an_import_that_cannot_wait_is_left_to_a_person(text: str, why: str) -> None:
    result = move(text)
    assert result.text == text
    ((line, said),) = result.left
    assert (line, said.rpartition("and ")[2]) == (1, why)


def test_what_users_may_import_from_the_package_stays() -> None:
    text = "from numba import jit"
    assert move(text, "__init__.py").text == text


def test_a_curated_package_is_a_dependency() -> None:
    files, depends = python_files({"a.py": "import cutlass.cute, einops, numpy"}, "pkg", {}, set(), ["cuda"])
    assert depends == {"": ["einops"], "cuda": ["nvidia-cutlass-dsl"]}
    assert files.there.allows("cutlass")
    assert files.there.allows("einops")
    assert not files.there.allows("numpy")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('@torch.library.custom_op("pkg::f", mutates_args=())\ndef f(): pass', '@torch.library.custom_op(add_op_namespace_prefix("f"), mutates_args=())\ndef f(): pass'),
        ('torch.library.register_autograd(\n  "old::f", g)', 'torch.library.register_autograd(\n  add_op_namespace_prefix("f"), g)'),
        ("@torch.library.custom_op(f'{NAME}::f')\ndef f(): pass", "@torch.library.custom_op(add_op_namespace_prefix('f'))\ndef f(): pass"),
        ("@torch.library.custom_op(f'new::{NAME}')\ndef f(): pass", "@torch.library.custom_op(add_op_namespace_prefix(f'{NAME}'))\ndef f(): pass"),
    ],
)  # fmt: skip
def test_the_names_of_ops_come_from_the_build(text: str, written: str) -> None:
    assert move(text).text == f"from ._ops import add_op_namespace_prefix\n{written}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('f = looked_up("mine::f")', 'f = looked_up(add_op_namespace_prefix("f"))'),
        ('f = looked_up("other::f")', ""),
        ('f = looked_up("mine::f is missing")', ""),
        ('f = looked_up(f"mine::f{1}")', ""),
    ],
)
def test_an_op_that_is_looked_up_by_its_name_has_that_of_the_build(text: str, written: str) -> None:
    registers = '@torch.library.custom_op("mine::f", mutates_args=())\ndef f(): pass'
    wanted = f"from ._ops import add_op_namespace_prefix\n{written}" if written else text
    assert move(text, other=registers).text == wanted


def test_ops_that_other_files_register_are_those_of_the_build() -> None:
    result = move("x = torch.ops.mine.f", other='@torch.library.custom_op("mine::f", mutates_args=())\ndef f(): pass')
    assert result.text == "from ._ops import ops as _kernel_ops\nx = _kernel_ops.f"


@pytest.mark.parametrize("name", ["forward", '"aten::add"', 'NAME + "::f"'])
def test_the_name_of_an_op_that_kci_cannot_change_is_said(name: str) -> None:
    text = f"@torch.library.register_fake({name})\ndef f(): pass"
    result = move(text)
    assert result.text == text
    assert result.left == ((1, "its op's name comes from elsewhere: give it through add_op_namespace_prefix"),)


def test_a_module_of_the_name_that_the_build_takes_gets_another() -> None:
    files, _ = python_files({"_ops.py": "", "mod.py": ""}, "pkg", {}, set(), ["cpu"])
    assert moved("from ._ops import f", "mod.py", files).text == "from ._own_ops import f"
    assert moved("from pkg._ops import f", "deep/mod.py", files).text == "from .._own_ops import f"
    assert move("from ._ops import f").text == "from ._ops import f"
