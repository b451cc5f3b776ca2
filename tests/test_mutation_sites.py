"""What bin/mutate_random.py changes: behaviour, one place at a time, and not what is said or declared."""

from __future__ import annotations

import ast
import sys
from textwrap import dedent

import pytest

from conftest import ROOT, load_script

SITES = load_script("mutation_sites")


def changed(source: str) -> list[str]:
    """The source with each change."""
    raw = dedent(source).strip().encode()
    return [(raw[: site.begin] + site.new.encode() + raw[site.end :]).decode() for site in SITES.sites(raw.decode())]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a < b", ["(a) <= (b)"]),
        ("a not in b", ["(a) in (b)"]),
        ("a and b or c", ["((a) or (b)) or c", "((a and b) and (c))"]),
        ("not a", ["(a)"]),
        ("ä = 3", ["ä = 4"]),
        ("a = True", ["a = False"]),
        ("a = min(b)", ["a = max(b)"]),
        ("a(b)", ["pass"]),
        ("raise a", ["pass"]),
        ("a += b", ["pass"]),
        ("if a: b", ["if (not (a)): b"]),
        ("a = [b for b in c if d]", ["a = [b for b in c if True]"]),
        ("def a():\n    return b", ["def a():\n    return None"]),
        ("for a in b: continue", ["for a in b: break"]),
        ("for a in b: break", ["for a in b: pass"]),
    ],
)
def test_behaviour_is_changed(source: str, wanted: list[str]) -> None:
    assert changed(source) == wanted


def test_what_is_said_or_declared_stays() -> None:
    assert not changed(
        '''
        """Text, 3."""
        __all__ = ["a" == "b"]
        if TYPE_CHECKING:
            import a
        @decorated(True)
        class A(B, frozen=True):
            """Text, 3."""
            a: Literal[3]
        def f(a: Literal[True]) -> Literal[3]:
            assert a == 3
            b = f"{a == 3}"
            return "c"
        '''
    )


def test_a_change_knows_its_function_as_python_names_it() -> None:
    made = SITES.sites(
        "class A:\n    b = 1\n    def f(self):\n        def g():\n            return [c for c in d if c]\n"
    )
    assert [site.function for site in made] == ["", "A.f.<locals>.g", "A.f.<locals>.g"]


@pytest.mark.parametrize("file", ["config/reader.py", "publish/upload.py"])
def test_every_change_of_real_code_is_another_program(file: str) -> None:
    source = (ROOT / "src" / "kci" / file).read_text(encoding="utf-8")
    programs = {ast.dump(ast.parse(text)) for text in (source, *changed(source))}
    assert len(programs) == len(changed(source)) + 1


def test_what_no_test_executes_is_tried_with_the_tests_of_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process runs is not noted; all tests of the project would take an hour for each such change."""
    monkeypatch.setitem(sys.modules, "mutation_sites", SITES)
    trials = object.__new__(load_script("mutate_random").Trials)
    trials.seconds = {
        "tests/plan/a.py::a": 1.0,
        "tests/run/b.py::slow": 9.0,
        "tests/run/b.py::b": 2.0,
        "tests/run/c.py::c": 3.0,
    }
    trials.functions = {"run/c.py:known": ["tests/plan/a.py::a"]}
    room = ["tests/run/c.py::c", "tests/run/b.py::b", "tests/run/b.py::slow"]
    assert list(trials.tests("run/c.py", SITES.Site("unknown", 1, 0, 1, ""))) == [room]
    assert list(trials.tests("run/c.py", SITES.Site("known", 1, 0, 1, ""))) == [["tests/plan/a.py::a"], room]
