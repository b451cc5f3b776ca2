"""Every command of kci in messages, templates, actions, pages and recipes is one that kci takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from conftest import ROOT
from kci.cli import COMMANDS
from kci.cli import kci as program

FOLDERS = (
    *("src/kci", "docs", "templates", "examples", ".github"),
    *("actions", "plan", "merge", "gate", "test", "publish"),
)
SUFFIXES = {".py", ".toml", ".md", ".j2", ".yml", ".sh"}
FILES = sorted(
    [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    + [path for path in ROOT.iterdir() if path.suffix in SUFFIXES]
)
SAID = re.compile(
    r"(?P<start>`|^ *(?:[$] |run: )|&& )?\bkci (?P<words>[a-z][^`\n;|&)>]*)", re.MULTILINE
)
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY = re.compile(r"[{<$\[\]A-Z*]|\.\.\.")


def texts(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "X"
                    for part in node.values
                )
        yield from strings(ast.parse(text))
        return
    text = text.replace("\\\n", " ")
    if path.suffix == ".md":
        text = FENCE.sub(lambda block: re.sub("(?m)^kci ", "$ kci ", block[1]), text)
    yield text


def problem(words: str, *, whole: bool) -> str:
    """What kci says of a command; of one that is not `whole`, since prose may go on behind it, only
    of its options.
    """
    try:
        name, *rest = shlex.split(words, comments=True)
    except ValueError:
        name, *rest = words.rstrip("'").split()
    if name not in COMMANDS:
        return f"kci has no command {name}" if whole else ""
    command = program.get_command(click.Context(program), name)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    assert command is not None
    known = {*options_of(command), "--help", "-h"}
    options = [word for word in rest if word.startswith("--") and word != "--"]
    for word in [*options, *(word for word in rest if whole and re.fullmatch("-[a-z]", word))]:
        if word.partition("=")[0].rstrip(".,:'") not in known:
            return f"kci {name} has no option {word}"
    if not whole or isinstance(command, click.Group):
        return ""
    context = click.Context(command)
    try:
        values, more, _ = command.make_parser(context).parse_args(list(rest))
        for param in command.params:
            given = values.get(param.name)
            for value in given if isinstance(given, list | tuple) else [given]:
                chosen = isinstance(param.type, click.Choice) and isinstance(value, str)
                if chosen and not ANY.search(words):
                    param.type.convert(value, param, context)
    except click.BadOptionUsage as error:
        return "" if "requires an argument" in error.message else error.message
    except click.UsageError as error:
        return error.message
    return f"kci {name} does not take {more}" if more and not ANY.search(words) else ""


def options_of(command: click.Command | None) -> set[str]:
    assert command is not None
    return {option for param in command.params for option in (*param.opts, *param.secondary_opts)}


def strings(node: ast.AST) -> set[str]:
    values = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {value for value in values if isinstance(value, str)}


@pytest.mark.parametrize(
    "path", [path for path in FILES if "command_line(" in path.read_text(encoding="utf-8")]
)
def test_kci_takes_every_command_that_is_composed(path: Path) -> None:
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef) and function.name != "command_line":
            function.decorator_list = []
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            made = [call for call in calls if getattr(call.func, "id", "") == "command_line"]
            names = {name for call in made for name in strings(call.args[0]) & COMMANDS.keys()}
            commands = (program.get_command(click.Context(program), name) for name in names)
            said = {text.partition("=")[0] for text in strings(function) if text.startswith("--")}
            assert not made or said <= set().union(*map(options_of, commands)), function.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_kci_takes_every_command_that_is_said(path: Path) -> None:
    wrong = []
    for text in texts(path):
        for match in SAID.finditer(text):
            if said := problem(match["words"], whole=match["start"] is not None):
                wrong.append(f"{match[0]}: {said}")
    assert wrong == []
