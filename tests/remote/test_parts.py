"""Part and link legs on engines: what is compiled once, what goes on after a leg has ended, and what moves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kci.tree.manifest import read_manifest
from kci.verify import verify
from remote.background import Client
from remote.split_kernel import CHOSEN, NAMES, VARIANT, SplitKernel, marks

pytestmark = [*marks, pytest.mark.slow]

LOCAL = 'type = "local"\npoll-seconds = 0.2\n'
OBJECTS = len(NAMES) + 1


@pytest.fixture
def split(tmp_path: Path) -> SplitKernel:
    return SplitKernel(tmp_path)


def require_good(split: SplitKernel) -> None:
    manifest = read_manifest(split.directory / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == [VARIANT]
    assert verify(split.directory / "build", ignore=["KCI721"]) == []


def test_parts_are_compiled_before_their_link_and_a_second_run_compiles_what_changed(split: SplitKernel) -> None:
    split.engines({"here": LOCAL})
    done = split.run("here")
    assert done.code == 0, done.stderr
    require_good(split)
    assert list(split.made().values()) == [1] * OBJECTS
    events = [(line["event"], len(line.get("legs", ()))) for line in split.journal()]
    assert [item for item in events if item[0] in ("submitted", "built", "ready")] == [
        ("submitted", 2), ("built", 1), ("built", 1), ("ready", 1), ("submitted", 1), ("built", 1),
    ]  # fmt: skip
    assert f"{OBJECTS} of {OBJECTS} objects are as they were" in done.stdout
    with (split.directory / "csrc/last.cpp").open("a") as source:
        source.write("int changed;\n")
    assert split.run("here").code == 0
    assert sorted(split.made().values()) == [1] * (OBJECTS - 1) + [2]


def test_a_leg_that_is_killed_goes_on_with_what_is_missing(split: SplitKernel) -> None:
    split.engines({"here": LOCAL})
    client = Client("run", str(split.directory), "--engine", "here", "--cache", str(split.cache), *CHOSEN)
    with client:
        client.wait_for(lambda: sum(split.made().values()) >= 3, "objects")
        groups = [int(path.read_text()) for path in (split.cache / "runs").glob("*/jobs/*/group")]
        for group in groups:
            os.killpg(group, signal.SIGKILL)
        done = client.end()
    assert done.code == 0, done.output
    require_good(split)
    assert "restart" in [line["event"] for line in split.journal()]
    assert sum(split.made().values()) <= OBJECTS + 2  # those in flight


def test_a_leg_that_ended_itself_is_started_again_with_its_objects(split: SplitKernel) -> None:
    """On machines that keep no cache: the objects come back with the result, and go out with the next attempt."""
    for number in (1, 2, 3):
        split.other_cache(f"machine-{number}")
    split.engines(
        {"here": LOCAL},
        script=f"""
            export KCI_CACHE="{split.place}/machine-$KCI_ATTEMPT/cache"
            if [ "$KCI_ATTEMPT" = 1 ] && [ "${{*#*--part=}}" != "$*" ]; then
                $kci "$@" &
                while [ ! -s "{split.notes}" ]; do sleep 0.1; done
                kill -TERM $!
                wait $!
                exit $?
            fi
        """,
    )
    done = split.run("here")
    assert done.code == 0, done.stderr
    require_good(split)
    events = [line["event"] for line in split.journal()]
    assert "continued" in events
    assert "restart" not in events
    assert sum(split.made().values()) <= OBJECTS + 2
