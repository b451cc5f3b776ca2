"""Puts the commit of a release into the packages: `kci render --pin sha` names kci's actions by it.

python bin/release_data.py COMMIT

A commit cannot hold its own id, so the release workflow runs this before it builds, and the file is
never committed.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from check_release import ROOT, code_version

PLACE = ROOT / "src" / "kci" / "render" / "data" / "release.toml"


def text(commit: str, version: str, day: str) -> str:
    """The file.

    Raises:
        SystemExit: the commit is not a full one.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        sys.exit(f"{commit[:60]!r} is not a full commit id")
    head = f'as-of = {day}\nsource = "the release workflow"\n'
    return (
        f'# What this kci was released from.\n{head}\ncommit = "{commit}"\nversion = "{version}"\n'
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    PLACE.write_text(
        text(sys.argv[1], code_version(), datetime.now(UTC).date().isoformat()), encoding="utf-8"
    )
