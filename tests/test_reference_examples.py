"""The example kernels of the reference: what their build.toml alone decides, held to
`reference_examples.toml`.

The sources are not here; `benchmarks/reference_examples.py` fetches them and holds the rest to the
table.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import conformance_cases
from cli.runner import kci
from conftest import add_package

TABLE = tomllib.loads(
    (Path(__file__).parent / "reference_examples.toml").read_text(encoding="utf-8")
)
EXAMPLES: dict[str, dict[str, Any]] = TABLE["example"]
EDITION = ("--catalog", TABLE["edition"])
TEXTS = {
    case.name.removeprefix("kernels/"): case
    for case in conformance_cases.cases()
    if case.name.startswith("kernels/")
}


def planned(place: Path) -> dict[str, Any]:
    """What `kci plan` says of a kernel: its exit code, and how many variants have a job and have
    none, by rule.
    """
    answer = kci("plan", place, *EDITION, "--format", "json")
    plan = json.loads(answer.stdout) if answer.stdout else {"legs": [], "left_out": []}
    left = Counter(item["rule"] for item in plan["left_out"])
    return {"exit": answer.code, "legs": len(plan["legs"]), "left-out": dict(sorted(left.items()))}


def test_every_example_is_in_the_table() -> None:
    assert EXAMPLES.keys() == TEXTS.keys()
    assert list(EXAMPLES) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_of_its_build_toml(name: str, tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(TEXTS[name].build)
    build = tomllib.loads(TEXTS[name].build)
    for table in (
        build.get("torch", {}),
        build.get("tvm-ffi", {}),
        *build.get("kernel", {}).values(),
    ):
        for source in table.get("src", ()):
            (tmp_path / source).parent.mkdir(exist_ok=True)
            (tmp_path / source).touch()
    assert planned(add_package(tmp_path)) == EXAMPLES[name]["plan"]
