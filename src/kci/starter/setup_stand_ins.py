"""What runs in the process of a setup.py: it executes that file among stand-ins, and writes down what it calls.

A program that imports nothing of kci but `module_stand_ins`, from a copy of the two: `main()`, with facts as JSON
on stdin. Nothing that it writes is trusted (`run_setup` checks it), and nothing here keeps a hostile file in: that is the
sandbox around it.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import subprocess
import sys
import traceback
from typing import Any

from kci.starter.module_stand_ins import RECORD, SETUP, Finder, roots_of

_MOST = 100_000


class WatchedVariables(dict):  # type: ignore[type-arg]
    """The variables, which answers those that turn a backend on."""

    def __init__(self, values: Any, backend: str) -> None:
        super().__init__(values)
        self.backend = backend

    def _answer(self, name: Any) -> str | None:
        if name in self.keys() or not isinstance(name, str):
            return dict.get(self, name)
        if self.backend in ("cuda", "rocm") and re.search(r"(FORCE|WITH|BUILD|USE|ENABLE)_(CUDA|GPU)(_EXT)?$", name):
            return "1"
        if self.backend == "cpu" and re.search(r"(FORCE_CPU|FORCE_ONLY_CPU|CPU_ONLY)$", name):
            return "1"
        return None

    def get(self, name: Any, default: Any = None) -> Any:
        found = self._answer(name)
        if found == "1" and isinstance(default, str) and default.lower() in ("true", "false"):
            found = "TRUE" if default.isupper() else "True"
        return default if found is None else found

    def __getitem__(self, name: Any) -> Any:
        found = self._answer(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: Any) -> bool:
        return self._answer(name) is not None


_VERSIONS = {
    "nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release {cuda}, V{cuda}.88\n"
            "Build cuda_{cuda}.r{cuda}/compiler\n",
    "hipcc": "HIP version: {hip}-0000000000\n",
    "cmake": "cmake version 3.31.0\n",
    "ninja": "1.12.0\n",
    "g++": "g++ (GCC) 13.2.0\n", "gcc": "gcc (GCC) 13.2.0\n", "c++": "g++ (GCC) 13.2.0\n",
    "clang": "clang version 19.0.0\n",
    "git": "0000000\n",
}  # fmt: skip
"""What programs say that a setup.py asks; no other one is there, and none is started."""


def _said(facts: dict[str, str]) -> Any:
    def said(command: Any) -> str | None:
        words = command.split() if isinstance(command, str) else [str(word) for word in command]
        text = _VERSIONS.get(os.path.basename(words[0]) if words else "")
        return text.format(cuda=facts["cuda"], hip=facts["hip"]) if text is not None else None

    return said


def _no_programs(facts: dict[str, str]) -> None:
    said = _said(facts)

    def answer(command: Any, **given: Any) -> Any:
        text = said(command)
        if text is None:
            raise FileNotFoundError(2, "kci starts no program while it runs setup.py", str(command)[:100])
        decoded = any(given.get(key) for key in ("text", "universal_newlines", "encoding"))
        return text if decoded else text.encode()

    def run(command: Any, **given: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, answer(command, **given), answer(command, **given)[:0])

    def call(command: Any, **given: Any) -> int:
        answer(command, **given)
        return 0

    class Popen:
        def __init__(self, command: Any, **given: Any) -> None:
            text = answer(command, **given)
            self.args, self.returncode, self.pid = command, 0, 0
            self.stdout = io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)
            self.stderr, self.stdin = type(self.stdout)(), type(self.stdout)()

        def communicate(self, *_: Any, **__: Any) -> Any:
            return self.stdout.read(), self.stderr.read()

        def wait(self, *_: Any, **__: Any) -> int:
            return 0

        poll = wait

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

    subprocess.run, subprocess.check_output = run, answer  # type: ignore[assignment]
    subprocess.call, subprocess.check_call, subprocess.Popen = call, call, Popen  # type: ignore[assignment,misc]
    subprocess.getoutput = lambda command, **_: said(command) or ""
    subprocess.getstatusoutput = lambda command, **_: (0 if (text := said(command)) is not None else 127, text or "")
    os.system = lambda command: 0 if said(command) is not None else 127
    os.popen = lambda command, *_: io.StringIO(said(command) or "")  # type: ignore[assignment]


def limit(facts: dict[str, str]) -> None:
    """Bound what this process may take of the machine."""
    try:
        import resource
    except ImportError:  # Windows
        return
    seconds, size = int(facts["seconds"]), int(facts["bytes"])
    for what, most in (("CPU", seconds), ("AS", 32 * size), ("FSIZE", size), ("NOFILE", 256), ("CORE", 0)):
        bound = getattr(resource, "setrlimit")  # noqa: B009  - Windows has the name neither for a checker
        bound(getattr(resource, f"RLIMIT_{what}"), (most, most))


_REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn", "socket.connect",
            "socket.bind", "socket.getaddrinfo", "socket.__new__", "ctypes.dlopen", "os.kill")  # fmt: skip


def _guard(place: str) -> None:
    """Stop what a setup.py does by mistake: the network, other programs, writing outside of its folder."""

    def watch(event: str, arguments: Any) -> None:
        if event in _REFUSED or event.startswith(("os.exec", "os.spawn")):
            raise PermissionError(f"kci allows no {event} while it runs setup.py")
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            mode, flags = arguments[1], arguments[2]
            writes = any(letter in (mode or "") for letter in "wax+") or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            )
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if writes and not path.startswith((place + os.sep, "/dev/null")):
                raise PermissionError(f"kci lets setup.py write below its own folder only, not to {path[:200]}")
        elif event in (
            "os.remove",
            "os.rename",
            "os.rmdir",
            "os.mkdir",
            "os.link",
            "os.symlink",
            "os.chmod",
            "shutil.rmtree",
        ):
            path = os.path.abspath(os.fsdecode(arguments[1 if event in ("os.link", "os.symlink", "os.rename") else 0]))
            if not (path + os.sep).startswith(place + os.sep):
                raise PermissionError(f"kci lets setup.py change its own folder only, not {path[:200]}")

    sys.addaudithook(watch)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, and small."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, dict) and depth < 6:
        return {str(key)[:200]: _plain(item, depth + 1) for key, item in list(value.items())[:1000]}
    if isinstance(value, list | tuple | set) and depth < 6:
        return [_plain(item, depth + 1) for item in list(value)[:20_000]]
    return (
        str(os.fspath(value) if isinstance(value, os.PathLike) else value)[:_MOST].encode("utf-8", "replace").decode()
    )


def main() -> None:
    """Execute the setup.py of this folder, and write down what it called."""
    backend, answer = sys.argv[1:3]
    facts = json.load(sys.stdin)
    limit(facts)
    sys.stdin = io.StringIO()
    place = os.getcwd()
    output = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    roots = roots_of(backend, facts)
    sys.meta_path.insert(0, Finder(roots, last=False))
    sys.meta_path.append(Finder(roots, last=True))
    os.environ = WatchedVariables(dict(os.environ), backend)  # type: ignore[assignment]
    os.getenv = lambda name, default=None: os.environ.get(name, default)  # type: ignore[assignment]
    _no_programs(facts)
    sys.path[:] = [place, *sys.path]
    sys.argv[:] = ["setup.py", "build_ext", "bdist_wheel"]
    scope = {"__name__": "__main__", "__file__": SETUP, "__builtins__": builtins}
    _guard(place)
    try:
        with open(SETUP, "rb") as stream:
            code = compile(stream.read(), SETUP, "exec")
        exec(code, scope)
    except SystemExit as stop:
        RECORD["error"] = "" if stop.code in (None, 0) else f"it exits with {str(stop.code)[:200]}"
    except BaseException as error:
        lines = [item.lineno for item in traceback.extract_tb(error.__traceback__) if item.filename == SETUP]
        RECORD["line"] = lines[-1] if lines else getattr(error, "lineno", 0) or 0
        RECORD["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    os.write(output, json.dumps(_plain(RECORD)).encode())
    os._exit(0)
