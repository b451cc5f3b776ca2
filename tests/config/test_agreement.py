"""kci and the reference's own reader accept and refuse the same files, but for seven kinds of
difference.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import mutations
import outside_tools
from conftest import many
from kci.config.document import parse_document
from kci.config.model import Build
from kci.config.reader import is_version_3, parse_kernel
from kci.config.type_errors import explain
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.utils.shipped import to_type

KNOWN = {
    "version-parts": "kci reads `13` as 13.0; the reference wants exactly two parts",
    "kebab-noarch": "kci reads the spelling that the reference's documentation shows under "
    "[torch-noarch]",
    "upstream-list": "the reference's released reader takes one upstream only",
    "later-edition": "the reference's released reader does not know edition 6",
    "array-for-table": "the reference's library takes the values of a table without their keys",
    "table-for-name": "the same kind of accident",
    "older-framework": "both refuse; without an edition the reference calls a wrong framework a "
    "legacy file",
}
BASE = '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "x"\nbackends = ["cuda"]\n'
RARE = [
    BASE + '[torch-noarch]\ncuda-capabilities = ["9.0"]\n',
    BASE + '[torch-noarch]\nrocm-archs = ["gfx942"]\n',
    BASE + 'upstream = ["https://github.com/acme/a", "https://github.com/acme/b"]\n[torch]\n',
    BASE.replace("edition = 5", "edition = 6") + "[torch]\n",
    BASE + 'hub = ["acme/norm", "main"]\n[torch]\n',
    BASE + '[torch]\n[kernel.a]\nbackend = "cuda"\nsrc = []\ndepends = [{ torch = {} }]\n',
]
"""Files that show one of them and are rare among random changes."""


def ask_kci(text: bytes) -> tuple[str, Build | None, list[Diagnostic]]:
    """`accepts`, `version 3` or `refuses`."""
    try:
        kernel = parse_kernel(text)
    except FindingsError as error:
        found = list(error.diagnostics)
        old = any(one.rule == "KCI108" for one in found)
        return (
            ("version 3" if old and is_version_3(parse_document(text, "").data) else "refuses"),
            None,
            found,
        )
    return "accepts", kernel.build, list(kernel.diagnostics)


def explained(
    text: bytes, ours: str, build: Build | None, found: list[Diagnostic], theirs: str, said: str
) -> str | None:
    """Which of them a difference is."""
    if ours == "accepts" and any(one.rule == "KCI111" for one in found):
        return "kebab-noarch"
    if ours == "accepts" and any(one.rule == "KCI117" for one in found):
        return "later-edition"
    if ours != "refuses" and "Invalid type sequence. Expected a string" in said:
        return "upstream-list"
    if ours != "refuses" and ("components, expected 2" in said or (build and _odd_versions(build))):
        return "version-parts"
    if theirs != "refuses" and any("must be a table, not an array" in one.message for one in found):
        return "array-for-table"
    if theirs != "refuses" and any("must be a string, not a table" in one.message for one in found):
        return "table-for-name"
    if ours == "refuses" and theirs == "version 3":
        data = tomllib.loads(text.decode().removeprefix("\ufeff"))
        rest = {name: part for name, part in data.items() if name not in ("torch", "tvm-ffi")}
        return "older-framework" if is_version_3(rest) else None
    return None


def _odd_versions(build: Build) -> bool:
    return any(
        text.count(".") != 1 for text in re.findall(r"Version\('(.*?)'\)", repr(build.torch))
    )


@pytest.mark.slow
def test_every_file_is_read_as_the_reference_reads_it(tmp_path: Path) -> None:
    reference = outside_tools.reference()
    file = tmp_path / "build.toml"
    verdicts: Counter[str] = Counter()
    shown: set[str] = set()
    for text in [*mutations.corpus(2400, 500), *(rare.encode() for rare in RARE)]:
        file.write_bytes(text)
        said = ""
        try:
            reference.Build.open(tmp_path)
            theirs = "accepts"
        except ValueError as error:
            said = str(error)
            theirs = "version 3" if "unsupported legacy format" in said else "refuses"
        ours, build, found = ask_kci(text)
        verdicts[theirs] += 1
        if ours != theirs:
            row = explained(text, ours, build, found, theirs, said)
            details = "\n".join(one.message for one in found)
            assert row in KNOWN, (
                f"kci {ours}, reference {theirs}: {said}\n{details}\n"
                f"{text.decode('utf-8', 'replace')}"
            )
            shown.add(row)
    print(dict(verdicts))
    assert sum(verdicts.values()) >= 2000
    assert min(verdicts["accepts"], verdicts["version 3"]) >= 50, (
        "the corpus has become too poor to show agreement"
    )
    assert shown == KNOWN.keys(), "a difference that no file shows"


def test_explain_finds_a_problem_exactly_when_msgspec_refuses() -> None:
    refused = 0
    for text in mutations.corpus(many(1400), many(120)):
        try:
            document = parse_document(text, "build.toml")
        except FindingsError:
            continue
        problems = explain(document, document.data, Build)
        try:
            to_type(document.data, Build)
            accepted = True
        except msgspec.ValidationError:
            accepted = False
            refused += 1
        assert bool(problems) is not accepted, text.decode()
        for problem in problems:
            assert problem.line or problem.rule == "KCI102", (problem, text.decode())
            assert len(problem.message) < 500, problem
    assert refused > many(500)
