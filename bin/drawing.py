"""The drawing of the rooms in docs/house.md, made from the imports that are really there.

`bin/gen_docs.py` writes it between the markers of the page.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kci"
BEGIN, END = "<!-- drawn by bin/gen_docs.py: begin -->", "<!-- drawn by bin/gen_docs.py: end -->"
NO_ROOMS = {"__init__", "__main__"}
"""The package itself: its version is read everywhere, and nothing in it is a room."""


def layers() -> list[list[str]]:
    """The rooms of the import contract in pyproject.toml, highest first; rooms on one level may not
    see each other.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (contract,) = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]


def rooms(source: Path = SOURCE) -> dict[str, Path]:
    """The rooms that are there, with the file that says what each is: packages and modules right
    below kci.
    """
    found = {path.parent.name: path for path in source.glob("*/__init__.py")}
    found |= {path.stem: path for path in source.glob("*.py") if path.stem not in NO_ROOMS}
    return dict(sorted(found.items()))


def imports(source: Path = SOURCE) -> dict[str, set[str]]:
    """Which rooms each room imports, function-local imports included."""
    known = rooms(source)
    found: dict[str, set[str]] = {room: set() for room in known}
    for path in source.rglob("*.py"):
        first = path.relative_to(source).parts[0]
        room = first.removesuffix(".py")
        if room not in known:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node):
                if target in known and target != room:
                    found[room].add(target)
    return found


def _targets(node: ast.AST) -> list[str]:
    """The names right below kci that a statement imports."""
    match node:
        case ast.ImportFrom(module="kci", level=0):
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module), level=0) if module.startswith("kci."):
            return [module.split(".")[1]]
        case ast.Import():
            return [
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("kci.")
            ]
    return []


def arrows(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports without those that follow from others: what is left can be drawn without a
    thicket.
    """

    def reach(room: str) -> set[str]:
        below: set[str] = set()
        waiting = [*edges[room]]
        while waiting:
            if (other := waiting.pop()) not in below:
                below.add(other)
                waiting += edges[other]
        return below

    kept = []
    for room, targets in edges.items():
        for target in targets:
            if not any(target in reach(other) for other in targets - {target}):
                kept.append((room, target))
    return sorted(kept)


def drawing() -> str:
    """The generated part of the page: the drawing, and a table of the rooms."""
    edges = imports()
    level = {room: number for number, layer in enumerate(layers()) for room in layer}
    order = sorted(edges, key=lambda room: (level.get(room, 99), room))
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {room}" for room in order]
    lines += [
        f"    {room} --> {target}" for room in order for one, target in arrows(edges) if one == room
    ]
    lines += ["```", "", "| room | what it is for |", "|---|---|"]
    for room in order:
        path = rooms()[room]
        lines.append(f"| `{room}` | {purpose(path).replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def purpose(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def drawn(page: str) -> str:
    """A page with the drawing brought up to date between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing()}\n{END}{after}"
