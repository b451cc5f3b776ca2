"""Says why a tag must not be released: it, the code and the changelog have to agree.

python bin/check_release.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FRAGMENTS = ROOT / ".changes"


def release_problems(tag: str, changelog: str, version: str, fragments: list[str]) -> list[str]:
    """Why a tag must not be released.

    Args:
        tag: such as `v0.2.0`.
        changelog: the text of CHANGELOG.md.
        version: the version in the code.
        fragments: the names of the changelog's fragments that are left.
    """
    problems = []
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, and the code says {version}")
    newest = re.search(r"^## (\S+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    if newest is None or newest[1] != version:
        problems.append(
            f"the newest entry of CHANGELOG.md is not about {version}: run `towncrier build`"
        )
    if fragments:
        problems.append(f"{fragments[0]} is in no entry of CHANGELOG.md: run `towncrier build`")
    return problems


def code_version() -> str:
    """The version in the code, read without importing it."""
    text = (ROOT / "src" / "kci" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return match[1] if match else ""


def main(tag: str) -> int:
    """Print the problems; 1 if there is one."""
    fragments = sorted(path.name for path in FRAGMENTS.glob("*.md"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    problems = release_problems(tag, changelog, code_version(), fragments)
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
