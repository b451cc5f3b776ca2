"""Clients that start at once, as all is imported before: the server that they are forked from, and who asks it.

`python forked_clients.py` is the server. It reads lines of JSON, `{"start": [argument, ...], "output": file}` or
`{"wait": process}`, and answers with the process, or with how that ended.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

_IMPORTED = ("kci.cli.run", "kci.engines.local_engine", "kci.engines.user_commands", "kci.workspace.planning")


class ForkedClients:
    """The server's other end."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> ForkedClients:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate()

    def start(self, *arguments: str, output: Path) -> int:
        """Start a client; its process."""
        return self._ask({"start": arguments, "output": str(output)})

    def wait(self, process: int) -> int:
        """How it ended: the exit code, or the signal as a negative number."""
        return self._ask({"wait": process})

    def _ask(self, request: dict[str, object]) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


def serve() -> None:
    """Start and wait, one request after the other."""
    for name in _IMPORTED:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        process = os.fork()
        if process == 0:
            _be_client(request["start"], request["output"])
        print(process, flush=True)


def _be_client(arguments: list[str], output: str) -> None:
    from kci.cli import main

    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
