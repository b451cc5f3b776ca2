"""What a kernel's test files say: which tests are for CI, and which version they ask the Hub for."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kci.config.model import Build
from kci.config.sources.imports import node_span
from kci.config.sources.op_rules import resolve_names
from kci.diagnostics import Diagnostic, finding

MARKER = "kernels_ci"
"""The pytest marker of the tests that CI runs."""

TESTS = "tests"

_MARKED = re.compile(rb"""^[^#\n]*\b(?:mark\.|add_marker\(\s*["'])%b\b""" % MARKER.encode(), re.MULTILINE)
_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_MAX_BYTES = 4 * 1024 * 1024


def is_test_file(path: str) -> bool:
    """True for a file that pytest takes tests from."""
    return _TEST_FILE.fullmatch(path) is not None


def is_marked(text: bytes) -> bool:
    """True for Python with a test that is marked for CI, or a hook that marks tests; a marker's declaration is none."""
    return _MARKED.search(text) is not None


def check_tests(files: Iterable[tuple[str, str]], build: Build) -> Iterator[Diagnostic]:
    """Yield KCI778 for tests that load another version of their own kernel; `files` have a shown and a real path."""
    hub, version = build.general.hub, build.general.version
    own = {build.name, hub.repo_id.rpartition("/")[2] if hub and hub.repo_id else build.name}
    for shown, path in files:
        with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):  # running them says it
            with Path(path).open("rb") as file:
                text = file.read(_MAX_BYTES + 1)
            for place, repository, asked in _loads(text):
                if asked != version and repository.rpartition("/")[2] in own:
                    message = f"it loads version {asked} of {repository}, and build.toml has version {version}"
                    yield finding("KCI778", message, path=shown, span=node_span(place))


def _loads(text: bytes) -> Iterator[tuple[ast.expr, str, int]]:
    # the version's place, the repository and the version of each call such as get_kernel("owner/name", version=1)
    if len(text) > _MAX_BYTES or b"kernels" not in text or not (b"version" in text or b"revision" in text):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = list(ast.walk(ast.parse(text)))
    names, values = resolve_names(nodes), dict[str, object]()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value.value if isinstance(value, ast.Constant) and name not in values else None
    for node in nodes:
        if isinstance(node, ast.Call) and names.canonical(node.func).startswith("kernels."):
            given = {key.arg: key.value for key in node.keywords} | dict(zip(("repo_id",), node.args, strict=False))
            place = given.get("version") or given.get("revision")
            repository, asked = (
                values.get(part.id) if isinstance(part, ast.Name) else getattr(part, "value", None)
                for part in (given.get("repo_id"), place)
            )
            asked = int(asked[1:]) if isinstance(asked, str) and re.fullmatch(r"v[0-9]{1,9}", asked) else asked
            if place is not None and isinstance(repository, str) and type(asked) is int:
                yield place, repository, asked
