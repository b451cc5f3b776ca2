"""What starting an action costs a job: processor seconds until kci's own code runs, with a warm
wheel cache.

    python benchmarks/action_start.py               fails above the bound
    python benchmarks/action_start.py --smallest    starts one action twice, no bound is judged

An action is `actions/run.sh` in a fresh checkout, of which nothing is compiled, and a fresh
RUNNER_TEMP; it ends when it finds that its inputs are missing. Beside it the same lock is installed
by uv alone and by pip alone, pip fetches uv as an action would on an image that has none, and
Python is started. Processor seconds, because a busy machine does not change them much.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "actions" / "requirements.txt"
BOUND = 2.5
"""Processor seconds that are allowed for the first action of a job."""
ROUNDS = 5
MISSING = "the input `variant` is missing"
"""How the action ends."""


def cpu_seconds(command: list[str], environment: dict[str, str], says: str = "") -> float:
    """The processor time of a command and everything that it starts; it ends well, or as one that
    says this.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if says not in done.stdout if says else done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(temp: Path, uv: str | None) -> tuple[float, float]:
    """The first and the second action of a job, with uv on the PATH or without it."""
    hidden = {str(Path(uv).parent)} if uv else set()
    path = [
        place
        for place in os.environ["PATH"].split(":")
        if place not in hidden and not (Path(place) / "uv").exists()
    ]
    path = [*hidden, *path] if uv else path
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {
        **kept,
        "PATH": ":".join(path),
        "RUNNER_TEMP": str(temp),
        "GITHUB_OUTPUT": str(temp / "output"),
    }
    environment |= {
        "KCI_PYTHON": sys.executable
    }  # the one of the job; looking for it costs some starts of Python
    shutil.rmtree(temp, ignore_errors=True)
    for part in ("actions", "src"):
        shutil.copytree(
            ROOT / part, temp / "checkout" / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    command = ["bash", str(temp / "checkout" / "actions" / "run.sh"), "build"]
    return cpu_seconds(command, environment, MISSING), cpu_seconds(command, environment, MISSING)


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smallest", action="store_true", help="start one action twice, no bound is judged"
    )
    smallest = parser.parse_args().smallest
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    taken: dict[str, list[float]] = {}
    if smallest:
        with tempfile.TemporaryDirectory() as name:
            first, later = start(Path(name) / "temp", uv)
        print(f"first action {first:.2f} CPU s, later action {later:.2f} CPU s")
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for turn in range(ROUNDS + 1):
            found: dict[str, float] = {
                "python -c pass": cpu_seconds([sys.executable, "-c", "pass"], dict(os.environ))
            }
            found["first action, pip"], found["later action"] = start(place / "temp", None)
            if uv:
                found["first action, uv"], _ = start(place / "temp", uv)
                cpu_seconds(
                    [sys.executable, "-m", "venv", "--clear", "--without-pip", str(place / "env")],
                    dict(os.environ),
                )
                python = ["--python", str(place / "env" / "bin" / "python")]
                command = [
                    uv,
                    "pip",
                    "install",
                    *python,
                    "--require-hashes",
                    "--no-deps",
                    "--requirement",
                    str(LOCK),
                ]
                found["uv pip install of the lock"] = cpu_seconds(command, dict(os.environ))
                pip = [
                    sys.executable,
                    "-I",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-compile",
                    "--no-deps",
                ]
                asked = [
                    *pip,
                    "--require-hashes",
                    "--requirement",
                    str(LOCK),
                    "--target",
                    str(place / "by-pip"),
                ]
                shutil.rmtree(place / "by-pip", ignore_errors=True)
                found["pip install of the lock"] = cpu_seconds(asked, dict(os.environ))
                shutil.rmtree(place / "uv", ignore_errors=True)
                asked = [*pip, "uv", "--target", str(place / "uv")]
                found["pip install of uv"] = cpu_seconds(asked, dict(os.environ))
            for what, seconds in found.items() if turn else ():  # the first round fills the caches
                taken.setdefault(what, []).append(seconds)
    for what, seconds in taken.items():
        print(f"{what:<28} {statistics.median(seconds):5.2f} CPU s  (best {min(seconds):.2f})")
    if uv:
        with_uv = [
            sum(pair)
            for pair in zip(
                taken["pip install of uv"], taken["uv pip install of the lock"], strict=True
            )
        ]
        ratios = [
            ours / pip for ours, pip in zip(with_uv, taken["pip install of the lock"], strict=True)
        ]
        print(
            f"fetching uv and installing with it takes {statistics.median(ratios):.2f} of what "
            "pip alone takes"
        )
    else:
        print("uv is not installed, and so not measured")
    worst = max(
        statistics.median(seconds) for what, seconds in taken.items() if what.startswith("first")
    )
    if worst > BOUND:
        sys.exit(f"the first action of a job takes {worst:.2f} CPU s; the bound is {BOUND}")


if __name__ == "__main__":
    main()
