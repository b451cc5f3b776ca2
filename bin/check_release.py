"""Holds CHANGELOG.md to its form, and a release to both: the version in the code, the newest entry and the tag agree.

python bin/check_release.py          the changelog alone
python bin/check_release.py v0.2.0   and whether this tag may be released
"""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits")
"""Those of Keep a Changelog, in its order, and what a version cannot do yet."""

HEADING = re.compile(r"## (\d+\.\d+\.\d+) - (unreleased|\d{4}-\d\d-\d\d)")


def problems(text: str, version: str) -> list[str]:
    """What is wrong with a changelog, each with its line number.

    Args:
        text: the changelog.
        version: the version in the code, which the newest entry has to be about.
    """
    found: list[str] = []
    entries: list[tuple[str, str]] = []
    section = ""
    lines = text.splitlines()
    if lines[:1] != ["# Changelog"]:
        found.append("1: the first line is `# Changelog`")
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            section = ""
            match = HEADING.fullmatch(line)
            if not match:
                found.append(f"{number}: an entry is headed `## 1.2.3 - 2026-01-31`, or `unreleased` for the date")
                continue
            entries.append((match[1], match[2]))
            found += [f"{number}: {problem}" for problem in _order(entries)]
        elif line.startswith("### "):
            name = line.removeprefix("### ")
            if name not in SECTIONS:
                found.append(f"{number}: `{name}` is none of {', '.join(SECTIONS)}")
            elif section in SECTIONS and SECTIONS.index(name) <= SECTIONS.index(section):
                found.append(f"{number}: `{name}` comes before `{section}`")
            section = name
        elif line.startswith("- "):
            if entries and not section:
                found.append(f"{number}: a line stands in a section, such as `### Added`")
            if not line[2].isupper() and not line.startswith(("- `", "- kci", "- build.toml")):
                found.append(f"{number}: a line begins like a sentence")
        goes_on = number < len(lines) and lines[number].startswith("  ")
        if entries and line and not line.startswith("#") and not goes_on and not line.endswith("."):
            found.append(f"{number}: a line ends with a full stop")
    if not entries or entries[0][0] != version:
        found.append(f"the newest entry is not about {version}, the version in src/kci/version.py")
    return found


def _order(entries: list[tuple[str, str]]) -> list[str]:
    """What is wrong with the last entry, given those above it."""
    found = []
    version, day = entries[-1]
    if day == "unreleased" and len(entries) > 1:
        found.append("only the newest entry may be unreleased")
    if day != "unreleased":
        try:
            date.fromisoformat(day)
        except ValueError:
            found.append(f"{day} is no day")
    if len(entries) > 1:
        newer, newer_day = entries[-2]
        if _parts(version) >= _parts(newer):
            found.append(f"{version} stands below {newer}, which is not newer")
        if newer_day != "unreleased" and day > newer_day:
            found.append(f"{version} is dated after {newer}")
    return found


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def code_version() -> str:
    """The version in the code, read without importing it."""
    text = (ROOT / "src" / "kci" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return match[1] if match else ""


def release_problems(tag: str, text: str, version: str) -> list[str]:
    """Why a tag must not be released."""
    found = problems(text, version)
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and the code says {version}")
    if f"## {version} - unreleased" in text.splitlines():
        found.append(f"the entry of {version} in CHANGELOG.md has no date yet")
    return found


def main(arguments: list[str]) -> int:
    """Print what is wrong; 1 if something is."""
    text, version = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), code_version()
    found = release_problems(arguments[0], text, version) if arguments else problems(text, version)
    sys.stdout.writelines(f"CHANGELOG.md:{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
