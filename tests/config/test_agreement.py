"""kci, its JSON Schema and the reference's own reader accept and refuse the same files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner

import mutations
import outside_tools
from conftest import ROOT, many
from kci.cli import kci
from kci.cli.schema import SCHEMAS
from kci.config.document import parse_document
from kci.config.model import Build
from kci.config.reader import is_version_3, parse_kernel
from kci.config.schema import build_schema, schema_text
from kci.config.type_errors import explain
from kci.config.values import KERNEL_NAME_PATTERN
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


CHECKED_IN = ROOT / "docs" / "schemas" / "build.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(build_schema())


def test_the_schema_checked_in_is_the_one_of_the_types_and_describes_every_key() -> None:
    schema = build_schema()
    assert CHECKED_IN.read_text(encoding="utf-8") == schema_text(schema), (
        "run `kci schema > docs/schemas/build.schema.json`"
    )
    assert schema["$defs"]["KernelName"]["pattern"] == KERNEL_NAME_PATTERN
    tables = {name: part for name, part in schema["$defs"].items() if "properties" in part}
    assert len(tables) >= 13
    for name, table in tables.items():
        assert "description" in table, name
        for key, own in table["properties"].items():
            assert {"description", "$ref", "const"} & own.keys() or key == "backend", (name, key)


def beyond_a_schema(found: Diagnostic) -> bool:
    """What a schema cannot say, or says more loosely than the reader."""
    message = found.message
    return (
        found.rule == "KCI105"  # a key of edition 5 without `edition`
        or "not a float" in message  # JSON Schema takes 1.0 for an integer
        or any(text in message for text in ("git URL", "too large", "has the scheme"))
        or (found.rule == "KCI104" and ".version" in message)
        or "expected a version" in message  # white space that only one of the two knows
        # `$` matches before a final newline in Python
        or (found.rule == "KCI104" and "general.name" in message)
    )


def test_schema_and_reader_have_the_same_verdict() -> None:
    verdicts = {True: 0, False: 0}
    for raw in mutations.corpus(many(720), many(120)):
        found: tuple[Diagnostic, ...] = ()
        accepted = True
        try:
            diagnostics = parse_kernel(raw).diagnostics
            # kci reads the kebab spelling, too
            accepted = all(one.rule != "KCI111" for one in diagnostics)
        except FindingsError as error:
            found, accepted = error.diagnostics, False
        try:
            data = tomllib.loads(raw.decode().removeprefix("\ufeff"))
        except ValueError:
            continue
        valid = VALIDATOR.is_valid(data)
        verdicts[valid] += 1
        if valid and not accepted:
            assert all(map(beyond_a_schema, found)), (raw.decode(), found)
        elif accepted and not valid:
            # a URL that browsers put up with, such as one with a tab in its scheme
            urls = ("upstream", "source")
            rest = {key: part for key, part in data["general"].items() if key not in urls}
            assert VALIDATOR.is_valid({**data, "general": rest}), raw.decode()
    assert min(verdicts.values()) > many(100)


def test_an_editor_s_own_validator_agrees(tmp_path: Path) -> None:
    taplo = shutil.which("taplo", path=Path(sys.executable).parent)
    if taplo is None:
        pytest.skip("taplo (PyPI) is not installed")
    files = sorted(ROOT.glob("examples/*/build.toml"))
    seeds = sorted(mutations.DATA.glob("*.toml"))
    files += [path for path in seeds if not path.stem.startswith("v3")]
    command = [taplo, "check", "--schema", CHECKED_IN.as_uri()]
    subprocess.run([*command, *files], cwd=tmp_path, check=True)
    wrong = tmp_path / "build.toml"
    wrong.write_text(f"{BASE}[torch]\nsrcs = []\n")
    refused = subprocess.run(
        [*command, wrong], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert "'srcs' was unexpected" in refused.stderr


def test_the_command_prints_each_schema() -> None:
    for what in SCHEMAS:
        schema = json.loads(CliRunner().invoke(kci, ["schema", what]).output)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert (schema == build_schema()) is (what == "build.toml")
    assert CliRunner().invoke(kci, ["schema"]).output == schema_text(build_schema())
    assert CliRunner().invoke(kci, ["schema", "nope"]).exit_code == 2
