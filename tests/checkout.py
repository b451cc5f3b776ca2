"""The files of this repository: what git knows of the checkout, or would add."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def checkout_files(*only: str) -> list[str]:
    """Their paths from the root, without those that are deleted; `only` are pathspecs of git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_checkout(into: Path, *only: str) -> Path:
    """A checkout without its history, or some of it."""
    for name in checkout_files(*only):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return into
