"""Writes actions/requirements.txt: what the actions install, every file of it by its hash. Needs uv.

python bin/lock_actions.py              after a change of the dependencies in pyproject.toml; keeps what is locked
python bin/lock_actions.py --upgrade    takes the newest of everything, before a release
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "actions" / "requirements.txt"
HEAD = """\
# What the actions install beside kci itself, for every system and every Python that kci runs on.
# Written by bin/lock_actions.py from the dependencies in pyproject.toml. Do not edit.
# dependencies: {digest}
"""


def digest(pyproject: str) -> str:
    """What the lock was made from, in short: the dependencies and the oldest Python."""
    project = tomllib.loads(pyproject)["project"]
    wanted = "\n".join([*sorted(project["dependencies"]), project["requires-python"]])
    return hashlib.sha256(wanted.encode()).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    """Write the lock."""
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
    command += ["--quiet", "--python-version", oldest, "--only-binary", ":all:", "--output-file", str(LOCK), *arguments]
    subprocess.run(command, cwd=ROOT, check=True)
    LOCK.write_text(HEAD.format(digest=digest(text)) + LOCK.read_text(encoding="utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
