"""docs/house.md against the code: the walks name what is there, and a name belongs to one thing."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from conftest import ROOT, load_script

SOURCE = ROOT / "src" / "kci"
PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")

drawing = load_script("drawing")
weight = load_script("weight")


def modules() -> list[Path]:
    return [
        path for path in sorted(SOURCE.rglob("*.py")) if path.stem not in ("__init__", "__main__")
    ]


def twice(names: Iterable[tuple[str, Path]]) -> dict[str, list[Path]]:
    """The names that are in several modules."""
    by_name = defaultdict(list)
    for name, path in names:
        by_name[name].append(path)
    return {name: paths for name, paths in by_name.items() if len(paths) > 1}


def test_no_two_rooms_have_a_module_of_the_same_name_and_no_two_types() -> None:
    """A command or an action may be called like the one module that does its work."""
    rooms = (path for path in modules() if path.parent.name not in ("cli", "actions"))
    assert twice((path.stem, path) for path in rooms) == {}
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    types = re.compile(r"^ *class (\w+)", re.MULTILINE)
    assert twice((name, path) for path, text in texts.items() for name in types.findall(text)) == {}


def test_a_room_says_what_it_is_for() -> None:
    for room, path in drawing.rooms().items():
        assert drawing.purpose(path).endswith("."), room


def test_the_walks_name_functions_and_types_that_are_there() -> None:
    part = PAGE.partition("## Two walks")[2].partition("\n## ")[0]
    walks = [
        re.findall(r"^\| \d+ \| `([\w.]+)` \|", walk, re.MULTILINE)
        for walk in part.split("\n`kci ")[1:]
    ]
    assert len(walks) == 2
    for hops in walks:
        assert 5 < len(hops) <= 12
        for hop in hops:
            assert callable(pkgutil.resolve_name(f"kci.{hop}")), hop
    text = "".join(path.read_text(encoding="utf-8") for path in modules())
    for name in set(re.findall(r"`([A-Z][a-z]\w*)`", part)) - {"Path"}:
        assert re.search(rf"^(class )?{name}\b( = |\(|:)", text, re.MULTILINE), name


def circles(folder: Path) -> list[list[str]]:
    """The groups of modules that import each other, inside functions and for types too."""
    files = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts): path
        for path in folder.rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (below & files.keys()) or {node.module or ""}
        edges[name] = found & files.keys() - {name}
    while ends := {name for name, found in edges.items() if not found & edges.keys()}:
        edges = {name: found for name, found in edges.items() if name not in ends}
    return [sorted([name, *found & edges.keys()]) for name, found in sorted(edges.items())]


def test_no_two_modules_import_each_other_in_a_circle(tmp_path: Path) -> None:
    assert circles(SOURCE) == []
    (tmp_path / "kci").mkdir()
    (tmp_path / "kci" / "one.py").write_text("def late():\n    from kci.two import x\n")
    (tmp_path / "kci" / "two.py").write_text("if TYPE_CHECKING:\n    import kci.one\n")
    assert circles(tmp_path / "kci") == [["kci.one", "kci.two"], ["kci.one", "kci.two"]]
