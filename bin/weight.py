"""What kci weighs, room by room: `python bin/weight.py` prints it, `--write` makes it the budget that a test holds.

The budget (`tests/weight.toml`) only goes down. A commit that lets it rise says why.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kci"
BUDGET = ROOT / "tests" / "weight.toml"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


class Weight(NamedTuple):
    """What a room, or all of kci, consists of."""

    modules: int = 0
    functions: int = 0
    statements: int = 0
    code: int = 0
    """Lines that have code: no blank line, no comment, no docstring."""
    lines: int = 0

    def plus(self, other: Weight) -> Weight:
        """Both together."""
        return Weight(*(mine + more for mine, more in zip(self, other, strict=True)))


@cache
def weights() -> dict[str, Weight]:
    """Each room with its weight, by name, and `all`; modules of no room are in `top`."""
    found: dict[str, Weight] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        room = parts[0] if len(parts) > 1 else "top"
        found[room] = found.get(room, Weight()).plus(weight_of(path.read_text(encoding="utf-8")))
    total = Weight()
    for weight in found.values():
        total = total.plus(weight)
    return dict(sorted(found.items())) | {"all": total}


def weight_of(text: str) -> Weight:
    """The weight of one module."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes)
    texts = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - len(texts)
    told = {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    coded = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return Weight(1, functions, statements, len(coded - told), len(text.splitlines()))


def budget_for(weight: Weight) -> Weight:
    """A little more than a weight, so that a fix of some lines needs no new budget."""
    return Weight(
        weight.modules, *(-(-value // step) * step for value, step in zip(weight[1:], (5, 50, 50, 50), strict=True))
    )


def written(found: dict[str, Weight]) -> str:
    """The budget as TOML."""
    found = {room: budget_for(weight) for room, weight in found.items()}
    head = "# What each room of kci may weigh at most: python bin/weight.py --write. It only goes down; a commit that lets it rise says why.\n"
    rows = [
        f"{room} = {{ {', '.join(f'{name} = {value}' for name, value in weight._asdict().items())} }}"
        for room, weight in found.items()
    ]
    return head + "\n".join(rows) + "\n"


def main(words: list[str]) -> None:
    """Print the weights, or write the budget."""
    found = weights()
    if words == ["--write"]:
        BUDGET.write_text(written(found), encoding="utf-8")
        return
    print(f"{'room':<12}" + "".join(f"{name:>12}" for name in Weight._fields))
    for room, weight in found.items():
        print(f"{room:<12}" + "".join(f"{value:>12}" for value in weight))


if __name__ == "__main__":
    main(sys.argv[1:])
