"""A kernel's card: CARD.md, rendered as the reference renders it with minijinja."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.discovery import companion
from kci.config.reader import BUILD_TOML, Kernel
from kci.config.sources import card_child
from kci.config.sources.imports import last_name
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, Span, finding
from kci.utils.bounded_json import decode_json, read_bounded
from kci.utils.frozen import Frozen

CARD = "CARD.md"
MAX_BYTES = 128 * 1024
"""Bytes of a template and of its card: as JSON, it fits into an artifact's record."""
SECONDS = 5
"""Seconds of a processor; a card takes a fraction of one."""
_BENCHMARK = "benchmark.py"

CardText = Annotated[str, Meta(max_length=MAX_BYTES)]


class Card(Frozen):
    """A rendered card, and the findings about its template."""

    text: str = ""
    """Empty for a kernel without CARD.md or `repo-id`, and for a faulty template."""
    findings: tuple[Diagnostic, ...] = ()


class _Answer(Frozen):
    text: CardText = ""
    findings: tuple[tuple[str, str, int], ...] = ()
    """Rule, message and line."""


def card_files(kernel: Kernel) -> list[Path]:
    """CARD.md, and the files besides the package that decide the card; none without one."""
    directory = Path(os.path.normpath(kernel.directory))
    files = [
        companion(directory, CARD),
        companion(directory, "benchmarks") / _BENCHMARK,
        directory / BUILD_TOML,
    ]
    return [file for file in files if os.path.lexists(file)] if os.path.lexists(files[0]) else []


def render_card(kernel: Kernel) -> Card:
    """Render a kernel's card, in a process with limits on time, memory and size."""
    general, files = kernel.build.general, card_files(kernel)
    if not files or general.hub is None or general.hub.repo_id is None:
        return Card()
    template, exported = files[0], _exported(kernel)
    values = {
        "repo_id": general.hub.repo_id,
        "version": general.version,
        "license": general.license.lower(),
        "functions": [name for name in exported if name != "layers"] or None,
        "layers": (_layers(kernel) if "layers" in exported else None) or None,
        "has_benchmark": any(file.name == _BENCHMARK for file in files),
        "upstream": ", ".join(map(str, general.upstream or ())) or None,
        "source": str(general.source) if general.source is not None else None,
    }
    try:
        if not Path(os.path.realpath(template)).is_relative_to(os.path.realpath(template.parent)):
            raise ValueError("it is a link that leads out of the kernel")
        question = {
            "text": read_bounded(template, MAX_BYTES).decode("utf-8"),
            "values": values,
            "most": MAX_BYTES,
            "seconds": SECONDS,
            "path": list(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", card_child.__file__],
            input=msgspec.json.encode(question),
            capture_output=True,
            timeout=12 * SECONDS,
            check=True,
        )
        answer = decode_json(done.stdout, _Answer)
    except subprocess.SubprocessError:
        message = f"it does not end within {SECONDS} seconds, or takes more memory than a card may"
        answer = _Answer(findings=(("KCI775", message, 0),))
    except (OSError, ValueError) as error:
        answer = _Answer(findings=(("KCI775", f"cannot read it: {error}", 0),))
    found = (
        finding(rule, text[:300], template, span=Span(line, 1, line, 2) if line else None)
        for rule, text, line in answer.findings
    )
    return Card(answer.text, tuple(found))


def _exported(kernel: Kernel) -> list[str]:
    for node in _statements(kernel, "torch-ext/{}/__init__.py", "tvm-ffi-ext/{}/__init__.py"):
        match node:
            case ast.Assign(targets=targets, value=ast.List(elts=parts)) if "__all__" in map(
                last_name, targets
            ):
                values = [part.value for part in parts if isinstance(part, ast.Constant)]
                if names := [value for value in values if isinstance(value, str)]:
                    return names
    return []


def _layers(kernel: Kernel) -> list[str]:
    nodes = _statements(kernel, "torch-ext/{}/layers/__init__.py", "torch-ext/{}/layers.py")
    return [node.name for node in nodes if isinstance(node, ast.ClassDef)]


def _statements(kernel: Kernel, *places: str) -> Iterator[ast.stmt]:
    # of the first file that exists; none if it does not parse, which another rule reports
    name = python_name(kernel.build.name)
    files = (Path(kernel.directory) / place.format(name) for place in places)
    file = next((file for file in files if file.exists()), None)
    try:
        yield from ast.parse(read_bounded(file)).body if file is not None else ()
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
