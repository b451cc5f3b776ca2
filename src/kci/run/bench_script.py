"""Runs a kernel's benchmarks in the Python that has its torch, without kci: `python bench_script.py REQUEST ANSWER`.

Each round has a fresh process for each side, which loads its build with the real loader and does what it is told. The
blocks of calls of two sides alternate, so that whatever else the machine does slows both alike.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_clock = time.perf_counter_ns  # before a benchmark can put another one there
_LONGEST = 2**22
_MOST_TEXT = 2000
_WARM_SECONDS = 1


class _EndedError(Exception):
    """The process of a side has ended, or said something else than an answer."""


class _Side:
    """The process that has loaded one side's build, for one round."""

    def __init__(self, request: str, number: int) -> None:
        command = [sys.executable, __file__, request, str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *words: object) -> Any:
        """The answer to a request; without words, what the process says first."""
        assert self.process.stdin is not None  # noqa: S101
        assert self.process.stdout is not None  # noqa: S101
        try:
            if words:
                self.process.stdin.write(json.dumps(words).encode() + b"\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline(_LONGEST)
        except OSError:
            line = b""
        if not line:
            raise _EndedError(f"the benchmarks ended their process, with exit code {self.process.wait()}")
        try:
            return json.loads(line)  # noqa: TID251  - kci is not here
        except (ValueError, RecursionError):
            raise _EndedError("the process of the benchmarks gave no readable answer") from None

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream and stream.close()
        self.process.wait()


def drive(request_file: str) -> dict[str, Any]:
    """Run all rounds; what was measured, and an error if that is not all."""
    request = _read(request_file)
    live: list[_Side] = []
    late = threading.Event()

    def give_up() -> None:
        late.set()
        for side in live:
            side.process.kill()

    answer: dict[str, Any] = {"workloads": {}, "commits": [], "error": ""}
    timer = threading.Timer(request["limit"], give_up)
    timer.daemon = True
    timer.start()
    name = ""
    try:
        for number in range(request["rounds"]):
            live[:] = [_Side(request_file, side) for side in range(len(request["sides"]))]
            if late.is_set():
                give_up()
            first = [side.ask() for side in live]
            answer["commits"] = [said.get("commit", "") for said in first]
            name = ""
            if problem := next((said["error"] for said in first if said["error"]), "") or _unfit(first[0], request):
                answer["error"] = problem
                return answer
            for name in request["only"] or first[0]["names"]:
                answer["workloads"].setdefault(name, []).append(_round(live, name, number, request))
            for side in live:
                side.end()
    except _EndedError as error:
        limit = f"they did not end within {request['limit']} seconds"
        answer["error"] = (limit if late.is_set() else str(error)) + (f", in {name}" if name else "")
    finally:
        timer.cancel()
        for side in live:
            side.end()
    return answer


def _unfit(said: dict[str, Any], request: dict[str, Any]) -> str:
    names = said["names"]
    if not names:
        return "there is no class of kernels.benchmark.Benchmark with a method benchmark_NAME in benchmarks/"
    return f"{len(names)} workloads are more than {request['most']}" if len(names) > request["most"] else ""


def _round(sides: list[_Side], name: str, number: int, request: dict[str, Any]) -> dict[str, Any]:
    """A workload in one round: what the first call took on each side, and blocks of later calls, side by side."""
    order = list(range(len(sides)))[:: -1 if number % 2 else 1]
    setups = {side: sides[side].ask("setup", name, number == 0) for side in order}
    good = [side for side in order if not setups[side]["error"]]
    blocks: list[dict[int, list[int]]] = []
    errors = {side: said["error"] for side, said in setups.items() if said["error"]}
    end = _clock() + request["seconds"] * 10**9
    while good and 0 in good and len(blocks) * request["block"] < request["iterations"]:
        if len(blocks) > 1 and _clock() > end:
            break
        turn = good[:: -1 if len(blocks) % 2 else 1]
        said = {side: sides[side].ask("block", name, request["block"]) for side in turn}
        errors |= {side: each["error"] for side, each in said.items() if each["error"]}
        if errors.keys() & said.keys():
            break
        blocks.append({side: each["times"] for side, each in said.items()})
    return {
        "cold": {side: said["cold"] for side, said in setups.items() if not said["error"]},
        "blocks": blocks,
        "errors": errors,
        "verified": setups[0].get("verified"),
        "reference": setups[0].get("reference"),
    }


# --- the process of a side --------------------------------------------------------------------------------------------


def serve(request: dict[str, Any], number: int) -> None:
    """Load a side's build, and do as the lines on stdin say. What benchmarks print goes to stderr."""
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    side = request["sides"][number]
    try:
        import torch
        from kernels import get_local_kernel

        kernel = get_local_kernel(pathlib.Path(side["tree"]), backend=side["backend"])
        found = _workloads(pathlib.Path(side["scripts"]))
    except BaseException as error:
        _tell(told, {"names": [], "error": _told(error)})
        return
    _tell(told, {"names": sorted(found), "commit": kernel.__name__.rpartition("_")[2], "error": ""})
    instance: Any = None
    for line in asked:
        what, name, value = json.loads(line)  # noqa: TID251  - kci is not here
        benchmark, method = found.get(name, (None, ""))
        try:
            if benchmark is None:
                raise LookupError(f"there is no {name}")
            if what == "setup":
                instance = None  # its memory goes before the next takes any
                instance = _instance(torch, benchmark, method, kernel, side["device"])
                _tell(told, {"error": "", **_prepare(torch, instance, method, request["warmup"], verify=value)})
            else:
                call = _timed(torch, getattr(instance, method), side["device"])
                call()  # the other side has had the caches
                _tell(told, {"error": "", "times": [call() for _ in range(value)]})
        except BaseException as error:
            _tell(told, {"error": _told(error)})


def _workloads(folder: pathlib.Path) -> dict[str, tuple[type, str]]:
    """The classes of the scripts, and the methods that are workloads: `Class.name`, as the reference calls them."""
    from kernels.benchmark import Benchmark

    found: dict[str, tuple[type, str]] = {}
    for script in sorted(folder.glob("benchmark*.py")):
        spec = importlib.util.spec_from_file_location("benchmark_module", script)
        assert spec is not None  # noqa: S101  - a file that ends with .py has one
        assert spec.loader is not None  # noqa: S101
        module = importlib.util.module_from_spec(spec)
        sys.modules["benchmark_module"] = module
        spec.loader.exec_module(module)
        own = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, Benchmark)]
        for item in own:
            if item.__module__ == "benchmark_module":
                methods = [
                    name for name in dir(item) if name.startswith("benchmark_") and callable(getattr(item, name))
                ]
                found |= {f"{item.__name__}.{name.removeprefix('benchmark_')}": (item, name) for name in methods}
    return found


def _instance(torch: Any, benchmark: Any, method: str, kernel: object, device: str) -> Any:
    made = benchmark()
    made.kernel, made.device = kernel, device
    if made.seed is not None:
        torch.manual_seed(made.seed)  # of every device
        random.seed(made.seed)
    own = getattr(made, method.replace("benchmark_", "setup_", 1), None)
    (own or made.setup)()
    return made


def _prepare(torch: Any, instance: Any, method: str, warmup: int, *, verify: bool) -> dict[str, Any]:
    """Time the first call, compare what it made, and go on until it is warm."""
    call = _timed(torch, getattr(instance, method), instance.device)
    said: dict[str, Any] = {"cold": call()}
    check = getattr(instance, method.replace("benchmark_", "verify_", 1), None)
    if verify and check is not None:
        expected = check()
        said["verified"] = bool(torch.allclose(instance.out, expected, atol=1e-2))
        if not said["verified"]:
            raise RuntimeError("its numbers are not those of its verify_ method")
        said["reference"] = _timed(torch, check, instance.device)()
    end = _clock() + _WARM_SECONDS * 10**9
    for _ in range(warmup):
        call()
        if _clock() > end:
            break
    return said


def _timed(torch: Any, call: Callable[[], object], device: str) -> Callable[[], int]:
    """What calls, waits for the device, and gives the time in nanoseconds."""
    place = getattr(torch, device, None) if device != "cpu" else None
    wait = getattr(place, "synchronize", None)

    def once() -> int:
        if wait is not None:
            wait()
        start = _clock()
        call()
        if wait is not None:
            wait()
        return max(1, _clock() - start)

    return once


def _tell(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.flush()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MOST_TEXT]


def _read(path: str) -> Any:
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))  # noqa: TID251  - kci is not here


def main(request: str, answer: str) -> None:
    """Drive where `answer` is a file to write, else be the side of that number."""
    if answer.isdecimal():
        serve(_read(request), int(answer))
    else:
        pathlib.Path(answer).write_text(json.dumps(drive(request)), encoding="utf-8")


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are not the benchmarks'
    main(*sys.argv[1:])
