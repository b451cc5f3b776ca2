"""kci where there is no POSIX: its modules can be imported.

The tests for all systems are chosen by `-m portable`.
"""

from __future__ import annotations

import sys

from conftest import ran

ONLY_POSIX = ["fcntl", "grp", "posix", "pwd", "resource", "termios"]

IMPORT_ALL = f"""
import importlib, os, pkgutil, sys, types
import asyncio, concurrent.futures, ctypes, multiprocessing, shutil, subprocess, tempfile
import urllib.request, venv
import click, jinja2, msgspec, rich.console, tomlkit, yaml  # how others do it is their matter
import packaging.version, tree_sitter_toml

for name in {ONLY_POSIX}:
    sys.modules[name] = None  # importing it fails
for name in ("getuid", "geteuid", "fchmod", "mkfifo", "sysconf", "confstr", "O_CLOEXEC",
             "O_DIRECTORY", "O_NOFOLLOW"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.platform = "win32"

import kci
for module in pkgutil.walk_packages(kci.__path__, "kci."):
    # Programs of their own, which only builds and jobs on Linux start; no module imports them.
    if module.name not in ("kci.__main__", "kci.builders.process.guard_script"):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_module_is_imported_without_posix() -> None:
    done = ran(sys.executable, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 100
