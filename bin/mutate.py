"""Break the code on purpose and see the tests fail: `python bin/mutate.py [WORD...]`, all mutations or those with a word.

The mutations are in tests/code_mutations.toml. Each is made in a copy of this checkout; a mutation that leaves its tests
green has survived, and the exit code is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(words: list[str]) -> int:
    """Make each mutation and run its tests."""
    text = (ROOT / "tests" / "code_mutations.toml").read_text(encoding="utf-8")
    survived = 0
    for mutation in tomllib.loads(text)["mutation"]:
        if words and not any(word in mutation["what"] for word in words):
            continue
        verdict = tried(mutation)
        survived += verdict != "killed"
        print(f"{verdict}: {mutation['what']}", flush=True)
    return 1 if survived else 0


def tried(mutation: dict[str, str]) -> str:
    """What became of one mutation."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        # Tests copy what git lists.
        subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
        file = copy / "src" / "kci" / mutation["file"]
        source = file.read_text(encoding="utf-8")
        if source.count(mutation["old"]) != 1:
            return "not there any more"
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *mutation["tests"].split()]

        def green() -> bool:
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
            return done.returncode == 0

        if not green():
            return "its tests fail without it"
        file.write_text(source.replace(mutation["old"], mutation["new"]), encoding="utf-8")
        return "SURVIVED" if green() else "killed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
