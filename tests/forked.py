"""A program that stands for a Python and begins at once, for commands that tests start and for the
jobs of real workflow engines.

What it is given and its open files go to a server that has imported kci, and forks. The server runs
in the Python that is stood for: `python forked.py ADDRESS`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

# It imports next to nothing: it is what each job starts.
_PROGRAM = """\
#!{python} -IS
import posix, sys, _socket
words = [word for word in sys.argv[1:] if word not in ("-E", "-P", "-u")]
if words[0] != "-m":
    posix.execv("{real}", ["{real}", *sys.argv[1:]])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect("{address}")
files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
asked = "\\0".join([str(posix.getpid()), *words[1:]]).encode("utf-8", "surrogateescape")
server.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
posix._exit(int(server.recv(9) or b"70"))
"""
LOADED_IN_TESTS = "KCI_TESTS_LOAD"
"""The backend whose variants are loaded; all, without it."""


def only_loading(backend: str, real: Callable[..., str]) -> Callable[..., str]:
    """In place of `kci.run.load_built._load`."""

    def load(directory: Path, variant: Any, *arguments: Any) -> str:
        return real(directory, variant, *arguments) if variant.backend == backend else "2.13.0+cpu"

    return load


def looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a Python looks at before it runs anything: a fork has those of here."""
    first = ("PYTHON", "LC_", "LANG", "MALLOC", "LD_")
    return {name: value for name, value in environment.items() if name.startswith(first)}


@cache
def forked_program(python: str = sys.executable, *, in_tests: bool = False) -> str:
    """The program that stands for a Python where that is asked to run a module of kci.

    Its server ends with this process. Where there is no Linux to ask, it is that Python. With
    `in_tests`, `LOADED_IN_TESTS` says what is loaded.
    """
    if sys.platform != "linux":
        return python
    program = Path(tempfile.mkdtemp(prefix="kci-forked-")) / "python"
    address = program.with_name("server")
    own = Path(sys.executable).resolve()
    program.write_text(_PROGRAM.format(python=own, real=python, address=address))
    program.chmod(0o755)
    command = [python, "-E", "-u", __file__, str(address), *(["in tests"] if in_tests else [])]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return str(program)


def serve(address: str, in_tests: bool) -> None:
    """Fork for each who asks, until stdin ends."""
    sys.path.remove(str(Path(__file__).parent))
    _import_all()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            asking, _ = listening.accept()
            if os.fork() == 0:
                _be(asking, in_tests)
            asking.close()
            with suppress(ChildProcessError):  # there is none
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    shutil.rmtree(Path(address).parent, ignore_errors=True)


def _import_all() -> None:
    """All of kci, and what it imports late; not what only some commands of few users need."""
    import kci

    for module in pkgutil.walk_packages(kci.__path__, "kci."):
        with suppress(ImportError):  # one is for the Python of a torch
            importlib.import_module(module.name)
    late = ("jinja2", "rich.console", "rich.progress", "rich.table")
    for name in (*late, "yaml", "tomlkit", "uuid", "zipfile"):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.endswith(".__main__")]:
        del sys.modules[name]  # they are to be run
    gc.freeze()


def _be(asking: socket.socket, in_tests: bool) -> NoReturn:
    """Be what the program stands for."""
    code: object = 1
    try:
        asked, files, _, _ = socket.recv_fds(asking, 65536, 3)
        process, module, *words = asked.decode("utf-8", "surrogateescape").split("\0")
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
            setattr(sys, name, os.fdopen(number, mode, 1, closefd=False))
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(f"/proc/{process}/cwd")
        variables = Path(f"/proc/{process}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        os.environb.clear()  # type: ignore[attr-defined]
        os.environb.update(variable.split(b"=", 1) for variable in variables)
        if in_tests and (backend := os.environ.get(LOADED_IN_TESTS)) is not None:
            from kci.run import load_built

            load_built._load = only_loading(backend, load_built._load)
        sys.argv = ["", *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asking.sendall(str(code if isinstance(code, int) else 1).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], in_tests=len(sys.argv) > 2)
