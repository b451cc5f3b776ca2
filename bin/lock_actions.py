"""Writes the locks of actions/: what the actions install, every file of it by its hash. Needs uv.

`requirements.txt` is for all of them; `requirements-publish.txt` has what publishing needs besides.

python bin/lock_actions.py after a change of the dependencies in pyproject.toml; keeps what is
locked python bin/lock_actions.py --upgrade takes the newest of everything, before a release
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "actions" / "requirements.txt"
HEAD = """\
# What the actions install beside kci itself, for every system and every Python that kci runs on.
# Written by bin/lock_actions.py from the dependencies in pyproject.toml. Do not edit.
# dependencies: {digest}
"""
MORE_HEAD = """\
# What {what} installs besides requirements.txt. Optional dependencies of kci: {extras}.
# Written by bin/lock_actions.py. Do not edit.
# dependencies: {digest}
"""
LOCKS: dict[str, tuple[str, ...]] = {
    "requirements.txt": (),
    "requirements-publish.txt": ("hf", "sign"),
}
"""The locks, and the optional dependencies that each is for."""
WHAT = {"requirements-publish.txt": "the publish action"}


def dependencies(pyproject: str, extras: Sequence[str] = ()) -> list[str]:
    """What a lock has to have, as pyproject.toml says it."""
    project = tomllib.loads(pyproject)["project"]
    return sorted(
        [
            *project["dependencies"],
            *(one for name in extras for one in project["optional-dependencies"][name]),
        ]
    )


def digest(pyproject: str, extras: Sequence[str] = ()) -> str:
    """What a lock was made from, in short: the dependencies and the oldest Python."""
    wanted = [
        *dependencies(pyproject, extras),
        tomllib.loads(pyproject)["project"]["requires-python"],
    ]
    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]


def blocks(lock: str) -> dict[str, str]:
    """The entries of a lock by package: a name with its version, and the hashes below it."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if not line.startswith((" ", "#")) and line.strip():
            name = line.partition("==")[0]
        if name and not line.startswith("#"):
            found[name] = found.get(name, "") + line
    return found


def main(arguments: list[str]) -> int:
    """Write the locks."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = tomllib.loads(text)["project"]["requires-python"].removeprefix(">=")
    command = [
        uv,
        "pip",
        "compile",
        "pyproject.toml",
        "--universal",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
    ]
    command += [
        "--quiet",
        "--python-version",
        oldest,
        "--only-binary",
        ":all:",
        "--output-file",
        str(LOCK),
        *arguments,
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    base = LOCK.read_text(encoding="utf-8")
    for name, what in WHAT.items():
        extras, lock = LOCKS[name], LOCK.with_name(name)
        more = [word for extra in extras for word in ("--extra", extra)]
        here = [str(lock) if word == str(LOCK) else word for word in command]
        subprocess.run([*here, *more, "--constraint", str(LOCK)], cwd=ROOT, check=True)
        added = blocks(lock.read_text(encoding="utf-8"))
        for package in blocks(base):
            added.pop(package, None)
        head = MORE_HEAD.format(what=what, extras=" and ".join(extras), digest=digest(text, extras))
        lock.write_text(
            head + "".join(added[package] for package in sorted(added)), encoding="utf-8"
        )
    LOCK.write_text(HEAD.format(digest=digest(text)) + base, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
