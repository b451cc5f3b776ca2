"""`kci schema` for what kci writes: what it prints is held to the schema that it gives out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from cli.runner import kci
from conftest import ROOT


def validator(what: str) -> Any:
    schema = json.loads(kci("schema", what).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("options", [(), ("--tier", "pr"), ("--backend", "cpu")])
def test_a_plan_is_what_its_schema_says(options: tuple[str, ...]) -> None:
    plan = json.loads(kci("plan", ROOT / "examples", "--format", "json", *options).stdout)
    check = validator("plan")
    check.validate(plan)
    assert set(check.schema["properties"]) >= set(plan)
    del plan["kernels"]
    assert not check.is_valid(plan)


def test_a_manifest_is_what_its_schema_says(tmp_path: Path) -> None:
    kernel = shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=shutil.ignore_patterns("build"))
    assert kci("run", kernel, "--cache", tmp_path / "cache").code == 0
    manifest = msgspec.json.decode((kernel / "build" / "kci-manifest.json").read_bytes())
    check = validator("manifest")
    check.validate(manifest)
    assert set(check.schema["properties"]) == set(manifest)
    manifest["present"][0]["digest"] = 1
    assert not check.is_valid(manifest)
