"""The names that nobody holds before the first release stand in one place:
`kci.version.REPOSITORY`.
"""

from __future__ import annotations

import re

import pytest

from checkout import checkout_files
from conftest import ROOT
from kci.version import HOME, REPOSITORY
from kci.workflows.rendered_files import OWN, shipped_pins

CANNOT_READ_IT = {
    ".github/ISSUE_TEMPLATE/config.yml", "SECURITY.md", "mkdocs.yml", "pyproject.toml",
    "docs/schemas/build.schema.json", "docs/schemas/kci.schema.json",
    "docs/schemas/schemastore.json",
}  # fmt: skip
"""Data and pages that spell the address; `kci schema` writes the schemas."""
AN_ADDRESS = re.compile(
    rf"(?:github|githubusercontent)\.com/({re.escape(REPOSITORY)}|kci/[\w-]+)\b"
)


def tracked(*endings: str) -> dict[str, str]:
    names = (name for name in checkout_files() if name.endswith(endings))
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def test_the_address_is_spelled_only_where_it_cannot_be_read() -> None:
    texts = tracked(".py", ".toml", ".md", ".json", ".yml", ".yaml", ".j2", ".cff")
    found = {name: {*AN_ADDRESS.findall(text)} for name, text in texts.items()}
    spelled = {name: its for name, its in found.items() if its and not name.startswith("tests/")}
    assert spelled == {name: {REPOSITORY} for name in CANNOT_READ_IT}


def test_no_other_line_of_the_code_names_the_repository() -> None:
    literal = re.compile(rf"""["']{re.escape(REPOSITORY)}[/"'@]""")
    found = [
        f"{name}:{number}"
        for name, text in tracked(".py", ".toml").items()
        if name.startswith(("src/", "bin/", "actions/"))
        for number, line in enumerate(text.splitlines(), 1)
        if literal.search(line)
        and not line.startswith(('"""', f'OWN = "{OWN}"', f'REPOSITORY = "{REPOSITORY}"'))
    ]
    assert found == []


def test_pages_use_the_actions_of_the_repository() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        used = set(re.findall(r"uses: ([\w-]+/[\w-]+)(?:/[\w-]+)?@v\d+\b(?! *#)", text))
        own = {name for name in used if name.endswith("/build") or name.startswith("kci/")}
        assert own <= {REPOSITORY}, page


def test_what_is_rendered_and_signed_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.workflows.rendered_files.REPOSITORY", "acme/kernels-ci")
    assert shipped_pins()[OWN].repository == "acme/kernels-ci"
    assert HOME.endswith(f"/{REPOSITORY}")
