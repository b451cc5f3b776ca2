"""A kernel's card: CARD.md, rendered as the reference renders it with minijinja."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.config.reader import BUILD_TOML, Kernel
from kci.config.sources import card_child
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, Span, finding
from kci.utils.bounded_json import decode_json, read_bounded

CARD = "CARD.md"
MAX_BYTES = 128 * 1024
"""Bytes of a template and of its card: as JSON, it fits into an artifact's record."""
SECONDS = 5
"""Seconds of a processor; a card takes a fraction of one."""

CardText = Annotated[str, Meta(max_length=MAX_BYTES)]


class Card(msgspec.Struct, frozen=True):
    """A rendered card, and the findings about its template."""

    text: CardText = ""
    """Empty for a kernel without CARD.md or `repo-id`, and for a faulty template."""
    findings: tuple[Diagnostic, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    text: CardText = ""
    unknown: dict[str, int] = {}
    error: str = ""
    line: int = 0


def template_of(kernel: Kernel) -> Path | None:
    """The kernel's CARD.md, if it has one; that of a ported kernel is beside `src`, which has its build.toml."""
    directory = Path(os.path.normpath(kernel.directory))
    places = (directory, directory.parent) if directory.absolute().name == "src" else (directory,)
    return next((place / CARD for place in places if os.path.lexists(place / CARD)), None)


def card_inputs(kernel: Kernel) -> list[tuple[str, str]]:
    """The files that decide the card besides the package, as shown and as they are; none without a CARD.md."""
    template = template_of(kernel)
    files = (template, template.parent / _BENCHMARK, Path(kernel.directory) / BUILD_TOML) if template else ()
    return [(str(file), os.path.realpath(file)) for file in files if file.exists()]


_BENCHMARK = "benchmarks/benchmark.py"


def render_card(kernel: Kernel) -> Card:
    """Render a kernel's card, in a process with limits on time, memory and size."""
    general, template = kernel.build.general, template_of(kernel)
    if template is None or general.hub is None or general.hub.repo_id is None:
        return Card()

    def found(rule: str, message: str, line: int = 0) -> Diagnostic:
        return finding(rule, message[:300], path=str(template), span=Span(line, 1, line, 2) if line else None)

    try:
        if not Path(os.path.realpath(template)).is_relative_to(os.path.realpath(template.parent)):
            return Card("", (found("KCI775", "it is a link that leads out of the kernel"),))
        text = read_bounded(template, MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        return Card("", (found("KCI775", f"cannot read it: {error}"),))
    exported = _exported(kernel)
    answer = _ask(
        text=text,
        values={
            "repo_id": general.hub.repo_id,
            "version": general.version,
            "license": general.license.lower(),
            "functions": [name for name in exported if name != "layers"] or None,
            "layers": (_layers(kernel) if "layers" in exported else None) or None,
            "has_benchmark": (template.parent / _BENCHMARK).exists(),
            "upstream": ", ".join(map(str, general.upstream or ())) or None,
            "source": str(general.source) if general.source is not None else None,
        },
        most=MAX_BYTES,
    )
    if answer.error:
        return Card("", (found("KCI775", answer.error, answer.line),))
    empty = "no card has a value for `{}`: it is left empty"
    return Card(answer.text, tuple(found("KCI777", empty.format(name), line) for name, line in answer.unknown.items()))


def _ask(**question: Any) -> _Answer:
    sent = msgspec.json.encode(question | {"seconds": SECONDS, "path": list(filter(None, sys.path))})
    command = [sys.executable, "-I", "-S", card_child.__file__]
    try:
        done = subprocess.run(command, input=sent, capture_output=True, timeout=12 * SECONDS, check=True)
        return decode_json(done.stdout, _Answer)
    except subprocess.SubprocessError:
        return _Answer(error=f"it does not end within {SECONDS} seconds, or takes more memory than a card may")
    except (OSError, ValueError) as error:
        return _Answer(error=str(error))


def _exported(kernel: Kernel) -> list[str]:
    for node in _statements(kernel, "torch-ext/{}/__init__.py", "tvm-ffi-ext/{}/__init__.py"):
        match node:
            case ast.Assign(targets=targets, value=ast.List(elts=parts)):
                names = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
                if names and any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                    return names
    return []


def _layers(kernel: Kernel) -> list[str]:
    nodes = _statements(kernel, "torch-ext/{}/layers/__init__.py", "torch-ext/{}/layers.py")
    return [node.name for node in nodes if isinstance(node, ast.ClassDef)]


def _statements(kernel: Kernel, *places: str) -> Iterator[ast.stmt]:
    # of the first file that exists; none if it does not parse, which another rule reports
    files = (Path(kernel.directory) / place.format(python_name(kernel.build.name)) for place in places)
    file = next((file for file in files if file.exists()), None)
    try:
        yield from ast.parse(read_bounded(file)).body if file is not None else ()
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
