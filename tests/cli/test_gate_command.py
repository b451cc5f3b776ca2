"""A run's jobs as commands: legs that leave why they failed, merges and tests that leave records,
and the gate.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from act.test_workflow import add_kernel, break_package
from cli.runner import Result, ended, kci

VARIANTS = ("torch-cpu", "torch-cuda")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return add_kernel(tmp_path, "some-kernel")


def planned(kernel: Path, *more: str | Path) -> Path:
    folder = kernel.parent / "records"
    folder.mkdir(exist_ok=True)
    said = ended(kci("plan", kernel, "--format", "json", "--allow-empty", *more), 0)
    (folder / "kci-plan.json").write_text(said)
    return folder / "kci-plan.json"


def built(kernel: Path, *names: str) -> list[Result]:
    out = kernel.parent / "artifacts"
    out.mkdir(exist_ok=True)
    words = ["--pack", out, "--output", kernel.parent / "built", "--failures", out]
    return [kci("build", kernel, "--variant", name, *words) for name in names]


def merged(kernel: Path) -> Result:
    records = kernel.parent / "records"
    words = ["--plan", records / "kci-plan.json", "--kernel", "some-kernel"]
    words += ["--record", records / "some-kernel/kci-record.json"]
    return kci("merge", kernel.parent / "artifacts", "--into", kernel.parent / "tree", *words)


def gate(kernel: Path, *more: str | Path, **environment: str) -> Result:
    return kci("gate", kernel.parent / "records", *more, **environment)


def record_of(kernel: Path) -> dict[str, Any]:
    place = kernel.parent / "records/some-kernel/kci-record.json"
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def test_all_is_there_and_the_next_plan_builds_only_what_changed(kernel: Path) -> None:
    planned(kernel)
    assert [done.code for done in built(kernel, *VARIANTS)] == [0, 0]
    assert merged(kernel).code == 0
    trees = kernel.parent / "kept/kci-trees.json"
    done = gate(kernel, "--trees", trees, "--junit", kernel.parent / "gate.xml", KCI_RUN="7")
    assert ended(done, 0) == "all that was planned is there: 2 variants of 1 kernel\n"
    assert ElementTree.parse(kernel.parent / "gate.xml").getroot().get("failures") == "0"
    judged = ("--kernel", "some-kernel", "--tree", kernel.parent / "tree")
    assert gate(kernel, *judged).code == 0
    other = gate(kernel, *judged[:-1], kernel.parent / "artifacts")
    assert "is not the tree that was judged" in other.stdout
    manifest = kernel.parent / "tree/kci-manifest.json"
    manifest.write_text(re.sub('"digest": "[0-9a-f]{4}', '"digest": "0000', manifest.read_text()))
    assert "is not the tree that was judged" in gate(kernel, *judged).stdout
    again = json.loads(planned(kernel, "--trees", trees).read_text())
    # The sources are in no repository, so no record says what was built from which: everything is
    # built.
    assert [item["name"] for item in again["kernels"]] == ["some-kernel"]


def test_a_variant_that_failed_is_listed_with_its_reason_and_its_command(kernel: Path) -> None:
    planned(kernel)
    assert built(kernel, "torch-cpu")[0].code == 0
    break_package(kernel)
    (failed,) = built(kernel, "torch-cuda")
    assert failed.code != 0
    assert merged(kernel).code == 1
    assert (record_of(kernel)["present"], record_of(kernel)["attempt"]) == (["torch-cpu"], 1)
    done = gate(kernel, "--junit", kernel.parent / "gate.xml")
    assert done.code == 1
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("some-kernel ")]
    assert "gone.py is a link to nothing" in row
    assert "kci build --variant=torch-cuda" in done.stdout
    (failure,) = ElementTree.parse(kernel.parent / "gate.xml").getroot().iter("failure")
    assert "gone.py is a link to nothing" in failure.get("message", "")
    assert gate(kernel, "--kernel", "some-kernel").code == 1
