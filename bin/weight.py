"""What kci weighs: `python bin/weight.py` prints each room of src/kci, what stands beside it, and
the sums of what people meet.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kci"
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
    tokens: int = 0
    """Of that code, as Python's own tokenizer counts them."""
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
    texts = [
        node
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - len(texts)
    told = {
        line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
    ]
    tokens = [token for token in tokens if token.start[0] not in told]
    coded = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return Weight(1, functions, statements, len(coded), len(tokens), len(text.splitlines()))


BESIDE = {
    "TOML of src/kci": ("src/kci/*.toml",),
    "templates": ("templates/*",),
    "actions": ("actions/*", "*action.yml"),
    "bin, benchmarks": ("bin/*", "benchmarks/*"),
    "golden files": ("tests/golden/*",),
    "Python of tests": ("tests/*.py",),
    "docs": ("docs/*.md", "README.md"),
}
"""What stands beside src/kci, as patterns of git; `*` crosses folders."""


def lines_beside() -> dict[str, tuple[int, int]]:
    """How many files git has of each kind of what stands beside src/kci, and how many lines they
    have.
    """
    sums = {}
    for kind, patterns in BESIDE.items():
        names = subprocess.run(
            ["git", "ls-files", "-z", *patterns],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        paths = [
            ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()
        ]
        sums[kind] = len(paths), sum(path.read_bytes().count(b"\n") for path in paths)
    return sums


def counts() -> dict[str, int]:
    """How many of what people meet: commands, options, keys, rules, actions, rendered files, pages
    and their words.
    """
    from kci import diagnostics
    from kci.cli import kci
    from kci.config.schema import settings_schema

    def every(group: click.Group, context: click.Context) -> list[click.Command]:
        """The commands below a group, those of groups in it too."""
        here = [
            command
            for name in group.list_commands(context)
            if (command := group.get_command(context, name))
        ]
        return [
            one
            for command in here
            for one in (every(command, context) if isinstance(command, click.Group) else [command])
        ]

    context = click.Context(kci)
    options = [
        option
        for command in every(kci, context)
        for option in command.params
        if isinstance(option, click.Option)
        and option.name not in ("quiet", "verbose", "color")  # which all have
    ]
    tables = [settings_schema(), *settings_schema().get("$defs", {}).values()]
    workflows = list((ROOT / "templates" / "github").glob("*.yml.j2"))
    pages = sorted((ROOT / "docs").glob("*.md"))
    return {
        "commands": len(kci.list_commands(context)),
        "options": len(options),
        "keys of kci.toml": sum(len(table.get("properties", ())) for table in tables),
        "rules": len(diagnostics.rules()),
        "actions": len(list(ROOT.glob("*/action.yml")))
        + len(list(ROOT.glob("actions/*/action.yml")))
        + 1,
        "rendered files": len(workflows),
        "pages": len(pages),
        "words of the pages": sum(
            len(re.findall(r"\S+", page.read_text(encoding="utf-8"))) for page in pages
        ),
    }


def main() -> None:
    """Print all of it."""
    print(f"{'room':<12}" + "".join(f"{name:>12}" for name in Weight._fields))
    for room, weight in weights().items():
        print(f"{room:<12}" + "".join(f"{value:>12}" for value in weight))
    print(f"\n{'beside':<24}{'files':>12}{'lines':>12}")
    for kind, (files, lines) in lines_beside().items():
        print(f"{kind:<24}{files:>12}{lines:>12}")
    print()
    for kind, count in counts().items():
        print(f"{kind:<24}{count:>12}")


if __name__ == "__main__":
    main()
