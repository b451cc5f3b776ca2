"""Processes of kci that begin at once, as all is imported before: the server they are forked from,
and who asks it.

`python forked.py` is the server. It reads lines of JSON, a `Request` or `{"wait": process}`, and
answers with the process, or with how that ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypedDict

_READ_AT_START = ("PYTHON", "LC_", "LANG", "MALLOC", "LD_")
"""Variables that a Python looks at before it runs anything."""


LOADED_IN_TESTS = "KCI_TESTS_LOAD"
"""The backend whose variants are loaded; all, without it."""


def only_loading(backend: str, real: Callable[..., str]) -> Callable[..., str]:
    """In place of `kci.run.load_built._load`."""

    def load(directory: Path, variant: Any, *arguments: Any) -> str:
        return real(directory, variant, *arguments) if variant.backend == backend else "2.13.0+cpu"

    return load


class Request(TypedDict):
    """What a process is: kci with these arguments, or a script; its output in one file or two, or
    on a terminal.
    """

    script: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    output: str
    errors: str


class ForkServer:
    """The server's other end."""

    def __init__(self) -> None:
        self.environment = _looked_at(os.environ)
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """End it."""
        self.server.communicate()

    def start(
        self,
        *arguments: str | Path,
        output: str | Path,
        errors: Path | None = None,
        script: Path | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Begin a process.

        Args:
            *arguments: of kci, or of the script.
            output: what stdout is appended to; of a terminal, the process has nothing else.
            errors: what stderr is appended to; `output`, unless it is given.
            script: run in place of kci.
            folder: where it runs; that of this process, unless it is given.
            environment: all variables; those of this process, unless given.

        Returns:
            Its number, for `wait` and for signals.
        """
        variables = dict(os.environ if environment is None else environment)
        assert _looked_at(variables) == self.environment, (
            "what Python looks at before it runs cannot be changed"
        )
        request: Request = {
            "script": str(script or ""), "arguments": [str(argument) for argument in arguments],
            "folder": str(folder or Path.cwd()), "environment": variables,
            "output": str(output), "errors": str(errors or output),
        }  # fmt: skip
        return self._ask(request)

    def wait(self, process: int) -> int:
        """How it ended: the exit code, or the signal as a negative number."""
        return self._ask({"wait": process})

    def run(self, *arguments: str | Path, **how: Any) -> tuple[int, str, str]:
        """A process from beginning to end, as for `start`: how it ended, stdout and stderr."""
        with tempfile.TemporaryDirectory(prefix="kci-forked-") as place:
            output, errors = Path(place) / "stdout", Path(place) / "stderr"
            ended = self.wait(self.start(*arguments, output=output, errors=errors, **how))
            return ended, output.read_text(encoding="utf-8"), errors.read_text(encoding="utf-8")

    def can_have(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with these variables can be forked."""
        return _looked_at(environment) == self.environment

    def _ask(self, request: Request | dict[str, int]) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


@cache
def fork_server() -> ForkServer:
    """The one of this process."""
    made = ForkServer()
    atexit.register(made.close)
    return made


def _looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def serve() -> None:
    """Begin processes and wait for them, one request after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        opened, opens = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(opened)
            _be(request, opens)
        os.close(opens)
        # until its output is open: a terminal that nobody has open is at its end
        os.read(opened, 1)
        os.close(opened)
        print(process, flush=True)


def import_all() -> None:
    """All of kci, and what it imports late; not what only some commands of few users need."""
    import kci

    for module in pkgutil.walk_packages(kci.__path__, "kci."):
        with suppress(ImportError):  # one is for the Python of a torch
            importlib.import_module(module.name)
    late = ("jinja2", "rich.console", "rich.progress", "rich.table")
    for name in (*late, "yaml", "tomlkit", "uuid", "zipfile"):
        importlib.import_module(name)
    gc.freeze()


def _be(request: Request, opens: int) -> NoReturn:
    """Be the process that is asked for."""
    code = 70
    try:
        os.setsid()  # so a terminal that is opened is its own
        for number, name in ((1, request["output"]), (2, request["errors"])):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.dup2(1 if os.isatty(1) else os.open(os.devnull, os.O_RDONLY), 0)
        os.close(opens)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _run(request["script"], request["arguments"])
    finally:
        os._exit(code)


def _run(script: str, arguments: list[str]) -> int:
    from kci import __main__ as program
    from kci.cli import main
    from kci.run import load_built

    if (backend := os.environ.get(LOADED_IN_TESTS)) is not None:
        load_built._load = only_loading(backend, load_built._load)
    try:
        if script:
            sys.argv = [script, *arguments]
            sys.path[0] = str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")
        else:
            sys.argv = [str(program.__file__), *arguments]
            main(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve()
