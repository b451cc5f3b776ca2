"""The JSON Schema of build.toml: checked in, right, and as strict as the reader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

import mutations
from conftest import ROOT, many
from kci.cli import kci
from kci.cli.schema import SCHEMAS
from kci.config.discovery import settings_schema
from kci.config.reader import parse_kernel
from kci.config.schema import build_schema, schema_text
from kci.config.values import KERNEL_NAME_PATTERN
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError

CHECKED_IN = ROOT / "docs" / "schemas" / "build.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(build_schema())
GOOD = (
    '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "x"\nbackends = ["cuda"]\n'
    "[torch]\n"
)


@pytest.mark.parametrize("schema", [build_schema, settings_schema])
def test_descriptions_carry_no_indentation_of_the_source(
    schema: Callable[[], dict[str, Any]],
) -> None:
    """Python 3.13 strips it from docstrings and 3.11 does not: the same file has to come out of
    both.
    """
    assert "\\n  " not in json.dumps(schema())


def test_the_schema_checked_in_is_the_one_of_the_types() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == schema_text(build_schema()), (
        "run `kci schema > docs/schemas/build.schema.json`"
    )


def test_it_is_a_schema_that_describes_every_key() -> None:
    assert build_schema()["$defs"]["KernelName"]["pattern"] == KERNEL_NAME_PATTERN
    tables = {name: part for name, part in build_schema()["$defs"].items() if "properties" in part}
    assert len(tables) >= 13
    for name, table in tables.items():
        assert "description" in table, name
        for key, schema in table["properties"].items():
            assert {"description", "$ref", "const"} & schema.keys() or key == "backend", (name, key)


def beyond_a_schema(found: Diagnostic) -> bool:
    """What a schema cannot say, or says more loosely than the reader."""
    message = found.message
    return (
        found.rule == "KCI105"  # a key of edition 5 without `edition`
        or "not a float" in message  # JSON Schema takes 1.0 for an integer
        or any(text in message for text in ("git URL", "too large", "has the scheme"))
        or (found.rule == "KCI104" and ".version" in message)
        or "expected a version" in message  # white space that only one of the two knows
        or (
            found.rule == "KCI104" and "general.name" in message
        )  # `$` matches before a final newline in Python
    )


def test_schema_and_reader_have_the_same_verdict() -> None:
    verdicts = {True: 0, False: 0}
    for raw in mutations.corpus(many(720), many(120)):
        found: tuple[Diagnostic, ...] = ()
        accepted = True
        try:
            diagnostics = parse_kernel(raw).diagnostics
            accepted = all(
                one.rule != "KCI111" for one in diagnostics
            )  # kci reads the kebab spelling, too
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
        elif (
            accepted and not valid
        ):  # a URL that browsers put up with, such as one with a tab in its scheme
            general = {
                key: part
                for key, part in data["general"].items()
                if key not in ("upstream", "source")
            }
            assert VALIDATOR.is_valid({**data, "general": general}), raw.decode()
    assert min(verdicts.values()) > many(100)


def test_an_editor_s_own_validator_agrees(tmp_path: Path) -> None:
    taplo = shutil.which("taplo", path=Path(sys.executable).parent)
    if taplo is None:
        pytest.skip("taplo (PyPI) is not installed")
    files = sorted(ROOT.glob("examples/*/build.toml"))
    files += [
        path for path in sorted(mutations.DATA.glob("*.toml")) if not path.stem.startswith("v3")
    ]
    command = [taplo, "check", "--schema", CHECKED_IN.as_uri()]
    subprocess.run([*command, *files], cwd=tmp_path, check=True)
    wrong = tmp_path / "build.toml"
    wrong.write_text(GOOD.replace("[torch]", "[torch]\nsrcs = []"))
    refused = subprocess.run(
        [*command, wrong], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert "'srcs' was unexpected" in refused.stderr


@pytest.mark.parametrize("what", SCHEMAS)
def test_the_command_prints_each_schema(what: str) -> None:
    schema = json.loads(CliRunner().invoke(kci, ["schema", what]).output)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema == build_schema()) is (what == "build.toml")


def test_the_command_prints_the_one_of_build_toml_unless_told_otherwise() -> None:
    assert CliRunner().invoke(kci, ["schema"]).output == schema_text(build_schema())
    assert CliRunner().invoke(kci, ["schema", "nope"]).exit_code == 2
