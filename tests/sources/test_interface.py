"""What a change takes away from the users of a kernel, by its sources."""

from __future__ import annotations

import ast
import builtins
import sys

import pytest

from kci.diagnostics import Span
from kci.errors import FindingsError, MissingToolError
from kci.sources.imports import span_of
from kci.sources.interface import Change, compare_interfaces

INIT = "torch-ext/silu/__init__.py"


def changes(old: str | dict[str, str], new: str | dict[str, str]) -> list[Change]:
    sides = [{INIT: side} if isinstance(side, str) else side for side in (old, new)]
    return compare_interfaces("silu", *({path: text.encode() for path, text in side.items()} for side in sides))


def breaking(old: str | dict[str, str], new: str | dict[str, str]) -> list[tuple[str, str]]:
    return [(item.name, item.what) for item in changes(old, new) if item.breaking]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def f(x): ...", "", "is gone"),
        ("def f(x, y=1): ...", "def f(x): ...", "has no parameter `y` any more"),
        ("def f(x): ...", "def f(x, y): ...", "needs the new parameter `y`"),
        ("def f(x, y=1): ...", "def f(x, y): ...", "needs the parameter `y`, which had a default"),
        ("def f(x, y): ...", "def f(y, x): ...", "has `y` at another position; has `x` at another position"),
        ("def f(x): ...", "def f(*, x): ...", "takes `x` keyword-only, and took it positional or keyword"),
        ("def f(x): ...", "class f: ...", "is a class and was a function"),
    ],
)
def test_what_breaks_a_call(old: str, new: str, said: str) -> None:
    ((name, what),) = breaking(old, new)
    assert name == "f"
    assert sorted(what.split("; ")) == sorted(said.split("; "))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(x): ...", "def f(x, y=1): ..."),
        ("def f(x): ...", "def f(x, *, y=1): ..."),
        ("def f(x): ...", "def f(x):\n    return x"),
        ("def f(x: int) -> int: ...", "def f(x: float): ..."),
        ("def _f(x): ...", ""),
        ("import os\ndef f(): ...", "def f(): ..."),
        ("from torch import nn\n", "import torch\n"),
        ("__all__ = ['f']\ndef f(): ...\ndef g(): ...", "__all__ = ['f']\ndef f(): ..."),
        ("VALUE = 1", "VALUE = 2"),
        ("class A:\n    def __init__(self):\n        self.x = 1", "class A:\n    def __init__(self): ..."),
        ("from ._ops import ops\n", "from ._ops import ops, add_op_namespace_prefix\n"),
        ("f = None", "def f(): ..."),
    ],
)
def test_what_breaks_no_call(old: str, new: str) -> None:
    assert breaking(old, new) == []


def test_names_of_other_files_count_where_the_package_shows_them() -> None:
    """`from .silu import silu` gives the function, although a submodule has that name too."""
    old = {INIT: "from .silu import silu\nfrom . import layers\n",
           "torch-ext/silu/silu.py": "def silu(x, out): ...\ndef hidden(): ...\n",
           "torch-ext/silu/layers.py": "class Silu:\n    def forward(self, x): ...\n    def _own(self): ...\n",
           "torch-ext/silu/tools.py": "def tool(): ...\n"}  # fmt: skip
    new = {INIT: old[INIT], "torch-ext/silu/silu.py": "def silu(x): ...\n",
           "torch-ext/silu/layers.py": "class Silu:\n    def forward(self, x, scale): ...\n"}  # fmt: skip
    assert breaking(old, new) == [
        ("layers.Silu.forward", "needs the new parameter `scale`"),
        ("silu", "has no parameter `out` any more"),
    ]


def test_what_left_the_list_of_public_names_is_still_there() -> None:
    """`kernel.layers.f` works as before; only `import *` does not bring it."""
    layers, init = "torch-ext/silu/layers.py", "from . import layers\n"
    sides = [{INIT: init, layers: f"__all__ = {names}\ndef f(): ...\ndef g(): ...\n"} for names in (["f", "g"], ["g"])]
    assert changes(*sides) == [Change("layers.f", "left `__all__`, and is still there", False)]
    other = {INIT: init, layers: "__all__ = ['g']\ndef f(x): ...\ndef g(): ...\n"}
    assert breaking(sides[0], other) == [("layers.f", "needs the new parameter `x`")]
    gone = {INIT: init, layers: "__all__ = ['g']\ndef g(): ...\n"}
    assert breaking(sides[0], gone) == [("layers.f", "is gone")]


def test_what_a_base_of_the_package_gives_a_class_is_its_own() -> None:
    old = "class Base:\n    def forward(self, x): ...\nclass A(Base): ...\n__all__ = ['A']\n"
    assert breaking(old, old.replace("(self, x)", "(self)")) == [("A.forward", "has no parameter `x` any more")]


def test_defaults_and_additions_are_told_and_break_nothing() -> None:
    found = changes("def f(x=1): ...", "def f(x=2): ...\ndef g(): ...")
    assert found == [Change("f", "has 2 as the default of `x`, and had 1", False), Change("g", "is new", False)]


CPP = """
TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // ops.def("gone(Tensor x) -> ()");
  ops.def("silu(Tensor! out, Tensor x, "
          "float scale=1.0) -> ()");
  m.def("inferred", &inferred);
}
"""
WITH_OPS = "from ._ops import ops\n"


def ops(new: str, init: str = WITH_OPS) -> list[Change]:
    file = "torch-ext/torch_binding.cpp"
    return changes({INIT: init, file: CPP}, {INIT: init, file: new})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("silu(", "silu2(", "is gone"),
        ("Tensor x, ", "Tensor x, int n, ", "does not take `float scale=1.0` as before"),
        ("=1.0", "", "needs `float scale`, which had a default"),
        ("float scale=1.0", "float scale=1.0, int n", "needs the new parameter `int n`"),
        ("-> ()", "-> Tensor", "returns Tensor, and returned ()"),
    ],
)
def test_schemas_of_operators(old: str, new: str, said: str) -> None:
    text = CPP.replace(old, new, 1) if old != "-> ()" else CPP.replace("1.0) -> ()", "1.0) -> Tensor")
    found = [item for item in ops(text) if item.name == "ops.silu"]
    assert found == [Change("ops.silu", said, True)]
    hidden = ops(text, "from ._ops import ops\n__all__ = []\n")
    assert [item.breaking for item in hidden if item.name == "ops.silu"] == [False], "nobody reaches it by a name"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Tensor! out", "Tensor(a!) out"),
        ("float scale=1.0", "float scale=1.0, int n=0"),
        ("float scale=1.0", "float  scale = 1.0"),
        ("// ops.def", "//"),
        ('m.def("inferred"', 'm.def("inferred(Tensor x) -> Tensor"'),
    ],
)
def test_schemas_that_take_what_they_took(old: str, new: str) -> None:
    assert [item for item in ops(CPP.replace(old, new)) if item.breaking] == []


def test_a_name_that_is_imported_on_one_side_is_there_on_both() -> None:
    imported, own = "from ._ops import ops\n", "class _Ops: ...\nops = _Ops()\n"
    assert changes(imported, own) == changes(own, imported) == []
    assert changes("from math import sqrt\n", "def sqrt(x): ...\n") == []


def test_an_operator_that_only_some_builds_register_otherwise() -> None:
    """A second registration, of stable ABI for example: it takes no more, it returns something else there."""
    again = "STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {\n"
    again += '  ops.def("silu(Tensor! out, Tensor x, float scale=1.0)'
    (found,) = ops(f'{CPP}{again} -> Tensor");\n}}\n')
    assert found == Change("ops.silu", "returns Tensor in some builds, and returned ()", True)
    assert ops(f'{CPP}{again} -> ()");\n}}\n') == []
    (more,) = ops(f'{CPP}{again.replace("scale=1.0", "scale=1.0, int n=0")} -> ()");\n}}\n')
    assert more == Change("ops.silu", "takes more than before", False)


@pytest.mark.parametrize("text", ["def f(:", "\0"])
def test_a_package_that_cannot_be_read_is_no_good_news(text: str) -> None:
    with pytest.raises(FindingsError, match="the interface of silu cannot be read"):
        changes("def f(): ...", text)


def test_without_the_package_there_is_nothing_to_compare() -> None:
    with pytest.raises(FindingsError, match="the interface of silu cannot be read"):
        changes("def f(): ...", {"torch-ext/other/__init__.py": ""})


def test_griffe_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", None)
    with pytest.raises(MissingToolError) as caught:
        changes("def f(): ...", "")
    assert "kci[api]" in caught.value.hint


def test_nothing_of_the_package_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(builtins, "KCI_RAN", raising=False)
    text = "import builtins\nbuiltins.KCI_RAN = True\nraise SystemExit\n"
    assert changes(text, text + "def f(): ...\n") == [Change("f", "is new", False)]
    assert not hasattr(builtins, "KCI_RAN")


def test_a_place_is_the_first_line_of_what_stands_there() -> None:
    one, more = ast.parse("name = 1\n  \nif name:\n    call(\n        1)\n").body
    assert (span_of(one), span_of(more)) == (Span(1, 1, 1, 9), Span(3, 1, 3, 2))
