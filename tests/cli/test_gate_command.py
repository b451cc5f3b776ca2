"""A run's jobs as commands: legs that leave why they failed, merges and tests that leave records,
and the gate.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from act.test_workflow import add_kernel, break_package
from cli.runner import Result, ended, kci

BUILD = "build some-kernel --pack artifacts --output built --failures artifacts --variant"
RECORD = Path("records/some-kernel/kci-record.json")
MERGE = "merge artifacts --into tree --plan records/kci-plan.json --kernel some-kernel --record"
MANIFEST = Path("tree/kci-manifest.json")


@pytest.fixture
def kernel(here: Path) -> Path:
    made = add_kernel(here, "some-kernel")
    for folder in ("records", "artifacts"):
        Path(folder).mkdir()
    return made


def job(words: str, **environment: str) -> Result:
    return kci(*words.split(), **environment)


def planned(more: str = "") -> str:
    said = ended(job(f"plan some-kernel --format json --allow-empty{more}"), 0)
    Path("records/kci-plan.json").write_text(said)
    return said


@pytest.mark.usefixtures("kernel")
def test_all_is_there_and_the_next_plan_builds_only_what_changed() -> None:
    planned()
    assert [job(f"{BUILD} torch-{backend}").code for backend in ("cpu", "cuda")] == [0, 0]
    assert job(f"{MERGE} {RECORD}").code == 0
    done = job("gate records --trees kept/kci-trees.json --junit gate.xml", KCI_RUN="7")
    assert ended(done, 0) == "all that was planned is there: 2 variants of 1 kernel\n"
    assert ElementTree.parse("gate.xml").getroot().get("failures") == "0"
    judged = "gate records --kernel some-kernel --tree"
    ended(job(f"{judged} tree"), 0)
    MANIFEST.write_text(re.sub('"digest": "[0-9a-f]{4}', '"digest": "0000', MANIFEST.read_text()))
    for other in ("tree", "artifacts"):
        assert "is not the tree that was judged" in ended(job(f"{judged} {other}"), 1)
    # The sources are in no repository, so no record says what was built from which: everything is
    # built.
    again = json.loads(planned(" --trees kept/kci-trees.json"))
    assert [item["name"] for item in again["kernels"]] == ["some-kernel"]


def test_a_variant_that_failed_is_listed_with_its_reason_and_its_command(kernel: Path) -> None:
    planned()
    assert job(f"{BUILD} torch-cpu").code == 0
    break_package(kernel)
    assert job(f"{BUILD} torch-cuda").code != 0
    assert job(f"{MERGE} {RECORD}").code == 1
    record = json.loads(RECORD.read_text())
    assert (record["present"], record["attempt"]) == (["torch-cpu"], 1)
    said = ended(job("gate records --junit gate.xml"), 1)
    (row,) = [line for line in said.splitlines() if line.startswith("some-kernel ")]
    assert "gone.py is a link to nothing" in row
    assert "kci build --variant=torch-cuda" in said
    (failure,) = ElementTree.parse("gate.xml").getroot().iter("failure")
    assert "gone.py is a link to nothing" in failure.get("message", "")
    assert job("gate records --kernel some-kernel").code == 1
